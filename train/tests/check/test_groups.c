/* Tests that a check judges the updates of each group of parameters: with the group's optimizer, rate and decay, and
 * that a mistake in one group does not show in the others. */
#include "says.h"
#include "world.h"

#include "base/known_bugs.h"
#include "check/document.h"
#include "optim/known_bugs.h"
#include "step/run.h"

#define GROUPS                                                                                                       \
  "groups: [{match: \"blocks.*.norm.*\", kind: sgd, lr: 0.05, decay: 0}, {match: \"*.attn.*\", lr: 0.002}, {match: " \
  "\"final.*\", "                                                                                                    \
  "frozen: true}, {match: \"embedding.*\", decay: 0.3}]"

static ad_recipe *recipe_of_groups(const char *mesh, const char *more) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: small\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL
           "}\nmesh: \"%s\"\ntrain: {seed: 4, global_batch: 12, microbatches: 2, steps: 5, lr: 1e-2, clip: 0.5}\n"
           "optimizer: {momentum: 0.9}\n" GROUPS "\n%s\n",
           mesh, more);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

/* Checks two steps with a known bug, or with none. */
static json_t *check_with(const char *bug, char **table) {
  ad_recipe *recipe = recipe_of_groups("dp_shard=2", "shard: {zero: 2}");
  ad_check_options options = {.size = sizeof options};
  ad_known_bug_scene scene = {.microbatches = 2};
  size_t count;
  const ad_known_bug *bugs = ad_optim_known_bugs(&count);
  for (size_t i = 0; i < count && bug; i++)
    if (!strcmp(bugs[i].name, bug)) ad_known_bug_inject(&bugs[i], &scene);
  int holds;
  char *json;
  must(ad_check(recipe, &options, &holds, &json)); /* ranks are processes that inherit the mutation */
  ad_injections_clear();
  assert_int_equal(holds, !bug);
  must(ad_check_table(json, AD_PLAIN_TEXT, table));
  json_t *document = json_loads(json, 0, NULL);
  free(json);
  ad_recipe_destroy(recipe);
  return document;
}

/* What the document says of a group. */
typedef struct group {
  const char *match, *kind;
  double lr;
  int params, frozen, equal;
} group;

static void expect_groups(const json_t *document, const group *expected, size_t count) {
  const json_t *groups = json_object_get(document, "groups");
  assert_int_equal(json_array_size(groups), count);
  for (size_t i = 0; i < count; i++) {
    const json_t *found = json_array_get(groups, i);
    const char *match = json_string_value(json_object_get(found, "match"));
    const char *kind = json_string_value(json_object_get(found, "kind"));
    assert_true(match == expected[i].match || !strcmp(match, expected[i].match));
    assert_true(kind == expected[i].kind || !strcmp(kind, expected[i].kind));
    assert_true(json_number_value(json_object_get(found, "lr")) == expected[i].lr);
    assert_int_equal(json_integer_value(json_object_get(found, "params")), expected[i].params);
    assert_int_equal(json_is_true(json_object_get(found, "frozen")), expected[i].frozen);
    if (json_is_true(json_object_get(found, "updates_equal")) != expected[i].equal)
      fail_msg("group %s: updates_equal is not %d", match ? match : "of all others", expected[i].equal);
  }
}

static void each_group_is_updated_with_its_own_optimizer_rate_and_decay(void **state) {
  const group expected[] = {{"blocks.*.norm.*", "sgd", 0.05, 2, 0, 1},
                            {"*.attn.*", "adamw", 0.002, 4, 0, 1},
                            {"final.*", NULL, 0, 1, 1, 1},
                            {"embedding.*", "adamw", 0.01, 1, 0, 1},
                            {NULL, "adamw", 0.01, 3, 0, 1}};
  char *table;
  json_t *document = check_with(NULL, &table), *param;
  size_t i;
  int lines = 0;
  expect_groups(document, expected, sizeof expected / sizeof *expected);
  json_array_foreach(json_object_get(document, "params"), i, param) {
    const char *name = json_string_value(json_object_get(param, "name"));
    const char *match = json_string_value(json_object_get(param, "group"));
    if (strstr(name, ".mlp.") && !strstr(name, ".norm."))
      assert_null(match);
    else
      assert_non_null(match);
  }
  for (const char *line = strstr(table, "group `"); line; line = strstr(line + 1, "group `")) {
    char own[128];
    snprintf(own, sizeof own, "%.*s", (int)strcspn(line, "\n"), line);
    assert_says_in(__func__, own, SAYS_FACTS(NULL));
    lines++;
  }
  assert_int_equal(lines, 4);
  free(table);
  json_decref(document);
}

