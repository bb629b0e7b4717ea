/* Tests the key `groups`: which group a parameter is in, what each group's optimizer and rates are, and every mistake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "optim/record.h"
#include "parsing.h"
#include "program/program.h"
#include "recipe/changes.h"
#include "recipe/groups.h"
#include "recipe/paper.h"
#include "says.h"

#define GOOD                                               \
  "model: {kind: gpt, layers: 2, d_model: 32, heads: 4}\n" \
  "data: {text: [a, b], seq: 16}\n"                        \
  "mesh: \"dp_replicate=2 dp_shard=2\"\n"                  \
  "train: {global_batch: 6, steps: 10, lr: 1e-3, warmup: 1, final_lr_fraction: 0.5, weight_decay: 0.1}\n"
#define GROUPS(list) GOOD "groups:\n" list /* the first entry is in line 6 */

/* ---- what groups mean ---- */

static void a_parameter_is_in_the_first_group_that_matches(void **state) {
  ad_recipe *r = READ(GROUPS("- {match: \"blocks.1.norm.*\", lr: 1}\n- {match: \"*norm*\", lr: 2}\n"
                             "- {match: \"blocks.?.attn.w[qk]\", lr: 3}\n- {match: embedding.weight, lr: 4}\n"),
                      NULL);
  static const struct {
    const char *name;
    size_t group;
  } params[] = {{"blocks.1.norm.attn", 1}, {"blocks.0.norm.attn", 2}, {"final.norm.weight", 2}, {"blocks.0.attn.wq", 3},
                {"blocks.1.attn.wk", 3},   {"blocks.1.attn.wv", 0},   {"embedding.weight", 4},  {"blocks.0.mlp.up", 0}};
  assert_int_equal(ad_recipe_group_count(r), 5);
  for (size_t i = 0; i < sizeof params / sizeof *params; i++)
    assert_int_equal(ad_recipe_group_of(r, params[i].name), params[i].group);
  ad_recipe_destroy(r);
}

/* A field that a group does not give is the recipe's; and 0 is 0, and not left out. */
static void a_group_has_its_own_numbers_and_else_those_of_the_recipe(void **state) {
  ad_recipe *r = READ(GROUPS("- {match: \"*norm*\", decay: 0}\n- {match: \"embedding.*\", lr: 0}\n"
                             "- {match: \"*.attn.*\", kind: sgd, lr: 0.25}\n- {match: \"*.mlp.*\", decay: 0.5}\n"),
                      "train.beta1=0", "optimizer.momentum=0.5", "optimizer.nesterov=true");
  ad_optimizer_options options[AD_GROUPS_MAX];
  double rates[AD_GROUPS_MAX];
  ad_recipe_optimizers(r, 0, options);
  for (size_t g = 0; g < 5; g++) {
    assert_int_equal(options[g].kind, g == 3 ? AD_SGD : AD_ADAMW);
    assert_true(options[g].beta1 == (g == 3 ? 0 : AD_BETA_ZERO));
    assert_true(options[g].momentum == (g == 3 ? 0.5 : 0));
    assert_int_equal(options[g].nesterov, g == 3);
    assert_true(options[g].weight_decay == (g == 1 ? 0 : g == 4 ? 0.5 : 0.1));
    assert_int_equal(options[g].decays_all, g == 1 || g == 4);
  }
  assert_true(ad_recipe_uses(r, AD_SGD) && ad_recipe_uses(r, AD_ADAMW));
  assert_int_equal(ad_recipe_rates(r, 0, rates), AD_OK);
  assert_true(rates[0] == 0.5e-3 && rates[1] == 0.5e-3 && rates[2] == 0 && rates[3] == 0.125);
  assert_int_equal(ad_recipe_rates(r, 9, rates), AD_OK);
  assert_true(rates[0] == 0.5e-3 && rates[2] == 0 && rates[3] == 0.125 && rates[4] == 0.5e-3);
  ad_recipe_destroy(r);
}

