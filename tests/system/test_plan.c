/* Tests a plan's bytes, made by one process on backend dry, against those that real ranks have after a step. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "bridge/bridge.h"
#include "base/injection.h"
#include "module/module.h"
#include "plan/plan.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static ad_recipe *recipe_of(const char *mesh, const char *precision, const char *train) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: small\nmodel: {kind: gpt, layers: 2, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\nprecision: {%s}\n"
           "train: {global_batch: 13, steps: 2, lr: 1e-2%s}\n",
           mesh, precision, train);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

static ad_plan_memory planned(const ad_recipe *recipe, int64_t rank, int64_t world) {
  ad_comm *comm;
  ad_run *run;
  ad_plan_memory memory;
  CHECK_OK(ad_plan_act(recipe, rank, &(ad_plan_world){.ranks = world, .ranks_per_node = world}, 0, &comm, &run));
  CHECK_OK(ad_plan_memory_of(run, &memory));
  ad_run_destroy(run);
  ad_comm_close(comm);
  return memory;
}

static int holds_what_was_planned(ad_comm *comm, void *context) {
  const ad_recipe *recipe = context;
  ad_plan_memory plan = planned(recipe, ad_comm_rank(comm), ad_comm_size(comm));
  ad_run *run;
  ad_step_report report;
  CHECK_OK(ad_run_create(comm, recipe, NULL, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  CHECK_OK(ad_run_step(run, 1, &report));
  ad_plan_memory held;
  CHECK_OK(ad_plan_memory_of(run, &held));
  CHECK(held.params == plan.params && plan.params > 0);
  CHECK(held.buckets == plan.buckets);
  CHECK(held.grads == plan.grads);
  CHECK(held.checkpoint == plan.checkpoint);
  CHECK(held.optimizer == plan.optimizer);
  CHECK(held.activations == plan.activations);
  CHECK(held.runtime == plan.runtime);
  CHECK(ad_plan_peak(&held) == ad_plan_peak(&plan));
  ad_run_destroy(run);
  return 0;
}

static void ranks_hold_what_was_planned(void **state) {
  static const char *const meshes[] = {"dp_shard=1", "dp_replicate=3", "dp_replicate=2 dp_shard=3"};
  static const int64_t worlds[] = {1, 3, 6};
  static const char *const precisions[] = {"", "param: f64, compute: f32", "compute: f64"};
  static const char *const trains[] = {"", ", microbatches: 3", ", microbatches: 3, sync: [all, none, all]"};
  for (int m = 0; m < 3; m++)
    for (int i = 0; i < 3; i++) {
      ad_recipe *recipe = recipe_of(meshes[m], precisions[i], trains[(m + i) % 3]);
      run_ranks(worlds[m], holds_what_was_planned, recipe);
      ad_recipe_destroy(recipe);
    }
}

/* Uneven shards: 16 rows over 3 ranks, 13 samples over 6. */
static void ranks_with_uneven_shards_hold_what_was_planned(void **state) {
  static const char *const levels[] = {"}\nshard: {zero: 1", ", microbatches: 2}\nshard: {zero: 2",
                                       ", microbatches: 2}\nshard: {zero: 3",
                                       "}\nshard: {zero: 3}\ncheckpoint: {every: 1"};
  for (int i = 0; i < 4; i++) {
    ad_recipe *recipe = recipe_of("dp_replicate=2 dp_shard=3", i % 2 ? "param: bf16, reduce: f32" : "", levels[i]);
    run_ranks(6, holds_what_was_planned, recipe);
    ad_recipe_destroy(recipe);
  }
}

/* In the plan's document each rank has what that rank itself would plan, though it acts as one rank of each kind only. */
static void document_has_each_rank(const ad_recipe *recipe, int64_t ranks) {
  json_t *plan;
  must(ad_plan_document(recipe, NULL, &plan));
  for (int64_t rank = 0; rank < ranks; rank++) {
    ad_plan_memory own = planned(recipe, rank, ranks);
    const json_t *entry = json_array_get(json_object_get(plan, "memory_per_rank"), (size_t)rank);
    assert_int_equal(json_integer_value(json_object_get(entry, "peak")), ad_plan_peak(&own));
  }
  json_decref(plan);
}

