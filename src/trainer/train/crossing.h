/* Values that travel between modules on different ranks, and their gradients, which travel back. Transfers are
 * posted where the run's table of actions says SEND and RECV, in the same order on all ranks, and waited for where
 * they are used. */
#ifndef TRAIN_CROSSING_H
#define TRAIN_CROSSING_H
#include "program/program.h"

typedef struct ad_run ad_run;

/* One direction of a crossing, with a place for each microbatch that is on its way or in use at once. Microbatch m has
 * place m % count. */
typedef struct ad_crossing_way {
  size_t count;
  ad_array *arrived;    /* what arrives on this rank; NULL on the sending side */
  ad_array *travels;    /* what travels, on either side; data NULL: the sent or arriving array itself travels, uncast */
  ad_request *requests; /* the transfer that was posted last */
  int64_t *posted;      /* the microbatch of that transfer; -1: none in this pass */
} ad_crossing_way;

/* A crossing of the program between disjoint ranks, one of which is this rank. */
typedef struct ad_crossing {
  const ad_crossing_spec *spec;
  size_t value;            /* the value's number in the program */
  ad_crossing_way ways[2]; /* forward, backward */
  size_t bytes;            /* of all its buffers on this rank */
} ad_crossing;

/* Passed to the seam AD_SEAM_WIRE. */
typedef struct ad_wire_passing {
  ad_dtype dtype; /* in which the value travels */
  int backward;   /* 1: it is a gradient on its way back */
} ad_wire_passing;

ad_status ad_crossings_create(ad_run *run) AD_CHECKED;
void ad_crossings_destroy(ad_run *run);
void ad_crossings_begin_pass(ad_run *run);    /* forgets which microbatches were posted */
size_t ad_crossings_bytes(const ad_run *run); /* of all buffers on this rank */
/* Before phase `p` runs microbatch m on this rank: waits until what it sent from the tape that it takes has been
 * sent. */
ad_status ad_crossings_wait_room(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Called when a phase asks for a value: waits until that of microbatch m has arrived. What the phase computed before
 * hides the wait. AD_INVALID, here and below: the transfer was not posted, or is posted a second time. */
ad_status ad_crossings_wait_value(ad_run *run, size_t value, size_t m) AD_CHECKED;
/* Posts the values that phase `from` gives and phase `to` is the first of its module to need, on either side. */
ad_status ad_crossings_post_values(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Before phase `p` goes back on this rank: waits for the gradients of the values that it gave. */
ad_status ad_crossings_wait_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Posts the gradients of these values, after phase `to` has gone back. Backward runs phases in reverse order, so the
 * first phase that needs a value is the last to add to its gradient. */
ad_status ad_crossings_post_gradients(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Adds the gradient that came back for a value of microbatch m to the sum of those that phases of this rank left. */
ad_status ad_crossings_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) AD_CHECKED;
/* Waits for all transfers. */
ad_status ad_crossings_settle(ad_run *run) AD_CHECKED;

/* Passed to the seams AD_SEAM_ARRIVED (a value came) and AD_SEAM_RETURNED (a gradient came). */
typedef struct ad_crossing_passing {
  const ad_run *run;
  const ad_crossing *crossing;
  size_t microbatch;
  const ad_array *array;  /* what came */
  const ad_tensor *given; /* if a gradient came: the value whose gradient it is */
} ad_crossing_passing;

#endif
