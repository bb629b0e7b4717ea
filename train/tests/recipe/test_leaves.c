/* Tests train.leaves in recipes: the rounds of a step, who has which leaf, and what is refused before any rank starts. */
#include "parsing.h"

#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "kernels/nodes.h"
#include "program/program.h"
#include "recipe/alone.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "addend/reduce.h"

#define MODEL "model: {kind: gpt, layers: 2, d_model: 16, heads: 2}\ndata: {text: [a], seq: 8}\n"
#define GOOD                   \
  "name: r\n" MODEL            \
  "mesh: \"dp_replicate=2\"\n" \
  "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n"

/* ---- rounds ---- */

static void without_leaves_a_round_is_a_microbatch(void **state) {
  ad_recipe *r = READ(GOOD, "train.leaves=0", "train.microbatches=3", "shard.zero=2");
  assert_int_equal(r->train.leaves, 0);
  assert_int_equal(ad_recipe_rounds(r), 3);
  assert_int_equal(ad_recipe_parts(r), 3);
  assert_int_equal(ad_recipe_sync(r, 1), AD_SYNC_SHARD);
  assert_int_equal(ad_recipe_sync(r, 2), AD_SYNC_ALL);
  ad_recipe_destroy(r);
}

static void a_microbatch_has_as_many_rounds_as_its_leaves_need(void **state) {
  static const struct {
    const char *mesh, *leaves, *microbatches;
    int64_t rounds;
  } cases[] = {{"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=1", 4},
               {"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=2", 4},
               {"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=3", 6},
               {"mesh=dp_replicate=2 dp_shard=4 tp=2", "train.leaves=8", "train.microbatches=1", 1},
               {"mesh=dp_shard=3", "train.leaves=13", "train.microbatches=1", 5},
               {"mesh=tp=2", "train.leaves=5", "train.microbatches=2", 6}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *r = READ(GOOD, cases[i].mesh, cases[i].leaves, cases[i].microbatches);
    assert_int_equal(ad_recipe_rounds(r), cases[i].rounds);
    assert_int_equal(ad_recipe_parts(r), r->train.leaves);
    for (int64_t round = 0; round < cases[i].rounds; round++) /* nothing is sent before the last round */
      assert_int_equal(ad_recipe_sync(r, (size_t)round), round + 1 < cases[i].rounds ? AD_SYNC_NONE : AD_SYNC_ALL);
    ad_recipe_destroy(r);
  }
}

static void a_microbatch_is_reduced_after_its_last_round(void **state) {
  static const ad_sync each[] = {AD_SYNC_SHARD, AD_SYNC_ALL, AD_SYNC_NONE, AD_SYNC_ALL};
  ad_recipe *r = READ(GOOD, "train.leaves=16", "train.microbatches=4", "train.sync=[shard, all, none, all]");
  assert_int_equal(ad_recipe_rounds(r), 8);
  for (size_t round = 0; round < 8; round++)
    assert_int_equal(ad_recipe_sync(r, round), round % 2 ? each[round / 2] : AD_SYNC_NONE);
  ad_recipe_destroy(r);
}

