/* Executes transitions: ad_transit_run and ad_transit_post execute every transition of law 2, on any array. Before any
 * bytes move they check law 2 (allowed transitions) and law 6 (like adds to like). */
#ifndef ARRAY_TRANSIT_H
#define ARRAY_TRANSIT_H
#include "addend/array.h"
#include "base/internal.h"

/* A run: rows from or for one member of a group, contiguous in memory. */
typedef struct ad_row_run {
  size_t member, rows;
} ad_row_run;

/* The order of rows in a buffer: one run after another. If `runs` is NULL, there is one run for each member, in the
 * order of the group. Between two members, the first run sent is the first run received, and so on. */
typedef struct ad_row_order {
  const ad_row_run *runs;
  size_t count;
} ad_row_order;

/* Returns run number i of this order. `rows` has the number of rows of each member. */
static inline ad_row_run ad_row_run_at(const ad_row_order *order, const size_t *rows, size_t i) {
  return order->runs ? order->runs[i] : (ad_row_run){i, rows[i]};
}
static inline size_t ad_row_runs(const ad_row_order *order, size_t members) {
  return order->runs ? order->count : members;
}

typedef struct ad_transit {
  ad_move move;
  ad_axes axes;
  ad_type to;
  /* for moves that sum: the dtype in which the sum is accumulated; 0: f64 for f64, f32 for other floats */
  ad_dtype accumulate;
  /* 1: a reduce_scatter adds to the contents of `out`, which must then have the accumulate dtype, scale 0 and the
   * result's layout (law 6, like adds to like) */
  int adds;
  /* for sums of leaves: which leaves the ranks sum (see ad_collective). The arrays then describe one value, and their
   * `data` have one such value for each node of the leaves. NULL: the arrays have one value each */
  const ad_leaf_ranges *ranges;
  int past_caches;                        /* 1: a hint to write past the caches, see comm/hint.h */
  const size_t *send_rows, *receive_rows; /* for all_to_all V->V: rows for and from each member of the group */
  ad_row_order sent, received;            /* order of the sent rows in `in`, and of the received rows in `out` */
  const char *site;                       /* the caller's line; NULL allowed */
  const char *what;         /* the moved value, for messages; NULL on a tape: there `site` names the value */
  const char *const *names; /* names of a packed array's values, one for each; NULL: none */
  int ordinal;              /* number of the transition on its tape */
  int backward;             /* 1: the transition belongs to a tape's backward pass */
} ad_transit;

/* Executes a transition until it is complete. `out` is an array as ad_array_after describes it, with memory. */
AD_INTERNAL ad_status ad_transit_run(ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                     ad_array *out) AD_CHECKED;
/* Bytes of scratch memory (comm/scratch.h) that ad_transit_run takes for this move from `in` to `out`, which have
 * different memory; their `data` is not used. For arrays that are not packed. */
size_t ad_transit_scratch_bytes(ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *out);
/* Starts a transition and returns. Only for moves whose blocks are contiguous in the arrays: all_reduce, and
 * reduce_scatter or all_gather along dimension 0. The transit and the arrays may be freed after the call, but the
 * memory at their `data` must stay valid until the request is complete. */
AD_INTERNAL ad_status ad_transit_post(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out,
                                      ad_request *request) AD_CHECKED;

/* ad_move_moves_bytes returns 1 for all_reduce, reduce_scatter, all_gather and all_to_all, else 0; ad_move_op returns
 * the collective of such a move. */
static inline int ad_move_moves_bytes(ad_move move) {
  return move != AD_MOVE_CONVERT && move != AD_MOVE_ONCE && move != AD_MOVE_DECLARE;
}
AD_INTERNAL ad_collective_op ad_move_op(ad_move move);

/* Argument of the injection point AD_INJECT_TRANSIT: a transition about to be executed. */
typedef struct ad_transit_passing {
  ad_comm *comm;
  const ad_transit *transit;
  const ad_array *in;
  ad_array *out;
  ad_request *request; /* NULL: the transition is executed until it is complete */
  int handled;         /* 1: the mutation executed the transition itself, with the outcome `status` */
  ad_status status;
} ad_transit_passing;

/* The two steps of all_to_all V->V (exchange.c): ad_exchange_after checks the call and describes the result with data
 * NULL; ad_exchange_run sends and receives the rows. If the group has one member, `in` and `out` may be the same
 * memory. */
AD_INTERNAL ad_status ad_exchange_after(const ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                        ad_array *out) AD_CHECKED;
ad_status ad_exchange_run(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) AD_CHECKED;

#endif
