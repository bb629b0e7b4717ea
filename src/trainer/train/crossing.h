/* Values on their way between modules that have ranks of their own. They are posted where the run's table says SEND and
 * RECV, which have one order on all ranks, and waited for where they are used. */
#ifndef TRAIN_CROSSING_H
#define TRAIN_CROSSING_H
#include "program/program.h"

typedef struct ad_run ad_run;

/* One direction of a crossing: the microbatches that are on their way or in use at once. Number m has place m % count.
 */
typedef struct ad_crossing_way {
  size_t count;
  ad_array *arrived; /* on the side where it arrives; NULL on the other */
  ad_array *travels; /* the same on its way, on either side; data NULL where that is what is sent or arrives itself */
  ad_request *requests; /* the transfer that was posted last */
  int64_t *posted;      /* of which microbatch that was; -1: none in this pass */
} ad_crossing_way;

/* One of the program's, between disjoint ranks of which this is one. */
typedef struct ad_crossing {
  const ad_crossing_spec *spec;
  size_t value;
  ad_crossing_way ways[2]; /* forward, backward */
  size_t bytes;            /* of all this memory */
} ad_crossing;

/* The seam AD_SEAM_WIRE. */
typedef struct ad_wire_passing {
  ad_dtype dtype; /* in which it travels */
  int backward;   /* a gradient */
} ad_wire_passing;

ad_status ad_crossings_create(ad_run *run) AD_CHECKED;
void ad_crossings_destroy(ad_run *run);
void ad_crossings_begin_pass(ad_run *run);    /* forgets which microbatches were posted */
size_t ad_crossings_bytes(const ad_run *run); /* of memory for what arrives, and for what travels in another dtype */
/* Before phase `p` runs on this rank: what it gave or left in the microbatch whose memory it takes is gone. */
ad_status ad_crossings_wait_room(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* When a phase asks for it: the value of microbatch m is there. What the phase computes before hides the wait. Here and
 * below AD_INVALID: it was not posted; posted a second time. */
ad_status ad_crossings_wait_value(ad_run *run, size_t value, size_t m) AD_CHECKED;
/* The values that phase `from` gives and phase `to` is the first of its module to need, on either side. */
ad_status ad_crossings_post_values(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Before phase `p` goes back on this rank: gradients of what it gave are there. */
ad_status ad_crossings_wait_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Their gradients, when phase `to` has gone back: then all that need the value have. */
ad_status ad_crossings_post_gradients(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
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
