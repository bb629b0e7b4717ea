/* Tests what plans say about updates on whole matrices: their moves, their memory, the ways, and who works on what. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "base/injection.h"
#include "base/memory.h"
#include "files/json.h"
#include "module/module.h"
#include "plan/updates.h"
#include "program/program.h"
#include "says.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* ---- recipes and their plans ---- */

#define ADAMW_FOR_OTHERS \
  "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw, decay: 0.1}]\n"

/* A GPT whose matrices are not square; `options`: further options of Muon. */
static ad_recipe *recipe_of(const char *mesh, int zero, const char *options, const char *groups) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: muon\nmodel: {kind: gpt, layers: 3, d_model: 24, heads: 4}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\nshard: {zero: %d}\n"
           "train: {global_batch: 12, steps: 2, lr: 1e-2}\noptimizer: {kind: muon%s}\n%s",
           mesh, zero, options, groups);
  must(ad_recipe_parse(text, "muon.yaml", NULL, 0, &recipe));
  return recipe;
}

/* A mixture of 5 experts on 2 groups of ranks: some have matrices of 2 experts a layer, others of 3. */
static ad_recipe *recipe_of_experts(void) {
  ad_recipe *recipe = NULL;
  must(
      ad_recipe_parse("name: experts\nmodel: {kind: moe, layers: 2, d_model: 24, heads: 6, experts: 5, top_k: 2, "
                      "expert_hidden: 11, shared_experts: 7}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 7}\nmesh: \"dp_shard=2 tp=2\"\n"
                      "views: {sparse: \"efsdp=1 ep=2 etp=2\"}\n"
                      "train: {global_batch: 5, steps: 2, lr: 1e-3}\noptimizer: {kind: muon, muon: {way: dealt}}\n"
                      "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw}, "
                      "{match: \"*router*\", kind: adamw}]\n",
                      "experts.yaml", NULL, 0, &recipe));
  return recipe;
}

static json_t *plan_of(const ad_recipe *recipe) {
  ad_plan_options options = {.size = sizeof options};
  json_t *plan = NULL;
  must(ad_plan_document(recipe, &options, &plan));
  return plan;
}

static json_int_t number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_integer(value));
  return json_integer_value(value);
}

/* The meshes that the tests plan: shards over one axis, nested with tp, with replicas, and of pipelines. */
static const struct {
  const char *mesh;
  int zero;
  const char *options;
} cases[] = {{"dp=1", 0, ""},
             {"dp_shard=3", 3, ", muon: {way: dealt}"},
             {"dp_shard=3", 3, ", muon: {way: gathered}"},
             {"dp_replicate=2 dp_shard=2 tp=2", 3, ", muon: {way: dealt}"},
             {"dp_replicate=3 dp_shard=2", 1, ", muon: {way: dealt_to_replicas}"},
             {"dp_replicate=5 dp_shard=1", 0, ", muon: {way: dealt_to_replicas}"},
             {"tp=4", 0, ""},
             {"pp=2 dp_shard=2", 1, ", muon: {way: dealt}"},
             {"dp_shard=2 tp=2", 3, ", muon: {blockwise: true}"},
             {"dp_shard=5", 3, ", muon: {blockwise: true}"}};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- acting as one rank ---- */

/* The moves of stacks in a step that one process takes as a rank. */
typedef struct watched {
  int64_t calls;
  size_t bytes;
} watched;

static void watch_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  watched *seen = context;
  int gathers = pass->transit->move == AD_MOVE_ALL_GATHER;
  /* A round of a stack is an array of three dimensions with a name; units and buckets have lists of names. */
  if (!pass->transit->what || pass->in->shape.ndim != 3 || !ad_move_moves_bytes(pass->transit->move)) return;
  ad_array after;
  if (ad_array_after(pass->comm, pass->in, pass->transit->move, pass->transit->axes, pass->transit->to, &after)) return;
  seen->calls++;
  seen->bytes += ad_array_bytes(gathers ? &after : pass->in);
}

