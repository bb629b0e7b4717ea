/* Tests the known bugs of leaves in steps of every kind: each changes bits where it should, within rounding unless a
 * gradient is lost. One bug is tested by itself, because it only has an effect if a gradient has elements that are -0.
 * That the check for bits kills the bugs is tested with that check. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "addend/reduce.h"
#include "aligned.h"
#include "array/array.h"
#include "ranks.h"
#include "reduce/known_bugs.h"
#include "reduce/reducer.h"

enum { PARAMS = 3, ROWS = 5, COLUMNS = 4, NUMEL = ROWS * COLUMNS, ROUNDS_MAX = 8, STEPS = 2 };

static const ad_known_bug *bug_called(const char *name) {
  size_t count;
  const ad_known_bug *bugs = ad_reduce_leaf_bugs(&count);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(bugs[i].name, name)) return &bugs[i];
  fail_msg("no bug is called %s", name);
  return NULL;
}

/* What a bug does to the last step's sums. */
typedef enum outcome { NOTHING, OTHER_BITS, OTHER_VALUES, REFUSED } outcome;

typedef struct trial {
  const char *mesh, *sync; /* sync: for each round, the first letter of its sync: n (none), s (shard) or a (all) */
  int64_t leaves;
  int shards, reuses; /* shards 1: storage is sharded over dp_shard; 2: not that of parameter 0 */
  struct {
    const char *bug;
    outcome expected;
  } bugs[5];
  int at; /* which of these bugs is tried; -1: none */
} trial;

static void create(ad_comm *comm, const trial *t, const ad_mesh *mesh, ad_reducer **out) {
  static const char *const names[PARAMS] = {"a", "b", "c"};
  ad_sync sync[ROUNDS_MAX];
  ad_param_spec specs[PARAMS];
  ad_leaf_options leaves = {t->leaves, (int64_t)strlen(t->sync), sync};
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves, .reuses = t->reuses, .bucket_bytes = 1};
  for (int64_t r = 0; r < leaves.rounds; r++)
    sync[r] = t->sync[r] == 'n' ? AD_SYNC_NONE : t->sync[r] == 's' ? AD_SYNC_SHARD : AD_SYNC_ALL;
  for (int p = 0; p < PARAMS; p++) {
    specs[p] = (ad_param_spec){
        .size = sizeof *specs, .name = names[p], .shape = {2, {ROWS, COLUMNS}}, .layout = ad_layout_all(mesh, AD_R)};
    specs[p].policy = (ad_precision_policy){AD_F32, AD_F32, 0, AD_F32, AD_F32};
    specs[p].storage = specs[p].layout;
    if (t->shards == 1 || (t->shards && p)) ad_layout_set(&specs[p].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  }
  CHECK_OK(ad_reducer_create(comm, specs, PARAMS, &options, out));
}

static ad_status run_round(ad_reducer *reducer, int64_t round, uint64_t step) {
  float values[NUMEL];
  int64_t leaf = ad_reducer_leaf(reducer, round);
  AD_TRY(ad_reducer_begin_leaf(reducer, reducer->leaves.deal.sync[round], leaf));
  for (size_t p = 0; leaf >= 0 && p < PARAMS; p++) {
    ad_array grad = ad_reducer_describe(reducer, p);
    for (size_t i = 0; i < NUMEL; i++)
      values[i] = (float)ldexp(ad_random_uniform(p, (uint64_t)leaf + 100 * step, i) + 0.5, (int)(i % 5));
    grad.data = values;
    AD_TRY(ad_reducer_add(reducer, p, &grad));
  }
  return ad_reducer_end_microbatch(reducer);
}

/* Takes the steps, with the trial's bug or none, and writes this rank's sums of the last one. */
static ad_status take_steps(ad_comm *comm, const trial *t, float *sums, int *fired) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  ad_known_bug_scene scene = {.rank = ad_comm_rank(comm)};
  ad_status status = AD_OK;
  CHECK_OK(ad_mesh_create(t->mesh, &mesh));
  create(comm, t, mesh, &reducer);
  if (t->at >= 0) ad_known_bug_inject(bug_called(t->bugs[t->at].bug), &scene);
  for (uint64_t step = 0; !status && step < STEPS; step++) {
    for (int64_t round = 0; !status && round < reducer->leaves.deal.rounds; round++)
      status = run_round(reducer, round, step);
    if (!status) status = ad_reducer_finish(reducer);
  }
  ad_injections_clear();
  for (size_t p = 0; !status && p < PARAMS; p++)
    memcpy(&sums[p * NUMEL], reducer->params[p].result.data, ad_array_bytes(&reducer->params[p].result));
  *fired = scene.fired;
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return status;
}

