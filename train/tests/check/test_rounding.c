/* Tests the model of rounding errors: how many roundings it counts, and that no sum rounded as the precision policy
 * says exceeds its bound. */
#include <math.h>
#include "kernels/kernels.h"
#include "addend/helpers.h"
#include "check/rounding.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "reduce/precision_policy.h"
#include "world.h"

typedef struct scene {
  ad_recipe *recipe;
  ad_mesh *mesh;
  ad_param_spec spec;
} scene;

static scene open_scene(const char *mesh, int zero, int microbatches, ad_precision_policy policy) {
  scene s = {0};
  char train[64];
  snprintf(train, sizeof train, ", microbatches: %d", microbatches);
  s.recipe = small_recipe(mesh, "", train);
  s.recipe->shard.zero = zero;
  for (size_t m = 0; zero > 1 && m + 1 < s.recipe->train.sync_count; m++) s.recipe->train.sync[m] = AD_SYNC_SHARD;
  must(ad_mesh_create(mesh, &s.mesh));
  must(ad_precision_policy_complete(&policy));
  s.spec = (ad_param_spec){.size = sizeof(ad_param_spec),
                           .name = "w",
                           .shape = {2, {16, 4}},
                           .layout = ad_layout_all(s.mesh, AD_I),
                           .sharded = AD_AXES(AD_DP_SHARD)};
  ad_layout_set(&s.spec.layout, AD_AXES_DP, AD_R);
  ad_recipe_sharding sharding = ad_recipe_shard_of(s.recipe, s.spec.name);
  s.spec.storage = ad_recipe_storage(&sharding, &s.spec);
  s.spec.policy = policy;
  return s;
}

static void close_scene(scene *s) {
  ad_mesh_destroy(s->mesh);
  ad_recipe_destroy(s->recipe);
}

static ad_allowance allowance_of(const scene *s, ad_dtype result, int loss_scale) {
  ad_recipe_sharding sharding = ad_recipe_shard_of(s->recipe, s->spec.name);
  return ad_rounding_allowance(s->recipe, &sharding, &s->spec, result, loss_scale);
}

static double relative(const char *mesh, int zero, int microbatches, ad_precision_policy policy) {
  scene s = open_scene(mesh, zero, microbatches, policy);
  double found = allowance_of(&s, s.spec.policy.accumulate, 0).relative;
  close_scene(&s);
  return found;
}

static void nearly(double found, double expected) { assert_true(fabs(found - expected) <= 1e-6 * expected); }

static const ad_precision_policy single = {.param = AD_F32}, brain = {.param = AD_BF16},
                                 wide_comm_dtype = {.param = AD_BF16, .reduce = AD_F32},
                                 raw = {.param = AD_BF16, .raw = 1, .reduce = AD_BF16};

static void f32_rounds_in_its_additions_and_nowhere_else(void **state) {
  nearly(relative("dp_replicate=3", 0, 1, single), 2 * 0x1p-24);
  nearly(relative("dp_replicate=3 dp_shard=2", 2, 1, single), 3 * 0x1p-24 + 0x1p-24);
}

/* With leaves a leaf's gradient takes part in as many additions as the tree over leaves is deep. */
static void the_tree_over_leaves_adds_no_oftener(void **state) {
  static const struct {
    const char *mesh;
    int64_t positions;
  } worlds[] = {{"dp_replicate=1 dp_shard=1", 1},
                {"dp_replicate=3", 3},
                {"dp_shard=5", 5},
                {"dp_replicate=3 dp_shard=2", 6},
                {"dp_replicate=3 dp_shard=4", 12}};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
    for (int zero = 0; zero <= 2; zero++)
      for (int microbatches = 1; microbatches <= 3; microbatches++)
        for (int64_t leaves = 1, depth = 0; leaves <= 70; leaves++) {
          scene s = open_scene(worlds[i].mesh, zero, microbatches, single);
          s.recipe->train.leaves = leaves;
          ad_recipe_set_rounds(s.recipe, worlds[i].positions);
          while ((int64_t)1 << depth < leaves) depth++;
          double found = allowance_of(&s, AD_F32, 0).relative;
          if (found < (double)depth * 0x1p-24)
            fail_msg("%s, %d microbatches, %d leaves: %g additions", worlds[i].mesh, microbatches, (int)leaves,
                     found * 0x1p24);
          close_scene(&s);
        }
}

