/* Tests plans of programs that are cut in other ways than the shipped recipes, and of worlds and models larger than any
 * machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/error.h"
#include "base/memory.h"
#include "plan/picture.h"
#include "plan/plan.h"
#include "products/products.h"
#include "says.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* ---- a program with one table that is cut by columns over tp, and a batch that is cut over dp ---- */

enum { ROWS = 9, COLUMNS = 7 };

typedef struct columns {
  ad_array batch;
} columns;

static ad_layout batch_layout(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  return layout;
}

static ad_status columns_create(const void *options, ad_program *to, void **own) {
  const ad_program_setting *setting = ad_program_setting_of(to);
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  columns *program;
  AD_TRY(ad_new(1, &program));
  *own = program;
  ad_layout layout = batch_layout(mesh), table = ad_layout_all(mesh, AD_R);
  ad_shape shape = {2, {setting->global_batch, ROWS}};
  program->batch = ad_array_describe(setting->comm, AD_F32, &shape, &layout);
  ad_layout_set(&table, AD_AXES(AD_TP), AD_S(1));
  ad_param_spec param = {
      .size = sizeof param, .name = "table", .shape = {2, {ROWS, COLUMNS}}, .layout = table, .storage = table};
  param.sharded = AD_AXES(AD_DP_SHARD);
  AD_TRY(ad_program_add_module(
      to, &(ad_module_spec){
              .size = sizeof(ad_module_spec), .name = "model", .mesh = mesh, .params = &param, .param_count = 1}));
  ad_layout_set(&layout, AD_AXES_DP, AD_P);
  AD_TRY(
      ad_program_add_count(to, &(ad_count_spec){.size = sizeof(ad_count_spec), .name = "samples", .layout = layout}));
  return ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "sum"});
}

static ad_status columns_run(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *table = ad_parameter(t, ad_phase_parameters(at), 0);
  ad_phase_loss(at, 0, ad_sum(t, ad_linear(t, ad_constant(t, &((columns *)own)->batch), table)));
  return AD_OK;
}

static ad_status columns_create_all(const void *options, ad_program *to, void **own) {
  AD_TRY(columns_create(options, to, own));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = columns_run});
}

/* ---- a program of three modules: module 1 gives x to 2 and 3, and module 2 makes y from it for 3 ---- */

enum { RELAYED = 6, RELAYS = 3 };

typedef struct relay {
  ad_array batch, late; /* late: rows that the third module's ranks alone read and list */
  int has_late;
  ad_bridge *bridges[RELAYS]; /* bridges of x to the second and the third module, and of y to the third */
} relay;

static ad_status relay_first(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *table = ad_parameter(t, ad_phase_parameters(at), 0);
  ad_phase_give(at, "x", ad_linear(t, ad_constant(t, &((relay *)own)->batch), table));
  return AD_OK;
}

static ad_status relay_second(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_phase_give(at, "y", ad_linear(t, ad_phase_need(at, "x"), ad_parameter(t, ad_phase_parameters(at), 0)));
  return AD_OK;
}

static ad_status relay_third(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *both = ad_add(t, ad_phase_need(at, "x"), ad_phase_need(at, "y"));
  ad_phase_loss(at, 0, ad_sum(t, ad_linear(t, both, ad_parameter(t, ad_phase_parameters(at), 0))));
  return AD_OK;
}

static ad_status relay_transfer(relay *own, size_t number, const char *value, size_t from, size_t to,
                                ad_program *program) {
  ad_layout gives = batch_layout(ad_program_mesh(program, from)), gets = batch_layout(ad_program_mesh(program, to));
  const ad_program_setting *setting = ad_program_setting_of(program);
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)setting->comm, &gives, &gets, NULL, &own->bridges[number]));
  ad_transfer_spec transfer = {
      sizeof transfer, value, to, own->bridges[number], {2, {setting->global_batch, RELAYED}}, .comm_dtype = AD_BF16};
  return ad_program_add_transfer(program, &transfer);
}

static ad_status relay_add_phases(relay *own, ad_program *to) {
  static const char *const x[] = {"x", NULL}, *const y[] = {"y", NULL}, *const both[] = {"x", "y", NULL};
  AD_TRY(
      ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "first", .gives = x, .run = relay_first}));
  AD_TRY(relay_transfer(own, 0, "x", 0, 1, to));
  AD_TRY(ad_program_add_phase(
      to, &(ad_phase){
              .size = sizeof(ad_phase), .name = "second", .module = 1, .needs = x, .gives = y, .run = relay_second}));
  AD_TRY(relay_transfer(own, 1, "x", 0, 2, to));
  AD_TRY(relay_transfer(own, 2, "y", 1, 2, to));
  return ad_program_add_phase(
      to, &(ad_phase){.size = sizeof(ad_phase), .name = "third", .module = 2, .needs = both, .run = relay_third});
}

static const char *const relays[] = {"first", "second", "third", NULL};

static ad_status relay_create(const void *options, ad_program *to, void **own) {
  const ad_program_setting *setting = ad_program_setting_of(to);
  relay *program;
  AD_TRY(ad_new(1, &program));
  *own = program;
  ad_layout rows = batch_layout(ad_program_mesh(to, 0)), counted = ad_layout_all(ad_program_mesh(to, 2), AD_R);
  ad_shape shape = {2, {setting->global_batch, RELAYED}};
  program->batch = ad_array_describe(setting->comm, AD_F32, &shape, &rows);
  program->has_late = ad_mesh_has_rank(ad_program_mesh(to, 2), ad_comm_rank(setting->comm));
  rows = batch_layout(ad_program_mesh(to, 2));
  shape.dim[0] -= 2;
  if (program->has_late) program->late = ad_array_describe(setting->comm, AD_F32, &shape, &rows);
  for (size_t m = 0; m < RELAYS; m++) {
    ad_layout table = ad_layout_all(ad_program_mesh(to, m), AD_R);
    ad_param_spec param = {
        .size = sizeof param, .name = "table", .shape = {2, {RELAYED, RELAYED}}, .layout = table, .storage = table};
    ad_module_spec module = {
        .size = sizeof module, .name = relays[m], .mesh = table.mesh, .params = &param, .param_count = 1};
    AD_TRY(ad_program_add_module(to, &module));
  }
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  AD_TRY(
      ad_program_add_count(to, &(ad_count_spec){.size = sizeof(ad_count_spec), .name = "samples", .layout = counted}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "sum"}));
  return relay_add_phases(program, to);
}

static void relay_destroy(void *own) {
  for (size_t i = 0; i < RELAYS; i++) ad_bridge_destroy(((relay *)own)->bridges[i]);
  ad_release(own);
}
static ad_status relay_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  counted[0][0] = 1;
  return AD_OK;
}
static size_t relay_bytes(const void *own) { return 0; }

static const ad_array *late_array(const void *own, size_t index, char *name, size_t size) {
  return index || !((const relay *)own)->has_late ? NULL : &((const relay *)own)->late;
}
static size_t late_bytes(const void *own) {
  return ((const relay *)own)->has_late ? ad_array_bytes(&((const relay *)own)->late) : 0;
}

/* ---- records of both programs ---- */