static void hold_what_was_planned(const char *const *sets, size_t count) {
  ad_recipe *recipe = NULL;
  int64_t ranks;
  must(
      ad_recipe_parse("name: small\nmodel: {kind: gpt, layers: 2, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp=1\"\n"
                      "train: {steps: 2, lr: 1e-2}\n",
                      "small.yaml", sets, count, &recipe));
  must(ad_recipe_world(recipe, &ranks));
  document_has_each_rank(recipe, ranks);
  run_ranks(ranks, holds_what_was_planned, recipe);
  ad_recipe_destroy(recipe);
}
#define HOLD_WHAT_WAS_PLANNED(...) \
  hold_what_was_planned((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* Among them ranks whose leaves, or some of them, are empty, in this order or the other. */
static void ranks_with_leaves_hold_what_was_planned(void **state) {
  static const char wide[] = "precision={compute: bf16, grad: f64, reduce: f64, accumulate: f64}",
                    narrow[] = "precision={param: bf16, compute: bf16, reduce: f32}", zero1[] = "shard.zero=1";
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=7", "train.leaves=8", "train.global_batch=3");
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=7", "train.leaves=8", "train.global_batch=13", wide, zero1);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_shard=4", "train.leaves=16", "train.global_batch=3", wide, zero1);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_shard=4", "train.leaves=8", "train.global_batch=5", narrow);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=3", "train.leaves=13", "train.global_batch=26", narrow, zero1);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2 dp_shard=2", "train.leaves=16", "train.global_batch=13",
                        "train.microbatches=2", "train.sync=[none, all]");
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2 tp=2", "train.leaves=4", "train.global_batch=7", zero1);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=5", "train.leaves=16", "train.global_batch=16");
}

/* With ZeRO 2 and 3 a rank holds sums of shards, whose number may differ between replicas. */
static void ranks_with_leaves_and_shards_hold_what_was_planned(void **state) {
  static const char zero2[] = "shard.zero=2", zero3[] = "shard.zero=3";
  HOLD_WHAT_WAS_PLANNED("mesh=dp_shard=3", "train.leaves=16", "train.global_batch=16", zero2);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2 dp_shard=3", "train.leaves=7", "train.global_batch=3", zero2);
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2 dp_shard=3", "train.leaves=18", "train.global_batch=18", zero3,
                        "train.microbatches=3", "train.sync=[none, shard, all]");
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2 dp_shard=2", "train.leaves=12", "train.global_batch=13", zero2,
                        "train.microbatches=2", "precision={compute: bf16, grad: f64, reduce: f64, accumulate: f64}");
  HOLD_WHAT_WAS_PLANNED("mesh=dp_shard=3 tp=2", "train.leaves=5", "train.global_batch=7", zero3);
}

static void ranks_with_empty_microbatches_hold_what_was_planned(void **state) {
  HOLD_WHAT_WAS_PLANNED("mesh=dp_shard=3", "train.microbatches=7", "train.global_batch=5");
  HOLD_WHAT_WAS_PLANNED("mesh=dp_replicate=2", "train.microbatches=5", "train.global_batch=3",
                        "precision={compute: bf16, grad: f64, reduce: f64, accumulate: f64}");
}

static void a_copy_in_the_dtype_of_computation_is_counted(void **state) {
  ad_recipe *same = recipe_of("dp_shard=2", "", ""), *wide = recipe_of("dp_shard=2", "param: f64, compute: f32", "");
  ad_plan_memory own = planned(same, 0, 2), copied = planned(wide, 0, 2);
  assert_int_equal(copied.params, 2 * own.params);
  assert_true(own.gathered == 0 && copied.gathered > 0);
  ad_recipe_destroy(same);
  ad_recipe_destroy(wide);
}

static size_t peak_of(const json_t *entry) { return (size_t)json_integer_value(json_object_get(entry, "peak")); }

static json_t *plan_on_nodes(const char *mesh, int64_t ranks_per_node) {
  ad_plan_options options = {.size = sizeof options, .ranks_per_node = ranks_per_node};
  ad_recipe *recipe = recipe_of(mesh, "param: f64, compute: f32", "");
  json_t *plan;
  must(ad_plan_document(recipe, &options, &plan));
  ad_recipe_destroy(recipe);
  return plan;
}

static void a_node_holds_what_its_ranks_hold(void **state) {
  json_t *plan = plan_on_nodes("dp_shard=5", 2);
  const json_t *nodes = json_object_get(plan, "memory_per_node"), *ranks = json_object_get(plan, "memory_per_rank");
  assert_int_equal(json_array_size(nodes), 3);
  size_t sums[3] = {0}, i;
  const json_t *rank;
  json_array_foreach(ranks, i, rank) {
    assert_int_equal(json_integer_value(json_object_get(rank, "node")), i / 2);
    sums[i / 2] += peak_of(rank);
  }
  for (i = 0; i < 3; i++) assert_int_equal(peak_of(json_array_get(nodes, i)), sums[i]);
  json_decref(plan);
}