static void a_first_write_of_single_addends_is_exact(void **state) {
  double sums = 2 * 0x1p-24;
  nearly(relative("dp_replicate=3", 0, 1, brain), 0x1p-8 + sums);  // rounded to bf16 once, then sent as it is
  nearly(relative("dp_replicate=3", 0, 1, raw), 0x1p-8 + sums);    // not rounded when submitted, rounded to bf16 for
                                                                   // sending
  nearly(relative("dp_replicate=3", 0, 2, brain), expm1(2 * log1p(0x1p-8)) + 4 * 0x1p-24);
}

static void each_reduction_writes_once(void **state) {
  double one = relative("dp_replicate=3 dp_shard=4", 2, 2, brain),
         none = relative("dp_replicate=3 dp_shard=4", 1, 2, brain);
  assert_true(one > expm1(2 * log1p(0x1p-8)) && one < expm1(2 * log1p(0x1p-8)) + 1e-5);
  assert_true(none > expm1(3 * log1p(0x1p-8)) && none < expm1(3 * log1p(0x1p-8)) + 1e-5);
  nearly(relative("dp_replicate=3 dp_shard=4", 2, 1, wide_comm_dtype) - 0x1p-8, 6 * 0x1p-24 * (1 + 0x1p-8));
}

static void only_f16_loses_small_values(void **state) {
  scene s = open_scene("dp_replicate=4", 0, 2, (ad_precision_policy){.param = AD_F16});
  ad_allowance plain = allowance_of(&s, AD_F32, 0);
  ad_allowance scaled = allowance_of(&s, AD_F32, 10);
  // Eight gradients at scale 1; up to eight sent values that carry the scale 2^-3.
  nearly(plain.absolute, 8 * 0x1p-25 + 8 * 0x1p-25 * 8);
  nearly(scaled.absolute, plain.absolute / 1024);
  close_scene(&s);
  s = open_scene("dp_replicate=4", 0, 2, brain);
  assert_true(allowance_of(&s, AD_F32, 0).absolute < 1e-30);
  close_scene(&s);
}

/* ---- sums, rounded as the precision policy says, in the order of a real reduction ---- */

enum { SHARDS = 4, REPLICAS = 3, MICROBATCHES = 5, TRIALS = 4000 };

static double rounded(double value, ad_dtype dtype) {
  double narrow, back;
  ad_cast(&narrow, dtype, &value, AD_F64, 1);
  ad_cast(&back, AD_F64, &narrow, dtype, 1);
  return back;
}

static double addend(int trial, int replica, int shard, int m) {
  uint64_t index = (uint64_t)(((trial * REPLICAS + replica) * SHARDS + shard) * MICROBATCHES + m);
  double normal = ad_random_normal(3, 1, index);
  return rounded(trial % 2 ? normal : 1 + fabs(normal), AD_F32);  // odd trials cancel, even trials have one sign
}

/* Reduces one element as a run does: each microbatch is reduce-scattered, the results are added, and the last is
 * all-reduced over replicas. Returns the sum; `exact` and `sizes` get the exact sum and the sum of magnitudes. */
static double reduce(int trial, const ad_precision_policy *c, ad_dtype sums, double *exact, double *sizes) {
  double total = 0;
  for (int replica = 0; replica < REPLICAS; replica++) {
    double partial = 0;
    for (int m = 0; m < MICROBATCHES; m++) {
      double sum = 0;
      for (int shard = 0; shard < SHARDS; shard++) {
        double a = addend(trial, replica, shard, m);
        *exact += a;
        *sizes += fabs(a);
        sum = rounded(sum + rounded(rounded(a, c->grad), c->reduce), sums);
      }
      partial = rounded(partial + sum, sums);
    }
    total = rounded(total + rounded(partial, c->reduce), sums);
  }
  return total;
}