static void each_leaf_is_on_one_position(void **state) {
  static const char *const sets[][5] = {
      {"mesh=dp_replicate=2 dp_shard=2 tp=2", "train.leaves=16", "shard.zero=1", "name=r", "name=r"},
      {"mesh=dp_shard=3 tp=2", "train.leaves=13", "train.microbatches=2", "shard.zero=2", "train.sync=[shard, all]"},
      {"mesh=dp_replicate=8", "train.leaves=8", "train.microbatches=3", "name=r", "name=r"},
      {"mesh=dp_replicate=3 dp_shard=2", "train.leaves=16", "shard.zero=3", "name=r", "name=r"},
      {"mesh=dp_shard=5", "train.leaves=16", "shard.zero=3", "name=r", "name=r"}};
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    int64_t times[16] = {0}, *leaves, ranks;
    ad_recipe *r = READ(GOOD, sets[i][0], sets[i][1], sets[i][2], sets[i][3], sets[i][4]);
    assert_int_equal(ad_recipe_world(r, &ranks), AD_OK);
    for (int64_t rank = 0; rank < ranks; rank++) {
      assert_int_equal(ad_recipe_list_leaves(r, rank, &leaves), AD_OK);
      for (int64_t round = 0, last = -1; round < ad_recipe_rounds(r); round++) {
        if (leaves[round] < 0) continue;
        assert_true(leaves[round] > last); /* ascending */
        times[last = leaves[round]]++;
      }
      ad_release(leaves);
    }
    int64_t beside = strstr(sets[i][0], "tp") ? 2 : 1;
    for (int64_t leaf = 0; leaf < r->train.leaves; leaf++) assert_int_equal(times[leaf], beside);
    ad_recipe_destroy(r);
  }
}

