/* Tests the types of parameters in the notation of spmd_types: of shipped recipes, and of a program whose matrix is
 * sharded over two axes along one dimension, or zigzag. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/json.h"
#include "plan/plan.h"
#include "says.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* ---- a program with one table, with the layout of a test ---- */

enum { ROWS = 9, COLUMNS = 8 };
static const char *table_layout; /* as ad_layout_parse reads it */

static ad_layout batch_layout(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  return layout;
}

static ad_status table_run(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *table = ad_parameter(t, ad_phase_parameters(at), 0);
  ad_phase_loss(at, 0, ad_sum(t, ad_linear(t, ad_constant(t, own), table)));
  return AD_OK;
}

static ad_status table_create(const void *options, ad_program *to, void **own) {
  const ad_program_setting *setting = ad_program_setting_of(to);
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  ad_array *batch;
  AD_TRY(ad_new(1, &batch));
  *own = batch;
  ad_layout layout = batch_layout(mesh), table;
  ad_shape shape = {2, {setting->global_batch, ROWS}};
  *batch = ad_array_describe(setting->comm, AD_F32, &shape, &layout);
  AD_TRY(ad_layout_parse(mesh, table_layout, &table));
  ad_param_spec param = {
      .size = sizeof param, .name = "table", .shape = {2, {ROWS, COLUMNS}}, .layout = table, .storage = table};
  AD_TRY(ad_program_add_module(
      to, &(ad_module_spec){
              .size = sizeof(ad_module_spec), .name = "model", .mesh = mesh, .params = &param, .param_count = 1}));
  ad_layout_set(&layout, AD_AXES_DP, AD_P);
  AD_TRY(
      ad_program_add_count(to, &(ad_count_spec){.size = sizeof(ad_count_spec), .name = "samples", .layout = layout}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "sum"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = table_run});
}

static void table_destroy(void *own) { ad_release(own); }
static ad_status table_open(void *own) { return AD_OK; }
static ad_status table_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  counted[0][0] = ((ad_array *)own)->local.dim[0];
  return AD_OK;
}
static int table_has_validation(const void *own) { return 0; }
static size_t table_bytes(const void *own) { return ad_array_bytes(own); }
static double table_flops(const void *own, int64_t samples) { return 0; }

static int add_program(void **state) {
  static const char *const modules[] = {"model", NULL};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "table",
                                       .help = "one table",
                                       .modules = modules,
                                       .options_size = 8,
                                       .create = table_create,
                                       .destroy = table_destroy,
                                       .open = table_open,
                                       .read = table_read,
                                       .data = {.has_validation = table_has_validation, .bytes = table_bytes},
                                       .account = {.flops = table_flops}};
  return ad_program_register(&kind);
}

/* ---- tests ---- */

static ad_recipe *recipe_of(const char *layout) {
  ad_recipe *recipe = NULL;
  table_layout = layout;
  must(
      ad_recipe_parse("name: table\nmodel: {kind: table}\nmesh: \"dp_shard=2 cp=2 tp=2\"\n"
                      "train: {global_batch: 4, steps: 2, lr: 1e-2}\n",
                      "table.yaml", NULL, 0, &recipe));
  return recipe;
}

static json_t *document_of(const ad_recipe *recipe) {
  char *text = NULL;
  must(ad_plan_spmd_json(recipe, NULL, &text));
  json_t *document = json_loads(text, 0, NULL);
  assert_non_null(document);
  free(text);
  return document;
}

/* The keys of an object, in order, each followed by a space. */
static void keys_of(json_t *object, char *out, size_t size) {
  const char *key;
  json_t *value;
  *out = 0;
  json_object_foreach(object, key, value) snprintf(out + strlen(out), size - strlen(out), "%s ", key);
}

