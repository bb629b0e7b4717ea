/* Tests the key `shard.groups`: how each parameter is sharded, and every mistake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/comm.h"
#include "parsing.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "recipe/shard_groups.h"
#include "says.h"

#define GOOD                                               \
  "model: {kind: gpt, layers: 2, d_model: 32, heads: 4}\n" \
  "data: {text: [a, b], seq: 16}\n"                        \
  "mesh: \"dp_replicate=2 dp_shard=3\"\n"                  \
  "train: {global_batch: 12, steps: 10, lr: 1e-3, microbatches: 3}\n"
#define GROUPS(list) GOOD "shard:\n  zero: 3\n  window: 4\n  groups:\n" list /* the first entry is in line 9 */

static const ad_sync NONE = AD_SYNC_NONE, SHARD = AD_SYNC_SHARD, ALL = AD_SYNC_ALL;

static void has_sync(const ad_recipe *r, const char *param, ad_sync first, ad_sync second) {
  ad_recipe_sharding of = ad_recipe_shard_of(r, param);
  assert_int_equal(of.sync[0], first);
  assert_int_equal(of.sync[1], second);
  assert_int_equal(of.sync[2], ALL);
}

/* ---- what groups mean ---- */

static void a_parameter_has_what_its_first_group_gives_and_else_what_the_recipe_does(void **state) {
  ad_recipe *r = READ(GROUPS("  - {match: \"*.mlp.up\", zero: 2, prefetch: 0}\n  - {match: \"*.mlp.*\", zero: 1}\n"
                             "  - {match: \"embedding.*\", sync: all, bucket_mib: 64, window: 0}\n"),
                      NULL);
  static const struct {
    const char *name;
    size_t group;
    int zero, window, prefetch;
    double mib;
  } params[] = {{"blocks.0.mlp.up", 1, 2, 4, 0, 25},
                {"blocks.1.mlp.down", 2, 1, 4, 1, 25},
                {"embedding.weight", 3, 3, 0, 1, 64},
                {"blocks.0.attn.wq", 0, 3, 4, 1, 25}};
  for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
    ad_recipe_sharding of = ad_recipe_shard_of(r, params[i].name);
    assert_int_equal(ad_recipe_shard_group_of(r, params[i].name), params[i].group);
    assert_int_equal(of.zero, params[i].zero);
    assert_int_equal(of.window, params[i].window);
    assert_int_equal(of.prefetch, params[i].prefetch);
    assert_true(of.bucket_mib == params[i].mib);
  }
  has_sync(r, "blocks.0.mlp.up", SHARD, SHARD);
  has_sync(r, "blocks.0.mlp.down", NONE, NONE);
  has_sync(r, "embedding.weight", ALL, ALL);
  has_sync(r, "blocks.0.attn.wq", SHARD, SHARD);
  assert_int_equal(ad_recipe_highest_zero(r), 3);
  ad_recipe_destroy(r);
}

static void a_group_without_sync_has_that_of_the_recipe_or_of_its_level(void **state) {
  ad_recipe *r =
      READ(GROUPS("  - {match: \"*.mlp.*\", zero: 1}\n  - {match: \"embedding.*\", sync: [all, none, all]}\n"),
           "train.sync=[shard, none, all]");
  has_sync(r, "blocks.0.mlp.up", SHARD, NONE);
  has_sync(r, "embedding.weight", ALL, NONE);
  ad_recipe_destroy(r);
  r = READ(GROUPS("  - {match: \"*.mlp.*\", zero: 2}\n  - {match: \"*.attn.*\", bucket_mib: 1}\n"), "shard.zero=1");
  has_sync(r, "blocks.0.mlp.up", SHARD, SHARD);
  has_sync(r, "blocks.0.attn.wq", NONE, NONE);
  has_sync(r, "embedding.weight", NONE, NONE);
  assert_int_equal(ad_recipe_highest_zero(r), 2);
  ad_recipe_destroy(r);
}

/* What is printed means the same when it is read again, where a printed recipe gives every key. */
static void a_printed_recipe_means_the_same(void **state) {
  char *text, *again;
  ad_recipe *r = READ(GROUPS("  - {match: \"*.mlp.*\", zero: 1}\n  - {match: \"embedding.*\", sync: all}\n"), NULL);
  assert_int_equal(ad_recipe_print(r, &text), AD_OK);
  ad_recipe_destroy(r);
  assert_non_null(strstr(text, "{match: \"*.mlp.*\", zero: 1, sync: [none, none, all]}"));
  assert_non_null(strstr(text, "{match: \"embedding.*\", sync: [all, all, all]}"));
  r = READ(text, NULL);
  has_sync(r, "blocks.0.mlp.up", NONE, NONE);
  has_sync(r, "blocks.0.attn.wq", SHARD, SHARD);
  assert_int_equal(ad_recipe_print(r, &again), AD_OK);
  assert_string_equal(text, again);
  ad_recipe_destroy(r);
  free(text);
  free(again);
}

static void storage_follows_from_the_level_of_each_parameter(void **state) {
  ad_recipe *r = READ(GROUPS("  - {match: \"*.mlp.*\", zero: 0}\n"), "groups=[{match: \"*norm*\", frozen: true}]");
  ad_comm *comm;
  ad_program *program;
  assert_int_equal(ad_comm_open_dry(0, 6, &comm), AD_OK);
  assert_int_equal(ad_recipe_program(r, comm, 0, &program), AD_OK);
  for (size_t i = 0; i < ad_program_module(program, 0)->param_count; i++) {
    const ad_param_spec *spec = &ad_program_module(program, 0)->params[i];
    assert_int_equal(spec->storage.type[AD_DP_SHARD], strstr(spec->name, ".mlp.") ? AD_R : AD_S(0));
  }
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
}

