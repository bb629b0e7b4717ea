/* Values that travel between modules on different ranks, and their gradients, which travel back. Transfers are
 * posted where the run's table of actions says SEND and RECV, in the same order on all ranks, and waited for where
 * they are used. */
#ifndef TRAIN_TRANSFERS_H
#define TRAIN_TRANSFERS_H
#include "program/program.h"

typedef struct ad_run ad_run;

/* One direction of a transfer, with a place for each microbatch that is in flight or in use at the same time.
 * Microbatch m has place m % count. */
typedef struct ad_transfer_way {
  size_t count;
  ad_array *arrived;    /* [count]: the arrays that arrive on this rank; NULL on the sending side */
  ad_array *travels;    /* [count]: copies in the communication dtype; data NULL: the value itself is sent */
  ad_request *requests; /* [count]: the transfer that was posted last for this place */
  int64_t *posted;      /* [count]: the microbatch of that transfer; -1: none in this pass */
} ad_transfer_way;

/* A transfer of the program between disjoint ranks, one of which is this rank. */
typedef struct ad_value_transfer {
  const ad_transfer_spec *spec;
  size_t value;            /* the value's number in the program */
  ad_transfer_way ways[2]; /* forward, backward */
  size_t bytes;            /* bytes of all its buffers on this rank */
} ad_value_transfer;

/* Argument of functions at the injection point AD_INJECT_COMM_DTYPE: the dtype in which a value is about to travel. */
typedef struct ad_comm_dtype_passing {
  ad_dtype dtype; /* dtype in which the value travels */
  int backward;   /* 1: a gradient on its way back; 0: a value */
} ad_comm_dtype_passing;

ad_status ad_transfers_create(ad_run *run) AD_CHECKED;
void ad_transfers_destroy(ad_run *run);
void ad_transfers_begin_pass(ad_run *run);    /* forgets which microbatches were posted */
size_t ad_transfers_bytes(const ad_run *run); /* bytes of all transfers' buffers on this rank */
/* Called before phase `p` runs microbatch m on this rank: m takes over the tape of an earlier microbatch, so this waits
 * until the values on the tape are sent. */
ad_status ad_transfers_wait_space(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Called when a phase asks for a value: waits until the value of microbatch m has arrived. Earlier computation hides
 * the wait. AD_INVALID, here and below: the transfer was not posted, or is posted a second time. */
ad_status ad_transfers_wait_value(ad_run *run, size_t value, size_t m) AD_CHECKED;
/* Posts the values that phase `from` gives and phase `to` is the first of its module to need, on either side. */
ad_status ad_transfers_post_values(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Called before the backward of phase `p` on this rank: waits for the gradients of the values that the phase gave. */
ad_status ad_transfers_wait_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Posts the gradients of the values that phase `from` gave to phase `to`, after the backward of `to`. Backward runs
 * phases in reverse order, so the first phase that needs a value is the last to add to its gradient. */
ad_status ad_transfers_post_gradients(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Adds the gradient that came back for a value of microbatch m to the sum of those of this rank's phases. */
ad_status ad_transfers_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) AD_CHECKED;
/* Waits until all posted transfers are complete. */
ad_status ad_transfers_settle(ad_run *run) AD_CHECKED;

/* Argument at the injection points AD_INJECT_ARRIVED (a value came) and AD_INJECT_RETURNED (a gradient came). */
typedef struct ad_transfer_passing {
  const ad_run *run;
  const ad_value_transfer *transfer;
  size_t microbatch;
  const ad_array *array;  /* the value or gradient that came */
  const ad_tensor *given; /* if a gradient came: the value whose gradient it is */
} ad_transfer_passing;

#endif