static void axes_that_shard_one_dimension_are_in_order(void **state) {
  static const struct {
    const char *layout, *outer, *inner, *keys;
  } cases[] = {{"dp_shard=R cp=S1 tp=S1", "cp", "tp", "dp_shard cp tp "},
               {"dp_shard=R tp=S1 cp=S1", "tp", "cp", "dp_shard tp cp "}};
  for (size_t i = 0; i < 2; i++) {
    char keys[64], *text = NULL, spec[64];
    ad_recipe *recipe = recipe_of(cases[i].layout);
    json_t *document = document_of(recipe), *param = json_array_get(json_object_get(document, "spmd"), 0);
    json_t *types = json_object_get(param, "types"), *axes = json_object_get(param, "partition_spec");
    keys_of(types, keys, sizeof keys);
    assert_string_equal(keys, cases[i].keys);
    assert_string_equal(ad_text_of(types, "tp"), "S(1)");
    assert_string_equal(ad_text_of(types, "dp_shard"), "R");
    assert_int_equal(json_array_size(axes), 2);
    assert_true(json_is_null(json_array_get(axes, 0)));
    assert_string_equal(json_string_value(json_array_get(json_array_get(axes, 1), 0)), cases[i].outer);
    assert_string_equal(json_string_value(json_array_get(json_array_get(axes, 1), 1)), cases[i].inner);
    must(ad_plan_spmd_table(recipe, NULL, &text));
    snprintf(spec, sizeof spec, "PartitionSpec(None, (%s, %s))", cases[i].outer, cases[i].inner);
    assert_non_null(strstr(text, spec));
    free(text);
    json_decref(document);
    ad_recipe_destroy(recipe);
  }
}

static void one_axis_for_each_dimension_needs_no_partition_spec(void **state) {
  char *text = NULL;
  ad_recipe *recipe = recipe_of("dp_shard=R cp=I tp=S1");
  json_t *document = document_of(recipe);
  json_t *axes = json_object_get(json_array_get(json_object_get(document, "spmd"), 0), "partition_spec");
  assert_true(json_is_null(json_array_get(axes, 0)));
  assert_string_equal(json_string_value(json_array_get(axes, 1)), "tp");
  must(ad_plan_spmd_table(recipe, NULL, &text));
  assert_non_null(strstr(text, "{dp_shard: R, cp: I, tp: S(1)}"));
  assert_null(strstr(text, "PartitionSpec"));
  free(text);
  json_decref(document);
  ad_recipe_destroy(recipe);
}

static void zigzag_has_no_such_type(void **state) {
  char *text = NULL;
  ad_recipe *recipe = recipe_of("dp_shard=R cp=S1z tp=I");
  assert_int_equal(ad_plan_spmd_json(recipe, NULL, &text), AD_TYPE);
  assert_says("table", "cp=S1z");
  assert_int_equal(ad_plan_spmd_table(recipe, NULL, &text), AD_TYPE);
  assert_null(text);
  ad_recipe_destroy(recipe);
}

/* A mixture of experts has several meshes; each has a line before its parameters. */
static void parameters_are_under_their_mesh(void **state) {
  char *text = NULL;
  ad_recipe *recipe = NULL;
  const char *const sets[] = {"model.layers=1"};
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/moe-16.yaml", sets, 1, &recipe));
  must(ad_plan_spmd_table(recipe, NULL, &text));
  const char *dense = strstr(text, "mesh dp_shard=8 tp=2"), *sparse = strstr(text, "mesh efsdp=2 ep=4 etp=2");
  const char *router = strstr(text, ".router"), *up = strstr(text, ".moe.up"), *shared = strstr(text, ".shared.up");
  assert_true(dense && dense < router && router < sparse && sparse < up);
  const char *again = strstr(sparse, "mesh dp_shard=8 tp=2");
  assert_true(again && up < again && again < shared);
  free(text);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(axes_that_shard_one_dimension_are_in_order),
      cmocka_unit_test(one_axis_for_each_dimension_needs_no_partition_spec),
      cmocka_unit_test(zigzag_has_no_such_type),
      cmocka_unit_test(parameters_are_under_their_mesh),
  };
  return cmocka_run_group_tests(tests, add_program, NULL);
}
