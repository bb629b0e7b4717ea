/* Tests the list of parameters that layers declare, and how failures in declaring are reported. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "base/memory.h"
#include "addend/layers.h"

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

static void matrices_are_cut_over_tp_where_their_formula_says(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_shard=3 tp=2", &mesh));
  ad_declarations list = ad_declarations_on(mesh);
  ad_parallel cut = {.sequence = 1}, converted = {.sequence = 1, .converts = 1};
  ad_attention_shape attention = {.d_model = 16, .heads = 4, .kv_heads = 1, .has_bias = 1, .has_norms = 1};
  ad_attention_declare(&list, "a", &attention);
  attention.kv_heads = 2;
  attention.has_no_output_bias = 1;
  attention.head_dim = 6;
  ad_attention_declare(&list, "b", &attention);
  ad_mlp_declare(&list, "m", &(ad_mlp_shape){.d_model = 16, .d_hidden = 7, .has_bias = 1});
  ad_embedding_declare(&list, "e", &(ad_embedding_shape){9, 16, 1, 0}, plain);
  ad_norm_declare(&list, "n", "invariant", 16, plain);
  ad_norm_declare(&list, "n", "summed", 16, cut);
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
    assert_true(tells_allocation(n, status));
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
      cmocka_unit_test(matrices_are_cut_over_tp_where_their_formula_says),
      cmocka_unit_test(the_first_failure_sticks_to_the_list),
      cmocka_unit_test(memory_that_runs_out_is_an_error_of_the_list),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