static void ranks_of_different_nodes_share_no_copy(void **state) {
  json_t *one = plan_on_nodes("dp_shard=4", 0), *two = plan_on_nodes("dp_shard=4", 2);
  const json_t *shared = json_array_get(json_object_get(one, "memory_per_rank"), 0);
  const json_t *own = json_array_get(json_object_get(two, "memory_per_rank"), 0);
  json_int_t a_fourth = json_integer_value(json_object_get(shared, "gathered"));
  assert_true(a_fourth > 0);
  assert_true(json_integer_value(json_object_get(own, "gathered")) >= 4 * a_fourth - 64);
  json_decref(one);
  json_decref(two);
}

static void expect_when(const char *train, const char *when, int times) {
  ad_recipe *recipe = recipe_of("dp_shard=2", "", train);
  json_t *plan;
  must(ad_plan_document(recipe, NULL, &plan));
  const json_t *collective = json_array_get(json_object_get(plan, "collectives"), 0);
  const json_t *step = json_array_get(json_object_get(json_array_get(json_object_get(plan, "params"), 0), "path"), 0);
  assert_string_equal(json_string_value(json_object_get(collective, "when")), when);
  assert_string_equal(json_string_value(json_object_get(step, "when")), when);
  assert_int_equal(json_integer_value(json_object_get(collective, "times")), times);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void when_a_reduction_happens_follows_from_the_schedule(void **state) {
  expect_when("", "last_microbatch", 1);
  expect_when(", microbatches: 2", "last_microbatch", 1);
  expect_when(", microbatches: 2, sync: [none, all]", "last_microbatch", 1);
  expect_when(", microbatches: 2, sync: [all, all]", "every_microbatch", 2);
  expect_when(", microbatches: 3, sync: [all, none, all]", "last_microbatch", 2);
}

/* ---- mixtures of experts ---- */

enum { CHOSEN = 2 };

static ad_recipe *recipe_of_experts(const char *mesh, const char *view, int experts, int hidden, const char *train,
                                    const char *set) {
  char text[1024];
  snprintf(
      text, sizeof text,
      "name: small\nmodel: {kind: moe, layers: 2, d_model: 16, heads: 2, experts: %d, top_k: %d, expert_hidden: %d}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\nviews: {sparse: \"%s\"}\n"
      "train: {steps: 2, lr: 1e-2, %s}\n",
      experts, CHOSEN, hidden, mesh, view, train);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", &set, set != NULL, &recipe));
  return recipe;
}

/* The experts that all tokens choose, and the ep rank that then has the most rows; -1: each rank has as many. */
typedef struct all_choose {
  const ad_recipe *recipe;
  int experts, best[CHOSEN], crowded;
} all_choose;

static float wanted(const char *name, float old, const all_choose *chosen, size_t element) {
  if (strstr(name, ".norm.") || strstr(name, "final.norm")) return old;
  if (strstr(name, "embedding")) return 1;
  int expert = (int)(element % (size_t)chosen->experts);
  return strstr(name, ".router") && (expert == chosen->best[0] || expert == chosen->best[1]) ? 1 : 0;
}

/* Sets the parameters so that all rows are ones at every layer and have the same scores. */
static void force(ad_run *run, const all_choose *chosen) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array *part = ad_run_part(run, i, AD_PART_VALUE);
    float *value = part->data;
    for (size_t k = 0; k < ad_array_numel(part); k++)
      value[k] = wanted(ad_run_param_at(run, i).spec->name, value[k], chosen, k);
  }
  CHECK_OK(ad_run_refresh(run, AD_VALUES_WRITTEN));
}

static int64_t index_in_ep(ad_run *run) {
  for (size_t i = 0;; i++) {
    const ad_mesh *mesh = ad_run_param_at(run, i).spec->layout.mesh;
    if (ad_mesh_named(mesh) & AD_AXES(AD_EP)) return ad_mesh_position(mesh, ad_comm_rank(ad_run_comm(run)), AD_EP);
  }
}

