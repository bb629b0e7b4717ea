/* Tests a mistake that only master weights show: in low precision the f32 masters differ long before the parameter that
 * is rounded from them does. */
#include "world.h"

enum { RANKS = 2, ODD = 1 };

typedef struct job {
  ad_check_job result;
  const ad_recipe *odd;  // the recipe of one rank alone; NULL: every rank has the same
} job;

static int check_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_check_job own = j->result;
  if (j->odd && ad_comm_rank(comm) == ODD) own.recipe = j->odd;
  ad_status status = ad_check_rank(comm, &own);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* One step in bf16 with f32 masters, sharded over two ranks, so that no rank holds a copy of another's shard. */
static ad_recipe *sharded_recipe(void) {
  return small_recipe("dp_shard=2", UNEQUAL, "}\nprecision: {param: bf16}\nshard: {zero: 2");
}

static ad_check_result *check(const ad_recipe *recipe, const ad_recipe *odd) {
  ad_check_options options = {.size = sizeof options, .steps = 1, .recipe_dtype = 1};
  ad_launch_result launched = {.size = sizeof launched};
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  job j = {{.recipe = recipe, .options = &options, .steps = options.steps, .result = result}, odd};
  ad_launch_options launch = {.size = sizeof launch, .ranks = RANKS, .function = check_on_rank, .context = &j};
  must(ad_launch(&launch, &launched));
  return result;
}

/* Weight decay changes neither gradients nor moments; so little of it changes only the last digits of an f32 update. */
static void a_master_that_differs_below_its_values_digits_is_noticed(void **state) {
  ad_recipe *recipe = sharded_recipe(), *odd = sharded_recipe();
  odd->optimizer.weight_decay += 2e-5;
  ad_check_result *sound = check(recipe, NULL), *mutated = check(recipe, odd);
  assert_true(ad_check_result_passes(sound, 0));
  assert_true(sound->updates_equal);
  assert_false(mutated->updates_equal);
  assert_false(ad_check_result_passes(mutated, 0));
  for (size_t i = 0; i < mutated->param_count; i++) {
    assert_true(mutated->params[i].replicas_equal);
    assert_true(mutated->params[i].max_rel_err <= mutated->params[i].bound);
  }
  ad_check_result_destroy(sound);
  ad_check_result_destroy(mutated);
  ad_recipe_destroy(recipe);
  ad_recipe_destroy(odd);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_master_that_differs_below_its_values_digits_is_noticed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
