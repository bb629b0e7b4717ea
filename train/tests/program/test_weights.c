/* Tests whether the tensors of a weight file are a model's parameters: all of them and no other, by name, shape and
 * dtype. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "says.h"
#include "addend/program.h"

static char folder[] = "/tmp/addend-fit-XXXXXX", path[64];

static void write_file(const ad_safetensor *tensors, size_t count) {
  static const float values[6];
  ad_safetensors_writer *writer;
  assert_int_equal(ad_safetensors_create(path, tensors, count, NULL, &writer), AD_OK);
  for (size_t i = 0; i < count; i++) assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
}

static const ad_safetensor tensors[] = {{"a", AD_F32, {2, {2, 3}}, NULL, 0},
                                        {"c", AD_F32, {2, {2, 3}}, NULL, 0},
                                        {"b", AD_F32, {2, {2, 3}}, NULL, 0},
                                        {"integers", AD_I32, {2, {2, 3}}, NULL, 0}};

static int make_folder(void **state) {
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/four", folder);
  write_file(tensors, 4);
  return 0;
}

static int remove_file(void **state) { return unlink(path) || rmdir(folder); }

static ad_param_spec param(const char *name, int64_t rows) {
  return (ad_param_spec){.size = sizeof(ad_param_spec), .name = name, .shape = {2, {rows, 3}}};
}

static ad_weights *open_weights(void) {
  ad_weights *weights = NULL;
  assert_int_equal(ad_weights_open(path, &weights), AD_OK);
  return weights;
}

static void refused(const char *name, const ad_param_spec *params, size_t count, const char *const *facts) {
  ad_weights *weights = open_weights();
  assert_int_equal(ad_params_check_weights(params, count, weights), AD_INVALID);
  assert_says_in(name, ad_last_error(), facts);
  ad_weights_close(weights);
}

static void parameters_that_are_no_tensors_of_the_file_are_named(void **state) {
  ad_param_spec params[] = {param("c", 2), param("d", 2), param("a", 2), param("b", 3), param("integers", 2)};
  refused("tensors that do not fit", params, 5, SAYS_FACTS(path, "i32", "[2, 3]", "[3, 3]"));
}

static void tensors_that_are_no_parameters_are_named(void **state) {
  ad_param_spec params[] = {param("c", 2), param("a", 2)};
  refused("two tensors too many", params, 2, SAYS_FACTS(path));
  refused("no parameters", NULL, 0, SAYS_FACTS(path));
}

static void what_must_be_given_is_asked_for(void **state) {
  ad_param_spec params[] = {param("a", 2), param(NULL, 2)};
  refused("no list", NULL, 3, SAYS_FACTS("ad_params_check_weights", "params", "NULL"));
  refused("no name", params, 2, SAYS_FACTS("ad_params_check_weights", "params[i].name", "NULL"));
  params[0].size = 3;
  refused("a wrong size", params, 1, SAYS_FACTS("ad_param_spec", "size", "3"));
}

static void parameters_may_be_in_any_order(void **state) {
  ad_param_spec params[] = {param("b", 2), param("a", 2), param("c", 2)};
  write_file(tensors, 3);
  ad_weights *weights = open_weights();
  assert_int_equal(ad_params_check_weights(params, 3, weights), AD_OK);
  ad_weights_close(weights);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_that_are_no_tensors_of_the_file_are_named),
      cmocka_unit_test(tensors_that_are_no_parameters_are_named),
      cmocka_unit_test(what_must_be_given_is_asked_for),
      cmocka_unit_test(parameters_may_be_in_any_order),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_file);
}
