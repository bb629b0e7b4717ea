/* What kinds of ranks are found from: regions, their blocks, and choices of classes. Private to kinds.c and nodes.c. */
#ifndef PLAN_REGIONS_H
#define PLAN_REGIONS_H
#include "plan/rank_kinds.h"
#include "plan/spans.h"

enum { BLOCKS_MAX = AD_AXIS_COUNT, CHOICES_MAX = 1 << 20 };

typedef struct block {
  int64_t stride; /* ranks between neighbouring positions */
  ad_positions positions;
  int64_t *first, *count; /* of each class: its first position, and how many it has */
} block;

typedef struct region {
  int64_t first, size;
  const ad_mesh **meshes;
  size_t mesh_count;
  block blocks[BLOCKS_MAX]; /* slowest first */
  int block_count;
  size_t choices, first_choice; /* their number, and where they stand among those of all regions */
} region;

/* One class in each block of a region. */
typedef struct choice {
  int64_t first, ranks;
  uint64_t key;
  size_t number, kind;
} choice;

struct ad_kinds {
  const ad_held *values;
  size_t value_count;
  int64_t ranks, ranks_per_node;
  region *regions;
  size_t region_count;
  choice *choices; /* by number */
  size_t choice_count;
  ad_rank_kind *list;
  size_t count;
};

/* The classes of choice number `number`, which counts up with the class of the fastest block. */
void ad_choice_classes(const region *r, size_t number, int64_t class[BLOCKS_MAX]);

#endif