static void columns_destroy(void *own) { ad_release(own); }
static ad_status columns_open(void *own) { return AD_OK; }
static ad_status columns_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  counted[0][0] = ((columns *)own)->batch.local.dim[0];
  return AD_OK;
}
static int columns_have_validation(const void *own) { return 0; }
static size_t columns_bytes(const void *own) { return ad_array_bytes(&((const columns *)own)->batch); }
static double columns_flops(const void *own, int64_t samples) { return 0; }
static const ad_array *columns_batch(const void *own, size_t index, char *name, size_t size) {
  return index ? NULL : &((const columns *)own)->batch;
}

static int add_programs(void **state) {
  static const char *const modules[] = {"model", NULL};
  static const ad_program_kind kind = {
      .size = sizeof kind,
      .name = "columns",
      .help = "one table",
      .modules = modules,
      .options_size = 8,
      .create = columns_create_all,
      .destroy = columns_destroy,
      .open = columns_open,
      .read = columns_read,
      .data = {.has_validation = columns_have_validation, .bytes = columns_bytes, .batch_array = columns_batch},
      .account = {.flops = columns_flops}};
  static ad_program_kind relay_kind, unlisted_kind, late_kind;
  unlisted_kind = kind;
  unlisted_kind.name = "unlisted";
  unlisted_kind.data.batch_array = NULL;
  relay_kind = kind;
  relay_kind.name = "relay";
  relay_kind.modules = relays;
  relay_kind.create = relay_create;
  relay_kind.destroy = relay_destroy;
  relay_kind.read = relay_read;
  relay_kind.data.bytes = relay_bytes;
  relay_kind.data.batch_array = NULL;
  late_kind = relay_kind;
  late_kind.name = "late";
  late_kind.data.bytes = late_bytes;
  late_kind.data.batch_array = late_array;
  return ad_program_register(&kind) || ad_program_register(&relay_kind) || ad_program_register(&unlisted_kind) ||
         ad_program_register(&late_kind);
}

/* ---- plans ---- */

static json_t *plan_of(const char *text, int64_t ranks_per_node) {
  ad_plan_options options = {.size = sizeof options, .ranks_per_node = ranks_per_node};
  ad_recipe *recipe = NULL;
  json_t *plan = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  must(ad_plan_document(recipe, &options, &plan));
  ad_recipe_destroy(recipe);
  return plan;
}

static json_t *plan_kind(const char *kind, const char *mesh, int batch, const char *more) {
  char text[512];
  snprintf(text, sizeof text,
           "name: columns\nmodel: {kind: %s}\nmesh: \"%s\"\nshard: {zero: 3}\n"
           "train: {global_batch: %d, steps: 2, lr: 1e-2}\n%s",
           kind, mesh, batch, more);
  return plan_of(text, 0);
}

static json_t *plan_columns(const char *mesh, int batch, const char *more) {
  return plan_kind("columns", mesh, batch, more);
}

static json_t *plan_gpt(const char *mesh, int layers, int zero, int64_t ranks_per_node) {
  char text[512];
  snprintf(text, sizeof text,
           "name: gpt\nmodel: {kind: gpt, layers: %d, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\nshard: {zero: %d}\n"
           "train: {global_batch: 13, steps: 2, lr: 1e-2}\n",
           layers, mesh, zero);
  return plan_of(text, ranks_per_node);
}

static json_int_t number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_integer(value));
  return json_integer_value(value);
}

static const json_t *ranks_of(const json_t *plan) { return json_object_get(plan, "memory_per_rank"); }
static const json_t *nodes_of(const json_t *plan) { return json_object_get(plan, "memory_per_node"); }

static json_int_t ranks_listed(const json_t *plan) {
  json_int_t ranks = 0;
  size_t i;
  const json_t *rank;
  json_array_foreach(ranks_of(plan), i, rank) ranks += number(rank, "ranks");
  return ranks;
}

/* ---- what a rank's process takes beside what the program holds ---- */

enum { MIB = 1 << 20 };

/* How many ranks of a small plan, which lists each rank, take so many bytes at run time. */
static int ranks_taking(const json_t *plan, json_int_t bytes) {
  int ranks = 0;
  size_t i;
  const json_t *rank;
  json_array_foreach(ranks_of(plan), i, rank) ranks += number(rank, "runtime") == bytes;
  return ranks;
}

/* Makes all products of f32 by oneDNN, or by OpenBLAS. */
static void choose_products(int onednn) {
  ad_products_choose((ad_products){.units = AD_UNITS_AVX512,
                                   .library = onednn ? AD_LIBRARY_ONEDNN : AD_LIBRARY_OPENBLAS,
                                   .onednn = onednn ? 30600 : 0});
}

/* A rank that has no row and gets none makes no product, so oneDNN takes nothing there; a program that does not list
 * its batch may make products on every rank. Two rows on four ranks: each of two ranks has one, listed or not. */
static void onednn_takes_memory_where_products_are_made(void **state) {
  enum { ONEDNN = 6 * MIB, PROCESS = 3 * MIB, ROW = ROWS * 4 };
  ad_products before = ad_products_in_use();
  for (int onednn = 0; onednn < 2; onednn++) {
    json_int_t more = onednn ? ONEDNN : 0;
    choose_products(onednn);
    json_t *listed = plan_kind("columns", "dp_shard=4", 2, ""), *unlisted = plan_kind("unlisted", "dp_shard=4", 2, "");
    assert_int_equal(ranks_taking(listed, PROCESS + more + ROW), 2);
    assert_int_equal(ranks_taking(listed, PROCESS), 2);
    assert_int_equal(ranks_taking(unlisted, PROCESS + more + ROW), 2);
    assert_int_equal(ranks_taking(unlisted, PROCESS + more), 2);
    json_decref(listed);
    json_decref(unlisted);
  }
  ad_products_choose(before);
}

/* The ranks of the last pool alone list a batch, of six rows: 1, 2, 1 and 2 of them. */
static void the_rows_of_a_pool_are_counted_where_its_ranks_alone_list_them(void **state) {
  enum { ROW = RELAYED * 4, RANKS = 6 };
  json_t *plan = plan_of(
      "name: late\nmodel: {kind: late}\nmesh: {first: \"dp=1\", second: \"dp=1\", third: \"dp=4\"}\n"
      "placement: disjoint\ntrain: {global_batch: 8, steps: 2, lr: 1e-2}\n",
      0);
  json_int_t least = number(json_array_get(ranks_of(plan), 2), "runtime");
  assert_int_equal(json_array_size(ranks_of(plan)), RANKS);
  for (size_t rank = 2; rank < RANKS; rank++)
    assert_int_equal(number(json_array_get(ranks_of(plan), rank), "runtime"), least + (rank % 2 ? ROW : 0));
  json_decref(plan);
}

/* Values that go to other ranks are staged: as many bytes as the tape holds, and 2 MiB at most. Ranks without rows get
 * the others' along tp, and make products. */
