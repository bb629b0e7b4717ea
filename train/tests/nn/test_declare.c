/* Tests the list of parameters that layers declare, and how failures in declaring are reported. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "base/memory.h"
#include "addend/experts.h"
#include "addend/layers.h"
#include "says.h"

static const ad_parallel plain = {0};

#define must(call) assert_int_equal((call), AD_OK)

static ad_mesh *open_mesh(void) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=2 dp_shard=3 cp=2 tp=2", &mesh));
  return mesh;
}

static void users_of_a_parameter_leave_addends_on_dp_and_cp(void **state) {
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  assert_int_equal(ad_norm_declare(&list, "final.norm", "weight", 4, plain).weight, 0);
  must(list.status);
  char text[128];
  assert_string_equal(ad_layout_print(&list.list[0].layout, text, sizeof text), "dp_replicate=R dp_shard=R cp=R tp=I");
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

static void parameters_are_numbered_in_the_order_of_declaration(void **state) {
  static const char *const names[] = {"b.attn.wq",  "b.attn.wk", "b.attn.wv",  "b.attn.wo",
                                      "b.mlp.gate", "b.mlp.up",  "b.mlp.down", "b.norm.attn"};
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  ad_attention_declare(&list, "b.attn",
                       &(ad_attention_shape){.d_model = 8, .heads = 2, .kv_heads = 2, .rotary_base = 10000});
  ad_mlp_declare(&list, "b.mlp", &(ad_mlp_shape){.d_model = 8, .d_hidden = 16, .output_factor = 0.5});
  ad_norm_layer norm = ad_norm_declare(&list, "b.norm", "attn", 8, plain);
  must(list.status);
  assert_int_equal(list.count, 8);
  assert_int_equal(norm.weight, 7);
  for (size_t i = 0; i < 8; i++) assert_string_equal(list.list[i].name, names[i]);
  assert_int_equal(list.list[6].shape.dim[0], 16);
  assert_int_equal(list.list[6].shape.dim[1], 8);
  assert_true(list.list[6].decays);
  assert_false(list.list[7].decays);
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

/* Checks the layout of the parameter of this name. */
static void assert_layout(const ad_declarations *list, const char *name, const char *wanted) {
  char text[128];
  for (size_t i = 0; i < list->count; i++) {
    if (strcmp(list->list[i].name, name) != 0) continue;
    assert_string_equal(ad_layout_print(&list->list[i].layout, text, sizeof text), wanted);
    return;
  }
  fail_msg("%s is not declared", name);
}