/* Muon's options, too, are exact where a recipe writes 0, and its dtype is lifted with those of the parameters. */
static void muon_has_the_numbers_of_its_keys(void **state) {
  ad_recipe *r = READ(GROUPS("- {match: \"*.mlp.*\", kind: muon, decay: 0}\n"),
                      "optimizer.muon={momentum: 0, nesterov: false, a: 1.5, b: 0, c: 0, dtype: bf16, steps: 7}");
  ad_optimizer_options options[AD_GROUPS_MAX];
  ad_recipe_optimizers(r, 0, options);
  const ad_muon_options *muon = &options[1].muon;
  assert_int_equal(options[1].kind, AD_MUON);
  assert_true(muon->momentum == AD_BETA_ZERO && muon->nesterov == AD_NO && muon->a == 1.5);
  assert_true(muon->b == AD_NEARLY_ZERO && muon->c == AD_NEARLY_ZERO && muon->steps == 7 && muon->epsilon == 1e-7);
  assert_int_equal(muon->dtype, AD_BF16);
  assert_true(options[1].weight_decay == 0 && options[1].decays_all);
  assert_true(options[0].kind == AD_ADAMW && options[0].muon.steps == 0 && !options[0].muon.dtype);
  ad_recipe_optimizers(r, AD_F64, options);
  assert_int_equal(options[1].muon.dtype, 0);
  ad_recipe_destroy(r);
}

/* The rate of a group is no multiple of train.lr, which may be 0. */
static void a_group_may_learn_where_the_others_do_not(void **state) {
  ad_recipe *r = READ(GROUPS("- {match: \"*norm*\", lr: 2}\n"), "train.lr=0");
  double rates[AD_GROUPS_MAX];
  assert_int_equal(ad_recipe_rates(r, 1, rates), AD_OK);
  assert_true(rates[0] == 0 && rates[1] == 2);
  ad_recipe_destroy(r);
}

static void without_groups_there_is_one(void **state) {
  ad_recipe *r = READ(GOOD, NULL);
  ad_optimizer_options options[AD_GROUPS_MAX];
  assert_int_equal(ad_recipe_group_count(r), 1);
  assert_int_equal(ad_recipe_group_of(r, "blocks.0.attn.wq"), 0);
  assert_false(ad_recipe_freezes(r, "blocks.0.attn.wq"));
  ad_recipe_optimizers(r, 0, options);
  assert_true(options[0].kind == AD_ADAMW && options[0].weight_decay == 0.1 && !options[0].decays_all);
  ad_recipe_destroy(r);
}

/* An entry before may except parameters from one that freezes. */
static void frozen_parameters_are_those_whose_first_group_is_frozen(void **state) {
  for (int zero = 0; zero < 4; zero++) {
    char set[32];
    snprintf(set, sizeof set, "shard.zero=%d", zero);
    ad_recipe *r = READ(GROUPS("- {match: \"*norm*\", frozen: false}\n- {match: \"blocks.0.*\", frozen: true}\n"), set);
    ad_paper paper;
    assert_int_equal(ad_paper_open(r, &paper), AD_OK);
    const ad_module_spec *module = ad_program_module(paper.program, 0);
    size_t frozen = 0;
    for (size_t i = 0; i < module->param_count; i++) {
      const ad_param_spec *spec = &module->params[i];
      int expected = !strncmp(spec->name, "blocks.0.", 9) && !strstr(spec->name, "norm");
      frozen += expected != 0;
      assert_int_equal(spec->frozen != 0, expected);
      int is_sharded = zero == 3 || (zero && !expected);
      assert_int_equal(spec->storage.type[AD_DP_SHARD], is_sharded ? AD_S(0) : spec->layout.type[AD_DP_SHARD]);
    }
    assert_true(frozen > 2);
    ad_paper_close(&paper);
    ad_recipe_destroy(r);
  }
}

