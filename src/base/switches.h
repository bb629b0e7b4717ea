/* The switches that sabotage and tests flip: known mistakes, planted at the places where systems really make them. Off,
 * a switch costs the read of one byte. No code asks for a switch by name at run time except the one that sets it. */
#ifndef BASE_SWITCHES_H
#define BASE_SWITCHES_H
#include <stdint.h>
#include "addend/status.h"

/* The only list of switches: X(code, name, per_axis, catalogue, words). per_axis: it is planted on one mesh axis or
 * all. catalogue: the number by which `check --json` names the published mistake that it repeats; 0: none. words: for
 * people. */
#define AD_SWITCH_LIST(X)                                                                                      \
  X(AVERAGE, "average-instead-of-sum", 1, 9, "a gradient is averaged over an axis instead of summed")          \
  X(SKIP_REDUCTION, "skip-reduction", 1, 2, "a gradient is not reduced over an axis")                          \
  X(DOUBLE_REDUCTION, "double-reduction", 1, 7, "a gradient is reduced over an axis twice")                    \
  X(LOCAL_COUNT, "local-count", 0, 11, "the loss is divided by the local count of tokens")                     \
  X(MEAN_OF_MEANS, "mean-of-microbatch-means", 0, 16, "each microbatch is averaged by its own count")          \
  X(LAST_MICROBATCH, "last-microbatch-only", 0, 19, "the accumulation buffer is cleared on every microbatch")  \
  X(SHIFTED_SLICE, "shifted-slice", 0, 0, "one rank's slice of the batch is shifted by one")                   \
  X(PERTURBED_REPLICA, "perturbed-replica", 0, 0, "one replica of a parameter is changed")                     \
  X(FIRST_STEP, "first-step-unsynchronised", 0, 6, "the first step's gradients are not reduced")               \
  X(BUCKET_ORDER, "bucket-order", 0, 0, "two ranks launch buckets in different order")                         \
  X(BUCKET_SIZE, "bucket-size", 0, 30, "two ranks reduce buffers of different sizes")                          \
  X(OVERFLOW_PER_RANK, "overflow-per-rank", 0, 0, "a rank that sees an overflow skips the step alone")         \
  X(PARTIAL_AFTER, "partial-after-all-reduce", 0, 21, "earlier microbatches are added after the all-reduce")   \
  X(BOTH_FACTORS, "both-factors-when-one-runs", 0, 22, "the factor of two reductions is applied to one")       \
  X(FACTOR_WIDTH, "factor-wrong-width", 0, 23, "a factor is stored in one width and read in another")          \
  X(BUCKET_BY_RAW_DTYPE, "bucket-by-raw-dtype", 0, 24, "a gradient is summed in the dtype it was produced in") \
  X(NARROW_ACCUMULATE, "narrow-accumulate", 0, 25, "sums form in bf16 where more was promised")                \
  X(REUSED_EARLY, "bucket-reused-early", 0, 26, "a bucket is reused before its reduction has read it")         \
  X(REPLICA_IN_NORM, "replica-counted-in-norm", 0, 27, "every replica is counted in the global norm")          \
  X(ADD_TO_ITSELF, "add-to-itself-in-group-of-one", 0, 0, "in a group of one rank a sum is added to itself")   \
  X(PADDING_COUNTED, "padding-counted", 0, 0, "what pads uneven shards is counted")

typedef enum ad_switch {
#define AD_SWITCH_CODE(code, name, per_axis, catalogue, words) AD_SWITCH_##code,
  AD_SWITCH_LIST(AD_SWITCH_CODE)
#undef AD_SWITCH_CODE
      AD_SWITCH_COUNT
} ad_switch;

typedef struct ad_switch_record {
  const char *name, *words;
  int per_axis, catalogue;
} ad_switch_record;

extern uint8_t ad_switches[AD_SWITCH_COUNT]; /* 0: off */
extern char ad_switch_axis_name[16];         /* of the one per-axis switch that is on */
static inline int ad_switched(ad_switch which) { return __builtin_expect(ad_switches[which], 0); }
/* On, and planted on this axis. */
int ad_switched_on_axis(ad_switch which, const char *axis);
const ad_switch_record *ad_switch_at(ad_switch which);
/* "name" or "name:axis" turns this switch on and the others off; a per-axis switch without an axis is on for all of
 * them. NULL or "" turns all off. AD_INVALID names the known ones; nothing is then changed. Not while ranks run. */
ad_status ad_switch_set(const char *text) AD_CHECKED;

#endif