/* Where gradients are sharded, a microbatch is one leaf of a rank unless the recipe says how many there are. */
static void left_out_microbatches_are_as_many_as_the_leaves_of_a_rank(void **state) {
  static const struct {
    const char *sets[3];
    int64_t microbatches, rounds;
  } cases[] = {{{"mesh=dp_shard=2", "train.leaves=8", "shard.zero=2"}, 4, 4},
               {{"mesh=dp_replicate=3 dp_shard=2 tp=2", "train.leaves=16", "shard.zero=3"}, 3, 3},
               {{"mesh=dp_shard=5", "train.leaves=16", "shard.zero=3"}, 4, 4},
               {{"mesh=dp_shard=4", "train.leaves=4", "shard.zero=3"}, 1, 1},
               {{"mesh=dp_shard=2", "train.microbatches=1", "shard.zero=3"}, 1, 4},
               {{"mesh=dp_shard=2", "train.sync=[all]", "shard.zero=3"}, 1, 4},
               {{"mesh=dp_shard=2", "train.leaves=0", "shard.zero=3"}, 1, 1},
               {{"mesh=dp_shard=2", "train.leaves=8", "shard.zero=1"}, 1, 4},
               {{"mesh=dp_replicate=2", "train.leaves=8", "shard.zero=3"}, 4, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *r = READ(GOOD, cases[i].sets[0], cases[i].sets[1], cases[i].sets[2]);
    assert_int_equal(r->train.microbatches, cases[i].microbatches);
    assert_int_equal(r->train.sync_count, cases[i].microbatches);
    assert_int_equal(ad_recipe_rounds(r), cases[i].rounds);
    for (int64_t m = 0; m < cases[i].microbatches; m++)
      assert_int_equal(r->train.sync[m], m + 1 < cases[i].microbatches ? AD_SYNC_SHARD : AD_SYNC_ALL);
    ad_recipe_destroy(r);
  }
  SET_SAYS(("--set train.sync", "2", "train.microbatches", "1"), GOOD, "mesh=dp_shard=4", "shard.zero=2",
           "train.sync=[shard, all]");
}

/* With ZeRO 3 ranks gather parameters together, so that all pass through a leaf in a round in which one has a leaf. */
static void a_rank_without_a_leaf_passes_through_one_where_others_do(void **state) {
  static const struct {
    const char *sets[4];
    int64_t passes[5][4]; /* [rank][round] */
  } cases[] = {{{"mesh=dp_shard=5", "train.leaves=16", "shard.zero=3", "name=r"},
                {{0, 0, 0, 0}, {0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}},
               {{"mesh=dp_shard=5", "train.leaves=16", "shard.zero=2", "name=r"},
                {{-1, -1, -1, -1}, {0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}},
               /* five leaves, then six, in two rounds each: nobody has one in the first */
               {{"mesh=dp_shard=5", "train.leaves=11", "shard.zero=3", "train.microbatches=2"},
                {{-1, 0, 0, 5}, {-1, 1, 1, 6}, {-1, 2, 2, 7}, {-1, 3, 3, 8}, {-1, 4, 9, 10}}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *r = READ(GOOD, cases[i].sets[0], cases[i].sets[1], cases[i].sets[2], cases[i].sets[3]);
    assert_int_equal(ad_recipe_rounds(r), 4);
    for (int64_t rank = 0; rank < 5; rank++) {
      int64_t *passes;
      assert_int_equal(ad_recipe_list_passes(r, rank, &passes), AD_OK);
      for (int round = 0; round < 4; round++) assert_int_equal(passes[round], cases[i].passes[rank][round]);
      ad_release(passes);
    }
    ad_recipe_destroy(r);
  }
}

static void alone_one_rank_has_all_leaves(void **state) {
  ad_recipe *r = READ(GOOD, "mesh=dp_replicate=2 tp=2", "train.microbatches=3"), alone;
  int64_t *leaves;
  assert_int_equal(ad_alone_create(r, &alone), AD_OK);
  assert_int_equal(ad_recipe_rounds(r), 6);
  assert_int_equal(ad_recipe_rounds(&alone), 9);
  assert_int_equal(ad_recipe_list_leaves(&alone, 0, &leaves), AD_OK);
  int64_t count = 0;
  for (int64_t round = 0; round < 9; round++)
    if (leaves[round] >= 0) assert_int_equal(leaves[round], count++);
  assert_int_equal(count, 8);
  ad_release(leaves);
  ad_alone_release(&alone);
  ad_recipe_destroy(r);
}

/* Checks which leaves the program of a rank has. */
static void check_own(const char *mesh, const char *leaves, const char *zero, int64_t rank, int64_t world,
                      const int64_t *own, size_t count) {
  ad_recipe *r = READ(GOOD, mesh, leaves, zero);
  ad_comm *comm;
  ad_program *program;
  assert_int_equal(ad_comm_open_dry(rank, world, &comm), AD_OK);
  assert_int_equal(ad_recipe_program(r, comm, 0, &program), AD_OK);
  const ad_program_setting *setting = ad_program_setting_of(program);
  assert_int_equal(setting->leaves, r->train.leaves);
  assert_int_equal(setting->microbatches, r->train.leaves);
  assert_int_equal(setting->own_count, count);
  for (size_t i = 0; i < count; i++) assert_int_equal(setting->own[i], own[i]);
  assert_string_equal(ad_mesh_text(ad_program_module(program, 0)->mesh), mesh + strlen("mesh="));
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
}

static void the_program_has_a_microbatch_for_each_leaf(void **state) {
  check_own("mesh=dp_replicate=2", "train.leaves=8", "shard.zero=0", 1, 2, (const int64_t[]){4, 5, 6, 7}, 4);
  check_own("mesh=dp_shard=5", "train.leaves=16", "shard.zero=2", 0, 5, NULL, 0);
  check_own("mesh=dp_shard=5", "train.leaves=16", "shard.zero=3", 0, 5, (const int64_t[]){0}, 1);
  check_own("mesh=dp_shard=5", "train.leaves=16", "shard.zero=3", 2, 5, (const int64_t[]){1, 5, 9, 13}, 4);
}

/* ---- what is refused ---- */

static const ad_key *view_key(const ad_program_kind *kind) {
  size_t i = 0;
  while (kind->keys[i].kind != AD_KEY_VIEW) i++;
  return &kind->keys[i];
}

static void keys_that_do_not_go_with_leaves_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "pp=2", "pp=1"), GOOD, "train.leaves=4", "mesh=pp=2 dp_shard=2");
  SET_SAYS(("--set train.leaves", "tp=2 dp_shard=2", "tp"), GOOD, "train.leaves=4", "mesh=tp=2 dp_shard=2");
  SET_SAYS(("--set train.leaves", "dp_replicate", "dp_shard", "dp_shard=2 dp_replicate=2"), GOOD, "train.leaves=4",
           "mesh=dp_shard=2 dp_replicate=2");
  SET_SAYS(("--set train.leaves", "schedule.stages", "2", "0"), GOOD, "train.leaves=4", "schedule.stages=2");
}

/* Experts are exchanged among the ranks of one data-parallel position, or not at all. */
static void views_over_data_parallel_ranks_are_refused(void **state) {
  static const char text[] =
      "name: r\nmodel: {kind: moe, layers: 1, d_model: 16, heads: 2, experts: 4, expert_hidden: 4}\n"
      "data: {text: [a], seq: 8}\nmesh: \"dp_shard=2 tp=2\"\n"
      "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n";
  ad_recipe *r = READ(text, "views.sparse=ep=2 etp=1", "model.balance_rate=0.1"), position;
  assert_int_equal(ad_alone_create_position(r, &position), AD_OK);
  assert_string_equal(position.meshes[0].text, "dp_shard=1 tp=2");
  assert_string_equal(*(char **)((char *)position.options + view_key(r->program)->offset), "efsdp=1 ep=2 etp=1");
  ad_alone_release(&position);
  ad_recipe_destroy(r);
  ad_recipe_destroy(READ(text, "mesh=dp_replicate=3 dp_shard=2 tp=2"));
  ad_recipe_destroy(READ(text, "mesh=dp_shard=4", "views.sparse=ep=1 etp=1"));
  SET_SAYS(("--set views.sparse", "ep=4", "train.leaves", "ep=2"), text, "views.sparse=ep=4 etp=1");
  SET_SAYS(("--set views.sparse", "ep=2 etp=2", "train.leaves"), text, "views.sparse=efsdp=1 ep=2 etp=2");
  SET_SAYS(("--set views.sparse", "ep=2", "train.leaves", "ep=1"), text, "mesh=dp_shard=4", "views.sparse=ep=2 etp=1");
}

static void fewer_leaves_than_ranks_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "2", "1"), GOOD, "train.leaves=1");
  SET_SAYS(("--set train.leaves", "7", "5"), GOOD, "train.leaves=5", "mesh=dp_shard=7");
  SET_SAYS(("--set train.leaves", "6", "5"), GOOD, "train.leaves=5", "mesh=dp_replicate=3 dp_shard=2 tp=2");
}