/* So is one that only matches: its parameters are as without groups. */
static void a_group_that_only_matches_is_an_exception(void **state) {
  ad_recipe *r = READ(GROUPS("- {match: \"blocks.1.mlp.down\"}\n- {match: \"*\", frozen: true}\n"), NULL);
  ad_optimizer_options options[AD_GROUPS_MAX];
  double rates[AD_GROUPS_MAX];
  assert_false(ad_recipe_freezes(r, "blocks.1.mlp.down"));
  assert_true(ad_recipe_freezes(r, "blocks.0.mlp.down"));
  ad_recipe_optimizers(r, 0, options);
  assert_true(options[1].kind == options[0].kind && options[1].weight_decay == 0.1 && !options[1].decays_all);
  assert_int_equal(ad_recipe_rates(r, 4, rates), AD_OK);
  assert_true(rates[1] == rates[0] && rates[1] > 0);
  ad_recipe_destroy(r);
  SAYS(("r.yaml:6: groups[0]"), GROUPS("- {match: \"blocks.1.mlp.down\"}\n"));
  SAYS(("r.yaml:7: groups[1]"), GROUPS("- {match: \"*\", lr: 1}\n- {match: \"blocks.1.mlp.down\"}\n"));
  /* The third pattern matches norms of the first group alone. */
  SAYS(("r.yaml:7: groups[1]"),
       GROUPS("- {match: \"blocks.0.*\", lr: 1}\n- {match: \"*norm*\"}\n- {match: \"[eb]*[0g].*\", lr: 1}\n"));
}

/* A key of an optimizer is taken if a group alone has that optimizer. */
static void the_keys_of_a_group_s_optimizer_are_taken(void **state) {
  ad_recipe_destroy(READ(GROUPS("- {match: \"*norm*\", kind: adamw}\n"), "optimizer.kind=sgd", "train.beta1=0.5",
                         "optimizer.momentum=0.5"));
  SET_SAYS(("--set train.beta1", "optimizer.kind", "adamw"), GROUPS("- {match: \"*norm*\", lr: 1}\n"),
           "optimizer.kind=sgd", "train.beta1=0.5");
  SET_SAYS(("--set optimizer.momentum", "optimizer.kind", "sgd"), GROUPS("- {match: \"*norm*\", frozen: true}\n"),
           "optimizer.momentum=0.5");
  SET_SAYS(("--set optimizer.nesterov", "optimizer.momentum", "0"), GROUPS("- {match: \"*norm*\", kind: sgd}\n"),
           "optimizer.nesterov=true");
}

/* ---- reading and printing ---- */

static void prints_as(const char *text, const char *set, const char *expected) {
  ad_recipe *r = READ(text, set), *again;
  char *once, *twice;
  assert_int_equal(ad_recipe_print(r, &once), AD_OK);
  const char *at = strstr(once, "\ngroups:");
  assert_non_null(at);
  if (strncmp(at + 1, expected, strlen(expected)) != 0) fail_msg("%.200s", at);
  assert_int_equal(ad_recipe_parse(once, "dir/r.yaml", NULL, 0, &again), AD_OK);
  assert_int_equal(ad_recipe_print(again, &twice), AD_OK);
  assert_string_equal(once, twice);
  free(once);
  free(twice);
  ad_recipe_destroy(r);
  ad_recipe_destroy(again);
}

static void groups_are_printed_as_they_are_given(void **state) {
  prints_as(GROUPS("- {decay: 0, match: \"*norm*\"}\n- {match: \"*.wq\", kind: sgd, lr: 0, decay: 0.25}\n"
                   "- {match: \"*\", frozen: true}\n"),
            NULL,
            "groups:\n- {match: \"*norm*\", decay: 0}\n- {match: \"*.wq\", kind: sgd, lr: 0, decay: 0.25}\n"
            "- {match: \"*\", frozen: true}\nevaluate:");
  prints_as(GROUPS("- {match: \"*norm*\", decay: 0}\n"), "groups=[{match: \"*.w?\", frozen: false}]",
            "groups:\n- {match: \"*.w?\", frozen: false}\nevaluate:");
  prints_as(GROUPS("- {match: \"*norm*\", decay: 0}\n"), "groups=[]", "groups: []\nevaluate:");
  prints_as(GOOD "groups:\n", NULL, "groups: []\nevaluate:");
  ad_recipe *r = READ(GROUPS("- {match: \"*norm*\", decay: 0}\n- {match: \"*.wq\", lr: 2}\n"), NULL);
  ad_recipe_changes changes;
  assert_int_equal(ad_recipe_changes_list(r, &changes), AD_OK);
  const ad_recipe_change *last = &changes.list[changes.count - 1];
  assert_string_equal(last->key, "groups");
  assert_string_equal(last->value, "[{match: \"*norm*\", decay: 0}, {match: \"*.wq\", lr: 2}]");
  ad_recipe_changes_release(&changes);
  ad_recipe_destroy(r);
}

