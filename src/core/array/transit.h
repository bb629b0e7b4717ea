/* Executing transitions. These two functions execute every transition of law 2, on whatever array, and check laws 2
 * and 6 before bytes move. */
#ifndef ARRAY_TRANSIT_H
#define ARRAY_TRANSIT_H
#include "addend/array.h"
#include "base/internal.h"

/* Rows that lie one after another in memory and go to, or come from, one member of a group. */
typedef struct ad_row_run {
  size_t member, rows;
} ad_row_run;

/* The order of rows in memory, as runs. `runs` NULL: one run for each member, in the order of the group. Between two
 * members the first run that is sent is the first that is received, and so on. */
typedef struct ad_row_order {
  const ad_row_run *runs;
  size_t count;
} ad_row_order;

/* Run number i of rows in this order; `rows`: of each member. */
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
  ad_dtype accumulate;                    /* of moves that sum; 0: f64 for f64, f32 for the other floats */
  int adds;                               /* 1: a reduce_scatter adds to the values of `out`, which must have the
                                             accumulate dtype, no scale and the result's layout (law 6) */
  int past_caches;                        /* 1: the result may be written past the caches; see comm/hint.h */
  const size_t *send_rows, *receive_rows; /* all_to_all V->V: rows for and from each member of the group */
  ad_row_order sent, received;            /* how these rows are ordered in `in` and in `out` */
  const char *site;                       /* the caller's call site, for messages; NULL allowed */
  const char *what;                       /* what is moved, in words; NULL on a tape, whose site says it */
  const char *const *names;               /* the name of each value of a packed array; NULL: they have none */
  int ordinal;                            /* on a tape: the number of the transition there */
  int backward;                           /* on a tape: 1 in the backward pass */
} ad_transit;

/* Runs a transition to its end. `out` is as ad_array_after describes it and has memory. */
AD_INTERNAL ad_status ad_transit_run(ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                     ad_array *out) AD_CHECKED;
/* Starts a transition and returns. Only for collectives whose blocks are contiguous: all_reduce, and reduce_scatter
 * or all_gather along dimension 0. Until the request is waited for, the arrays' memory must stay; `transit`, `in`
 * and `out` themselves need not. */
AD_INTERNAL ad_status ad_transit_post(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out,
                                      ad_request *request) AD_CHECKED;

/* Whether ranks communicate in this transition: all_reduce, reduce_scatter, all_gather and all_to_all. ad_move_op:
 * which collective these are. */
static inline int ad_move_moves_bytes(ad_move move) {
  return move != AD_MOVE_CONVERT && move != AD_MOVE_ONCE && move != AD_MOVE_DECLARE;
}
AD_INTERNAL ad_collective_op ad_move_op(ad_move move);

/* Passed to the seam AD_SEAM_TRANSIT. */
typedef struct ad_transit_passing {
  ad_comm *comm;
  const ad_transit *transit;
  const ad_array *in;
  ad_array *out;
  ad_request *request; /* NULL: the transition runs to its end */
  int handled;         /* 1: the transition was executed at the seam, and `status` is its outcome */
  ad_status status;
} ad_transit_passing;

/* exchange.c: all_to_all V->V. ad_exchange_after checks the exchange and describes its result, with data NULL. In a
 * group of one, `in` and `out` may be the same memory. */
AD_INTERNAL ad_status ad_exchange_after(const ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                        ad_array *out) AD_CHECKED;
ad_status ad_exchange_run(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) AD_CHECKED;

#endif
