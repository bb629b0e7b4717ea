/* The one way from a law to a collective: every transition of law 2, on whatever array, is executed by these two
 * functions. Laws 2 and 6 are checked there, where bytes move. */
#ifndef ARRAY_TRANSIT_H
#define ARRAY_TRANSIT_H
#include "addend/array.h"
#include "base/internal.h"

/* Rows of one member of a group that are neighbours in memory. */
typedef struct ad_row_run {
  size_t member, rows;
} ad_row_run;

/* In what runs rows stand, one after another; NULL: one run for each member, in the order of the group. Between two
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
  int adds;                               /* reduce_scatter: into what stands at `out`, which then must be the
                                             accumulate dtype, unscaled and of the result's layout (law 6) */
  int past_caches;                        /* a hint, see comm/hint.h */
  const size_t *send_rows, *receive_rows; /* all_to_all V->V: for and from each member of the group */
  ad_row_order sent, received;            /* how these rows stand in `in` and in `out` */
  const char *site;                       /* of the caller; NULL allowed */
  const char *what;                       /* for people: what is moved; NULL: on a tape, where the site says it */
  const char *const *names;               /* of a packed array's values, one each; NULL: none */
  int ordinal;                            /* of a transition on a tape: its number there */
  int backward;                           /* of a transition on a tape: 1 in the backward pass */
} ad_transit;

/* `out` is as ad_array_after describes it and has memory. */
AD_INTERNAL ad_status ad_transit_run(ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                     ad_array *out) AD_CHECKED;
/* Starts it and returns; only moves of bytes whose parts are contiguous: all_reduce, and reduce_scatter or all_gather
 * along dimension 0. Keeps nothing of the transit, and of the arrays only their memory. */
AD_INTERNAL ad_status ad_transit_post(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out,
                                      ad_request *request) AD_CHECKED;

/* 1 of all_reduce, reduce_scatter, all_gather and all_to_all; which collective each of them is. */
static inline int ad_move_moves_bytes(ad_move move) {
  return move != AD_MOVE_CONVERT && move != AD_MOVE_ONCE && move != AD_MOVE_DECLARE;
}
AD_INTERNAL ad_collective_op ad_move_op(ad_move move);

/* What passes the seam AD_SEAM_TRANSIT. */
typedef struct ad_transit_passing {
  ad_comm *comm;
  const ad_transit *transit;
  const ad_array *in;
  ad_array *out;
  ad_request *request; /* NULL: it runs to its end */
  int handled;         /* 1: it was executed at the seam, with this outcome */
  ad_status status;
} ad_transit_passing;

/* exchange.c: all_to_all V->V. `after` checks and describes the result, data NULL. Over one member `in` and `out` may
 * be the same memory. */
AD_INTERNAL ad_status ad_exchange_after(const ad_comm *comm, const ad_transit *transit, const ad_array *in,
                                        ad_array *out) AD_CHECKED;
ad_status ad_exchange_run(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) AD_CHECKED;

#endif