/* ---- mistakes ---- */

static void each_mistake_is_reported_where_it_is(void **state) {
  SAYS(("r.yaml:6: groups[0].decya", "r.yaml:7: groups[1].learning", "r.yaml:8: groups[2].match",
        "r.yaml:9: groups[3].frozen"),
       GROUPS("- {match: \"*norm*\", decya: 0}\n- {match: \"*norm*\", learning: 0}\n- {lr: 1}\n"
              "- {match: \"*norm*\", frozen: true, lr: 1}\n"));
  SAYS(("r.yaml:6: groups[0].kind", "adam", "r.yaml:7: groups[1].lr", "1000000", "1e7", "r.yaml:8: groups[2].decay",
        "0", "-1", "r.yaml:9: groups[3].frozen", "r.yaml:10: groups[4]", "r.yaml:11: groups[5].match"),
       GROUPS("- {match: \"*norm*\", kind: adam}\n- {match: \"*norm*\", lr: 1e7}\n- {match: \"*norm*\", decay: -1}\n"
              "- {match: \"*norm*\", frozen: 3}\n- 4\n- {match: \"\", lr: 1}\n"));
  SAYS(("r.yaml:5: groups"), GOOD "groups: {match: \"*\", decay: 0}\n");
  SAYS(("r.yaml:5: groups"), GOOD "groups: adamw\n");
  SET_SAYS(("--set groups", "groups[0].match"), GOOD, "groups=[{lr: 1}]");
  SET_SAYS(("--set groups.lr"), GOOD, "groups.lr=1");
}

static void a_pattern_that_no_parameter_needs_is_a_mistake(void **state) {
  SAYS(("r.yaml:6: groups[0].match", "*.nrom.*", "embedding.weight", "r.yaml:8: groups[2].match", "blocks.0.*",
        "blocks.*", "r.yaml:10: groups[4].match", "*.wq"),
       GROUPS("- {match: \"*.nrom.*\", decay: 0}\n- {match: \"blocks.*\", lr: 1}\n- {match: \"blocks.0.*\", lr: 2}\n"
              "- {match: \"*\", lr: 2}\n- {match: \"*.wq\", frozen: true}\n"));
}

/* Muon updates no embedding, no norm and no bias, and nothing else takes its place without a word. */
static void muon_is_given_matrices_of_hidden_layers_alone(void **state) {
  SET_SAYS(
      ("--set optimizer.kind", "muon", "embedding.weight", "blocks.0.norm.attn", "4", "\"embedding.weight\"", "*norm*"),
      GOOD, "optimizer.kind=muon");
  SAYS(("r.yaml:7: groups[1].kind", "muon", "final.norm.weight"),
       GROUPS("- {match: \"blocks*\", lr: 1}\n- {match: \"final*\", kind: muon}\n"));
  SET_SAYS(("--set optimizer.kind", "muon", "final.norm.weight"),
           GROUPS("- {match: \"blocks.*norm*\", kind: sgd}\n- {match: \"embedding.*\", frozen: true}\n"),
           "optimizer.kind=muon");
  ad_recipe_destroy(READ(GROUPS("- {match: \"*norm*\", kind: sgd}\n- {match: \"embedding.*\", frozen: true}\n"),
                         "optimizer.kind=muon"));
}