/* Only the embedding decays. */
static void a_mistake_in_one_group_shows_in_no_other(void **state) {
  const group expected[] = {{"blocks.*.norm.*", "sgd", 0.05, 2, 0, 1},
                            {"*.attn.*", "adamw", 0.002, 4, 0, 1},
                            {"final.*", NULL, 0, 1, 1, 1},
                            {"embedding.*", "adamw", 0.01, 1, 0, 0},
                            {NULL, "adamw", 0.01, 3, 0, 1}};
  char *table;
  json_t *document = check_with("decay-missing", &table);
  expect_groups(document, expected, sizeof expected / sizeof *expected);
  free(table);
  json_decref(document);
}

/* A decay that one group alone gives is a decay that a mutant can leave out. */
static void a_groups_decay_is_one_that_can_be_missing(void **state) {
  ad_recipe *recipe = recipe_of_groups("dp_shard=2", "");
  ad_check_options options = {.size = sizeof options, .mutate = 1, .mutant_count = 1};
  ad_mutants *tried;
  ad_check_result *result;
  int found = 0;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 1, 0, &tried));
  must(ad_mutants_try(recipe, &options, result, tried));
  for (size_t i = tried->derived; i < tried->count; i++) {
    if (strcmp(tried->list[i].name, "decay-missing") != 0) continue;
    found = tried->list[i].killed_by == AD_KILLED_BY_NUMBER && !strcmp(tried->list[i].param, "embedding.weight");
  }
  assert_true(found && !ad_mutants_survivors(tried));
  ad_mutants_destroy(tried);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* The facts of updates in a run of one process. */
static ad_needs facts_of(const char *train, const char *more) {
  static const ad_needs all = AD_NEED_DECAY | AD_NEED_UNDECAYED | AD_NEED_STEP_NUMBER | AD_NEED_GROUP_RATES |
                              AD_NEED_STATES | AD_NEED_FROZEN | AD_NEED_MATRICES;
  char text[256];
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_comm *comm;
  ad_run *run;
  ad_step_report report;
  snprintf(text, sizeof text, "%s}\n%s\nshard: {zero: 1", train, more);
  ad_recipe *recipe = small_recipe("dp=1", "", text);
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, &options, &run));
  must(ad_run_step(run, 0, &report));
  ad_needs facts = ad_known_facts(run, 0) & all;
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return facts;
}

static void a_run_shows_which_mutants_of_updates_can_have_an_effect(void **state) {
  static const ad_needs adamw = AD_NEED_STATES | AD_NEED_STEP_NUMBER, decays = AD_NEED_DECAY | AD_NEED_UNDECAYED;
  assert_true(facts_of("", "") == (adamw | decays)); /* the small recipe decays matrices */
  assert_true(facts_of("", "optimizer: {kind: sgd}") == decays);
  assert_true(facts_of("", "groups: [{match: \"*\", decay: 0.1}]") == (adamw | AD_NEED_DECAY));
  assert_true(facts_of("", "groups: [{match: \"*\", decay: 0}]") == adamw);
  assert_true(facts_of("", "groups: [{match: \"*.attn.*\", lr: 0.01}]") == (adamw | decays)); /* the rate of all */
  assert_true(facts_of("", "groups: [{match: \"*.attn.*\", lr: 0.02}]") == (adamw | decays | AD_NEED_GROUP_RATES));
  assert_true(facts_of("", "groups: [{match: \"*.attn.*\", frozen: true}]") == (adamw | decays | AD_NEED_FROZEN));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_group_is_updated_with_its_own_optimizer_rate_and_decay),
      cmocka_unit_test(a_mistake_in_one_group_shows_in_no_other),
      cmocka_unit_test(a_groups_decay_is_one_that_can_be_missing),
      cmocka_unit_test(a_run_shows_which_mutants_of_updates_can_have_an_effect),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