static double worst_share(ad_precision_policy policy, ad_dtype sums) {
  scene s = open_scene("dp_replicate=3 dp_shard=4", 2, MICROBATCHES, policy);
  ad_allowance allowance = allowance_of(&s, AD_F32, 0);
  double worst = 0;
  for (int trial = 0; trial < TRIALS; trial++) {
    double exact = 0, sizes = 0;
    double dist = reduce(trial, &s.spec.policy, sums, &exact, &sizes);
    worst = fmax(worst, ad_measure_error(&dist, &exact, &sizes, 1, allowance, 0).share);
  }
  close_scene(&s);
  return worst;
}

static void no_sum_that_keeps_its_policy_exceeds_its_allowance(void **state) {
  const ad_precision_policy policies[] = {
      single, brain, wide_comm_dtype, {.param = AD_F16}, {.param = AD_F16, .reduce = AD_F32}};
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
    double share = worst_share(policies[i], AD_F32);
    assert_true(share <= 1);
    assert_true(share > 0.05);  // the bound is not too loose either: some sum comes near it
  }
}

static void a_sum_that_forms_in_bf16_where_f32_was_promised_exceeds_it(void **state) {
  assert_true(worst_share(single, AD_BF16) > 100);
}

/* ---- single elements against their own bounds ---- */

static void an_element_exceeds_its_own_allowance_and_no_other_s(void **state) {
  double ref[] = {100, 1, 1, 0}, dist[] = {100.5, 1.25, 1, 7},
         sizes[] = {100, 1, 1, 1000};  // three elements, and one beyond the count
  ad_error error = ad_measure_error(dist, ref, sizes, 3, (ad_allowance){0.01, 0}, 0);
  nearly(error.share, 25);  // the second element: an error of 0.25 with a bound of 0.01; by the bound of the first it
                            // would pass
  nearly(error.norm, hypot(0.5, 0.25));
  nearly(error.reduced, sqrt(1 + 2 * 0.01 * 0.01));
}

static void what_elements_exceed_is_held_against_computing_together(void **state) {
  double ref[] = {0, 0, 5}, dist[] = {4, -5, 5}, sizes[] = {1, 1, 1};
  nearly(ad_measure_error(dist, ref, sizes, 3, (ad_allowance){1, 0}, 5).share, 1);  // an error of 3 and 4, so 5 in
                                                                                    // norm, with a bound of 5
  assert_true(ad_measure_error(dist, ref, sizes, 3, (ad_allowance){1, 0}, 5.001).share <= 1);
  assert_true(ad_measure_error(dist, ref, sizes, 3, (ad_allowance){1, 0}, 4.999).share > 1);
}

static void no_number_is_never_allowed(void **state) {
  double ref[] = {1, 2}, dist[] = {NAN, 2}, sizes[] = {1, 1};
  ad_error error = ad_measure_error(dist, ref, sizes, 2, (ad_allowance){1, 1}, 1);
  assert_true(isnan(error.norm) && isnan(error.share));
}

static void a_reference_of_zero_allows_zero(void **state) {
  double ref[] = {0}, dist[] = {0}, sizes[] = {0};
  assert_true(ad_measure_error(dist, ref, sizes, 1, (ad_allowance){0, 0}, 0).share == 0);
  dist[0] = 1e-30;
  assert_false(ad_measure_error(dist, ref, sizes, 1, (ad_allowance){0, 0}, 0).share <= 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f32_rounds_in_its_additions_and_nowhere_else),
      cmocka_unit_test(the_tree_over_leaves_adds_no_oftener),
      cmocka_unit_test(a_first_write_of_single_addends_is_exact),
      cmocka_unit_test(each_reduction_writes_once),
      cmocka_unit_test(only_f16_loses_small_values),
      cmocka_unit_test(no_sum_that_keeps_its_policy_exceeds_its_allowance),
      cmocka_unit_test(a_sum_that_forms_in_bf16_where_f32_was_promised_exceeds_it),
      cmocka_unit_test(an_element_exceeds_its_own_allowance_and_no_other_s),
      cmocka_unit_test(what_elements_exceed_is_held_against_computing_together),
      cmocka_unit_test(no_number_is_never_allowed),
      cmocka_unit_test(a_reference_of_zero_allows_zero),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