static int drawn(uint64_t stream, uint64_t index, int below) {
  return (int)(below * ad_random_uniform(53, stream, index));
}

/* Returns the status with which the reducer of the program's parameters is made, as a run would make it. If it is made,
 * checks that each rank has the leaves of the recipe's list. */
static ad_status reducers_status(const ad_recipe *r, int64_t world) {
  ad_status status = AD_OK;
  ad_sync sync[256];
  ad_leaf_options leaves = {r->train.leaves, ad_recipe_rounds(r), sync};
  for (int64_t i = 0; i < leaves.rounds; i++) sync[i] = ad_recipe_sync(r, (size_t)i);
  for (int64_t rank = 0; !status && rank < world; rank++) {
    ad_comm *comm;
    ad_program *program;
    ad_reducer *reducer = NULL;
    int64_t *list;
    assert_int_equal(ad_comm_open_dry(rank, world, &comm), AD_OK);
    assert_int_equal(ad_recipe_program(r, comm, 0, &program), AD_OK);
    const ad_module_spec *module = ad_program_module(program, 0);
    status = ad_reducer_create(comm, module->params, module->param_count,
                               &(ad_reducer_options){.size = sizeof(ad_reducer_options), .leaves = &leaves}, &reducer);
    assert_int_equal(ad_recipe_list_leaves(r, rank, &list), AD_OK);
    for (int64_t i = 0; !status && i < leaves.rounds; i++) assert_int_equal(list[i], ad_reducer_leaf(reducer, i));
    ad_release(list);
    ad_reducer_destroy(reducer);
    ad_program_destroy(program);
    ad_comm_close(comm);
  }
  return status;
}