static void staging_takes_what_the_tape_holds_up_to_a_limit(void **state) {
  enum { PROCESS = 3 * MIB, ONEDNN = 6 * MIB, STAGING = 2 * MIB };
  static const int batches[] = {2, 60000, 200000, 260000, 400000};
  int below = 0, above = 0;
  ad_products before = ad_products_in_use();
  choose_products(1);
  for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
    json_t *plan = plan_columns("dp_shard=4 tp=2", batches[b], ""), *whole = plan_columns("dp_shard=4", batches[b], "");
    size_t i;
    const json_t *rank;
    json_array_foreach(ranks_of(plan), i, rank) {
      json_int_t tape = number(rank, "activations"), data = number(rank, "runtime") - PROCESS - ONEDNN;
      data -= tape < STAGING ? tape : STAGING;
      assert_in_range(data, 0, (batches[b] + 3) / 4 * ROWS * 4);
      assert_true(data >= batches[b] / 4 * ROWS * 4);
      below += tape < STAGING && tape > STAGING / 2;
      above += tape > STAGING;
    }
    if (batches[b] % 4 == 0) assert_int_equal(ranks_taking(whole, PROCESS + ONEDNN + batches[b] * ROWS), 4);
    json_decref(plan);
    json_decref(whole);
  }
  assert_true(below && above);
  ad_products_choose(before);
}

/* ---- what a printed plan must contain ---- */

/* The table names a precision policy by one word if its four dtypes are the same, and by all four otherwise. */
static void the_table_reports_each_policy(void **state) {
  static const char text[] =
      "name: columns\nmodel: {kind: columns}\nmesh: \"dp_shard=2 tp=3\"\nshard: {zero: 3}\n"
      "precision: {param: bf16, reduce: f32%s}\ntrain: {global_batch: 4, steps: 2, lr: 1e-2}\n";
  static const char *const overrides[] = {"", ", overrides: {table: {param: f32, grad: f32}}"};
  static const char *const wanted[] = {" bf16/bf16/f32/f32 ", " f32 "};
  for (int i = 0; i < 2; i++) {
    char whole[512], *table;
    ad_recipe *recipe = NULL;
    snprintf(whole, sizeof whole, text, overrides[i]);
    must(ad_recipe_parse(whole, "small.yaml", NULL, 0, &recipe));
    must(ad_plan_table(recipe, &(ad_plan_options){.size = sizeof(ad_plan_options)}, &table));
    const char *row = strstr(table, "\n  table ");
    assert_non_null(row);
    char line[256];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(row + 1, "\n"), row + 1);
    if (!strstr(line, wanted[i])) fail_msg("no%sin: %s", wanted[i], line);
    free(table);
    ad_recipe_destroy(recipe);
  }
}

static void a_gather_counts_what_the_rank_computes_with(void **state) {
  json_t *plan = plan_columns("dp_shard=2 tp=3", 4, "");
  const json_t *gather = json_array_get(json_object_get(plan, "collectives"), 0);
  const json_t *param = json_array_get(json_object_get(plan, "params"), 0);
  const json_t *step = json_array_get(json_object_get(param, "path"), 0);
  assert_string_equal(json_string_value(json_object_get(gather, "op")), "all_gather");
  assert_int_equal(number(gather, "bytes"), ROWS * (COLUMNS / 3) * 4);
  assert_int_equal(number(gather, "group_size"), 2);
  assert_int_equal(number(step, "bytes"), ROWS * COLUMNS * 4); /* the full gradient is reduced */
  assert_string_equal(json_string_value(json_object_get(param, "mesh")), "dp_shard=2 tp=3");
  assert_string_equal(json_string_value(json_object_get(param, "storage")), "dp_shard=S0 tp=S1");
  json_decref(plan);
}

/* 9 rows over 2 ranks and 7 columns over 3: a rank has 4 or 5 rows by 2 or 3 columns. */
static void every_cut_decides_what_a_rank_holds(void **state) {
  static const int held[] = {4 * 2, 4 * 2, 4 * 3, 5 * 2, 5 * 2, 5 * 3};
  json_t *plan = plan_columns("dp_shard=2 tp=3", 4, "");
  for (size_t rank = 0; rank < 6; rank++) {
    const json_t *memory = json_array_get(ranks_of(plan), rank);
    assert_int_equal(number(memory, "params"), 4 * held[rank]);
    assert_int_equal(number(memory, "optimizer"), 8 * held[rank]);
  }
  json_decref(plan);
}

/* SGD keeps one state of each element where it has momentum, and none without; a checkpoint has the value and that. */
static void an_optimizer_takes_the_bytes_of_its_states(void **state) {
  static const struct {
    const char *optimizer;
    int states;
  } cases[] = {{"", 2},
               {"optimizer: {kind: sgd}\n", 0},
               {"optimizer: {kind: sgd, momentum: 0.9}\n", 1},
               {"optimizer: {kind: sgd, momentum: 0.9, nesterov: true}\n", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char more[128];
    snprintf(more, sizeof more, "%scheckpoint: {every: 1}\n", cases[i].optimizer);
    json_t *plan = plan_columns("dp_replicate=2 tp=3", 4, more);
    const json_t *first = json_array_get(ranks_of(plan), 0);
    assert_int_equal(number(first, "optimizer"), cases[i].states * number(first, "params"));
    assert_int_equal(number(first, "checkpoint"), (1 + cases[i].states) * number(first, "params"));
    json_decref(plan);
  }
}

static void only_the_first_of_the_replicas_writes_checkpoints(void **state) {
  json_t *plan = plan_columns("dp_replicate=5000 dp_shard=3", 4, "checkpoint: {every: 1}\n");
  json_int_t writers = 0, ranks = 0;
  size_t i;
  const json_t *rank;
  json_array_foreach(ranks_of(plan), i, rank) {
    assert_true(!number(rank, "checkpoint") || number(rank, "checkpoint") == 3 * number(rank, "params"));
    writers += number(rank, "checkpoint") ? number(rank, "ranks") : 0;
    ranks += number(rank, "ranks");
  }
  assert_int_equal(writers, 3);
  assert_int_equal(ranks, 15000);
  json_decref(plan);
}

static void a_world_of_a_hundred_million_ranks_is_planned(void **state) {
  json_t *plan = plan_columns("dp_replicate=20 dp_shard=5000 tp=1000", 7, "");
  assert_int_equal(number(plan, "world"), 100000000);
  assert_int_equal(ranks_listed(plan), 100000000);
  json_int_t with_values = 0;
  size_t i;
  const json_t *rank;
  json_array_foreach(ranks_of(plan), i, rank) {
    assert_in_range(number(rank, "params"), 0, 4);
    with_values += number(rank, "params") ? number(rank, "ranks") : 0;
  }
  assert_int_equal(with_values, 20 * ROWS * COLUMNS);
  json_decref(plan);
}

static void the_largest_mesh_is_planned(void **state) {
  json_t *plan = plan_gpt("dp_replicate=1048576 dp_shard=1048576", 2, 3, 8);
  assert_int_equal(ranks_listed(plan), (json_int_t)1 << 40);
  const json_t *node = json_array_get(nodes_of(plan), 0);
  assert_int_equal(number(node, "nodes"), (json_int_t)1 << 37);
  assert_null(json_object_get(node, "is_a_bound"));
  json_decref(plan);
}

/* Nodes of 16 ranks fit the mesh; nodes of 7 do not, so the plan only gives a bound that no node exceeds. */
static void the_node_that_needs_most_is_found(void **state) {
  json_t *plan = plan_gpt("dp_replicate=60 dp_shard=80", 1, 1, 16),
         *odd = plan_gpt("dp_replicate=60 dp_shard=80", 1, 1, 7);
  const json_t *exact = json_array_get(nodes_of(plan), 0), *bound = json_array_get(nodes_of(odd), 0);
  json_int_t largest = 0;
  size_t i;
  const json_t *rank;
  json_array_foreach(ranks_of(plan), i, rank) largest = number(rank, "peak") > largest ? number(rank, "peak") : largest;
  assert_null(json_object_get(exact, "is_a_bound"));
  assert_true(number(exact, "peak") >= largest && number(exact, "peak") < 16 * largest);
  assert_true(json_is_true(json_object_get(bound, "is_a_bound")));
  assert_int_equal(number(bound, "peak"), 7 * largest);
  json_decref(plan);
  json_decref(odd);
}

static void a_model_of_4096_layers_is_planned(void **state) {
  json_t *plan = plan_gpt("dp_replicate=2 dp_shard=3", 4096, 3, 0);
  assert_int_equal(json_array_size(json_object_get(plan, "params")), 4096 * 9 + 2);
  const json_t *param;
  size_t i;
  json_array_foreach(json_object_get(plan, "params"), i, param)
      assert_int_equal(json_array_size(json_object_get(param, "path")), 4);
  json_decref(plan);
}

/* Plans a model whose matrices have up to 2^43 elements, in a process that may take another GiB of addresses. Exits. */
static void plan_in_a_gib(const char *mesh, int zero, const char *more) {
  enum { GIB = 1 << 30 };
  char text[640];
  long pages = 0;
  ad_recipe *recipe = NULL;
  json_t *plan = NULL;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld", &pages) != 1) _exit(2);
  fclose(file);
  rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + GIB;
  snprintf(text, sizeof text,
           "name: huge\nmodel: {d_model: 1048576, heads: 4096, vocabulary: 8388608, layers: 2, %s\n"
           "data: {text: [/usr/share/common-licenses], seq: 65536}\nmesh: \"%s\"\nshard: {zero: %d}\n"
           "train: {global_batch: 48, microbatches: 3, steps: 2, lr: 1e-2}\n",
           more, mesh, zero);
  if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes})) _exit(2);
  ad_status status = ad_recipe_parse(text, "huge.yaml", NULL, 0, &recipe);
  if (!status) status = ad_plan_document(recipe, NULL, &plan);
  if (status) fprintf(stderr, "%s, zero %d, %s: %s\n", mesh, zero, more, ad_last_error());
  _exit(status != AD_OK);
}

