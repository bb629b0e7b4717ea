/* Regions, their blocks, and choices of classes: how the kinds of ranks are found (explained in rank_kinds.c). Only
 * rank_kinds.c and nodes.c include this. */
#ifndef PLAN_REGIONS_H
#define PLAN_REGIONS_H
#include "plan/rank_kinds.h"
#include "plan/spans.h"

enum { BLOCKS_MAX = AD_AXIS_COUNT, CHOICES_MAX = 1 << 20 };

/* Neighbouring axes that all meshes of a region have in common. */
typedef struct block {
  int64_t stride; /* distance in ranks between neighbouring positions */
  ad_positions positions;
  int64_t *first, *count; /* for each class: its first position, and the number of its positions */
} block;

/* A range of ranks with the same meshes. */
typedef struct region {
  int64_t first, size;
  const ad_mesh **meshes;
  size_t mesh_count;
  block blocks[BLOCKS_MAX]; /* the slowest block first */
  int block_count;
  size_t choices, first_choice; /* the number of choices, and the index of the region's first choice among those of
                                 * all regions */
} region;

/* A choice of one class in each block of a region: a set of ranks with parts of the same sizes. */
typedef struct choice {
  int64_t first, ranks;
  uint64_t key;
  /* the choice's index among all choices, and the index of its kind */
  size_t number, kind;
} choice;

struct ad_kinds {
  const ad_held *values;
  size_t value_count;
  int64_t ranks, ranks_per_node;
  region *regions;
  size_t region_count;
  choice *choices; /* sorted by number */
  size_t choice_count;
  /* the kinds of ranks */
  ad_rank_kind *list;
  size_t count;
};

/* Sets class[i] to the class of block i in choice `number` of the region. The class of the fastest block changes
 * fastest. */
void ad_choice_classes(const region *r, size_t number, int64_t class[BLOCKS_MAX]);

#endif