/* Any mesh, number of leaves and of microbatches, ZeRO stage and sync list: the reducer assigns the same leaves. */
static void recipes_and_reducers_assign_the_same_leaves(void **state) {
  for (uint64_t i = 0; i < 250; i++) {
    static const char *const syncs[] = {"none", "shard", "all"};
    int replicas = 1 + drawn(i, 0, 4), shards = 1 + drawn(i, 1, 4), zero = drawn(i, 2, 4),
        microbatches = 1 + drawn(i, 3, 5), leaves = replicas * shards + drawn(i, 4, 16);
    char sets[4][80], list[80] = "train.sync=[";
    snprintf(sets[0], sizeof sets[0], "mesh=dp_replicate=%d dp_shard=%d", replicas, shards);
    snprintf(sets[1], sizeof sets[1], "train.leaves=%d", leaves);
    snprintf(sets[2], sizeof sets[2], "shard.zero=%d", zero);
    snprintf(sets[3], sizeof sets[3], "train.microbatches=%d", microbatches);
    for (int m = 0; m + 1 < microbatches; m++)
      snprintf(list + strlen(list), sizeof list - strlen(list), "%s, ", syncs[drawn(i, (uint64_t)m + 5, 3)]);
    snprintf(list + strlen(list), sizeof list - strlen(list), "all]");
    const char *all[] = {sets[0], sets[1], sets[2], sets[3], list};
    ad_recipe *r = NULL;
    ad_status status = ad_recipe_parse(GOOD, "r.yaml", all, 5, &r);
    if (!status) status = reducers_status(r, replicas * shards);
    if (status) fail_msg("%s %s %s %s: %s", sets[0], sets[1], sets[2], list, ad_last_error());
    ad_recipe_destroy(r);
  }
}

static void sums_that_are_rounded_between_ranks_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "embedding.weight", "precision.reduce", "bf16", "precision.accumulate", "f32"), GOOD,
           "train.leaves=8", "precision.param=bf16");
  SET_SAYS(("--set train.leaves", "final.norm.weight", "precision.reduce", "f32", "precision.accumulate", "f64"), GOOD,
           "train.leaves=8", "precision.overrides={\"final*\": {reduce: f32, accumulate: f64}}");
  ad_recipe_destroy(READ(GOOD, "precision.param=bf16", "precision.reduce=f32"));
}

/* ---- kinds of programs ---- */

static ad_status refuse(const void *options, ad_program *to, void **own) {
  return ad_program_add_module(to, &(ad_module_spec){.size = 1});
}
static ad_status run_nothing(void *own, ad_phase_run *at) { return AD_OK; }
static ad_status read_nothing(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}
static double no_margin(const void *own) { return 0; }
static ad_status no_decisions(void *own, ad_deciding deciding, int32_t **out, size_t *count) { return AD_OK; }
static const double *no_numbers(const void *own, size_t index, const char **name, size_t *count) { return NULL; }
static ad_status show_nothing(void *own, const ad_forward *forward, char **out) { return AD_OK; }
static ad_status do_nothing(void *own, ad_step_outcome outcome) { return AD_OK; }

static void programs_that_need_all_microbatches_are_refused(void **state) {
  static ad_program_kind kinds[] = {
      {.name = "that_chooses", .choices = {.margin = no_margin, .decisions = no_decisions}},
      {.name = "that_measures", .account = {.measured = no_numbers}},
      {.name = "that_shows", .account = {.show = show_nothing}},
      {.name = "that_changes", .course = {.after_step = do_nothing}}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char text[256];
    ad_recipe *r = NULL;
    kinds[i].size = sizeof kinds[i];
    kinds[i].create = refuse;
    kinds[i].read = read_nothing;
    kinds[i].options_size = 1;
    if (ad_program_register(&kinds[i])) fail_msg("%s", ad_last_error());
    snprintf(text, sizeof text,
             "name: r\nmodel: {kind: %s}\nmesh: \"dp_replicate=2\"\n"
             "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n",
             kinds[i].name);
    assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &r), AD_INVALID);
    assert_says_in(kinds[i].name, ad_last_error(), SAYS_FACTS("r.yaml:4: train.leaves", "model.kind", kinds[i].name));
  }
}