static size_t planned_of_rank(const ad_recipe *recipe, int64_t rank, const char *key) {
  json_t *plan;
  CHECK_OK(ad_plan_document(recipe, NULL, &plan));
  const json_t *entry = json_array_get(json_object_get(plan, "memory_per_rank"), (size_t)rank);
  size_t bytes = (size_t)json_integer_value(json_object_get(entry, key));
  size_t more = (size_t)json_integer_value(json_object_get(entry, "peak_worst")) - peak_of(entry);
  CHECK(more + (size_t)json_integer_value(json_object_get(entry, "activations")) ==
        (size_t)json_integer_value(json_object_get(entry, "activations_worst")));
  json_decref(plan);
  return bytes;
}

static size_t held_after_a_step(ad_comm *comm, const all_choose *chosen, int64_t *index) {
  ad_run *run;
  ad_step_report report;
  CHECK_OK(ad_run_create(comm, chosen->recipe, NULL, &run));
  force(run, chosen);
  CHECK_OK(ad_run_step(run, 0, &report));
  size_t held = ad_run_tape_bytes(run);
  *index = index_in_ep(run);
  ad_run_destroy(run);
  return held;
}

static int holds_what_was_chosen(ad_comm *comm, void *context) {
  const all_choose *chosen = context;
  int64_t rank = ad_comm_rank(comm), index;
  size_t held = held_after_a_step(comm, chosen, &index);
  size_t even = planned_of_rank(chosen->recipe, rank, "activations"),
         worst = planned_of_rank(chosen->recipe, rank, "activations_worst");
  CHECK(even < worst);
  CHECK(held <= worst);
  if (chosen->crowded == index) CHECK(held == worst);
  if (chosen->crowded < 0) CHECK(held == even);
  return 0;
}

static void ranks_of_experts_hold_what_was_planned(void **state) {
  static const char *const worlds[][2] = {{"dp_shard=2 tp=2", "efsdp=2 ep=2 etp=1"},
                                          {"dp_shard=2 tp=2", "efsdp=1 ep=2 etp=2"},
                                          {"dp_shard=4", "efsdp=2 ep=2 etp=1"}};
  static const char *const trains[] = {"global_batch: 8", "global_batch: 8, microbatches: 2}\nshard: {zero: 3"};
  static const all_choose choices[] = {
      {.best = {0, 2}, .crowded = -1}, {.best = {0, 1}}, {.best = {2, 3}, .crowded = 1}};
  for (int i = 0; i < 6; i++) {
    ad_recipe *recipe = recipe_of_experts(worlds[i % 3][0], worlds[i % 3][1], 4, 24, trains[i / 3],
                                          i % 2 ? "model.balance_loss=0.1" : NULL);
    for (int c = 0; c < 3; c++) {
      all_choose chosen = choices[c];
      chosen.recipe = recipe;
      chosen.experts = 4;
      run_ranks(4, holds_what_was_chosen, &chosen);
    }
    ad_recipe_destroy(recipe);
  }
}

static void a_rank_gets_a_token_once_for_each_expert_that_it_has(void **state) {
  ad_recipe *recipe = recipe_of_experts("dp_shard=4", "efsdp=1 ep=4 etp=1", 4, 24, "global_batch: 8", NULL);
  run_ranks(4, holds_what_was_chosen, &((all_choose){recipe, 4, {1, 2}, 1}));
  ad_recipe_destroy(recipe);
}

static void expect_limited(const char *capacity, int crowded) {
  ad_recipe *recipe = recipe_of_experts("dp_shard=4", "efsdp=1 ep=4 etp=1", 4, 24, "global_batch: 8", capacity);
  run_ranks(4, holds_what_was_chosen, &((all_choose){recipe, 4, {0, 1}, crowded}));
  ad_recipe_destroy(recipe);
}

/* The first tokens are kept, three quarters of them or one, so the crowded rank has fewer rows. */
static void a_limit_to_what_an_expert_takes_limits_the_worst(void **state) {
  expect_limited("model.capacity=1.5", 0);
  expect_limited("model.capacity=1.5", 1);
  expect_limited("model.capacity=0.5", 0);
}

static int holds_no_more_than_the_worst(ad_comm *comm, void *context) {
  const all_choose *chosen = context;
  int64_t index;
  size_t held = held_after_a_step(comm, chosen, &index);
  CHECK(held <= planned_of_rank(chosen->recipe, ad_comm_rank(comm), "activations_worst"));
  return 0;
}

static void expect_no_more_than_the_worst(const char *train, const char *capacity) {
  ad_recipe *recipe = recipe_of_experts("dp_shard=3 tp=2", "efsdp=2 ep=3 etp=1", 5, 24, train, capacity);
  for (int first = 0; first < 4; first++)
    run_ranks(6, holds_no_more_than_the_worst,
              &((all_choose){.recipe = recipe, .experts = 5, .best = {first, first + 1}}));
  ad_recipe_destroy(recipe);
}