/* What a rank would hold is counted, and held by none: a plan needs memory for the names and shapes alone. */
static void a_model_larger_than_memory_is_planned(void **state) {
  static const struct {
    const char *mesh, *more;
  } cases[] = {{"dp_replicate=2 dp_shard=2 tp=2", "kind: gpt}"},
               {"dp_replicate=2 dp_shard=2 cp=2", "kind: gpt}\nprecision: {compute: bf16, param: bf16}"},
               {"pp=2 dp_shard=2", "kind: gpt}\ncheckpoint: {every: 1}"},
               {"dp_shard=4 tp=2",
                "kind: moe, experts: 8, top_k: 2, expert_hidden: 4194304}\n"
                "views: {sparse: \"efsdp=2 ep=2 etp=2\"}"}};
#if defined(AD_SANITIZED) /* sanitizers reserve terabytes of addresses */
  skip();
#endif
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int zero = 0; zero <= 3; zero++) {
      int status = -1;
      fflush(NULL);
      pid_t child = fork();
      if (!child) plan_in_a_gib(cases[i].mesh, zero, cases[i].more);
      assert_int_equal(waitpid(child, &status, 0), child);
      if (status) fail_msg("%s, zero %d: status %#x", cases[i].mesh, zero, status);
    }
  }
}

/* Two neighbouring parameters have gradients in one dtype: one is raw, the other has that gradient dtype. */
static void a_gradient_that_is_raw_is_distinguished_from_one_that_has_its_dtype(void **state) {
  json_t *plan = plan_of(
      "name: gpt\nmodel: {kind: gpt, layers: 2, d_model: 16, heads: 2}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp_shard=2\"\n"
      "precision: {grad: f32, reduce: f32, overrides: {\"*.wq\": {grad: raw}}}\n"
      "train: {global_batch: 4, steps: 2, lr: 1e-2}\n",
      0);
  const json_t *param;
  size_t i, raw = 0;
  json_array_foreach(json_object_get(plan, "params"), i, param) {
    const char *name = json_string_value(json_object_get(param, "name"));
    const char *grad = json_string_value(json_object_get(json_object_get(param, "precision"), "grad"));
    int is_raw = strlen(name) > 3 && !strcmp(name + strlen(name) - 3, ".wq");
    if (strcmp(grad, is_raw ? "raw" : "f32") != 0) fail_msg("%s: %s", name, grad);
    raw += (size_t)is_raw;
  }
  assert_true(raw && raw < i);
  json_decref(plan);
}

/* How often a step of three microbatches sums over the sharding ranks, with this `sync`. */
static json_int_t sums_over_shards(const char *sync) {
  char text[512];
  snprintf(text, sizeof text,
           "name: gpt\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp_replicate=2 dp_shard=2\"\n"
           "train: {global_batch: 6, microbatches: 3, steps: 2, lr: 1e-2, sync: %s}\nshard: {zero: 1}\n",
           sync);
  json_t *plan = plan_of(text, 0);
  const json_t *step;
  size_t i;
  json_int_t most = 0;
  json_array_foreach(json_object_get(plan, "collectives"), i, step) {
    if (strcmp(json_string_value(json_object_get(step, "op")), "reduce_scatter") != 0) continue;
    most = number(step, "times") > most ? number(step, "times") : most;
  }
  json_decref(plan);
  return most;
}

static void each_microbatch_is_summed_as_its_own_word_says(void **state) {
  assert_int_equal(sums_over_shards("[none, none, all]"), 1);
  assert_int_equal(sums_over_shards("[none, shard, all]"), 2);
  assert_int_equal(sums_over_shards("[shard, none, all]"), 2);
  assert_int_equal(sums_over_shards("[shard, shard, all]"), 3);
}

/* How often a step with ZeRO 3 gathers a parameter forward. */
static json_int_t gathers(const char *mesh, const char *parts) {
  char text[512];
  snprintf(text, sizeof text,
           "name: gpt\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\n"
           "train: {global_batch: 11, steps: 2, lr: 1e-2, %s}\nshard: {zero: 3}\n",
           mesh, parts);
  json_t *plan = plan_of(text, 0);
  const json_t *gather = json_array_get(json_object_get(plan, "collectives"), 0);
  assert_string_equal(json_string_value(json_object_get(gather, "op")), "all_gather");
  assert_string_equal(json_string_value(json_object_get(gather, "when")), "forward");
  json_int_t times = number(gather, "times");
  json_decref(plan);
  return times;
}

static void parameters_are_gathered_for_each_microbatch_or_leaf(void **state) {
  assert_int_equal(gathers("dp_shard=2", "microbatches: 3"), 3);
  assert_int_equal(gathers("dp_shard=2", "leaves: 8"), 4);
  assert_int_equal(gathers("dp_shard=2", "leaves: 8, microbatches: 2"), 4);
  assert_int_equal(gathers("dp_shard=5", "leaves: 11, microbatches: 2"), 3); /* of four rounds one has no leaf */
}

