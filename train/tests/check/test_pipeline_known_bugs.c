/* Tests the pipeline mistakes that no schedule table shows, each tried alone: which parameters are wrong, by which
 * factor, and where the mistake has no effect. */
#include <math.h>
#include "alone.h"

static ad_recipe *recipe_of(const char *mesh, const char *model, const char *train) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: stages\nmodel: {kind: gpt, layers: 3, d_model: 12, heads: 2, d_hidden: 10%s}\n"
           "data: {text: [/usr/share/common-licenses], seq: 8, valid: [1, 0.5, 0.25, 0.75, 1, 0, 0.5]}\n"
           "mesh: \"%s\"\ntrain: {global_batch: 7, steps: 5, lr: 1e-2, clip: 0.1, seed: 4%s}\n",
           model, mesh, train);
  if (ad_recipe_parse(text, "stages.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}
#define TIED ""
#define UNTIED ", tied: false"
#define MICROBATCHES ", microbatches: 3"

/* A mistake's effect on the gradients of the embedding and of all other parameters. 1: none; NaN: wrong
 * by no factor. */
typedef struct signature {
  const char *mesh, *name;
  double embedding, others;
} signature;

static int is_embedding(const ad_check_param *param) { return !strcmp(param->name, "embedding.weight"); }

static void has_ratio(const char *name, const ad_check_param *param, double ratio) {
  int is_right = param->max_rel_err < 1e-12;
  if ((ratio == 1) != is_right) fail_msg("%s: %s is off by %g", name, param->name, param->max_rel_err);
  if (isnan(ratio) || ratio == 1) return;
  if (fabs(param->ratio / ratio - 1) > 1e-9) fail_msg("%s: %s is %g times", name, param->name, param->ratio);
}

static void shows(const signature *s) {
  ad_recipe *recipe = recipe_of(s->mesh, TIED, MICROBATCHES);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  ad_mutant tried = try_alone(recipe, s->name, "", result);
  if (tried.killed_by != AD_KILLED_BY_NUMBER)
    fail_msg("%s: %s %s", s->name, ad_killed_by_name(tried.killed_by), tried.message);
  /* A mistake that changes every gradient by one factor states this factor, which the table prints beside the found one.
   */
  if (s->embedding == s->others && s->others != 1 && !(fabs(tried.expected_ratio / s->others - 1) < 1e-9))
    fail_msg("%s: %g times is expected, not %g", s->name, tried.expected_ratio, s->others);
  for (size_t i = 0; i < result->param_count; i++)
    has_ratio(s->name, &result->params[i], is_embedding(&result->params[i]) ? s->embedding : s->others);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}
#define SHOWS(...) shows(&(signature){__VA_ARGS__})

static void is_not_injected(const char *mesh, const char *model, const char *train, const char *name) {
  ad_recipe *recipe = recipe_of(mesh, model, train);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  assert_int_equal(try_alone(recipe, name, "", result).killed_by, AD_KILLED_BY_NOT_APPLICABLE);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void half_of_a_tied_gradient_is_seen(void **state) {
  SHOWS("pp=2", "head-left-out-of-tied-gradient", NAN, 1);
  SHOWS("pp=3 dp_shard=2", "head-left-out-of-tied-gradient", NAN, 1);
  SHOWS("pp=2 tp=2", "head-alone-in-tied-gradient", NAN, 1);
  is_not_injected("pp=2", UNTIED, MICROBATCHES, "head-left-out-of-tied-gradient");
  is_not_injected("dp=2", TIED, MICROBATCHES, "head-alone-in-tied-gradient");
}

static void a_copy_that_is_not_renewed_is_seen(void **state) {
  SHOWS("pp=2", "values-of-step-before", NAN, NAN);
  SHOWS("pp=2 tp=2", "values-of-step-before", NAN, NAN);
  is_not_injected("pp=2", UNTIED, MICROBATCHES, "values-of-step-before");
}

static void an_average_over_stages_is_off_by_their_number(void **state) {
  SHOWS("pp=2", "averaged-over-stages", 1.0 / 2, 1.0 / 2);
  SHOWS("pp=3 dp_shard=2", "averaged-over-stages", 1.0 / 3, 1.0 / 3);
  is_not_injected("dp=2", TIED, MICROBATCHES, "averaged-over-stages");
}

static void the_count_of_one_microbatch_is_seen(void **state) {
  SHOWS("pp=2", "divided-by-one-microbatch", NAN, NAN);
  is_not_injected("pp=2", TIED, "", "divided-by-one-microbatch");
}

/* Gradients are right, but their norm is not, and clipping uses the norm. */
static void a_norm_of_another_sum_is_seen(void **state) {
  SHOWS("pp=2", "embedding-twice-in-norm", 1, 1);
  SHOWS("pp=2 dp_shard=3", "embedding-twice-in-norm", 1, 1);
  SHOWS("pp=3", "norm-of-each-stage", 1, 1);
  is_not_injected("pp=2", UNTIED, MICROBATCHES, "embedding-twice-in-norm");
  is_not_injected("dp=3", TIED, MICROBATCHES, "norm-of-each-stage");
}

/* ---- published mistakes ---- */

static double of_block(const ad_check_result *result, int block) {
  char path[32];
  int length = snprintf(path, sizeof path, "blocks.%d.", block);
  double ratio = NAN;
  for (size_t i = 0; i < result->param_count; i++)
    if (!strncmp(result->params[i].name, path, (size_t)length)) ratio = result->params[i].ratio;
  return ratio;
}

/* pytorch/torchtitan#1733: in every call the schedule divided all accumulated gradients by the number of microbatches,
 * so those of earlier calls were divided several times. */
static void accumulated_gradients_are_divided_in_every_pass(void **state) {
  SHOWS("pp=2", "accumulated-divided-again", NAN, NAN);
  SHOWS("pp=3 dp_shard=2", "accumulated-divided-again", NAN, NAN);
  is_not_injected("pp=2", TIED, "", "accumulated-divided-again");
  is_not_injected("pp=2", TIED, MICROBATCHES ", sync: [all, all, all]", "accumulated-divided-again");
  is_not_injected("dp=2", TIED, MICROBATCHES, "accumulated-divided-again");
}

/* pytorch/torchtitan#2972: backward started from the sum of losses, and only the reported loss was divided by the
 * number of tokens. The batch counts 1, 0.5, 0.25, 0.75, 1, 0 and 0.5 of 8 tokens: 32. */
static void a_loss_is_divided_behind_its_backward(void **state) {
  SHOWS("pp=2", "divided-behind-backward", 32, 32);
  SHOWS("pp=2 dp_shard=3", "divided-behind-backward", 32, 32);
  is_not_injected("dp=2", TIED, MICROBATCHES, "divided-behind-backward");
}

/* pytorch/torchtitan#596, with one stage a rank: each stage clipped by the norm of its own gradients. */
static void each_stage_has_its_norm(void **state) { SHOWS("pp=2", "norm-of-each-stage", 1, 1); }

/* deepspeedai/DeepSpeed#7773: means of microbatches were summed and not divided by the number of microbatches. */
static void microbatches_are_not_divided(void **state) { SHOWS("pp=2 tp=2", "divided-by-one-microbatch", NAN, NAN); }

/* deepspeedai/DeepSpeed#8152: every stage divided the gradient that it received by the number of microbatches. */
static void microbatches_are_divided_at_each_stage(void **state) {
  ad_recipe *recipe = recipe_of("pp=3", TIED, MICROBATCHES "}\nschedule: {layers: [1, 1, 1]");
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  assert_int_equal(try_alone(recipe, "divided-at-each-stage", "", result).killed_by, AD_KILLED_BY_NUMBER);
  for (int block = 0; block < 3; block++)
    if (fabs(of_block(result, block) * pow(3, 2 - block) - 1) > 1e-9)
      fail_msg("block %d has %g of its gradient", block, of_block(result, block));
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* uw-syfi/piper#13: the gradients of a tied embedding and head on two stages were not summed. */
static void a_tied_gradient_is_not_summed(void **state) {
  SHOWS("pp=2 dp_shard=2", "head-left-out-of-tied-gradient", NAN, 1);
}

/* areal-project/AReaL#1273: the loss was divided by its count and also by the number of microbatches. */
static void a_count_is_divided_by_microbatches_too(void **state) {
  SHOWS("pp=2", "divided-by-microbatches-too", 1.0 / 3, 1.0 / 3);
  SHOWS("pp=3 tp=2", "divided-by-microbatches-too", 1.0 / 3, 1.0 / 3);
  is_not_injected("pp=2", TIED, "", "divided-by-microbatches-too");
}

/* NVIDIA/Megatron-LM#7227: the embedding of the first stage and its copy on the last stage both counted in the norm. */
static void a_shared_embedding_counts_twice(void **state) { SHOWS("pp=3", "embedding-twice-in-norm", 1, 1); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(half_of_a_tied_gradient_is_seen),
      cmocka_unit_test(a_copy_that_is_not_renewed_is_seen),
      cmocka_unit_test(an_average_over_stages_is_off_by_their_number),
      cmocka_unit_test(the_count_of_one_microbatch_is_seen),
      cmocka_unit_test(a_norm_of_another_sum_is_seen),
      cmocka_unit_test(accumulated_gradients_are_divided_in_every_pass),
      cmocka_unit_test(a_loss_is_divided_behind_its_backward),
      cmocka_unit_test(each_stage_has_its_norm),
      cmocka_unit_test(microbatches_are_not_divided),
      cmocka_unit_test(microbatches_are_divided_at_each_stage),
      cmocka_unit_test(a_tied_gradient_is_not_summed),
      cmocka_unit_test(a_count_is_divided_by_microbatches_too),
      cmocka_unit_test(a_shared_embedding_counts_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
