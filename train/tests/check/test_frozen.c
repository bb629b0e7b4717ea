/* Tests checks of runs in which some parameters are frozen: they are in no number of gradients, and a step that changes
 * one of them on any rank is noticed. */
#include "world.h"

#include <math.h>

#include "check/document.h"
#include "draw.h"
#include "kernels/kernels.h"
#include "step/run.h"

#define FROZEN "groups: [{match: \"embedding.*\", frozen: true}, {match: \"*.attn.w*\", frozen: true}]"

/* A recipe of two layers in which the embedding and the matrices of attention are frozen; `more` are further sections. */
static ad_recipe *frozen_recipe(const char *mesh, const char *more) {
  char text[1024];
  snprintf(
      text, sizeof text,
      "name: small\nmodel: {kind: gpt, layers: 2, d_model: 16, heads: 2}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL
      "}\nmesh: \"%s\"\ntrain: {seed: 4, global_batch: 12, microbatches: 2, steps: 5, lr: 1e-2, weight_decay: 0.1, "
      "clip: 0.5}\n" FROZEN "\n%s\n",
      mesh, more);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

static json_t *document_of(ad_recipe *recipe, const ad_check_options *options, int *holds) {
  char *json;
  must(ad_check(recipe, options, holds, &json));
  json_t *document = json_loads(json, 0, NULL);
  assert_non_null(document);
  free(json);
  return document;
}

static int is_frozen(const char *name) { return !strncmp(name, "embedding.", 10) || strstr(name, ".attn.w") != NULL; }

/* Returns the number of parameters whose value changed. All others must be right. */
static size_t count_changed(const json_t *document) {
  const json_t *param;
  size_t i, changed = 0;
  json_array_foreach(json_object_get(document, "params"), i, param) {
    const char *name = json_string_value(json_object_get(param, "name"));
    const char *frozen = json_string_value(json_object_get(param, "frozen"));
    assert_int_equal(frozen != NULL, is_frozen(name));
    assert_int_equal(json_is_null(json_object_get(param, "ratio")), is_frozen(name));
    assert_int_equal(json_is_true(json_object_get(param, "reached")), !is_frozen(name));
    changed += frozen && !strcmp(frozen, "changed");
  }
  return changed;
}

static void check_matches(const char *mesh, const char *more) {
  ad_recipe *recipe = frozen_recipe(mesh, more);
  ad_check_options options = {.size = sizeof options, .steps = 2};
  int holds;
  json_t *document = document_of(recipe, &options, &holds);
  if (!holds || count_changed(document)) fail_msg("%s %s does not match", mesh, more);
  const json_t *summary = json_object_get(document, "summary");
  assert_int_equal(json_integer_value(json_object_get(summary, "frozen")), 9);
  assert_int_equal(json_integer_value(json_object_get(summary, "reached")), 11);
  json_decref(document);
  ad_recipe_destroy(recipe);
}

static void frozen_parameters_are_in_no_number(void **state) {
  static const char *const worlds[][2] = {
      {"dp=1", ""},
      {"dp_replicate=2 dp_shard=2", "shard: {zero: 3}"},
      {"dp_replicate=3", "shard: {zero: 0}\nprecision: {compute: bf16, param: bf16}"},
      {"dp_shard=2", "shard: {zero: 2}\nprecision: {grad: f16}"},
      {"tp=2 dp_shard=2", "shard: {zero: 1}"},
      {"pp=2", ""},
      {"pp=2 dp_shard=2", "shard: {zero: 3}"},
  };
  enum { WORLDS = sizeof worlds / sizeof *worlds };
  draw drawn = draw_cases("worlds with frozen parameters", WORLDS, 0, 4);
  for (int i = 0; i < WORLDS; i++)
    if (is_drawn(&drawn, i)) check_matches(worlds[i][0], worlds[i][1]);
}

static void the_slope_along_frozen_parameters_does_not_count(void **state) {
  ad_recipe *recipe = frozen_recipe("dp_shard=2", "shard: {zero: 3}");
  ad_check_options options = {.size = sizeof options, .directional = 1};
  int holds;
  json_decref(document_of(recipe, &options, &holds));
  assert_true(holds);
  ad_recipe_destroy(recipe);
}

/* ---- a frozen parameter that changes ---- */

typedef struct change {
  int64_t rank, on;
} change;

static void change_value(void *context, void *passing) {
  const change *c = context;
  const ad_array *value = passing;
  double amount = 1e-3;
  if (c->rank == c->on && value->data && ad_array_numel(value))
    ad_accumulate(value->data, value->dtype, &amount, AD_F64, 1, 1);
}

typedef struct rank_job {
  ad_check_job job;
  int64_t on;
} rank_job;

static int check_on_rank(ad_comm *comm, void *context) {
  const rank_job *j = context;
  change c = {ad_comm_rank(comm), j->on};
  ad_injection_set(AD_INJECT_FROZEN, (ad_injection){change_value, &c});
  ad_status status = ad_check_rank(comm, &j->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

/* On rank `on` each step changes frozen parameters: those of which the rank has an element must not match, and nothing
 * else. */
static void expect_change(ad_recipe *recipe, int64_t on, int64_t ranks) {
  ad_check_options options = {.size = sizeof options, .steps = 1};
  ad_launch_result launched = {.size = sizeof launched};
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  rank_job j = {{.recipe = recipe, .options = &options, .steps = 1, .result = result}, on};
  ad_launch_options launch = {.size = sizeof launch, .ranks = ranks, .function = check_on_rank, .context = &j};
  char where[32];
  snprintf(where, sizeof where, "rank %lld", (long long)on);
  must(ad_launch(&launch, &launched));
  assert_false(ad_check_result_passes(result, 0));
  assert_true(result->updates_equal && result->norm_err <= result->norm_bound);
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    assert_int_equal(param->update_equal, !is_frozen(param->name));
    assert_int_equal(param->causes.count, is_frozen(param->name));
    if (param->causes.count) assert_non_null(strstr(param->causes.list[0].text, where));
  }
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void a_change_on_any_rank_is_noticed_and_the_rank_is_named(void **state) {
  expect_change(frozen_recipe("dp_shard=3", "shard: {zero: 3}"), 2, 3);
  expect_change(frozen_recipe("dp_replicate=2", "shard: {zero: 0}"), 1, 2);
  expect_change(frozen_recipe("dp_replicate=2 dp_shard=2", "shard: {zero: 2}"), 0, 4);
}

static void a_mutant_that_moves_frozen_parameters_is_killed(void **state) {
  static const char *const meshes[] = {"dp=1", "dp_shard=2", "pp=2"};
  for (int i = 0; i < 3; i++) {
    ad_recipe *recipe = frozen_recipe(meshes[i], "shard: {zero: 1}");
    ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 3};
    int holds, found = 0;
    json_t *document = document_of(recipe, &options, &holds), *mutant;
    size_t m;
    if (!holds) fail_msg("%s: %s", meshes[i], json_dumps(document, JSON_COMPACT));
    json_array_foreach(json_object_get(document, "mutants"), m, mutant) {
      if (strcmp(json_string_value(json_object_get(mutant, "name")), "frozen-moves") != 0) continue;
      assert_string_equal(json_string_value(json_object_get(mutant, "killed_by")), "number");
      assert_true(is_frozen(json_string_value(json_object_get(mutant, "param"))));
      found = 1;
    }
    assert_true(found);
    json_decref(document);
    ad_recipe_destroy(recipe);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frozen_parameters_are_in_no_number),
      cmocka_unit_test(the_slope_along_frozen_parameters_does_not_count),
      cmocka_unit_test(a_change_on_any_rank_is_noticed_and_the_rank_is_named),
      cmocka_unit_test(a_mutant_that_moves_frozen_parameters_is_killed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