static void the_same_name_twice_is_still_found(void **state) {
  ad_mesh *mesh;
  ad_comm *comm;
  ad_reducer *reducer;
  must(ad_mesh_create("dp_shard=1", &mesh));
  must(ad_comm_open_dry(0, 1, &comm));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_param_spec params[] = {{.size = sizeof(ad_param_spec), .name = "b"},
                            {.size = sizeof(ad_param_spec), .name = "a"},
                            {.size = sizeof(ad_param_spec), .name = "c"},
                            {.size = sizeof(ad_param_spec), .name = "b"},
                            {.size = sizeof(ad_param_spec), .name = "a"}};
  for (int i = 0; i < 5; i++) params[i].layout = params[i].storage = layout;
  assert_int_equal(ad_reducer_create(comm, params, 5, NULL, &reducer), AD_INVALID);
  assert_says("b", "0", "3");
  ad_comm_close(comm);
  ad_mesh_destroy(mesh);
}

/* ---- communication by tapes and bridges ---- */

static const json_t *activations_of(const json_t *plan) { return json_object_get(plan, "activations"); }

/* Bytes of the all-reduce after a block's attention: f32 tokens of the whole batch or of one group's part. */
static json_int_t attention_sum(const json_t *plan) {
  const json_t *step;
  size_t i;
  json_array_foreach(activations_of(plan), i, step) {
    if (!strstr(json_string_value(json_object_get(step, "site")), "attention.c")) continue;
    assert_string_equal(json_string_value(json_object_get(step, "op")), "all_reduce");
    assert_string_equal(json_string_value(json_object_get(step, "axes")), "tp");
    assert_int_equal(number(step, "group_size"), 2);
    return number(step, "bytes");
  }
  fail_msg("attention sums nothing");
  return 0;
}

static void a_transition_counts_what_a_group_brings_together(void **state) {
  json_t *one = plan_gpt("dp_shard=1 tp=2", 1, 0, 0), *many = plan_gpt("dp_shard=16 tp=2", 1, 0, 0);
  assert_int_equal(attention_sum(one), 13 * 12 * 16 * 4);
  assert_int_equal(attention_sum(many), 13 * 12 * 16 * 4 / 16); /* rank 0 has none of the 13 samples */
  json_decref(one);
  json_decref(many);
}

/* Each of two cp groups has half of the batch: forward, k and v go around; backward, their gradients go with them. */
static void keys_that_go_around_a_ring_are_counted(void **state) {
  json_t *plan = plan_gpt("dp_shard=2 cp=2", 2, 0, 0);
  const json_t *step;
  json_int_t pair = 2 * (13 * 12 * 16 * 4 / 2), bytes[2] = {pair, 2 * pair};
  size_t i;
  assert_int_equal(json_array_size(activations_of(plan)), 2);
  json_array_foreach(activations_of(plan), i, step) {
    assert_string_equal(json_string_value(json_object_get(step, "op")), "ring");
    assert_string_equal(json_string_value(json_object_get(step, "axes")), "cp");
    assert_string_equal(json_string_value(json_object_get(step, "when")), i ? "backward" : "forward");
    assert_int_equal(number(step, "bytes"), bytes[i]);
    assert_int_equal(number(step, "times"), 2);
  }
  json_decref(plan);
}

static void ranks_that_share_no_matrix_exchange_no_activation(void **state) {
  json_t *plan = plan_gpt("dp_replicate=2 dp_shard=2", 1, 3, 0);
  assert_int_equal(json_array_size(activations_of(plan)), 0);
  assert_int_equal(json_array_size(json_object_get(plan, "bridges")), 0);
  json_decref(plan);
}

static json_t *plan_with(const char *placement, const char *encoder, const char *model, int batch, const char *more) {
  char text[768];
  snprintf(
      text, sizeof text,
      "name: ocr\nmodel: {kind: ocr, encoder_layers: 1, encoder_d_model: 24, encoder_heads: 4, patch: 8, layers: 1,"
      " d_model: 24, heads: 4}\n"
      "data: {text: [/usr/share/common-licenses], fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf], chars: 8,"
      " height: 16, width: 64, sizes: [9, 11]}\n"
      "mesh: {encoder: \"%s\", model: \"%s\"}\nplacement: %s\n"
      "train: {global_batch: %d, microbatches: 2, steps: 2, lr: 1e-2}\n%s\n",
      encoder, model, placement, batch, more);
  return plan_of(text, 0);
}

static json_t *plan_placed(const char *placement, const char *encoder, const char *model, int batch) {
  return plan_with(placement, encoder, model, batch, "");
}

static json_t *plan_ocr(const char *encoder, const char *model) { return plan_placed("colocated", encoder, model, 8); }

/* Counts for each row how often each rank receives it; `first` is the number of the first rank. */
static void count_rows(const json_t *way, int first, int counts[8][4]) {
  const json_t *route;
  size_t i;
  json_array_foreach(json_object_get(way, "routes"), i, route) {
    assert_int_equal(number(route, "bytes"), number(route, "rows") * number(way, "row_bytes"));
    for (json_int_t row = 0; row < number(route, "rows"); row++)
      counts[number(route, "to") - first][number(route, "first_row") + row]++;
  }
}

/* Checks that each row goes once to every rank whose part of the batch has it. */
static void every_rank_gets_its_rows(const json_t *bridge, const char *way, int ranks, int first,
                                     int ranks_with_the_same_rows) {
  int counts[8][4] = {{0}}, share = ranks_with_the_same_rows;
  const json_t *found = json_object_get(bridge, way);
  assert_int_equal(number(found, "senders"), ranks);
  assert_int_equal(number(found, "senders_listed"), ranks);
  assert_int_equal(number(found, "routes_left_out"), 0);
  count_rows(found, first, counts);
  for (int rank = 0; rank < ranks; rank++)
    for (int row = 0; row < 4; row++) assert_int_equal(counts[rank][row], row / (share * 4 / ranks) == rank / share);
}

static void a_bridge_brings_every_rank_its_rows(void **state) {
  json_t *plan = plan_ocr("dp=4 tp=2", "dp=2 cp=2 tp=2");
  const json_t *bridges = json_object_get(plan, "bridges"), *bridge = json_array_get(bridges, 0);
  assert_int_equal(json_array_size(bridges), 1);
  assert_int_equal(number(bridge, "rows"), 4);
  assert_int_equal(number(bridge, "times"), 2);
  assert_int_equal(number(json_object_get(bridge, "forward"), "row_bytes"), 8 * 24 * 4); /* patches of one picture */
  every_rank_gets_its_rows(bridge, "forward", 8, 0, 4);
  every_rank_gets_its_rows(bridge, "backward", 8, 0, 2);
  json_decref(plan);
}

