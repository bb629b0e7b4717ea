/* Tests checks of runs in which Muon updates whole matrices: updates have the bits of one process whatever shards the
 * matrices and whoever works on them; with `blockwise` one process works on the same blocks; and every mutant of such
 * updates is killed. */
#include "draw.h"
#include "fused_program.h"

#include "check/document.h"
#include "optim/known_bugs.h"

/* ---- updates have the bits of one process ---- */

static ad_recipe *recipe_of_layers(const char *model, const char *mesh, const char *more) {
  char text[1024];
  snprintf(
      text, sizeof text,
      "name: layers\nmodel: {%s}\ndata: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL
      "}\nmesh: \"%s\"\ntrain: {seed: 4, global_batch: 12, microbatches: 2, steps: 5, lr: 1e-2, weight_decay: 0.1, "
      "clip: 0.5}\ngroups: [{match: \"*norm*\", kind: adamw, lr: 0.002}, {match: \"embedding.*\", kind: sgd}]\n%s\n",
      model, mesh, more);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "layers.yaml", NULL, 0, &recipe));
  return recipe;
}

#define DENSE "kind: gpt, layers: 2, d_model: 16, heads: 2, d_hidden: 21"
#define SPARSE "kind: moe, layers: 1, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 7"
#define FUSED NULL /* the program of fused_program.h */

typedef struct world {
  const char *model, *mesh, *more;
} world;

static ad_recipe *recipe_at(const world *at) {
  return at->model ? recipe_of_layers(at->model, at->mesh, at->more) : fused_recipe(at->mesh, at->more);
}

static void expect_the_bits_of_one_process(const world *at) {
  ad_recipe *recipe = recipe_at(at);
  ad_check_options options = {.size = sizeof options, .steps = 2};
  ad_launch_result launched = {.size = sizeof launched};
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  ad_check_job job = {.recipe = recipe, .options = &options, .steps = 2, .result = result};
  must(ad_check_run(&job, &launched));
  for (size_t i = 0; i < result->param_count; i++)
    if (!result->params[i].update_equal) fail_msg("%s, %s: %s differs", at->mesh, at->more, result->params[i].name);
  if (!ad_check_result_passes(result, 0)) fail_msg("%s, %s does not match", at->mesh, at->more);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void expect_of_some(const char *what, const world *worlds, int count, int drawn_count) {
  draw drawn = draw_cases(what, count, 0, drawn_count);
  for (int i = 0; i < count; i++)
    if (is_drawn(&drawn, i)) expect_the_bits_of_one_process(&worlds[i]);
}

#define MUON(zero, keys) "shard: {zero: " #zero "}\noptimizer: {kind: muon" keys "}"
#define WAY(way) ", muon: {way: " way "}"

static void whoever_works_on_a_matrix_its_update_has_the_bits_of_one_process(void **state) {
  static const world worlds[] = {
      {DENSE, "dp_shard=3", MUON(3, "")},
      {DENSE, "dp_shard=3", MUON(2, WAY("gathered"))},
      {DENSE, "dp_replicate=2 dp_shard=2", MUON(0, WAY("dealt_to_replicas"))},
      {DENSE, "dp_replicate=3 dp_shard=2", MUON(1, WAY("dealt"))},
      {DENSE, "dp_replicate=2 dp_shard=2", MUON(3, WAY("dealt_to_replicas"))},
      {DENSE, "dp_shard=2 tp=2", MUON(3, WAY("dealt"))},
      {DENSE, "dp_shard=2 tp=2", MUON(2, WAY("gathered"))},
      {DENSE, "cp=2 tp=2", MUON(0, WAY("dealt_to_replicas"))},
      {DENSE, "pp=2 dp_shard=2", MUON(3, "")},
      {SPARSE, "dp_shard=4", MUON(3, "") "\nviews: {sparse: \"efsdp=2 ep=2 etp=1\"}"},
      {SPARSE, "dp_shard=2 tp=2", MUON(2, WAY("dealt")) "\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}"},
      {FUSED, "dp_shard=2 tp=2", MUON(3, "")},
      {FUSED, "dp_shard=3 tp=1", MUON(3, WAY("dealt"))},
      {FUSED, "dp_replicate=2 dp_shard=1 tp=3", MUON(0, WAY("gathered"))},
  };
  expect_of_some("worlds of whole matrices", worlds, sizeof worlds / sizeof *worlds, 5);
}

static void one_process_works_on_the_blocks_that_ranks_store(void **state) {
#define BLOCKWISE(zero) MUON(zero, ", muon: {blockwise: true}")
  static const world worlds[] = {
      {DENSE, "dp_shard=3", BLOCKWISE(3)},
      {DENSE, "dp_shard=2 tp=2", BLOCKWISE(3)},
      {DENSE, "dp_replicate=2 tp=2", BLOCKWISE(0)},
      {DENSE, "pp=2 dp_shard=2", BLOCKWISE(1)},
      {SPARSE, "dp_shard=2 tp=2", BLOCKWISE(3) "\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}"},
  };
  expect_of_some("worlds of blocks", worlds, sizeof worlds / sizeof *worlds, 3);
}

/* The verdict of a match says that it is one of blocks. */
static void the_verdict_says_that_blocks_are_updated(void **state) {
  for (int blockwise = 0; blockwise < 2; blockwise++) {
    ad_recipe *recipe = recipe_of_layers(DENSE, "tp=2", blockwise ? BLOCKWISE(0) : MUON(0, ""));
    ad_check_options options = {.size = sizeof options, .steps = 1};
    int holds;
    char *json, *table;
    must(ad_check(recipe, &options, &holds, &json));
    must(ad_check_table(json, AD_PLAIN_TEXT, &table));
    json_t *document = json_loads(json, 0, NULL), *others;
    others = json_array_get(json_object_get(document, "groups"), 2);
    assert_true(holds && json_is_true(json_object_get(others, "blockwise")) == blockwise);
    assert_string_equal(json_string_value(json_object_get(others, "kind")), "muon");
    assert_int_equal(strstr(last_line(table), "block") != NULL, blockwise);
    json_decref(document);
    free(table);
    free(json);
    ad_recipe_destroy(recipe);
  }
}

/* ---- mutants ---- */

static ad_mutants *mutants_of(const world *at) {
  ad_recipe *recipe = recipe_at(at);
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 1, 0, &tried));
  must(ad_mutants_try(recipe, &options, result, tried));
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
  return tried;
}

