/* The collectives that a step made, held against its plan: the same step on engine dry, as the same rank. A gradient
 * that is right may have come by a wrong way: twice the bytes, another bucket, an operation more. */
#ifndef CHECK_CALLS_H
#define CHECK_CALLS_H
#include "comm/call.h"
#include "mesh/group.h"
#include "train/run.h"

/* Calls of one kind: of one operation on one dtype over one group. */
typedef struct ad_calls_kind {
  ad_collective_op op;
  ad_dtype dtype;
  ad_axes axes;
  ad_group_shape shape;
  int64_t times;
  uint64_t bytes; /* of this rank's inputs and outputs */
} ad_calls_kind;

typedef struct ad_calls {
  ad_calls_kind *kinds;
  size_t count, capacity;
  const ad_comm *comm; /* whose calls are counted */
  ad_status status;    /* AD_MEMORY if a kind is missing */
} ad_calls;

/* Adds every collective of a float dtype over several ranks from now on, until it is stopped or the seams are lifted.
 */
void ad_calls_watch(ad_calls *calls, const ad_comm *comm);
void ad_calls_stop(void);
void ad_calls_release(ad_calls *calls);
/* Those of this step of a run like this, on engine dry. */
ad_status ad_calls_plan(const ad_run *run, int64_t step, ad_calls *out) AD_CHECKED;
enum { AD_CALLS_TEXT = 256 };
/* 1 where these are no more and no fewer. Bytes are compared but for those of experts' rows, which routing decides;
 * exchanges over groups in which the plan routes none (keys on a ring, what crosses a bridge) are left out.
 * Otherwise `text` says the first kind that differs: "all_reduce of bf16 over dp_shard: 3 with 1,024 bytes, planned 2
 * with 512". */
int ad_calls_equal(const ad_calls *made, const ad_calls *planned, char *text, size_t size);

/* 1 where every parameter's gradient is reduced under the contract that the program gave it. Otherwise `text` says of
 * the first that is not what it is and what it should be. */
int ad_calls_keep_contracts(const ad_run *run, char *text, size_t size);

struct ad_prover;
/* Around a step of a proof, by all ranks: where one made other calls than planned, the proof says so on the first. One
 * that overflows and is skipped has calls of its own. */
ad_status ad_calls_begin(struct ad_prover *prover, int64_t step) AD_CHECKED;
ad_status ad_calls_end(struct ad_prover *prover) AD_CHECKED;

#endif