/* If every rank already has its rows the bridge is listed all the same, with routes from each rank to itself. */
static void a_bridge_that_moves_nothing_says_so(void **state) {
  json_t *plan = plan_ocr("dp=4 tp=2", "dp=4 cp=2");
  const json_t *bridge = json_array_get(json_object_get(plan, "bridges"), 0), *entry;
  size_t i;
  every_rank_gets_its_rows(bridge, "forward", 8, 0, 2);
  every_rank_gets_its_rows(bridge, "backward", 8, 0, 2);
  json_array_foreach(json_object_get(json_object_get(bridge, "forward"), "routes"), i, entry)
      assert_int_equal(number(entry, "from"), number(entry, "to"));
  assert_int_equal(json_array_size(json_object_get(bridge, "bytes_per_rank")), 8);
  json_array_foreach(json_object_get(bridge, "bytes_per_rank"), i, entry) {
    assert_int_equal(number(json_object_get(entry, "forward"), "sends"), 0);
    assert_int_equal(number(json_object_get(entry, "backward"), "receives"), 0);
  }
  json_decref(plan);
}

/* ---- modules on disjoint ranks ---- */

static const json_t *pool_of(const json_t *plan, const json_t *entry) {
  return json_array_get(json_object_get(plan, "pools"), (size_t)number(entry, "pool"));
}

/* Checks that a gradient's path has a single step, with these axes. */
static void expect_reduced(const json_t *plan, const json_t *param, const char *axes, int ranks) {
  const json_t *path = json_object_get(param, "path"), *step = json_array_get(path, 0);
  assert_int_equal(json_array_size(path), 1);
  assert_string_equal(json_string_value(json_object_get(step, "axes")), axes);
  assert_int_equal(number(step, "group_size"), ranks);
  assert_int_equal(number(pool_of(plan, param), "first_rank"), strncmp(axes, "dp_shard,cp", 11) ? 0 : 4);
}

static void a_parameter_is_reduced_as_on_its_own_ranks(void **state) {
  json_t *plan = plan_placed("disjoint", "dp=2 tp=2", "dp=2 cp=2", 8);
  const json_t *entry;
  size_t i;
  int is_model, reductions[2] = {0, 0};
  json_array_foreach(json_object_get(plan, "params"), i, entry) {
    is_model = !strncmp(json_string_value(json_object_get(entry, "name")), "model.", 6);
    expect_reduced(plan, entry, is_model ? "dp_shard,cp" : "dp_shard", is_model ? 4 : 2);
  }
  json_array_foreach(json_object_get(plan, "collectives"), i, entry) {
    is_model = !strcmp(json_string_value(json_object_get(entry, "module")), "model");
    assert_int_equal(number(entry, "pool"), is_model);
    reductions[is_model]++;
  }
  assert_true(reductions[0] && reductions[1]);
  json_decref(plan);
}

/* The encoder sums over tp; the model's keys go around a ring, and its gradients of the pictures are summed over cp. */
static void each_pool_has_its_own_activations(void **state) {
  json_t *plan = plan_placed("disjoint", "dp=2 tp=2", "dp=2 cp=2", 8);
  const json_t *step;
  size_t i;
  int counts[2] = {0, 0}, sums_of_images = 0;
  json_array_foreach(activations_of(plan), i, step) {
    const char *axes = json_string_value(json_object_get(step, "axes"));
    assert_string_equal(axes, number(step, "pool") ? "cp" : "tp");
    counts[number(step, "pool")]++;
    sums_of_images += !strcmp(json_string_value(json_object_get(step, "site")), "images");
  }
  assert_int_equal(sums_of_images, 1);
  assert_true(counts[0] > 0 && counts[1] > 1);
  json_decref(plan);
}

static void a_bridge_between_pools_brings_every_rank_its_rows(void **state) {
  json_t *plan = plan_placed("disjoint", "dp=4 tp=2", "dp=2 cp=2", 8);
  const json_t *bridge = json_array_get(json_object_get(plan, "bridges"), 0), *ranks, *entry;
  json_int_t row = 8 * 24 * 4;
  size_t i;
  const json_t *forward = json_object_get(bridge, "forward"), *backward = json_object_get(bridge, "backward");
  int counts[8][4] = {{0}}, back[8][4] = {{0}};
  count_rows(forward, 8, counts);
  count_rows(backward, 0, back);
  for (int rank = 0; rank < 8; rank++)
    for (int i_row = 0; i_row < 4; i_row++) {
      assert_int_equal(back[rank][i_row], i_row == rank / 2);
      if (rank < 4) assert_int_equal(counts[rank][i_row], i_row / 2 == rank / 2);
    }
  ranks = json_object_get(bridge, "bytes_per_rank");
  assert_int_equal(json_array_size(ranks), 12);
  json_array_foreach(ranks, i, entry) {
    int is_model = number(entry, "rank") >= 8;
    assert_int_equal(number(entry, "pool"), is_model);
    assert_int_equal(number(json_object_get(entry, "forward"), "sends"), is_model ? 0 : row);
    assert_int_equal(number(json_object_get(entry, "forward"), "receives"), is_model ? 2 * row : 0);
    assert_int_equal(number(json_object_get(entry, "backward"), "sends"), is_model ? 2 * row : 0);
    assert_int_equal(number(json_object_get(entry, "backward"), "receives"), is_model ? 0 : row);
  }
  json_decref(plan);
}

static void nothing_returns_over_a_bridge_from_frozen_parameters(void **state) {
  json_t *plan = plan_with("disjoint", "dp=4 tp=2", "dp=2 cp=2", 8, "groups: [{match: 'encoder.*', frozen: true}]");
  const json_t *bridge = json_array_get(json_object_get(plan, "bridges"), 0), *entry;
  size_t i;
  assert_true(number(json_object_get(bridge, "forward"), "bytes") > 0);
  assert_int_equal(number(json_object_get(bridge, "backward"), "bytes"), 0);
  assert_int_equal(json_array_size(json_object_get(json_object_get(bridge, "backward"), "routes")), 0);
  json_array_foreach(json_object_get(bridge, "bytes_per_rank"), i, entry) {
    assert_int_equal(number(json_object_get(entry, "backward"), "sends"), 0);
    assert_int_equal(number(json_object_get(entry, "backward"), "receives"), 0);
  }
  json_decref(plan);
}

/* 8 rows of 6 numbers travel in bf16 forward and in f32 backward, from 2 ranks to 1 and to 4. */
static const char relay_recipe[] =
    "name: relay\nmodel: {kind: relay}\nmesh: {first: \"dp=2\", second: \"dp=1\", third: \"dp=4\"}\n"
    "placement: disjoint\ntrain: {global_batch: 8, steps: 2, lr: 1e-2}\n";

static void expect_bridge(const json_t *bridge, const char *value, int from, int to) {
  assert_string_equal(json_string_value(json_object_get(bridge, "site")), value);
  assert_int_equal(number(json_object_get(bridge, "from"), "pool"), from);
  assert_int_equal(number(json_object_get(bridge, "to"), "pool"), to);
  assert_int_equal(number(json_object_get(bridge, "forward"), "bytes"), 8 * RELAYED * 2);
  assert_int_equal(number(json_object_get(bridge, "backward"), "bytes"), 8 * RELAYED * 4);
}

