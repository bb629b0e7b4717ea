/* Tests law 8 (scaled f16) at both ends of f16's range: the scale of an f16 value leaves room for the sum it joins and
 * is no smaller than its addends require. Expected values are exact: too large a value overflows, and too small a scale
 * loses subnormals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "addend/reduce.h"
#include "kernels/kernels.h"
#include "ranks.h"

enum { ROWS = 4, ROW = 3, NUMEL = ROWS * ROW };

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  int microbatches;
  ad_sync early;  // sync of all microbatches but the last
  double addend;  // the addend of every rank in every microbatch
  double sum;     // the expected sum
  ad_dtype produced;
} setting;

static ad_reducer *open_reducer(ad_comm *comm, const ad_mesh *mesh) {
  ad_reducer *reducer;
  ad_param_spec spec = {
      .size = sizeof spec, .name = "w", .shape = {2, {ROWS, ROW}}, .layout = ad_layout_all(mesh, AD_R)};
  spec.storage = spec.layout;
  ad_layout_set(&spec.storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  spec.policy = (ad_precision_policy){.param = AD_F16, .grad = AD_F16, .reduce = AD_F16, .accumulate = AD_F32};
  CHECK_OK(ad_reducer_create(comm, &spec, 1, NULL, &reducer));
  return reducer;
}

static ad_array gradient_of(ad_comm *comm, const ad_mesh *mesh, const setting *s, void *memory) {
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array grad = ad_array_describe(comm, s->produced, &(ad_shape){2, {ROWS, ROW}}, &layout);
  double numbers[NUMEL];
  for (int i = 0; i < NUMEL; i++) numbers[i] = s->addend;
  ad_cast(memory, s->produced, numbers, AD_F64, NUMEL);
  grad.data = memory;
  return grad;
}

static int sum(ad_comm *comm, void *context) {
  const setting *s = context;
  ad_mesh *mesh;
  double memory[NUMEL];
  CHECK_OK(ad_mesh_create(s->mesh, &mesh));
  ad_reducer *reducer = open_reducer(comm, mesh);
  ad_array grad = gradient_of(comm, mesh, s, memory);
  for (int step = 0; step < 2; step++) {
    for (int m = 0; m < s->microbatches; m++) {
      CHECK_OK(ad_reducer_begin_microbatch(reducer, m + 1 < s->microbatches ? s->early : AD_SYNC_ALL));
      CHECK_OK(ad_reducer_add(reducer, 0, &grad));
      CHECK_OK(ad_reducer_end_microbatch(reducer));
    }
    CHECK_OK(ad_reducer_finish(reducer));
    const ad_array *result = ad_reducer_gradient(reducer, 0);
    CHECK(result->dtype == AD_F32 && !result->scale);
    for (size_t i = 0; i < ad_array_numel(result); i++) CHECK((double)((const float *)result->data)[i] == s->sum);
  }
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

/* Two shards sum 5 * 2^-23 to 5 * 2^-22 exactly. For the all-reduce over eight replicas, sixteen addends in all, this
 * sum is scaled by 2^-4. f16 keeps multiples of 2^-24, so multiples of 2^-20 of the unscaled value: one of them is
 * left. */
static void what_goes_to_the_replicas_leaves_room_for_all_their_addends(void **state) {
  setting s = {"dp_replicate=8 dp_shard=2", 16, 1, AD_SYNC_ALL, 5 * 0x1p-23, 8 * 0x1p-20, AD_F16};
  run_ranks(s.ranks, sum, &s);
}

/* The same with microbatches: two microbatches on four replicas of two shards are sixteen addends too, and of 1.5 *
 * 2^-20 two multiples of 2^-20 are left. */
static void what_goes_to_the_replicas_counts_its_microbatches(void **state) {
  setting s = {"dp_replicate=4 dp_shard=2", 8, 2, AD_SYNC_SHARD, 3 * 0x1p-23, 4 * 2 * 0x1p-20, AD_F16};
  run_ranks(s.ranks, sum, &s);
}

static void the_largest_f16_of_many_replicas_does_not_overflow(void **state) {
  for (ad_sync early = AD_SYNC_NONE; early <= AD_SYNC_ALL; early++) {
    setting s = {"dp_replicate=8 dp_shard=2", 16, 4, early, 65504, 16 * 4 * 65504.0, AD_F16};
    run_ranks(s.ranks, sum, &s);
  }
}

/* Each microbatch is reduced alone, with two addends: the scale leaves half of 2^-23, which is
 * f16's smallest number. */
static void what_was_sent_counts_no_more(void **state) {
  setting s = {"dp_shard=2", 2, 16, AD_SYNC_SHARD, 0x1p-23, 2 * 16 * 0x1p-23, AD_F16};
  run_ranks(s.ranks, sum, &s);
}

/* One rank communicates nothing: nothing is scaled or rounded again, even if other microbatches accumulate
 * meanwhile. */
static void one_rank_keeps_the_least_and_the_largest(void **state) {
  for (ad_sync early = AD_SYNC_NONE; early <= AD_SYNC_ALL; early++) {
    setting least = {"dp_shard=1", 1, 16, early, 0x1p-24, 16 * 0x1p-24, AD_F16};
    setting largest = {"dp_shard=1", 1, 16, early, 65504, 16 * 65504.0, AD_F16};
    run_ranks(1, sum, &least);
    run_ranks(1, sum, &largest);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_goes_to_the_replicas_leaves_room_for_all_their_addends),
      cmocka_unit_test(what_goes_to_the_replicas_counts_its_microbatches),
      cmocka_unit_test(the_largest_f16_of_many_replicas_does_not_overflow),
      cmocka_unit_test(what_was_sent_counts_no_more),
      cmocka_unit_test(one_rank_keeps_the_least_and_the_largest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
