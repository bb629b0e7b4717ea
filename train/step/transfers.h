/* Values that are sent between modules on different ranks, and their gradients, which are sent back. Transfers are
 * posted where the run's table of actions has SEND and RECV, in the same order on all ranks, and are waited for where
 * they are used. */
#ifndef TRAIN_TRANSFERS_H
#define TRAIN_TRANSFERS_H
#include "program/program.h"

typedef struct ad_run ad_run;

/* One direction of a transfer, with a slot for each microbatch that is in flight or in use at the same time. Microbatch
 * m has slot m % count. */
typedef struct ad_transfer_way {
  size_t count;
  ad_array *arrived;    /* [count]: the arrays that this rank receives; NULL on the sending side */
  ad_array *travels;    /* [count]: copies in the communication dtype; data is NULL if the value itself is sent */
  ad_request *requests; /* [count]: the transfer that was posted last for this slot */
  int64_t *posted;      /* [count]: the microbatch of that transfer; -1 if there is none in this pass */
} ad_transfer_way;

/* A transfer of the program between disjoint ranks, of which this rank is one. */
typedef struct ad_value_transfer {
  const ad_transfer_spec *spec;
  size_t value;            /* the value's index in the program */
  ad_transfer_way ways[2]; /* forward and backward */
  size_t bytes;            /* the bytes of all buffers on this rank */
} ad_value_transfer;

/* The argument of functions at the injection point AD_INJECT_COMM_DTYPE: the dtype in which a value is about to be
 * sent. */
typedef struct ad_comm_dtype_passing {
  ad_dtype dtype; /* the dtype in which the value is sent */
  int backward;   /* 1: a gradient is sent back; 0: a value is sent */
} ad_comm_dtype_passing;

ad_status ad_transfers_create(ad_run *run) AD_CHECKED;
void ad_transfers_destroy(ad_run *run);
void ad_transfers_begin_pass(ad_run *run);    /* forgets which microbatches were posted */
size_t ad_transfers_bytes(const ad_run *run); /* returns the bytes of all transfers' buffers on this rank */
/* Waits until the values are sent that an earlier microbatch left on the tape of phase `p`. Called before phase `p`
 * runs microbatch m on this rank, which overwrites them. */
ad_status ad_transfers_wait_space(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Waits until the value of microbatch m has arrived. Called when a phase asks for a value, so that earlier computation
 * hides the wait. This function and those below return AD_INVALID if the transfer was not posted or is posted a second
 * time. */
ad_status ad_transfers_wait_value(ad_run *run, size_t value, size_t m) AD_CHECKED;
/* Posts, on the sending or the receiving side, the transfers of values that phase `from` gives and phase `to` needs, if
 * `to` is the first phase of its module that needs the value. */
ad_status ad_transfers_post_values(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Waits for the gradients of the values that phase `p` gave. Called before the backward of phase `p` on this rank. */
ad_status ad_transfers_wait_gradients(ad_run *run, size_t p, size_t m) AD_CHECKED;
/* Posts the gradients of the values that phase `from` gave to phase `to`. Called after the backward of `to`: backward
 * runs phases in reverse order, so the first phase that needs a value is the last that adds to its gradient. */
ad_status ad_transfers_post_gradients(ad_run *run, size_t from, size_t to, size_t m) AD_CHECKED;
/* Adds the gradient that other ranks sent back for a value of microbatch m to the sum of the gradients of this rank's
 * phases. */
ad_status ad_transfers_add_returned(const ad_run *run, size_t value, size_t m, ad_array *sum, int *arrived) AD_CHECKED;
/* Waits until all posted transfers are complete. */
ad_status ad_transfers_settle(ad_run *run) AD_CHECKED;

/* The argument of functions at the injection points AD_INJECT_ARRIVED (a value was received) and AD_INJECT_RETURNED (a
 * gradient was received). */
typedef struct ad_transfer_passing {
  const ad_run *run;
  const ad_value_transfer *transfer;
  size_t microbatch;
  const ad_array *array;  /* the value or the gradient that was received */
  const ad_tensor *given; /* if a gradient was received: the value to which it belongs */
} ad_transfer_passing;

#endif
