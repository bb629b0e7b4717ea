/* Values on their way between modules that have ranks of their own. They are posted as soon as they are there, or as
 * there is room for them, and waited for where they are used. Every rank of either side posts in the same order:
 * microbatch after microbatch, values as phases go up, gradients as they come down. */
#ifndef TRAIN_CROSSING_H
#define TRAIN_CROSSING_H
#include "program/program.h"

typedef struct ad_run ad_run;

/* One of the program's, between disjoint ranks of which this is one. */
typedef struct ad_crossing {
  const ad_crossing_spec *spec;
  size_t value;
  ad_array *values;    /* on the destination what arrived, of each microbatch under way; NULL on the source */
  ad_array *travels;   /* the same on its way, on either side; data NULL where that is the value itself */
  ad_request *forward; /* of each microbatch under way */
  ad_array gradient;   /* on the source what came back, of one microbatch */
  ad_array gradient_travels;
  ad_request backward;
  size_t bytes; /* of all this memory */
} ad_crossing;

/* The seam AD_SEAM_WIRE. */
typedef struct ad_wire_passing {
  ad_dtype dtype; /* in which it travels */
  int backward;   /* a gradient */
} ad_wire_passing;

ad_status ad_crossings_create(ad_run *run) AD_CHECKED;
void ad_crossings_destroy(ad_run *run);
size_t ad_crossings_bytes(const ad_run *run); /* of memory for what arrives, and for what travels in another dtype */
/* Before phase `p` runs on this rank: what it gave or left in the microbatch whose memory it takes is gone. */
ad_status ad_crossings_wait_room(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* When a phase asks for it: the value of microbatch m is there. What the phase computes before hides the wait. */
ad_status ad_crossings_wait_value(ad_run *run, size_t value, size_t m) AD_CHECKED;
/* When phase `p` has run, here or elsewhere. */
ad_status ad_crossings_post_values(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Before phase `p` goes back on this rank: gradients of what it gave are there. */
ad_status ad_crossings_wait_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* When phase `p` has gone back, here or elsewhere. */
ad_status ad_crossings_post_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* What came back of a value of microbatch m, added to what phases of this rank left of it (ad_gradient_joins). */
ad_status ad_crossings_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) AD_CHECKED;
/* Nothing is on its way any more. */
ad_status ad_crossings_settle(ad_run *run) AD_CHECKED;

/* What passes the seams AD_SEAM_ARRIVED and AD_SEAM_RETURNED. */
typedef struct ad_crossing_passing {
  const ad_run *run;
  const ad_crossing *crossing;
  size_t microbatch;
  const ad_array *array;  /* what came */
  const ad_tensor *given; /* of a gradient: the value */
} ad_crossing_passing;

#endif
