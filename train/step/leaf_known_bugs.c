/* The known bugs of runs with train.leaves, around the sums of leaves. */
#include <math.h>
#include "base/exact.h"
#include "step/known_bugs.h"

/* The bug: a rank computes its first leaf again in place of its second, which no rank computes. */
static void repeat_leaf(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  size_t *leaf = passing;
  if (!scene->passed) scene->passed = (int)*leaf + 1;
  size_t first = (size_t)scene->passed - 1;
  if (*leaf != first && scene->microbatch < 0) scene->microbatch = (int64_t)*leaf;
  if (*leaf == first || scene->microbatch != (int64_t)*leaf) return;
  *leaf = first;
  scene->fired = 1;
}

/* The bug: each rank rounds the sum of its own squares before the sums of all ranks are added, so that the norm depends
 * on the sharding. */
static void round_squares(void *context, void *passing) {
  ad_exact *squares = passing;
  double rounded = ad_exact_value(squares);
  if (!isfinite(rounded)) return;
  *squares = (ad_exact){0};
  ad_exact_add(squares, rounded);
  ((ad_known_bug_scene *)context)->fired = 1;
}

static const ad_known_bug bugs[] = {
    {.name = "leaf-twice",
     .words = "ranks run their first leaf twice, and their second not at all",
     .needs = AD_NEED_TOKENS | AD_NEED_TWO_LEAVES,
     .of_bits = 1,
     .at = {{AD_INJECT_PHASE, repeat_leaf}}},
    {.name = "norm-by-shard",
     .words = "each rank's share of the norm is rounded before ranks sum",
     .needs = AD_NEED_TOKENS,
     .of_bits = 1,
     .no_effect = "no bit of the norm or of an update changes: no gradient is sharded, or the roundings cancel",
     .at = {{AD_INJECT_SQUARES, round_squares}}},
};

const ad_known_bug *ad_train_leaf_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