/* Five experts on three ep ranks, the first of which has one expert. With two samples two ranks have no tokens of their
 * own but get rows; with four some ranks have two samples. */
static void ranks_of_uneven_batches_hold_no_more_than_the_worst(void **state) {
  static const char *const capacities[] = {NULL, "model.capacity=0.5", "model.capacity=1.2"};
  for (int i = 0; i < 3; i++) {
    expect_no_more_than_the_worst("global_batch: 2", capacities[i]);
    expect_no_more_than_the_worst("global_batch: 4", capacities[i]);
  }
}

static void where_nothing_is_chosen_there_is_no_worst(void **state) {
  json_t *plan = plan_on_nodes("dp_shard=2", 0);
  const json_t *rank = json_array_get(json_object_get(plan, "memory_per_rank"), 0);
  assert_null(json_object_get(rank, "activations_worst"));
  assert_null(json_object_get(rank, "peak_worst"));
  json_decref(plan);
}

/* A rank's matrices of one name take 32 experts * 16 * 256 floats, and its rows a fraction of that. */
static void matrices_of_experts_are_multiplied_with_where_they_are(void **state) {
  for (int zero = 0; zero <= 3; zero++) {
    char train[64];
    snprintf(train, sizeof train, "global_batch: 1}\nshard: {zero: %d", zero);
    ad_recipe *recipe = recipe_of_experts("dp_shard=2", "efsdp=1 ep=2 etp=1", 64, 256, train, NULL);
    assert_true(planned(recipe, 1, 2).activations < 32 * 16 * 256 * sizeof(float));
    ad_recipe_destroy(recipe);
  }
}

/* ---- pools ---- */

static ad_recipe *recipe_of_readers(const char *placement, const char *mesh, const char *more) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: readers\nmodel: {kind: ocr, encoder_layers: 1, encoder_d_model: 24, encoder_heads: 4, patch: 8,"
           " layers: 1, d_model: 24, heads: 4, ragged: true}\n"
           "data: {text: [/usr/share/common-licenses], fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf],"
           " chars: 8, height: 16, width: 64, sizes: [9, 11]}\n"
           "mesh: {%s}\nplacement: %s\ntrain: {global_batch: 8, steps: 2, lr: 1e-2%s}\n",
           mesh, placement, more);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "readers.yaml", NULL, 0, &recipe));
  return recipe;
}

/* Two pools of four and four ranks, of three and two, of one and four. */
static void ranks_of_pools_hold_what_was_planned(void **state) {
  static const char *const meshes[] = {"encoder: dp=2 tp=2, model: dp=2 cp=2", "encoder: dp=3, model: dp=1 tp=2",
                                       "encoder: dp=1, model: dp=2 cp=2"};
  static const int64_t worlds[] = {8, 5, 5};
  static const char *const more[] = {", microbatches: 3}\nshard: {zero: 1",
                                     "}\nshard: {zero: 3}\ncheckpoint: {every: 1",
                                     ", microbatches: 2}\nprecision: {param: bf16, reduce: f32"};
  for (int i = 0; i < 3; i++) {
    ad_recipe *recipe = recipe_of_readers("disjoint", meshes[i], more[i]);
    run_ranks(worlds[i], holds_what_was_planned, recipe);
    ad_recipe_destroy(recipe);
  }
}

static void ranks_of_two_modules_hold_what_was_planned(void **state) {
  static const char *const more[] = {", microbatches: 3}\nshard: {zero: 2", "}\ncheckpoint: {every: 1"};
  for (int i = 0; i < 2; i++) {
    ad_recipe *recipe = recipe_of_readers("colocated", "encoder: dp=4, model: dp=2 cp=2", more[i]);
    run_ranks(4, holds_what_was_planned, recipe);
    ad_recipe_destroy(recipe);
  }
}

/* Bytes that this rank exchanges with others over the bridge in a step. */
typedef struct over_bridge {
  int64_t rank;
  json_int_t sends[2], receives[2]; /* [0] forward, [1] backward */
} over_bridge;

static void see_routes(void *context, void *passing) {
  const ad_route_passing *at = passing;
  over_bridge *to = context;
  int backward = at->from->mesh != at->bridge->from.mesh;
  size_t row = ad_dtype_size(at->array->dtype);
  for (int i = 1; i < at->array->shape.ndim; i++) row *= (size_t)at->array->shape.dim[i];
  for (size_t i = 0; i < at->count; i++) {
    json_int_t bytes = at->routes[i].peer == to->rank ? 0 : at->routes[i].count * (json_int_t)row;
    *(i < at->sends ? &to->sends[backward] : &to->receives[backward]) += bytes;
  }
}

