/* Compares a step's collectives with its plan, which is the same step of the same rank on backend dry. Even a right
 * gradient may have been made in a wrong way: with twice the bytes, in another bucket, by one more collective. */
#ifndef CHECK_CALLS_H
#define CHECK_CALLS_H
#include "comm/call.h"
#include "mesh/group.h"
#include "step/run.h"

/* Calls of one kind: one operation on one dtype over one group. */
typedef struct ad_calls_kind {
  ad_collective_op op;
  ad_dtype dtype;
  ad_axes axes;
  ad_group_shape shape;
  int64_t times;
  uint64_t bytes; /* bytes of this rank's inputs and outputs in these calls */
} ad_calls_kind;

typedef struct ad_calls {
  ad_calls_kind *kinds;
  size_t count, capacity;
  const ad_comm *comm; /* the comm whose calls are counted */
  ad_status status;    /* AD_MEMORY if a kind is missing */
} ad_calls;

/* From this call on, adds every collective of a float dtype over several ranks to `calls`, until ad_calls_stop or until
 * all injection points are cleared. */
void ad_calls_watch(ad_calls *calls, const ad_comm *comm);
void ad_calls_stop(void);
void ad_calls_release(ad_calls *calls);
/* Counts the collectives that step `step` of the run should make, by taking the step on backend dry. */
ad_status ad_calls_plan(const ad_run *run, int64_t step, ad_calls *out) AD_CHECKED;
enum { AD_CALLS_TEXT = 256 };
/* Returns 1 if `made` and `planned` have the same collectives. Bytes are compared, except those of exchanged rows of
 * experts, whose number the router decides. Exchanges over groups without an exchange in the plan (keys on a ring,
 * values on a bridge) are left out. Otherwise prints the first kind of call that differs to `text`: "all_reduce of bf16
 * over dp_shard: 3 calls with 1,024 bytes, but the plan has 2 calls with 512 bytes". */
int ad_calls_equal(const ad_calls *made, const ad_calls *planned, char *text, size_t size);

/* Returns 1 if every parameter's gradient is reduced under the precision policy that the program gave it. Otherwise
 * prints to `text` the first parameter with another policy, and both policies. */
int ad_calls_keep_policies(const ad_run *run, char *text, size_t size);

struct ad_checker;
/* Called before and after one step of a check, on all ranks: count the collectives of the step and compare them with
 * the plan's. If a rank made other calls than planned, the result of the check says so. A step that overflows and is
 * skipped is not compared, because it makes fewer calls. */
ad_status ad_calls_begin(struct ad_checker *checker, int64_t step) AD_CHECKED;
ad_status ad_calls_end(struct ad_checker *checker) AD_CHECKED;

#endif