static void each_of_three_pools_is_planned(void **state) {
  static const int first[] = {0, 2, 3}, ranks[] = {2, 1, 4};
  json_t *plan = plan_of(relay_recipe, 0);
  const json_t *bridges = json_object_get(plan, "bridges"), *pools = json_object_get(plan, "pools");
  assert_int_equal(json_array_size(pools), 3);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(number(json_array_get(pools, i), "first_rank"), first[i]);
    assert_int_equal(number(json_array_get(pools, i), "ranks"), ranks[i]);
    assert_int_equal(number(json_array_get(json_object_get(plan, "params"), i), "pool"), i);
  }
  assert_int_equal(json_array_size(bridges), 3);
  expect_bridge(json_array_get(bridges, 0), "x", 0, 1);
  expect_bridge(json_array_get(bridges, 1), "x", 0, 2);
  expect_bridge(json_array_get(bridges, 2), "y", 1, 2);
  json_decref(plan);
}

static void three_pools_are_drawn_side_by_side(void **state) {
  static const char *const words[] = {">first<",
                                      ">ranks 0 to 1<",
                                      ">second<",
                                      ">rank 2<",
                                      ">third<",
                                      ">ranks 3 to 6<",
                                      ">x: 96 B, 1 time a step<",
                                      ">gradient of x: 192 B, 1 time a step<",
                                      ">y: 96 B, 1 time a step<",
                                      ">gradient of y: 192 B, 1 time a step<"};
  ad_recipe *recipe = NULL;
  char *picture;
  must(ad_recipe_parse(relay_recipe, "relay.yaml", NULL, 0, &recipe));
  must(ad_plan_picture(recipe, NULL, NULL, &picture));
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(picture, words[i])) fail_msg("the picture has no %s", words[i]);
  free(picture);
  ad_recipe_destroy(recipe);
}

/* The left and the right edge of the box of each pool, in a picture of this many pools. Returns how many boxes it
 * has. */
static int boxes_of(int pools, int edges[][2]) {
  json_t *plan = json_pack("{s:[], s:[], s:[]}", "pools", "modules", "bridges");
  char *picture = NULL;
  size_t size = 0;
  int y = 0, boxes = 0, x, width;
  for (int i = 0; i < pools; i++) {
    json_array_append_new(json_object_get(plan, "pools"), json_pack("{s:i, s:i}", "first_rank", i, "ranks", 1));
    json_array_append_new(json_object_get(plan, "modules"),
                          json_pack("{s:i, s:s, s:s}", "pool", i, "name", "m", "mesh", "dp=1"));
  }
  FILE *file = open_memstream(&picture, &size);
  ad_picture_pools(file, plan, &y);
  assert_int_equal(fclose(file), 0);
  for (const char *at = picture; (at = strstr(at, "<rect x=")); at++) {
    if (sscanf(at, "<rect x=\"%d\" y=\"%*d\" width=\"%d\"", &x, &width) != 2 || width == 2) continue; /* 2: a line */
    edges[boxes][0] = x;
    edges[boxes++][1] = x + width;
  }
  free(picture);
  json_decref(plan);
  return boxes;
}

/* Boxes are as wide as the picture has room for, up to 260, and never touch. */
static void pools_are_spread_from_margin_to_margin(void **state) {
  enum { MOST = 12, WIDEST = 260, GAP = 16 };
  int edges[MOST][2];
  assert_int_equal(boxes_of(1, edges), 0);
  for (int pools = 2; pools <= MOST; pools++) {
    assert_int_equal(boxes_of(pools, edges), pools);
    assert_int_equal(edges[0][0], PICTURE_MARGIN);
    assert_int_equal(edges[pools - 1][1], PICTURE_WIDTH - PICTURE_MARGIN);
    for (int i = 1; i < pools; i++) {
      int gap = edges[i][0] - edges[i - 1][1], width = edges[i][1] - edges[i][0];
      assert_int_equal(width, edges[0][1] - edges[0][0]);
      assert_true(width <= WIDEST && gap >= GAP);
      if (width < WIDEST) assert_true(gap <= GAP + 2); /* what is left over when the room is divided by whole numbers */
    }
  }
}

int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file);
static int fails_at; /* number of the call of fclose from now on that says that it failed; 0: none does */

int __wrap_fclose(FILE *file) {
  int status = __real_fclose(file);
  return fails_at && !--fails_at ? EOF : status;
}

/* What is printed into memory found room for all of it only if closing it says so. */
static void a_table_without_room_for_all_of_it_is_no_table(void **state) {
  ad_recipe *recipe = NULL;
  char *table = NULL;
  must(ad_recipe_parse(relay_recipe, "relay.yaml", NULL, 0, &recipe));
  fails_at = 1;
  assert_int_equal(ad_plan_table(recipe, NULL, &table), AD_MEMORY);
  assert_int_equal(fails_at, 0);
  assert_null(table);
  ad_recipe_destroy(recipe);
}

static void a_picture_without_room_for_all_of_it_is_no_picture(void **state) {
  ad_recipe *recipe = NULL;
  char *picture = NULL;
  must(ad_recipe_parse(relay_recipe, "relay.yaml", NULL, 0, &recipe));
  for (int n = 1; n <= 2; n++) { /* the body, then the whole picture */
    fails_at = n;
    assert_int_equal(ad_plan_picture(recipe, NULL, NULL, &picture), AD_MEMORY);
    assert_int_equal(fails_at, 0);
    assert_null(picture);
  }
  ad_recipe_destroy(recipe);
}

static void what_xml_cannot_hold_is_a_question_mark(void **state) {
  ad_recipe *recipe = NULL;
  char *picture;
  must(ad_recipe_parse(relay_recipe, "relay.yaml", NULL, 0, &recipe));
  must(ad_plan_picture(recipe, NULL, "a\x01z\x7f<\xef\xbf\xbe&", &picture));
  assert_non_null(strstr(picture, ">a?z?&lt;?&amp;<"));
  free(picture);
  ad_recipe_destroy(recipe);
}

static json_int_t bytes_of_routes(const json_t *way) {
  const json_t *route;
  size_t i;
  json_int_t bytes = 0;
  assert_int_equal(number(way, "routes_left_out"), 0);
  json_array_foreach(json_object_get(way, "routes"), i, route) bytes += number(route, "bytes");
  return bytes;
}

/* No rank is on both sides, so all rows go to other ranks. Returns the bytes in one direction. */
static json_int_t bytes_of_ranks(const json_t *bridge, const char *way, const char *direction) {
  const json_t *entry;
  size_t i;
  json_int_t bytes = 0;
  json_array_foreach(json_object_get(bridge, "bytes_per_rank"), i, entry) bytes +=
      number(json_object_get(entry, way), direction);
  return bytes;
}

static void expect_bytes_of_routes(const json_t *bridge, const char *way) {
  json_int_t bytes = number(json_object_get(bridge, way), "bytes");
  assert_int_equal(bytes, bytes_of_routes(json_object_get(bridge, way)));
  assert_int_equal(bytes, bytes_of_ranks(bridge, way, "sends"));
  assert_int_equal(bytes, bytes_of_ranks(bridge, way, "receives"));
}

/* Thirteen rows are cut into microbatches of five, four and four. In each microbatch a component matrix goes whole to
 * every adversary rank, and its gradient back to the first rank of the blocks alone. */
