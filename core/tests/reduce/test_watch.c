/* Tests what is seen of a reducer's sums of leaves: every leaf, every sum of two nodes, and what collectives leave, with
 * their values, beside mutations at the same injection points. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/reduce.h"
#include "array/array.h"
#include "base/injection.h"
#include "ranks.h"
#include "reduce/reducer.h"
#include "reduce/watch.h"

enum { LEAVES = 4, ROUNDS = 2, ROWS = 5, COLUMNS = 3, NUMEL = ROWS * COLUMNS, SEEN = 32 };

typedef struct seen {
  ad_watched_sum sums[SEEN];
  float first[SEEN];  // the first element that this rank has of each
  size_t count;
} seen;

/* Powers of two, so that the sum of any leaves says which they are. */
static float value_of(int64_t leaf) { return (float)(1 << leaf); }

static float sum_of(ad_node node) {
  float sum = 0;
  for (int64_t leaf = node.first; leaf < node.first + node.count; leaf++) sum += value_of(leaf);
  return sum;
}

static void keep(void *context, const ad_watched_sum *sum) {
  seen *all = context;
  CHECK(all->count < SEEN && sum->values.dtype == AD_F32 && sum->param == 0);
  all->first[all->count] = *(const float *)sum->values.data;
  all->sums[all->count++] = *sum;
}

static void run_step(ad_comm *comm, ad_reducer *reducer, const ad_param_spec *spec) {
  float values[NUMEL];
  ad_layout dual = ad_layout_dual(&spec->layout);
  for (int64_t round = 0; round < ROUNDS; round++) {
    int64_t leaf = ad_reducer_leaf(reducer, round);
    CHECK_OK(ad_reducer_begin_leaf(reducer, round + 1 < ROUNDS ? AD_SYNC_NONE : AD_SYNC_ALL, leaf));
    for (int i = 0; i < NUMEL; i++) values[i] = value_of(leaf);
    ad_array grad = ad_array_describe(comm, AD_F32, &spec->shape, &dual);
    grad.data = values;
    CHECK_OK(ad_reducer_add(reducer, 0, &grad));
    CHECK_OK(ad_reducer_end_microbatch(reducer));
  }
  CHECK_OK(ad_reducer_finish(reducer));
}

static void on_two_ranks(ad_comm *comm, int shards, seen *all, void (*install)(ad_sum_watch *)) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  static const ad_sync sync[ROUNDS] = {AD_SYNC_NONE, AD_SYNC_ALL};
  ad_leaf_options leaves = {LEAVES, ROUNDS, sync};
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves};
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_param_spec spec = {
      .size = sizeof spec, .name = "w", .shape = {2, {ROWS, COLUMNS}}, .layout = ad_layout_all(mesh, AD_R)};
  spec.policy = (ad_precision_policy){AD_F32, AD_F32, 0, AD_F32, AD_F32};
  spec.storage = spec.layout;
  if (shards) ad_layout_set(&spec.storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  CHECK_OK(ad_reducer_create(comm, &spec, 1, &options, &reducer));
  ad_sum_watch watch = {.visit = keep, .context = all};
  install(&watch);
  run_step(comm, reducer, &spec);
  ad_injections_clear();
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
}

static void watch_alone(ad_sum_watch *watch) { ad_sums_watch(watch); }

static int see_all(ad_comm *comm, void *context) {
  int64_t first = ad_comm_rank(comm) * 2;
  const ad_node expected[] = {{first, 1}, {first + 1, 1}, {first, 2}, {0, LEAVES}};
  for (int shards = 0; shards < 2; shards++) {
    seen all = {.count = 0};
    on_two_ranks(comm, shards, &all, watch_alone);
    CHECK(all.count == 4);
    for (size_t i = 0; i < 4; i++) {
      const ad_watched_sum *sum = &all.sums[i];
      int64_t rows = i < 3 || !shards ? ROWS : ad_cut(ROWS, ad_comm_rank(comm), 2).count;
      CHECK(sum->node.first == expected[i].first && sum->node.count == expected[i].count);
      CHECK(sum->over == (i < 3 ? 0 : AD_AXES(AD_DP_SHARD)) && !sum->beyond);
      CHECK(ad_array_numel(&sum->values) == (size_t)rows * COLUMNS);
      CHECK(all.first[i] == sum_of(expected[i]));
    }
  }
  return 0;
}

static void each_leaf_and_each_sum_is_seen_once(void **state) {
  (void)state;
  run_ranks(2, see_all, NULL);
}

static void spoil_leaf(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  float *values = of->bucket->sent.data;
  (void)context;
  values[0] += 0.5f;
}

static void spoil_node(void *context, void *passing) {
  const ad_node_stack *stack = passing;
  (void)context;
  if (stack->node[stack->count - 1].count == 2) ((float *)ad_stack_level(stack, 0))[0] += 0.25f;
}

static void watch_mutants(ad_sum_watch *watch) {
  ad_injection_set(AD_INJECT_LEAF, (ad_injection){spoil_leaf, NULL});
  ad_injection_set(AD_INJECT_NODE, (ad_injection){spoil_node, NULL});
  ad_sums_watch(watch);
}

static int see_mutants(ad_comm *comm, void *context) {
  int64_t first = ad_comm_rank(comm) * 2;
  seen all = {.count = 0};
  on_two_ranks(comm, 0, &all, watch_mutants);
  CHECK(all.count == 4);
  CHECK(all.first[0] == value_of(first) + 0.5f);          /* mutated before it is seen */
  CHECK(all.first[2] == sum_of((ad_node){first, 2}) + 1); /* mutated after it is seen */
  CHECK(all.first[3] == sum_of((ad_node){0, LEAVES}) + 2.5f);
  return 0;
}

static void mutations_act_beside_the_watch(void **state) {
  (void)state;
  run_ranks(2, see_mutants, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_leaf_and_each_sum_is_seen_once),
                                     cmocka_unit_test(mutations_act_beside_the_watch)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
