/* One process's draws: the same step with its sums in other orders, each time the same numbers, none of them far from
 * the gradient in f64; and what a proof makes of how they lie. */
#include "world.h"

#include <math.h>

#include "base/kernels.h"
#include "check/computing.h"
#include "train/run.h"

static ad_reference *reference_of(const ad_recipe *recipe, int cuts_formulas) {
  ad_reference *reference;
  ad_step_report report;
  must(ad_reference_create(recipe, &(ad_reference_options){.rounds = 1, .cuts_formulas = cuts_formulas}, &reference));
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(reference)); i++) {
    const ad_array *value = ad_run_part(ad_reference_run(reference), i, AD_PART_VALUE);
    float *narrow = calloc(ad_array_numel(value), sizeof *narrow);
    ad_cast(narrow, AD_F32, value->data, value->dtype, ad_array_numel(value));
    ad_array whole = *value;
    whole.data = narrow;
    whole.dtype = AD_F32;
    ad_reference_restart(reference, i, AD_PART_VALUE, &whole);
    free(narrow);
  }
  must(ad_reference_step(reference, 0, 0, &report));
  return reference;
}

static size_t numel_of(const ad_reference *reference, size_t i) {
  return ad_array_numel(ad_reference_gradient(reference, i));
}

static double distance_of(const ad_reference *reference, size_t i, int a, int b) {
  const ad_draws *draws = ad_reference_draws(reference);
  const float *one = ad_draws_deviation(draws, i, a), *other = ad_draws_deviation(draws, i, b);
  double squares = 0;
  for (size_t k = 0; k < numel_of(reference, i); k++) squares += pow((double)one[k] - (double)other[k], 2);
  return sqrt(squares);
}

static double norm_of(const ad_reference *reference, size_t i) {
  return ad_norm_of(ad_reference_gradient(reference, i)->data, numel_of(reference, i));
}

static void every_draw_rounds_otherwise_and_none_computes_otherwise(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", "");
  ad_reference *reference = reference_of(recipe, 0);
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(reference)); i++)
    for (int a = 0; a < AD_DRAWS; a++)
      for (int b = 0; b < a; b++) {
        double distance = distance_of(reference, i, a, b) / norm_of(reference, i);
        assert_true(distance > 0 && distance < 1e-5);
      }
  ad_reference_destroy(reference);
  ad_recipe_destroy(recipe);
}

static void draws_are_the_same_in_every_run(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", ", microbatches: 2");
  ad_reference *one = reference_of(recipe, 0), *other = reference_of(recipe, 0);
  for (size_t i = 0; i < ad_run_param_count(ad_reference_run(one)); i++)
    assert_memory_equal(ad_draws_deviation(ad_reference_draws(one), i, 0),
                        ad_draws_deviation(ad_reference_draws(other), i, 0),
                        AD_DRAWS * numel_of(one, i) * sizeof(float));
  ad_reference_destroy(one);
  ad_reference_destroy(other);
  ad_recipe_destroy(recipe);
}

/* Where a piece of a bf16 product is rounded before the next is added, draws lie as far apart as one is from f64. */
static void pieces_that_round_lie_further_apart(void **state) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", "}\nprecision: {compute: bf16");
  ad_reference *once = reference_of(recipe, 0), *each = reference_of(recipe, 1);
  size_t count = ad_run_param_count(ad_reference_run(once));
  for (size_t i = 0; i < count; i++) {
    assert_true(distance_of(each, i, 1, 2) > 2e-4 * norm_of(each, i));
    assert_true(distance_of(once, i, 1, 2) < 0.5 * distance_of(each, i, 1, 2));
  }
  ad_reference_destroy(once);
  ad_reference_destroy(each);
  ad_recipe_destroy(recipe);
}

/* ---- what is made of them: a world whose ranks' addends are made by hand from one process's ---- */

typedef struct judged {
  ad_recipe *recipe;
  ad_reference *reference;
  ad_comm *comm;
  ad_run *run;
  ad_addends ranks;
  ad_computing computing;
} judged;

static judged judge_as(const char *precision) {
  judged world = {.recipe = small_recipe("dp_shard=1", "", precision)};
  world.reference = reference_of(world.recipe, 0);
  ad_run_options options = {.size = sizeof options, .quiet = 1, .given_states = 1};
  must(ad_comm_open_alone(&world.comm));
  must(ad_run_create(world.comm, world.recipe, &options, &world.run));
  must(ad_addends_create(world.run, 1, &world.ranks));
  must(ad_addends_measure(&world.ranks, 0, 0, NULL));
  must(ad_computing_create(world.run, 2, &world.computing));
  return world;
}

static void release(judged *world) {
  ad_computing_destroy(&world->computing);
  ad_addends_destroy(&world->ranks);
  ad_run_destroy(world->run);
  ad_comm_close(world->comm);
  ad_reference_destroy(world->reference);
  ad_recipe_destroy(world->recipe);
}