static ad_status create_unsharded(const void *options, ad_program *to, void **own) {
  ad_layout full = ad_layout_all(ad_program_mesh(to, 0), AD_R);
  ad_param_spec params[] = {
      {.size = sizeof *params, .name = "w", .shape = {1, {4}}, .layout = full, .sharded = AD_AXES(AD_DP_SHARD)},
      {.size = sizeof *params, .name = "scale", .shape = {0, {0}}, .layout = full, .sharded = AD_AXES(AD_DP_SHARD)}};
  ad_module_spec module = {
      .size = sizeof module, .name = "model", .mesh = full.mesh, .params = params, .param_count = 2};
  AD_TRY(ad_program_add_module(to, &module));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", full}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = run_nothing});
}

/* The gradient of a scalar is not sharded; it is summed over dp_shard when others are scattered. */
static void parameters_that_are_not_sharded_may_stand_beside_others(void **state) {
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "that_has_a_scalar",
                                       .options_size = 1,
                                       .create = create_unsharded,
                                       .read = read_nothing};
  static const char text[] =
      "name: r\nmodel: {kind: that_has_a_scalar}\nmesh: \"dp_shard=2\"\n"
      "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n";
  if (ad_program_register(&kind)) fail_msg("%s", ad_last_error());
  ad_recipe_destroy(READ(text, "shard.zero=3"));
  ad_recipe_destroy(READ(text, "shard.zero=1", "train.microbatches=4"));
  ad_recipe_destroy(READ(text, "shard.zero=3", "train.microbatches=2", "train.sync=[none, all]"));
}

static void programs_of_several_modules_are_refused(void **state) {
  ad_recipe *r = NULL;
  assert_int_equal(ad_recipe_parse("name: r\nmodel: {kind: ocr}\nmesh: {encoder: dp=2, model: dp=2}\n"
                                   "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n",
                                   "r.yaml", NULL, 0, &r),
                   AD_INVALID);
  assert_facts(ad_last_error(), "r.yaml:4: train.leaves", "model.kind ocr", "2");
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *sets[] = {"mesh=dp_replicate=2 tp=2"};
  const char *experts[] = {"mesh=dp_replicate=2 tp=2", "model.kind=moe", "model.experts=4", "model.expert_hidden=4",
                           "views.sparse=ep=2 etp=1"};
  assert_true(fails_with_each_allocation(GOOD, sets, 1, AD_OK) > 50);
  assert_true(fails_with_each_allocation(GOOD, experts, 5, AD_OK) > 60);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_leaves_a_round_is_a_microbatch),
      cmocka_unit_test(a_microbatch_has_as_many_rounds_as_its_leaves_need),
      cmocka_unit_test(a_microbatch_is_reduced_after_its_last_round),
      cmocka_unit_test(each_leaf_is_on_one_position),
      cmocka_unit_test(left_out_microbatches_are_as_many_as_the_leaves_of_a_rank),
      cmocka_unit_test(a_rank_without_a_leaf_passes_through_one_where_others_do),
      cmocka_unit_test(alone_one_rank_has_all_leaves),
      cmocka_unit_test(the_program_has_a_microbatch_for_each_leaf),
      cmocka_unit_test(keys_that_do_not_go_with_leaves_are_refused),
      cmocka_unit_test(views_over_data_parallel_ranks_are_refused),
      cmocka_unit_test(fewer_leaves_than_ranks_are_refused),
      cmocka_unit_test(recipes_and_reducers_assign_the_same_leaves),
      cmocka_unit_test(sums_that_are_rounded_between_ranks_are_refused),
      cmocka_unit_test(programs_that_need_all_microbatches_are_refused),
      cmocka_unit_test(programs_of_several_modules_are_refused),
      cmocka_unit_test(parameters_that_are_not_sharded_may_stand_beside_others),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