static outcome compare(const float *sums, const float *right) {
  outcome worst = NOTHING;
  for (int i = 0; i < PARAMS * NUMEL; i++) {
    if (sums[i] == right[i]) continue;
    outcome is = fabsf(sums[i] - right[i]) < 1e-5f * right[i] ? OTHER_BITS : OTHER_VALUES;
    if (is > worst) worst = is;
  }
  return worst;
}

/* Takes the steps without and with the bug, and compares the outcomes: the worst outcome on any rank must be the
 * expected one, and the bug must have taken effect on some rank. If a step is refused, all ranks get the error. */
static int try_bug(ad_comm *comm, void *context) {
  trial right = *(const trial *)context;
  const trial *t = context;
  static float sums[PARAMS * NUMEL], expected[PARAMS * NUMEL];
  int fired;
  right.at = -1;
  CHECK_OK(take_steps(comm, &right, expected, &fired));
  CHECK(!fired);
  ad_status status = take_steps(comm, t, sums, &fired);
  outcome wanted = t->bugs[t->at].expected;
  CHECK(fired || wanted != REFUSED);
  CHECK((status == AD_TYPE) == (wanted == REFUSED));
  if (wanted == REFUSED) return 0;
  CHECK_OK(status);
  int64_t found[2] = {compare(sums, expected), fired};
  ad_group all = ad_mesh_group(ad_comm_mesh(comm), AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective most = {.size = sizeof most, .op = AD_ALL_REDUCE, .group = all, .in = found, .out = found, .count = 2};
  most.dtype = AD_I64;
  most.reduction = AD_MAX;
  CHECK_OK(ad_comm_run(comm, &most));
  CHECK(found[0] == (int64_t)wanted && found[1]);
  return 0;
}

/* Nodes can be torn or exchanged only if a rank has three sums one after another, because only then a sum waits for its
 * sibling above another sum. In the last two trials the sum before a leaf is a sum over replicas, or is full on each
 * shard, so each of these ranks adds it again. */
static void known_bugs_change_bits_whatever_is_scattered(void **state) {
#define BUGS(running, torn)                                                                            \
  {                                                                                                    \
    {"leaf-into-running-sum", (running)}, {"leaves-one-by-one", (torn)}, {"leaves-exchanged", (torn)}, \
        {"leaf-lost", OTHER_VALUES}, {                                                                 \
      "leaves-of-step-before", REFUSED                                                                 \
    }                                                                                                  \
  }
  static const trial trials[] = {{"dp_replicate=2", "nnna", 8, 0, 0, BUGS(OTHER_BITS, OTHER_BITS), 0},
                                 {"dp_shard=2", "nnna", 8, 1, 0, BUGS(OTHER_BITS, OTHER_BITS), 0},
                                 {"dp_shard=2", "sssa", 8, 1, 1, BUGS(OTHER_BITS, OTHER_BITS), 0},
                                 {"dp_shard=3", "sssa", 12, 1, 1, BUGS(OTHER_BITS, OTHER_BITS), 0},
                                 {"dp_shard=2", "nsna", 8, 1, 0, BUGS(OTHER_BITS, NOTHING), 0},
                                 {"dp_replicate=2 dp_shard=2", "sssa", 16, 1, 1, BUGS(OTHER_BITS, OTHER_BITS), 0},
                                 {"dp_shard=2", "sssa", 8, 2, 1, BUGS(OTHER_VALUES, OTHER_BITS), 0},
                                 {"dp_replicate=2 dp_shard=2", "sasa", 16, 1, 1, BUGS(OTHER_VALUES, NOTHING), 0}};
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
    for (int bug = 0; bug < 5; bug++) {
      trial t = trials[i];
      t.at = bug;
      run_ranks(strchr(t.mesh, '3') ? 3 : strchr(t.mesh, ' ') ? 4 : 2, try_bug, &t);
    }
}

static void a_leaf_added_to_zeros_has_no_negative_zero(void **state) {
  float values[2 * 4] = {-0.0f, -0.0f};
  float *leaf = values + 4;
  const float given[4] = {-0.0f, 1.5f, -2.0f, 0.0f};
  ad_bucket bucket = {.stack = {.leaves = 4, .dtype = AD_F32, .numel = 4, .levels = 3}};
  ad_bucket_passing passing = {.bucket = &bucket};
  ad_known_bug_scene scene = {0};
  memcpy(leaf, given, sizeof given);
  bucket.sent.data = leaf;
  bug_called("leaf-added-to-zeros")->at[0].function(&scene, &passing);
  assert_true(scene.fired && leaf[0] == 0 && !signbit(leaf[0]));
  assert_memory_equal(leaf + 1, given + 1, sizeof given - sizeof *given);
  assert_true(signbit(values[0])); /* the sum of the earlier leaves is unchanged */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(known_bugs_change_bits_whatever_is_scattered),
                                     cmocka_unit_test(a_leaf_added_to_zeros_has_no_negative_zero)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