static void measure(judged *world) {
  ad_computing_measure(&world->computing, world->run, world->reference, &world->ranks);
}

/* The ranks' sum of parameter i is the mean of the draws, moved by `amount` of what it may be off. */
static void move(judged *world, size_t i, double amount) {
  const ad_draws *draws = ad_reference_draws(world->reference);
  const double *ref = ad_reference_gradient(world->reference, i)->data;
  double *sum = world->ranks.themselves.whole[i].data;
  size_t numel = numel_of(world->reference, i);
  for (size_t k = 0; k < numel; k++) {
    double mean = 0;
    for (int d = 0; d < AD_DRAWS; d++) mean += ad_draws_deviation(draws, i, d)[k] / AD_DRAWS;
    sum[k] = ref[k] + mean + (k % 2 ? amount : -amount) * world->computing.apart[i] / sqrt((double)numel);
  }
}

static void the_ranks_own_program_is_within_what_draws_allow(void **state) {
  static const char *const precisions[] = {"", "}\nprecision: {compute: bf16"};
  for (int p = 0; p < 2; p++) {
    judged world = judge_as(precisions[p]);
    measure(&world);
    for (size_t i = 0; i < world.computing.count; i++) {
      assert_true(world.computing.distance[i] < world.computing.apart[i]);
      assert_true(world.computing.apart[i] < world.computing.allowed[i]);
    }
    assert_true(world.computing.all_distance < world.computing.all_apart);
    release(&world);
  }
}

static void a_parameter_just_beyond_its_bound_is_beyond_and_one_just_within_is_within(void **state) {
  judged world = judge_as("");
  measure(&world);
  for (size_t i = 0; i < world.computing.count; i++) {
    double bound = world.computing.apart[i];
    move(&world, i, 0.99);
    measure(&world);
    assert_true(world.computing.apart[i] == bound);
    assert_true(world.computing.distance[i] < bound && world.computing.distance[i] > 0.98 * bound);
    move(&world, i, 1.01);
    measure(&world);
    assert_true(world.computing.distance[i] > bound);
    move(&world, i, 0);
  }
  release(&world);
}

/* In bf16 on a batch that alone is cut a parameter may have been turned by one rounding, but not all of them. */
static void all_parameters_moved_at_once_are_beyond_though_each_is_within(void **state) {
  judged world = judge_as("}\nprecision: {compute: bf16");
  measure(&world);
  move(&world, 2, 0.6);
  measure(&world);
  assert_true(world.computing.all_distance < world.computing.all_apart);
  for (size_t i = 0; i < world.computing.count; i++) move(&world, i, 0.6);
  measure(&world);
  for (size_t i = 0; i < world.computing.count; i++)
    assert_true(world.computing.distance[i] < world.computing.apart[i]);
  assert_true(world.computing.all_distance > world.computing.all_apart);
  release(&world);
}

/* Of a chance that more numbers share each has less, and a wider bound. */
static void a_longer_proof_has_wider_bounds_and_no_more_false_alarms(void **state) {
  judged world = judge_as("");
  measure(&world);
  double bound = world.computing.apart[0], chance = world.computing.chance;
  assert_true(chance * 2 * (double)world.computing.count < AD_FALSE_ALARMS);
  ad_computing longer;
  must(ad_computing_create(world.run, 2000, &longer));
  ad_computing_measure(&longer, world.run, world.reference, &world.ranks);
  assert_true(fabs(longer.chance * 1000 / chance - 1) < 1e-12);
  assert_true(longer.apart[0] > bound && longer.apart[0] < 100 * bound);
  ad_computing_destroy(&longer);
  release(&world);
}

static void a_loss_is_held_to_its_own_draws(void **state) {
  judged world = judge_as("");
  measure(&world);
  double steady[AD_DRAWS], loose[AD_DRAWS], least = world.computing.relative * 2;
  for (int d = 0; d < AD_DRAWS; d++) steady[d] = 2, loose[d] = 2 + (d % 2 ? 1e-3 : -1e-3);
  assert_true(fabs(ad_computing_of_loss(&world.computing, steady, 2) / least - 1) < 1e-12);
  double bound = ad_computing_of_loss(&world.computing, loose, 2);
  assert_true(bound > 1e-2 && bound < 2);
  release(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_draw_rounds_otherwise_and_none_computes_otherwise),
      cmocka_unit_test(draws_are_the_same_in_every_run),
      cmocka_unit_test(pieces_that_round_lie_further_apart),
      cmocka_unit_test(the_ranks_own_program_is_within_what_draws_allow),
      cmocka_unit_test(a_parameter_just_beyond_its_bound_is_beyond_and_one_just_within_is_within),
      cmocka_unit_test(all_parameters_moved_at_once_are_beyond_though_each_is_within),
      cmocka_unit_test(a_longer_proof_has_wider_bounds_and_no_more_false_alarms),
      cmocka_unit_test(a_loss_is_held_to_its_own_draws),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