static void act_as(const ad_recipe *recipe, int64_t rank, ad_comm **comm, ad_run **run, watched *seen) {
  ad_plan_world world;
  must(ad_plan_world_of(recipe, NULL, &world));
  ad_injection before = ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){watch_transit, seen});
  must(ad_plan_act(recipe, rank, &world, 0, comm, run));
  ad_injection_set(AD_INJECT_TRANSIT, before);
}

/* The matrices on which a rank works, counted in its own stacks. */
static int64_t own_matrices(const ad_run *run, double *operations) {
  int64_t matrices = 0;
  *operations = 0;
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(run)); m++) {
    size_t count;
    const ad_stack *stacks = ad_plan_stacks(run, m, &count);
    for (size_t i = 0; i < count; i++)
      for (int64_t round = 0; round < stacks[i].rounds; round++) {
        int works = stacks[i].slot[round * stacks[i].ranks + stacks[i].own] >= 0;
        matrices += works;
        *operations += works * stacks[i].own_operations;
      }
  }
  return matrices;
}

static void the_plan_has_the_moves_memory_and_matrices_of_each_rank(void **state) {
  for (size_t c = 0; c < CASES; c++) {
    ad_recipe *recipe = recipe_of(cases[c].mesh, cases[c].zero, cases[c].options, ADAMW_FOR_OTHERS);
    json_t *plan = plan_of(recipe);
    const json_t *owner, *step, *owners = json_object_get(plan, "owners");
    size_t i, s;
    assert_int_equal(json_array_size(owners), number(plan, "world"));
    json_array_foreach(owners, i, owner) {
      ad_comm *comm;
      ad_run *run;
      watched seen = {0}, planned = {0};
      double operations;
      act_as(recipe, (int64_t)i, &comm, &run, &seen);
      const json_t *rank = json_array_get(json_object_get(plan, "memory_per_rank"), i);
      json_array_foreach(json_object_get(plan, "collectives"), s, step) {
        if (strcmp(ad_text_of(step, "when"), "update") || number(step, "pool") != number(rank, "pool")) continue;
        planned.calls += number(step, "times");
        planned.bytes += (size_t)(number(step, "times") * number(step, "bytes"));
      }
      assert_int_equal(number(owner, "rank"), i);
      assert_int_equal(number(owner, "matrices"), own_matrices(run, &operations));
      assert_true(ad_number_of(owner, "operations") == operations);
      assert_int_equal(planned.calls, seen.calls);
      /* Shards are uneven, so the first rank's bytes are those of every rank only where there is one. */
      if (!i) assert_int_equal(planned.bytes, seen.bytes);
      ad_plan_memory memory;
      must(ad_plan_memory_of(run, &memory));
      assert_int_equal(number(rank, "update"), memory.update);
      assert_true(memory.update > 0);
      ad_run_destroy(run);
      ad_comm_close(comm);
    }
    json_decref(plan);
    ad_recipe_destroy(recipe);
  }
}

