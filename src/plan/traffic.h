/* What a step's tapes and bridges bring from rank to rank, as it passes the seams while one process acts as a rank. */
#ifndef PLAN_TRAFFIC_H
#define PLAN_TRAFFIC_H
#include <jansson.h>
#include "array/transit.h"
#include "base/seams.h"
#include "bridge/bridge.h"
#include "addend/program.h"

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

/* A bridge, as batches of so many rows cross it. */
typedef struct ad_crossing {
  const ad_bridge *bridge;
  int64_t rows;
  size_t row_bytes, gradient_row_bytes;
  char site[96];
  int64_t times; /* forward, in a step */
} ad_crossing;

typedef struct ad_traffic {
  ad_moved *moved;
  size_t moved_count, moved_capacity;
  ad_crossing *crossings;
  size_t crossing_count, crossing_capacity;
  ad_status status;                   /* AD_MEMORY: something is missing */
  ad_seam_slot transit, ring, routes; /* that were at the seams before */
} ad_traffic;

/* From here to `end`, what passes on engine dry is listed. Meshes and bridges are borrowed from it. */
void ad_traffic_begin(ad_traffic *traffic);
void ad_traffic_end(ad_traffic *traffic);
void ad_traffic_release(ad_traffic *traffic);

/* "activations" and "bridges" of the plan's document. */
json_t *ad_traffic_activations(const ad_traffic *traffic);
json_t *ad_traffic_bridges(const ad_traffic *traffic, const ad_program *program);

#endif
