/* Records what a step's tapes move between ranks, at the injection points (base/injection.h), while one process acts as
 * a rank. */
#ifndef PLAN_TRAFFIC_H
#define PLAN_TRAFFIC_H
#include <jansson.h>
#include "array/transit.h"
#include "base/injection.h"

/* Identical transitions of a tape, or identical rings of attention, and how often they occur. */
typedef struct ad_moved {
  const char *op; /* the name of the collective or conversion, or "ring" */
  ad_axes axes;
  const ad_mesh *mesh;
  ad_dtype dtype;
  size_t bytes; /* bytes of all ranks of a group together */
  int backward;
  /* where the program made the transition */
  char site[96];
  int64_t times; /* how often the move occurs in a step */
} ad_moved;

/* Reductions that sum the gradients of leaves and are identical, and how often they occur. */
typedef struct ad_leaf_reduction {
  const char *op;
  ad_axes axes;
  ad_dtype dtype;
  /* how many sums of leaves are submitted in a call: by the rank with the most, and by all ranks of the group */
  int64_t most, all;
  size_t bytes;  /* bytes that the rank with the most sums submits, in all calls of a step together */
  int64_t times; /* number of calls in a step */
} ad_leaf_reduction;

/* The moves that were recorded so far. */
typedef struct ad_traffic {
  ad_leaf_reduction *reductions; /* reductions that sum leaves, in the group of the rank that this process acts as */
  size_t reduction_count;
  ad_moved *moved;
  size_t moved_count, moved_capacity;
  ad_status status;           /* AD_MEMORY if memory ran out and the list is incomplete */
  ad_injection transit, ring; /* the functions that were at the injection points before ad_traffic_begin */
} ad_traffic;

/* Records every collective and transfer of tapes on backend dry, and every reduction by leaves, until ad_traffic_end.
 * Borrows the meshes. */
void ad_traffic_begin(ad_traffic *traffic);
void ad_traffic_end(ad_traffic *traffic);
void ad_traffic_release(ad_traffic *traffic);

/* Appends each recorded move to "activations" of the plan's document. */
void ad_traffic_list(const ad_traffic *traffic, size_t pool, json_t *to);

#endif