static over_bridge planned_over_bridge(const ad_recipe *recipe, int64_t rank) {
  static const char *const ways[] = {"forward", "backward"};
  over_bridge sum = {.rank = rank};
  json_t *plan;
  const json_t *bridge, *entry;
  size_t i, k;
  CHECK_OK(ad_plan_document(recipe, NULL, &plan));
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge) {
    json_int_t times = json_integer_value(json_object_get(bridge, "times"));
    json_array_foreach(json_object_get(bridge, "bytes_per_rank"), k, entry) {
      if (json_integer_value(json_object_get(entry, "rank")) != rank) continue;
      for (int way = 0; way < 2; way++) {
        const json_t *bytes = json_object_get(entry, ways[way]);
        sum.sends[way] += times * json_integer_value(json_object_get(bytes, "sends"));
        sum.receives[way] += times * json_integer_value(json_object_get(bytes, "receives"));
      }
    }
  }
  json_decref(plan);
  return sum;
}

static int brings_what_was_planned(ad_comm *comm, void *context) {
  ad_run *run;
  ad_step_report report;
  over_bridge plan = planned_over_bridge(context, ad_comm_rank(comm)), seen = {.rank = ad_comm_rank(comm)};
  CHECK_OK(ad_run_create(comm, context, NULL, &run));
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){see_routes, &seen});
  CHECK_OK(ad_run_step(run, 0, &report));
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){0});
  CHECK(plan.sends[0] + plan.receives[0] + plan.sends[1] + plan.receives[1] > 0);
  for (int way = 0; way < 2; way++) {
    CHECK(seen.sends[way] == plan.sends[way]);
    CHECK(seen.receives[way] == plan.receives[way]);
  }
  ad_run_destroy(run);
  return 0;
}

/* Microbatches have two sizes; three copies send rows to four other ranks. */
static void ranks_bring_over_a_bridge_what_was_planned(void **state) {
  static const char *const meshes[] = {"encoder: dp=2 tp=2, model: dp=2 cp=2", "encoder: dp=1 tp=2, model: dp=2 cp=2",
                                       "encoder: dp=3, model: dp=2 cp=2"};
  static const int64_t worlds[] = {8, 6, 7};
  for (int i = 0; i < 3; i++) {
    ad_recipe *recipe = recipe_of_readers("disjoint", meshes[i], ", microbatches: 3");
    run_ranks(worlds[i], brings_what_was_planned, recipe);
    ad_recipe_destroy(recipe);
  }
  ad_recipe *recipe = recipe_of_readers("colocated", "encoder: dp=4, model: dp=2 cp=2", ", microbatches: 2");
  run_ranks(4, brings_what_was_planned, recipe);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_hold_what_was_planned),
      cmocka_unit_test(ranks_with_uneven_shards_hold_what_was_planned),
      cmocka_unit_test(ranks_with_leaves_hold_what_was_planned),
      cmocka_unit_test(ranks_with_leaves_and_shards_hold_what_was_planned),
      cmocka_unit_test(ranks_with_empty_microbatches_hold_what_was_planned),
      cmocka_unit_test(a_copy_in_the_dtype_of_computation_is_counted),
      cmocka_unit_test(a_node_holds_what_its_ranks_hold),
      cmocka_unit_test(ranks_of_different_nodes_share_no_copy),
      cmocka_unit_test(when_a_reduction_happens_follows_from_the_schedule),
      cmocka_unit_test(ranks_of_experts_hold_what_was_planned),
      cmocka_unit_test(a_rank_gets_a_token_once_for_each_expert_that_it_has),
      cmocka_unit_test(a_limit_to_what_an_expert_takes_limits_the_worst),
      cmocka_unit_test(ranks_of_uneven_batches_hold_no_more_than_the_worst),
      cmocka_unit_test(where_nothing_is_chosen_there_is_no_worst),
      cmocka_unit_test(matrices_of_experts_are_multiplied_with_where_they_are),
      cmocka_unit_test(ranks_of_pools_hold_what_was_planned),
      cmocka_unit_test(ranks_of_two_modules_hold_what_was_planned),
      cmocka_unit_test(ranks_bring_over_a_bridge_what_was_planned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
