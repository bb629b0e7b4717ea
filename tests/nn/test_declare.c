/* The list of parameters: what is declared, and what becomes of failures. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/memory.h"
#include "nn/layers.h"

#define must(call) assert_int_equal((call), AD_OK)

static ad_mesh *open_mesh(void) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=2 dp_shard=3 cp=2 tp=2", &mesh));
  return mesh;
}

static void users_of_a_parameter_leave_addends_on_dp_and_cp(void **state) {
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  assert_int_equal(ad_norm_declare(&list, "final.norm", "weight", 4).weight, 0);
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
  ad_attention_declare(&list, "b.attn", 8, 2, 10000, 1);
  ad_mlp_declare(&list, "b.mlp", 8, 16, 0.5);
  ad_norm_layer norm = ad_norm_declare(&list, "b.norm", "attn", 8);
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

static void the_first_failure_sticks_to_the_list(void **state) {
  ad_mesh *mesh = open_mesh();
  ad_declarations list = ad_declarations_on(mesh);
  char path[120];
  memset(path, 'x', sizeof path);
  path[sizeof path - 1] = 0;
  ad_norm_declare(&list, path, "weight", 4);
  assert_int_equal(list.status, AD_INVALID);
  ad_norm_declare(&list, "good", "weight", 4);
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
    for (int i = 0; i < 40; i++) ad_norm_declare(&list, "many", "weight", 4);
    ad_memory_fail_at(0);
    ad_status status = list.status;
    ad_declarations_release(&list);
    if (!status) break;
    assert_int_equal(status, AD_MEMORY);
    failures++;
  }
  assert_true(failures > 0);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(users_of_a_parameter_leave_addends_on_dp_and_cp),
      cmocka_unit_test(parameters_are_numbered_in_the_order_of_declaration),
      cmocka_unit_test(the_first_failure_sticks_to_the_list),
      cmocka_unit_test(memory_that_runs_out_is_an_error_of_the_list),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