/* Groups of ranks with more experts work on more matrices. */
static void ranks_with_more_experts_work_on_more(void **state) {
  ad_recipe *recipe = recipe_of_experts();
  json_t *plan = plan_of(recipe);
  const json_t *owner;
  size_t i;
  int64_t least = INT64_MAX, most = 0;
  json_array_foreach(json_object_get(plan, "owners"), i, owner) {
    ad_comm *comm;
    ad_run *run;
    watched seen = {0};
    double operations;
    act_as(recipe, (int64_t)i, &comm, &run, &seen);
    int64_t own = own_matrices(run, &operations);
    assert_int_equal(number(owner, "matrices"), own);
    assert_true(ad_number_of(owner, "operations") == operations);
    if (own < least) least = own;
    if (own > most) most = own;
    ad_run_destroy(run);
    ad_comm_close(comm);
  }
  assert_true(least < most);
  const json_t *load = json_array_get(json_object_get(plan, "owners_most"), 0);
  assert_true(ad_number_of(load, "operations") <= ad_number_of(load, "bound"));
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* No rank works on more than the mean and the largest matrix, and every matrix has one owner in each group of ranks. */
static void matrices_are_counted_once_and_within_the_bound(void **state) {
  for (size_t c = 0; c < CASES; c++) {
    ad_recipe *recipe = recipe_of(cases[c].mesh, cases[c].zero, cases[c].options, ADAMW_FOR_OTHERS);
    json_t *plan = plan_of(recipe);
    const json_t *owner, *update, *most;
    double matrices = 0, operations = 0;
    size_t i;
    json_array_foreach(json_object_get(plan, "updates"), i, update) {
      const json_t *pool = json_array_get(json_object_get(plan, "pools"), (size_t)number(update, "pool"));
      double groups = (double)number(pool, "ranks") / (double)number(update, "ranks");
      matrices += groups * (double)number(update, "matrices");
      assert_int_equal(number(update, "rounds") * number(update, "ranks"),
                       number(update, "matrices") + number(update, "empty"));
      assert_in_range(number(update, "empty"), 0, number(update, "ranks") - 1);
      assert_string_equal(ad_text_of(update, "optimizer"), "muon");
    }
    json_array_foreach(json_object_get(plan, "owners"), i, owner) {
      matrices -= (double)number(owner, "matrices");
      if (ad_number_of(owner, "operations") > operations) operations = ad_number_of(owner, "operations");
    }
    assert_true(matrices == 0);
    json_array_foreach(json_object_get(plan, "owners_most"), i, most) {
      assert_true(ad_number_of(most, "operations") <= ad_number_of(most, "bound"));
      assert_true(ad_number_of(most, "operations") >= ad_number_of(most, "mean") * (1 - 1e-12));
      assert_true(ad_number_of(most, "operations") <= operations);
    }
    json_decref(plan);
    ad_recipe_destroy(recipe);
  }
}

/* ---- ranks that allocate what the plan says ---- */

static int allocates(ad_comm *comm, void *context) {
  const ad_recipe *recipe = context;
  ad_run *run;
  json_t *plan = NULL;
  ad_plan_options options = {.size = sizeof options};
  ad_status status = ad_run_create(comm, recipe, NULL, &run);
  if (!status) status = ad_plan_document(recipe, &options, &plan);
  if (status) return ad_comm_fail(comm, status, ad_last_error()), 1;
  size_t bytes = 0;
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(run)); m++) {
    ad_module *module = ad_run_module(run, m);
    const ad_whole *whole = module ? ad_optimizer_whole(ad_module_optimizer(module)) : NULL;
    if (whole) bytes += ad_whole_bytes(whole);
  }
  const json_t *rank = json_array_get(json_object_get(plan, "memory_per_rank"), (size_t)ad_comm_rank(comm));
  if (ad_integer_of(rank, "update") != (long long)bytes)
    return ad_comm_fail(comm, AD_INVALID, "a rank allocates other bytes than the plan says"), 1;
  json_decref(plan);
  ad_run_destroy(run);
  return 0;
}

static void ranks_allocate_what_the_plan_says(void **state) {
  for (size_t c = 0; c < CASES; c++) {
    ad_recipe *recipe = recipe_of(cases[c].mesh, cases[c].zero, cases[c].options, ADAMW_FOR_OTHERS);
    int64_t ranks;
    must(ad_recipe_world(recipe, &ranks));
    ad_launch_options start = {.size = sizeof start, .ranks = ranks, .function = allocates, .context = recipe};
    ad_launch_result result = {.size = sizeof result};
    if (ad_launch(&start, &result)) fail_msg("%s: %s", cases[c].mesh, result.message);
    ad_recipe_destroy(recipe);
  }
}

/* ---- the document and the table ---- */

static const json_t *param_of(const json_t *plan, const char *name) {
  const json_t *param;
  size_t i;
  json_array_foreach(json_object_get(plan, "params"), i, param) {
    if (!strcmp(ad_text_of(param, "name"), name)) return param;
  }
  fail_msg("%s", name);
  return NULL;
}