static ad_mutant *find(ad_mutants *mutants, const char *name) {
  for (size_t i = mutants->derived; i < mutants->count; i++)
    if (!strcmp(mutants->list[i].name, name)) return &mutants->list[i];
  fail_msg("no mutant is called %s", name);
  return NULL;
}

/* In these worlds every known bug of updates has what it needs: there are states, decay, groups with other rates,
 * matrices that are sharded over dp and tp, and fused ones. */
static void every_known_bug_of_updates_is_killed(void **state) {
  static const world worlds[] = {{FUSED, "dp_shard=2 tp=2", MUON(3, "")},
                                 {DENSE, "dp_shard=2 tp=2", MUON(2, "")},
                                 {DENSE, "dp_shard=3", MUON(2, "")}};
  enum { WORLDS = sizeof worlds / sizeof *worlds };
  ad_mutants *tried[WORLDS];
  size_t count;
  const ad_known_bug *bugs = ad_optim_known_bugs(&count);
  for (int w = 0; w < WORLDS; w++) tried[w] = mutants_of(&worlds[w]);
  for (size_t i = 0; i < count; i++) {
    int killed = 0;
    for (int w = 0; w < WORLDS; w++) {
      const ad_mutant *mutant = find(tried[w], bugs[i].name);
      if (mutant->killed_by == AD_KILLED_BY_NONE)
        fail_msg("%s survives in world %d: %s", mutant->name, w, mutant->message);
      killed |= mutant->killed_by != AD_KILLED_BY_NOT_APPLICABLE && mutant->killed_by != AD_KILLED_BY_NO_EFFECT;
    }
    if (!killed) fail_msg("%s is killed in no world: %s", bugs[i].name, find(tried[1], bugs[i].name)->message);
  }
  for (int w = 0; w < WORLDS; w++) ad_mutants_destroy(tried[w]);
}

/* Derived mutants of the moves of matrices, there and back. */
static void every_move_of_matrices_has_mutants_that_are_killed(void **state) {
  static const world at = {FUSED, "dp_shard=2 tp=2", MUON(3, WAY("dealt"))};
  ad_recipe *recipe = recipe_at(&at);
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  int holds;
  char *json;
  must(ad_check(recipe, &options, &holds, &json));
  json_t *document = json_loads(json, 0, NULL), *mutant;
  size_t i, moves = 0;
  if (json_integer_value(json_object_get(document, "survivors"))) {
    char *table;
    must(ad_check_table(json, AD_PLAIN_TEXT, &table));
    fail_msg("%s", table);
  }
  json_array_foreach(json_object_get(document, "mutants"), i, mutant) {
    const json_t *derived = json_object_get(mutant, "derived");
    const char *place = json_string_value(json_object_get(derived, "place"));
    moves +=
        place && strstr(place, "all_to_all") && !strcmp(json_string_value(json_object_get(derived, "phase")), "step");
  }
  assert_true(moves > 0);
  json_decref(document);
  free(json);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whoever_works_on_a_matrix_its_update_has_the_bits_of_one_process),
      cmocka_unit_test(one_process_works_on_the_blocks_that_ranks_store),
      cmocka_unit_test(the_verdict_says_that_blocks_are_updated),
      cmocka_unit_test(every_known_bug_of_updates_is_killed),
      cmocka_unit_test(every_move_of_matrices_has_mutants_that_are_killed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