static void what_is_transferred_is_counted_by_microbatches_and_replicas(void **state) {
  enum { BATCH = 13, MICROBATCHES = 3, ADVERSARIES = 3 };
  static const char *const sets[] = {"train.microbatches=3"};
  ad_recipe *recipe = NULL;
  json_t *plan = NULL;
  const json_t *bridge;
  size_t i, matrices = 0;
  json_int_t rows[2] = {0, 0};
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/pools-ragged.yaml", sets, 1, &recipe));
  must(ad_plan_document(recipe, NULL, &plan));
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge) {
    expect_bytes_of_routes(bridge, "forward");
    expect_bytes_of_routes(bridge, "backward");
    int is_sharded = !strcmp(json_string_value(json_object_get(bridge, "site")), "importances.0");
    const json_t *there = json_object_get(bridge, "forward"), *back = json_object_get(bridge, "backward");
    if (is_sharded) {
      rows[number(json_object_get(bridge, "to"), "pool") == 2] += number(bridge, "times") * number(bridge, "rows");
      continue;
    }
    matrices++;
    assert_int_equal(number(bridge, "times"), MICROBATCHES);
    assert_int_equal(number(there, "bytes"), ADVERSARIES * number(bridge, "rows") * number(there, "row_bytes"));
    assert_int_equal(number(back, "bytes"), number(bridge, "rows") * number(back, "row_bytes"));
  }
  assert_int_equal(matrices, 2 * 3 * 2);
  assert_int_equal(rows[0], BATCH);
  assert_int_equal(rows[1], BATCH);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static size_t activations_beside_tapes(const ad_recipe *recipe, int64_t rank) {
  ad_comm *comm;
  ad_run *run;
  ad_plan_memory memory;
  must(ad_plan_act(recipe, rank, &(ad_plan_world){.ranks = 7, .ranks_per_node = 7}, 0, &comm, &run));
  must(ad_plan_memory_of(run, &memory));
  size_t bytes = memory.activations - ad_run_tape_bytes(run);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return bytes;
}

/* With one microbatch there is one buffer, though the first pool could be two ahead of the third. Values that travel in
 * bf16 have buffers at both ends. */
static void memory_for_what_bridges_bring_is_counted(void **state) {
  enum { ROW = RELAYED * 4, WIRE = RELAYED * 2 };
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(relay_recipe, "relay.yaml", NULL, 0, &recipe));
  assert_int_equal(activations_beside_tapes(recipe, 0), 2 * 4 * (WIRE + ROW));
  assert_int_equal(activations_beside_tapes(recipe, 2), 8 * (ROW + WIRE + WIRE + ROW));
  assert_int_equal(activations_beside_tapes(recipe, 3), 2 * 2 * (ROW + WIRE));
  ad_recipe_destroy(recipe);
}

/* Five samples over four ranks: the last rank has two. */
static void a_rank_of_a_pool_with_more_samples_holds_more(void **state) {
  json_t *plan = plan_of(
      "name: pools\nmodel: {kind: decompose, layers: 1, d_model: 16, heads: 2}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12}\nimportance: {layers: 1, d_model: 16, heads: 2}\n"
      "sites: [{match: blocks.0.attn.wq, components: 3}]\nplacement: disjoint\n"
      "mesh: {ci: \"dp=4\", blocks: \"block=1 dp=1\", adv: \"dp=1\"}\n"
      "train: {global_batch: 5, steps: 2, lr: 1e-2}\n",
      0);
  json_int_t activations[4];
  assert_int_equal(json_array_size(ranks_of(plan)), 6);
  for (size_t rank = 0; rank < 4; rank++)
    activations[rank] = number(json_array_get(ranks_of(plan), rank), "activations");
  assert_int_equal(activations[0], activations[1]);
  assert_int_equal(activations[0], activations[2]);
  assert_true(activations[0] < activations[3]);
  json_decref(plan);
}

static void pools_of_many_ranks_are_planned(void **state) {
  json_t *plan = plan_placed("disjoint", "dp=65536 tp=2", "dp=32768 cp=4", 131072);
  const json_t *entry;
  json_int_t ranks[2] = {0, 0};
  size_t i;
  json_array_foreach(ranks_of(plan), i, entry) ranks[number(entry, "pool")] += number(entry, "ranks");
  assert_int_equal(ranks[0], 131072);
  assert_int_equal(ranks[1], 131072);
  json_decref(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(onednn_takes_memory_where_products_are_made),
      cmocka_unit_test(the_rows_of_a_pool_are_counted_where_its_ranks_alone_list_them),
      cmocka_unit_test(staging_takes_what_the_tape_holds_up_to_a_limit),
      cmocka_unit_test(the_table_reports_each_policy),
      cmocka_unit_test(a_gather_counts_what_the_rank_computes_with),
      cmocka_unit_test(every_cut_decides_what_a_rank_holds),
      cmocka_unit_test(an_optimizer_takes_the_bytes_of_its_states),
      cmocka_unit_test(only_the_first_of_the_replicas_writes_checkpoints),
      cmocka_unit_test(a_world_of_a_hundred_million_ranks_is_planned),
      cmocka_unit_test(the_largest_mesh_is_planned),
      cmocka_unit_test(the_node_that_needs_most_is_found),
      cmocka_unit_test(a_model_of_4096_layers_is_planned),
      cmocka_unit_test(a_model_larger_than_memory_is_planned),
      cmocka_unit_test(the_same_name_twice_is_still_found),
      cmocka_unit_test(a_gradient_that_is_raw_is_distinguished_from_one_that_has_its_dtype),
      cmocka_unit_test(each_microbatch_is_summed_as_its_own_word_says),
      cmocka_unit_test(parameters_are_gathered_for_each_microbatch_or_leaf),
      cmocka_unit_test(a_transition_counts_what_a_group_brings_together),
      cmocka_unit_test(keys_that_go_around_a_ring_are_counted),
      cmocka_unit_test(ranks_that_share_no_matrix_exchange_no_activation),
      cmocka_unit_test(a_bridge_brings_every_rank_its_rows),
      cmocka_unit_test(a_bridge_that_moves_nothing_says_so),
      cmocka_unit_test(a_parameter_is_reduced_as_on_its_own_ranks),
      cmocka_unit_test(each_pool_has_its_own_activations),
      cmocka_unit_test(a_bridge_between_pools_brings_every_rank_its_rows),
      cmocka_unit_test(nothing_returns_over_a_bridge_from_frozen_parameters),
      cmocka_unit_test(each_of_three_pools_is_planned),
      cmocka_unit_test(three_pools_are_drawn_side_by_side),
      cmocka_unit_test(pools_are_spread_from_margin_to_margin),
      cmocka_unit_test(a_table_without_room_for_all_of_it_is_no_table),
      cmocka_unit_test(a_picture_without_room_for_all_of_it_is_no_picture),
      cmocka_unit_test(what_xml_cannot_hold_is_a_question_mark),
      cmocka_unit_test(what_is_transferred_is_counted_by_microbatches_and_replicas),
      cmocka_unit_test(memory_for_what_bridges_bring_is_counted),
      cmocka_unit_test(a_rank_of_a_pool_with_more_samples_holds_more),
      cmocka_unit_test(pools_of_many_ranks_are_planned),
  };
  return cmocka_run_group_tests(tests, add_programs, NULL);
}