static void parameters_say_their_group_and_optimizer(void **state) {
  ad_recipe *recipe =
      recipe_of("dp=2", 0, "", "groups: [{match: \"embedding.*\", frozen: true}, {match: \"*norm*\", kind: adamw}]\n");
  json_t *plan = plan_of(recipe);
  const json_t *frozen = param_of(plan, "embedding.weight"), *norm = param_of(plan, "final.norm.weight");
  const json_t *matrix = param_of(plan, "blocks.0.attn.wq");
  assert_true(json_is_true(json_object_get(frozen, "frozen")));
  assert_string_equal(ad_text_of(frozen, "group"), "embedding.*");
  assert_true(json_is_null(json_object_get(frozen, "optimizer")));
  assert_null(json_object_get(norm, "frozen"));
  assert_string_equal(ad_text_of(norm, "group"), "*norm*");
  assert_string_equal(ad_text_of(norm, "optimizer"), "adamw");
  assert_true(json_is_null(json_object_get(matrix, "group")));
  assert_string_equal(ad_text_of(matrix, "optimizer"), "muon");
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void each_way_has_a_cost_and_one_is_taken(void **state) {
  static const char *const ways[] = {"gathered", "dealt", "dealt_to_replicas"};
  ad_recipe *recipe = recipe_of("dp_replicate=2 dp_shard=2", 3, "", ADAMW_FOR_OTHERS);
  json_t *plan = plan_of(recipe);
  const json_t *update;
  size_t i;
  json_array_foreach(json_object_get(plan, "updates"), i, update) {
    const json_t *costs = json_object_get(update, "ways"), *taken = json_object_get(costs, ad_text_of(update, "way"));
    assert_non_null(taken);
    for (size_t w = 0; w < 3; w++)
      assert_true(ad_number_of(json_object_get(costs, ways[w]), "seconds") >= ad_number_of(taken, "seconds"));
  }
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void blocks_are_counted_and_said_to_be_blocks(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=2 tp=2", 3, ", muon: {blockwise: true}", ADAMW_FOR_OTHERS);
  ad_plan_options options = {.size = sizeof options};
  json_t *plan = plan_of(recipe);
  char *table;
  const json_t *update;
  size_t i;
  json_array_foreach(json_object_get(plan, "updates"), i, update) {
    assert_int_equal(number(update, "blocks"), 4);
    assert_null(json_object_get(update, "way"));
  }
  must(ad_plan_table(recipe, &options, &table));
  assert_non_null(strstr(table, "4 blocks"));
  assert_null(strstr(table, "all_to_all"));
  ad_release(table);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* The operations for the blocks of a rank, from the shapes of its parts of the parameters. */
static double operations_of_blocks(const ad_run *run) {
  size_t count;
  double operations = 0;
  const ad_whole *whole = ad_optimizer_whole(ad_module_optimizer(ad_run_module(run, 0)));
  const ad_whole_param *params = ad_whole_params(whole, &count);
  for (size_t i = 0; i < count; i++) {
    const int64_t *dim = params[i].like.local.dim;
    operations += params[i].record->whole->operations(params[i].options, dim[0], dim[1]);
  }
  return operations;
}

/* Nobody is shown the cost of a way that cannot be taken. */
static void a_way_for_too_many_replicas_has_no_figures(void **state) {
  for (int replicas = 8; replicas <= 9; replicas++) {
    char mesh[40], *table;
    snprintf(mesh, sizeof mesh, "dp_replicate=%d dp_shard=2", replicas);
    ad_recipe *recipe = recipe_of(mesh, 3, "", ADAMW_FOR_OTHERS);
    ad_plan_options options = {.size = sizeof options};
    json_t *plan = plan_of(recipe);
    const json_t *update;
    size_t i;
    json_array_foreach(json_object_get(plan, "updates"), i, update) {
      const json_t *cost = json_object_get(json_object_get(update, "ways"), "dealt_to_replicas");
      assert_int_equal(json_is_null(cost), replicas > 8);
      assert_int_equal(json_is_object(cost), replicas <= 8);
    }
    must(ad_plan_table(recipe, &options, &table));
    assert_int_equal(strstr(table, "dealt_to_replicas -\n") != NULL, replicas > 8);
    ad_release(table);
    json_decref(plan);
    ad_recipe_destroy(recipe);
  }
}

/* Blocks are uneven here, so ranks have different work. */
static void each_rank_works_on_its_own_blocks_alone(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=5", 3, ", muon: {blockwise: true}", ADAMW_FOR_OTHERS);
  json_t *plan = plan_of(recipe);
  const json_t *owner, *owners = json_object_get(plan, "owners");
  size_t i;
  double most = 0, least = INFINITY;
  assert_int_equal(json_array_size(owners), 5);
  json_array_foreach(owners, i, owner) {
    ad_comm *comm;
    ad_run *run;
    watched seen = {0};
    act_as(recipe, (int64_t)i, &comm, &run, &seen);
    double operations = operations_of_blocks(run);
    assert_true(fabs(ad_number_of(owner, "operations") - operations) <= 1e-12 * operations);
    most = operations > most ? operations : most;
    least = operations < least ? operations : least;
    ad_run_destroy(run);
    ad_comm_close(comm);
  }
  assert_true(least < most);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* Twelve matrices of 24 x 24 in f32 are dealt to 3 ranks in 4 rounds. In each a rank receives two thirds of a matrix
 * there and back, computes 5 * (4 + 2) * 24^3 operations, and has 2 matrices and the 4 operands of the iteration. */
static void the_table_shows_ways_and_loads(void **state) {
  ad_recipe *recipe = recipe_of("dp_shard=3", 3, ", muon: {way: dealt}", ADAMW_FOR_OTHERS);
  ad_plan_options options = {.size = sizeof options};
  char *table;
  must(ad_plan_table(recipe, &options, &table));
  const char *const wanted[] = {"blocks.0.attn.wq and 11 more",
                                "24 x 24",
                                "all_to_all",
                                "update",
                                "bound",
                                "dealt                0.0445 ms: receives 0.0117 MiB, computes 1.66e+06 operations",
                                "0.0117 MiB, computes 1.66e+06 operations, has 0.0132 MiB in flight"};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (!strstr(table, wanted[i])) fail_msg("%s\n%s", wanted[i], table);
  ad_release(table);
  ad_recipe_destroy(recipe);
}

/* What each of so many ranks works on is not found one by one. */
static void a_large_world_has_a_bound_alone(void **state) {
  ad_recipe *recipe = recipe_of("dp_replicate=4096 dp_shard=4", 1, ", muon: {way: dealt}", ADAMW_FOR_OTHERS);
  json_t *plan = plan_of(recipe);
  const json_t *most = json_array_get(json_object_get(plan, "owners_most"), 0);
  assert_null(json_object_get(plan, "owners"));
  assert_null(json_object_get(most, "operations"));
  assert_true(ad_number_of(most, "bound") > ad_number_of(most, "mean"));
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* A recipe without groups and whole matrices has a plan without a word of them. */
static void other_plans_have_none_of_it(void **state) {
  static const char *const keys[] = {"updates", "owners", "owners_most"};
  static const char *const of_params[] = {"group", "optimizer", "frozen"};
  ad_recipe *recipe = NULL;
  must(
      ad_recipe_parse("name: adamw\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp=2\"\n"
                      "train: {global_batch: 4, steps: 2, lr: 1e-2}\n",
                      "adamw.yaml", NULL, 0, &recipe));
  json_t *plan = plan_of(recipe);
  for (size_t i = 0; i < 3; i++) assert_null(json_object_get(plan, keys[i]));
  for (size_t i = 0; i < 3; i++) assert_null(json_object_get(param_of(plan, "blocks.0.attn.wq"), of_params[i]));
  assert_null(json_object_get(json_array_get(json_object_get(plan, "memory_per_rank"), 0), "update"));
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_plan_has_the_moves_memory_and_matrices_of_each_rank),
      cmocka_unit_test(ranks_with_more_experts_work_on_more),
      cmocka_unit_test(matrices_are_counted_once_and_within_the_bound),
      cmocka_unit_test(ranks_allocate_what_the_plan_says),
      cmocka_unit_test(parameters_say_their_group_and_optimizer),
      cmocka_unit_test(each_way_has_a_cost_and_one_is_taken),
      cmocka_unit_test(blocks_are_counted_and_said_to_be_blocks),
      cmocka_unit_test(a_way_for_too_many_replicas_has_no_figures),
      cmocka_unit_test(each_rank_works_on_its_own_blocks_alone),
      cmocka_unit_test(the_table_shows_ways_and_loads),
      cmocka_unit_test(a_large_world_has_a_bound_alone),
      cmocka_unit_test(other_plans_have_none_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