/* Which leaf a rank computes follows from one list of `sync`, so with leaves the highest level decides it. */
static void leaves_have_one_sync_for_all(void **state) {
  ad_recipe *r =
      READ(GROUPS("  - {match: \"*.mlp.*\", zero: 3}\n"), "shard.zero=1", "train.leaves=12", "train.microbatches=2");
  assert_int_equal(r->train.sync[0], SHARD);
  assert_int_equal(ad_recipe_shard_of(r, "blocks.0.mlp.up").sync[0], SHARD);
  assert_int_equal(ad_recipe_shard_of(r, "blocks.0.attn.wq").sync[0], SHARD);
  ad_recipe_destroy(r);
  SET_SAYS(("r.yaml:9: shard.groups[0].sync", "train.leaves"), GROUPS("  - {match: \"*.mlp.*\", sync: none}\n"),
           "train.leaves=12");
  ad_recipe_destroy(READ(GROUPS("  - {match: \"*.mlp.*\", sync: shard}\n"), "train.leaves=12"));
}

/* ---- mistakes ---- */

static void each_mistake_is_reported_where_it_is(void **state) {
  SAYS(("r.yaml:9: shard.groups[0].zreo", "r.yaml:10: shard.groups[1].match"),
       GROUPS("  - {match: \"*norm*\", zreo: 0}\n  - {zero: 1}\n"));
  SAYS(("r.yaml:9: shard.groups[0].zero", "3", "r.yaml:10: shard.groups[1].sync", "shard.groups[1].bucket_mib",
        "r.yaml:11: shard.groups[2]"),
       GROUPS("  - {match: \"*norm*\", zero: 4}\n  - {match: \"*mlp*\", sync: some, bucket_mib: 0}\n  - 3\n"));
  SAYS(("r.yaml:9: shard.groups[0].sync", "2", "3"), GROUPS("  - {match: \"*mlp*\", sync: [none, all]}\n"));
  SAYS(("r.yaml:9: shard.groups[0].sync"), GROUPS("  - {match: \"*mlp*\", sync: [none, all, shard]}\n"));
  SAYS(("r.yaml:9: shard.groups[0].sync"), GROUPS("  - {match: \"*mlp*\", sync: []}\n"));
}

static void a_pattern_that_no_parameter_needs_is_a_mistake(void **state) {
  SAYS(("r.yaml:9: shard.groups[0].match", "*.nrom.*", "r.yaml:11: shard.groups[2].match", "blocks.*"),
       GROUPS("  - {match: \"*.nrom.*\", zero: 0}\n  - {match: \"blocks.*\", zero: 1}\n"
              "  - {match: \"blocks.0.*\", zero: 2}\n"));
  SAYS(("r.yaml:9: shard.groups[0]"), GROUPS("  - {match: \"*mlp*\"}\n"));
  ad_recipe_destroy(READ(GROUPS("  - {match: \"blocks.0.*\"}\n  - {match: \"blocks.*\", zero: 1}\n"), NULL));
}

static void all_before_the_last_microbatch_is_refused_under_zb(void **state) {
  SET_SAYS(("r.yaml:9: shard.groups[0].sync", "schedule.kind"), GROUPS("  - {match: \"*mlp*\", sync: all}\n"),
           "mesh=pp=2 dp_shard=3", "schedule.kind=zb");
  ad_recipe_destroy(READ(GROUPS("  - {match: \"*mlp*\", sync: none}\n"), "mesh=pp=2 dp_shard=3", "schedule.kind=zb"));
}

static void there_is_a_most_of_groups(void **state) {
  for (int count = AD_GROUPS_MAX - 1; count <= AD_GROUPS_MAX; count++) {
    char set[AD_GROUPS_MAX * 48] = "shard.groups=[";
    const char *sets[] = {"model.layers=32", set};
    size_t used = strlen(set);
    for (int i = 0; i < count; i++)
      used += (size_t)snprintf(set + used, sizeof set - used, "{match: \"blocks.%d.norm.%s\", zero: 1}, ", i / 2,
                               i % 2 ? "attn" : "mlp");
    snprintf(set + used - 2, sizeof set - used + 2, "]");
    ad_recipe *r = NULL;
    ad_status status = ad_recipe_parse(GOOD, "r.yaml", sets, 2, &r);
    assert_int_equal(status, count < AD_GROUPS_MAX ? AD_OK : AD_INVALID);
    if (status)
      assert_says("--set shard.groups", "64", "63");
    else
      assert_int_equal(r->shard.group_count, AD_GROUPS_MAX - 1);
    ad_recipe_destroy(r);
  }
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  assert_true(
      fails_with_each_allocation(GROUPS("  - {match: \"*norm*\", sync: [none, all]}\n  - {match: 4, zero: x}\n"), NULL,
                                 0, AD_INVALID) > 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_parameter_has_what_its_first_group_gives_and_else_what_the_recipe_does),
      cmocka_unit_test(a_group_without_sync_has_that_of_the_recipe_or_of_its_level),
      cmocka_unit_test(a_printed_recipe_means_the_same),
      cmocka_unit_test(storage_follows_from_the_level_of_each_parameter),
      cmocka_unit_test(leaves_have_one_sync_for_all),
      cmocka_unit_test(each_mistake_is_reported_where_it_is),
      cmocka_unit_test(a_pattern_that_no_parameter_needs_is_a_mistake),
      cmocka_unit_test(all_before_the_last_microbatch_is_refused_under_zb),
      cmocka_unit_test(there_is_a_most_of_groups),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