static void matrices_are_sharded_over_tp_where_their_formula_says(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_shard=3 tp=2", &mesh));
  ad_declarations list = ad_declarations_on(mesh);
  ad_parallel by_rows = {.sequence = 1}, converted = {.sequence = 1, .converts = 1};
  ad_attention_shape attention = {.d_model = 16, .heads = 4, .kv_heads = 1, .has_bias = 1, .has_norms = 1};
  ad_attention_declare(&list, "a", &attention);
  attention.kv_heads = 2;
  attention.has_no_output_bias = 1;
  attention.head_dim = 6;
  ad_attention_declare(&list, "b", &attention);
  ad_mlp_declare(&list, "m", &(ad_mlp_shape){.d_model = 16, .d_hidden = 7, .has_bias = 1});
  ad_embedding_declare(&list, "e", &(ad_embedding_shape){9, 16, 1, 0}, plain);
  ad_norm_declare(&list, "n", "invariant", 16, plain);
  ad_norm_declare(&list, "n", "summed", 16, by_rows);
  ad_norm_declare(&list, "n", "converted", 16, converted);
  must(list.status);
  assert_layout(&list, "a.wq", "dp_shard=R tp=S1");
  assert_layout(&list, "a.wq_bias", "dp_shard=R tp=S0");
  assert_layout(&list, "a.wk", "dp_shard=R tp=R"); /* two ranks share one key head, so wk is replicated */
  assert_layout(&list, "a.wk_bias", "dp_shard=R tp=R");
  assert_layout(&list, "b.wk", "dp_shard=R tp=S1");
  assert_layout(&list, "b.wv_bias", "dp_shard=R tp=S0");
  for (size_t i = 0; i < list.count; i++) assert_string_not_equal(list.list[i].name, "b.wo_bias");
  assert_layout(&list, "a.wo", "dp_shard=R tp=S0");
  assert_layout(&list, "a.wo_bias", "dp_shard=R tp=R");
  assert_layout(&list, "a.q_norm", "dp_shard=R tp=R");
  assert_layout(&list, "m.up", "dp_shard=R tp=S1");
  assert_layout(&list, "m.down", "dp_shard=R tp=S0");
  assert_layout(&list, "e.weight", "dp_shard=R tp=S0");
  assert_layout(&list, "n.invariant", "dp_shard=R tp=I");
  assert_layout(&list, "n.summed", "dp_shard=R tp=R");
  assert_layout(&list, "n.converted", "dp_shard=R tp=I");
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

/* ---- every field of every parameter ---- */

typedef struct declared {
  const char *name;
  ad_shape shape;
  ad_axes sharded;
  int wide, decays, lasting;
  double mean, deviation;
} declared;

#define ON_DP .sharded = AD_AXES(AD_DP_SHARD)
#define ON_EFSDP .sharded = AD_AXES(AD_EFSDP)

static void assert_declared(const ad_declarations *list, const declared *wanted, size_t count) {
  must(list->status);
  assert_int_equal(list->count, count);
  for (size_t i = 0; i < count; i++) {
    const ad_param_spec *is = &list->list[i];
    assert_string_equal(is->name, wanted[i].name);
    if (!ad_shape_equal(&is->shape, &wanted[i].shape)) fail_msg("%s: its shape", is->name);
    if (!ad_layout_equal(&is->layout, &is->storage)) fail_msg("%s: its storage", is->name);
    if (is->size != sizeof *is || is->unit != 7 || is->sharded != wanted[i].sharded) fail_msg("%s: its unit", is->name);
    if (is->wide != wanted[i].wide || is->decays != wanted[i].decays || is->lasting != wanted[i].lasting)
      fail_msg("%s: wide %d, decays %d, lasting %d", is->name, is->wide, is->decays, is->lasting);
    if (is->mean != wanted[i].mean || is->deviation != wanted[i].deviation)
      fail_msg("%s: mean %g, deviation %g", is->name, is->mean, is->deviation);
  }
}

static void a_dense_layer_says_how_its_parameters_begin_and_decay(void **state) {
  static const declared wanted[] = {{"a.wq", {2, {16, 36}}, ON_DP, .decays = 1, .deviation = 0.25},
                                    {"a.wq_bias", {1, {36}}, ON_DP},
                                    {"a.wk", {2, {16, 18}}, ON_DP, .decays = 1, .deviation = 0.25},
                                    {"a.wk_bias", {1, {18}}, ON_DP},
                                    {"a.wv", {2, {16, 18}}, ON_DP, .decays = 1, .deviation = 0.25},
                                    {"a.wv_bias", {1, {18}}, ON_DP},
                                    {"a.wo", {2, {36, 16}}, ON_DP, .decays = 1, .deviation = 0.5 / 6},
                                    {"a.wo_bias", {1, {16}}, ON_DP},
                                    {"a.q_norm", {1, {9}}, ON_DP, .mean = 1},
                                    {"a.k_norm", {1, {9}}, ON_DP, .mean = 1},
                                    {"m.gate", {2, {16, 64}}, ON_DP, .decays = 1, .deviation = 0.25},
                                    {"m.up", {2, {16, 64}}, ON_DP, .decays = 1, .deviation = 0.25},
                                    {"m.down", {2, {64, 16}}, ON_DP, .decays = 1, .deviation = 0.0625},
                                    {"e.weight", {2, {50, 16}}, ON_DP, .deviation = 0.75},
                                    {"t.weight", {2, {50, 16}}, ON_DP, .lasting = 1, .deviation = 0.02},
                                    {"n.one", {1, {16}}, ON_DP, .mean = 1}};
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  ad_attention_shape attention = {.d_model = 16, .heads = 4, .kv_heads = 2, .head_dim = 9, .output_factor = 0.5};
  attention.has_bias = attention.has_norms = 1;
  list.unit = 7;
  ad_attention_layer layer = ad_attention_declare(&list, "a", &attention);
  ad_mlp_declare(&list, "m", &(ad_mlp_shape){.d_model = 16, .d_hidden = 64, .output_factor = 0.5});
  ad_embedding_declare(&list, "e", &(ad_embedding_shape){.vocabulary = 50, .d_model = 16, .deviation = 0.75}, plain);
  ad_embedding_declare(&list, "t", &(ad_embedding_shape){.vocabulary = 50, .d_model = 16, .tied = 1, .deviation = 0.02},
                       plain);
  ad_norm_declare(&list, "n", "one", 16, plain);
  assert_declared(&list, wanted, sizeof wanted / sizeof *wanted);
  assert_true(layer.norm_epsilon == AD_NORM_EPSILON && layer.head_dim == 9);
  attention.head_dim = 0;
  attention.norm_epsilon = 0.25;
  layer = ad_attention_declare(&list, "b", &attention);
  assert_true(layer.norm_epsilon == 0.25 && layer.head_dim == 4);
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

static void experts_say_how_their_parameters_begin_and_decay(void **state) {
  static const declared wanted[] = {
      {"x.router", {2, {16, 6}}, ON_DP, .wide = 1, .decays = 1, .deviation = 0.25},
      {"x.gate", {3, {6, 16, 64}}, ON_EFSDP, .decays = 1, .deviation = 0.25},
      {"x.up", {3, {6, 16, 64}}, ON_EFSDP, .decays = 1, .deviation = 0.25},
      {"x.down", {3, {6, 64, 16}}, ON_EFSDP, .decays = 1, .deviation = 0.0625},
      {"x.shared.gate", {2, {16, 4}}, ON_DP, .decays = 1, .deviation = 0.25},
      {"x.shared.up", {2, {16, 4}}, ON_DP, .decays = 1, .deviation = 0.25},
      {"x.shared.down", {2, {4, 16}}, ON_DP, .decays = 1, .deviation = 0.25},
  };
  ad_mesh *mesh, *view;
  must(ad_mesh_create("dp_shard=2 tp=2", &mesh));
  must(ad_mesh_create_view(mesh, "efsdp=2 ep=2 etp=1", &view));
  ad_declarations list = ad_declarations_on(mesh);
  list.unit = 7;
  ad_experts_declare(&list, "x",
                     &(ad_experts_shape){.size = sizeof(ad_experts_shape),
                                         .d_model = 16,
                                         .experts = 6,
                                         .hidden = 64,
                                         .top_k = 6,
                                         .shared_hidden = 4,
                                         .output_factor = 0.5,
                                         .view = view});
  assert_declared(&list, wanted, sizeof wanted / sizeof *wanted);
  ad_declarations_release(&list);
  ad_mesh_destroy(view);
  ad_mesh_destroy(mesh);
}

/* A name of 95 characters is taken, one of 96 is not. */
static void the_longest_name_of_a_parameter_has_a_length(void **state) {
  char path[96] = {0};
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  memset(path, 'x', AD_PARAM_NAME_SIZE - 1 - strlen(".weight"));
  ad_norm_declare(&list, path, "weight", 4, plain);
  must(list.status);
  assert_int_equal(strlen(list.list[0].name), 95);
  path[strlen(path)] = 'x';
  ad_norm_declare(&list, path, "weight", 4, plain);
  assert_int_equal(list.status, AD_INVALID);
  assert_facts(ad_last_error(), "96", "95");
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

static void the_first_failure_sticks_to_the_list(void **state) {
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  char path[120];
  memset(path, 'x', sizeof path);
  path[sizeof path - 1] = 0;
  ad_norm_declare(&list, path, "weight", 4, plain);
  assert_int_equal(list.status, AD_INVALID);
  ad_norm_declare(&list, "good", "weight", 4, plain);
  assert_int_equal(list.count, 0);
  assert_int_equal(list.status, AD_INVALID);
  ad_declarations_release(&list);
  ad_mesh_destroy(mesh);
}

static void memory_that_runs_out_is_an_error_of_the_list(void **state) {
  ad_mesh *mesh = open_mesh();
  int failures = 0;
  for (long n = 1;; n++) {
    ad_declarations list = ad_declarations_on(mesh);
    ad_memory_fail_at(n);
    for (int i = 0; i < 40; i++) ad_norm_declare(&list, "many", "weight", 4, plain);
    ad_status status = list.status;
    assert_true(reports_allocation(n, status));
    ad_declarations_release(&list);
    if (!status) break;
    failures++;
  }
  assert_true(failures > 0);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(users_of_a_parameter_leave_addends_on_dp_and_cp),
      cmocka_unit_test(parameters_are_numbered_in_the_order_of_declaration),
      cmocka_unit_test(matrices_are_sharded_over_tp_where_their_formula_says),
      cmocka_unit_test(a_dense_layer_says_how_its_parameters_begin_and_decay),
      cmocka_unit_test(experts_say_how_their_parameters_begin_and_decay),
      cmocka_unit_test(the_longest_name_of_a_parameter_has_a_length),
      cmocka_unit_test(the_first_failure_sticks_to_the_list),
      cmocka_unit_test(memory_that_runs_out_is_an_error_of_the_list),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
