/* Tests a mistake that only master weights show: in low precision the f32 masters differ long before the parameter that
 * is rounded from them does. */
#include "world.h"

enum { RANKS = 2, ODD = 1 };

typedef struct job {
  ad_proof_job proof;
  const ad_recipe *odd;  // the recipe of one rank alone; NULL: every rank has the same
} job;

static int prove_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_proof_job own = j->proof;
  if (j->odd && ad_comm_rank(comm) == ODD) own.recipe = j->odd;
  ad_status status = ad_prove(comm, &own);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* One step in bf16 with f32 masters, sharded over two ranks, so that no rank holds a copy of another's shard. */
static ad_recipe *cut_recipe(void) {
  return small_recipe("dp_shard=2", UNEQUAL, "}\nprecision: {param: bf16}\nshard: {zero: 2");
}

static ad_proof *prove(const ad_recipe *recipe, const ad_recipe *odd) {
  ad_check_options options = {.size = sizeof options, .steps = 1, .recipe_dtype = 1};
  ad_launch_result result = {.size = sizeof result};
  ad_proof *proof;
  must(ad_proof_create(recipe, &proof));
  job j = {{.recipe = recipe, .options = &options, .steps = options.steps, .proof = proof}, odd};
  ad_launch_options launch = {.size = sizeof launch, .ranks = RANKS, .function = prove_on_rank, .context = &j};
  must(ad_launch(&launch, &result));
  return proof;
}

/* Weight decay changes neither gradients nor moments; so little of it changes only the last digits of an f32 update. */
static void a_master_that_differs_below_its_values_digits_is_noticed(void **state) {
  ad_recipe *recipe = cut_recipe(), *odd = cut_recipe();
  odd->train.weight_decay += 2e-5;
  ad_proof *sound = prove(recipe, NULL), *planted = prove(recipe, odd);
  assert_true(ad_proof_passes(sound, 0));
  assert_true(sound->updates_equal);
  assert_false(planted->updates_equal);
  assert_false(ad_proof_passes(planted, 0));
  for (size_t i = 0; i < planted->param_count; i++) {
    assert_true(planted->params[i].replicas_equal);
    assert_true(planted->params[i].max_rel_err <= planted->params[i].bound);
  }
  ad_proof_destroy(sound);
  ad_proof_destroy(planted);
  ad_recipe_destroy(recipe);
  ad_recipe_destroy(odd);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_master_that_differs_below_its_values_digits_is_noticed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