#define MUON_ON(replicas, way)                                                                                    \
  "model: {kind: gpt, layers: 2, d_model: 32, heads: 4}\ndata: {text: [a, b], seq: 16}\n"                         \
  "mesh: \"dp_replicate=" replicas                                                                                \
  " dp_shard=2\"\nshard: {zero: 3}\ntrain: {global_batch: 36, steps: 10, lr: 1}\n"                                \
  "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw}]\noptimizer:\n  kind: muon\n" \
  "  muon: " way "\n"

/* The line of the key is line 9. */
static void matrices_are_dealt_to_few_replicas(void **state) {
  SAYS(("r.yaml:9: optimizer.muon.way", "9", "8"), MUON_ON("9", "{way: dealt_to_replicas}"));
  SET_SAYS(("--set optimizer.muon.way", "18", "8"), MUON_ON("9", "{}"), "shard.zero=0",
           "optimizer.muon.way=dealt_to_replicas");
  ad_recipe_destroy(READ(MUON_ON("8", "{way: dealt_to_replicas}"), NULL));
  ad_recipe_destroy(READ(MUON_ON("9", "{way: dealt}"), NULL));
}

static void something_must_learn(void **state) {
  SAYS(("r.yaml:5: groups"), GROUPS("- {match: \"*\", frozen: true}\n"));
  SAYS(("r.yaml:5: groups"), GROUPS("- {match: \"blocks.*\", frozen: true}\n- {match: \"*[ew]*\", frozen: true}\n"));
}

static void there_is_a_most_of_groups(void **state) {
  for (int count = AD_GROUPS_MAX - 1; count <= AD_GROUPS_MAX; count++) {
    char set[AD_GROUPS_MAX * 48] = "groups=[";
    const char *sets[] = {"model.layers=32", set};
    size_t used = strlen(set);
    for (int i = 0; i < count; i++)
      used += (size_t)snprintf(set + used, sizeof set - used, "{match: \"blocks.%d.norm.%s\", lr: 1}, ", i / 2,
                               i % 2 ? "attn" : "mlp");
    snprintf(set + used - 2, sizeof set - used + 2, "]");
    ad_recipe *r = NULL;
    ad_status status = ad_recipe_parse(GOOD, "r.yaml", sets, 2, &r);
    assert_int_equal(status, count < AD_GROUPS_MAX ? AD_OK : AD_INVALID);
    if (status)
      assert_says("--set groups", "64", "63");
    else
      assert_int_equal(ad_recipe_group_count(r), AD_GROUPS_MAX);
    ad_recipe_destroy(r);
  }
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *sets[] = {"groups=[{match: \"*norm*\", decay: 0}, {match: \"*.wq\", kind: sgd, lr: 1}]"};
  assert_true(fails_with_each_allocation(GOOD, sets, 1, AD_OK) > 50);
  assert_true(fails_with_each_allocation(GROUPS("- {match: \"*norm*\"}\n- {match: 4, lr: x}\n"), NULL, 0, AD_INVALID) >
              3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_parameter_is_in_the_first_group_that_matches),
      cmocka_unit_test(a_group_has_its_own_numbers_and_else_those_of_the_recipe),
      cmocka_unit_test(muon_has_the_numbers_of_its_keys),
      cmocka_unit_test(a_group_may_learn_where_the_others_do_not),
      cmocka_unit_test(without_groups_there_is_one),
      cmocka_unit_test(frozen_parameters_are_those_whose_first_group_is_frozen),
      cmocka_unit_test(a_group_that_only_matches_is_an_exception),
      cmocka_unit_test(the_keys_of_a_group_s_optimizer_are_taken),
      cmocka_unit_test(groups_are_printed_as_they_are_given),
      cmocka_unit_test(each_mistake_is_reported_where_it_is),
      cmocka_unit_test(a_pattern_that_no_parameter_needs_is_a_mistake),
      cmocka_unit_test(muon_is_given_matrices_of_hidden_layers_alone),
      cmocka_unit_test(matrices_are_dealt_to_few_replicas),
      cmocka_unit_test(something_must_learn),
      cmocka_unit_test(there_is_a_most_of_groups),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
