/* The known bugs of runs with train.leaves, around the sums of leaves. */
#include <math.h>
#include "base/exact.h"
#include "step/known_bugs.h"

/* The bug: the ranks that have leaf 0 compute it again in place of leaf 1, which then runs nowhere. */
static void repeat_leaf(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  size_t *leaf = passing;
  if (*leaf == 0) scene->passed = 1;
  if (*leaf != 1 || !scene->passed) return;
  *leaf = 0;
  scene->fired = 1;
}

/* The bug: each rank rounds the sum of its own squares before ranks sum, so that the norm depends on the sharding. */
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
     .words = "leaf 0 runs twice, and leaf 1 on no rank",
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
