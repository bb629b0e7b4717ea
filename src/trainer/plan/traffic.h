/* What a step's tapes bring from rank to rank, as it passes the seams while one process acts as a rank. */
#ifndef PLAN_TRAFFIC_H
#define PLAN_TRAFFIC_H
#include <jansson.h>
#include "array/transit.h"
#include "base/seams.h"

/* Transitions of a tape that are alike, or rings of attention. */
typedef struct ad_moved {
  const char *op; /* the move's name, or "ring" */
  ad_axes axes;
  const ad_mesh *mesh;
  ad_dtype dtype;
  size_t bytes; /* of what a group brings together */
  int backward;
  char site[96];
  int64_t times; /* in a step */
} ad_moved;

typedef struct ad_traffic {
  ad_moved *moved;
  size_t moved_count, moved_capacity;
  ad_status status;           /* AD_MEMORY: something is missing */
  ad_seam_slot transit, ring; /* that were at the seams before */
} ad_traffic;

/* From here to `end`, what passes on engine dry is listed. Meshes are borrowed from it. */
void ad_traffic_begin(ad_traffic *traffic);
void ad_traffic_end(ad_traffic *traffic);
void ad_traffic_release(ad_traffic *traffic);

/* Appends each to "activations" of the plan's document. */
void ad_traffic_list(const ad_traffic *traffic, size_t pool, json_t *to);

#endif
