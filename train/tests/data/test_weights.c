/* Tests weight files, single or in shards with an index: every tensor is found, and a wrong index is
 * refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "allocations.h"
#include "base/memory.h"
#include "files/file.h"
#include "files/safetensors.h"
#include "data/weights.h"
#include "says.h"

static char folder[64], path[128];

static const char *at(const char *name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* Writes a file of tensors of shape [2, 3]; `values` are the tensors' elements, one tensor after another. */
static void write_file(const char *name, const char *const *tensors, size_t count, const float *values) {
  ad_safetensor described[4];
  ad_safetensors_writer *writer;
  for (size_t i = 0; i < count; i++) described[i] = (ad_safetensor){tensors[i], AD_F32, {2, {2, 3}}, NULL, 0};
  assert_int_equal(ad_safetensors_create(at(name), described, count, NULL, &writer), AD_OK);
  for (size_t i = 0; i < count; i++) assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
}

static void write_index(const char *text) {
  FILE *file = fopen(at("m.safetensors.index.json"), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static const float ones[6] = {1, 1, 1, 1, 1, 1}, twos[6] = {2, 2, 2, 2, 2, 2};

static int make_files(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-weights-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  write_file("m-1", (const char *const[]){"a", "c"}, 2, ones);
  write_file("m-2", (const char *const[]){"b"}, 1, twos);
  return 0;
}

static int remove_files(void **state) { return ad_folder_remove(folder) != AD_OK; }

#define INDEX(map) "{\"metadata\": {\"total_size\": 72}, \"weight_map\": " map "}"
#define WHOLE INDEX("{\"a\": \"m-1\", \"b\": \"m-2\", \"c\": \"m-1\"}")

static ad_status open_index(const char *text, ad_weights **out) {
  write_index(text);
  return ad_weights_open(at("m.safetensors.index.json"), out);
}

static void every_tensor_is_found_in_its_shard(void **state) {
  ad_weights *weights = NULL;
  assert_int_equal(open_index(WHOLE, &weights), AD_OK);
  assert_string_equal(ad_weights_path(weights), at("m.safetensors.index.json"));
  assert_ptr_equal(ad_safetensors_find(ad_weights_file(weights, 1), "b"), ad_weights_find(weights, "b"));
  assert_null(ad_weights_file(weights, 2));
  assert_memory_equal(ad_weights_find(weights, "a")->data, ones, sizeof ones);
  assert_memory_equal(ad_weights_find(weights, "b")->data, twos, sizeof twos);
  assert_memory_equal(ad_weights_find(weights, "c")->data, ones, sizeof ones);
  assert_null(ad_weights_find(weights, "d"));
  ad_weights_close(weights);
  assert_int_equal(ad_weights_open(at("m-2"), &weights), AD_OK);
  assert_non_null(ad_weights_file(weights, 0));
  assert_null(ad_weights_file(weights, 1));
  assert_memory_equal(ad_weights_find(weights, "b")->data, twos, sizeof twos);
  assert_null(ad_weights_find(weights, "a"));
  ad_weights_close(weights);
}

static void an_index_in_the_working_folder_needs_no_path(void **state) {
  char *before = getcwd(NULL, 0);
  ad_weights *weights = NULL;
  write_index(WHOLE);
  assert_int_equal(chdir(folder), 0);
  assert_int_equal(ad_weights_open("m.safetensors.index.json", &weights), AD_OK);
  ad_weights_close(weights);
  /* an index's name may consist of its ending alone */
  assert_int_equal(rename("m.safetensors.index.json", ".json"), 0);
  assert_int_equal(ad_weights_open(".json", &weights), AD_OK);
  ad_weights_close(weights);
  assert_int_equal(chdir(before), 0);
  free(before);
}

static void what_an_index_says_wrongly_is_named(void **state) {
  static const struct {
    const char *text;
    ad_status status;
    const char *facts[5];
  } wrong[] = {
      {"", AD_INVALID, {"JSON"}},
      {"[]", AD_INVALID, {"weight_map"}},
      {"{\"metadata\": {}}", AD_INVALID, {"weight_map"}},
      {INDEX("[\"m-1\"]"), AD_INVALID, {"weight_map"}},
      {INDEX("{}"), AD_INVALID, {"weight_map"}},
      {INDEX("{\"a\": \"m-1\", \"a\": \"m-2\"}"), AD_INVALID, {"a"}},
      {INDEX("{\"a\": 1}"), AD_INVALID, {"a"}},
      {INDEX("{\"a\": \"\"}"), AD_INVALID, {"a"}},
      {INDEX("{\"a\": \"../m-1\"}"), AD_INVALID, {"a", "../m-1"}},
      {INDEX("{\"a\": \"/etc/passwd\"}"), AD_INVALID, {"a", "/etc/passwd"}},
      {INDEX("{\"a\": \"..\"}"), AD_INVALID, {"a", ".."}},
      {INDEX("{\"a\": \"m-1\", \"b\": \"m-3\", \"c\": \"m-4\"}"), AD_IO, {"/m-3", "/m-4", "No such"}},
      {INDEX("{\"a\": \"m.safetensors.index.json\"}"), AD_INVALID, {"index.json"}},
      {INDEX("{\"a\": \"m-1\", \"b\": \"m-1\", \"c\": \"m-1\"}"), AD_INVALID, {"m-1"}},
      {INDEX("{\"a\": \"m-1\", \"b\": \"m-2\", \"c\": \"m-2\"}"), AD_INVALID, {"m-2", "m-1"}},
      {INDEX("{\"b\": \"m-2\", \"c\": \"m-1\"}"), AD_INVALID, {"m-1"}},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_weights *weights = NULL;
    assert_int_equal(open_index(wrong[i].text, &weights), wrong[i].status);
    assert_facts(ad_last_error(), "m.safetensors.index.json");
    assert_says_in(wrong[i].text, ad_last_error(), wrong[i].facts);
    assert_null(weights);
  }
}

static void two_shards_may_not_have_one_tensor(void **state) {
  ad_weights *weights = NULL;
  write_file("m-3", (const char *const[]){"a", "d"}, 2, twos);
  assert_int_equal(open_index(INDEX("{\"a\": \"m-1\", \"b\": \"m-2\", \"c\": \"m-1\", \"d\": \"m-3\"}"), &weights),
                   AD_INVALID);
  assert_says("m-3");
}

static void too_many_files_are_refused_before_one_is_opened(void **state) {
  ad_weights *weights = NULL;
  char *text = malloc((AD_WEIGHTS_FILES_MAX + 1) * 32 + 64);
  size_t used = (size_t)sprintf(text, "{\"weight_map\": {");
  for (int i = 0; i <= AD_WEIGHTS_FILES_MAX; i++)
    used += (size_t)sprintf(text + used, "%s\"t%d\": \"f%d\"", i ? ", " : "", i, i);
  memcpy(text + used, "}}", 3);
  assert_int_equal(open_index(text, &weights), AD_INVALID);
  assert_says("4097", "4096");
  free(text);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  ad_status status = AD_MEMORY;
  write_index(WHOLE);
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_weights *weights = NULL;
    ad_memory_fail_at(n);
    status = ad_weights_open(at("m.safetensors.index.json"), &weights);
    assert_true(reports_allocation(n, status));
    assert_true(!status == !!weights);
    ad_weights_close(weights);
    assert_true(n < 200);
  }
}

static void a_value_that_is_not_finite_is_named_with_its_place(void **state) {
  ad_safetensors *file;
  float values[6] = {0, 1, -3e38F, 0, 0, 0};
  const char *const names[] = {"e", "d"};
  write_file("m-3", names, 2, values);
  assert_int_equal(ad_safetensors_open(at("m-3"), &file), AD_OK);
  assert_int_equal(ad_safetensors_check_values(file), AD_OK);
  ad_safetensors_close(file);
  values[4] = -INFINITY, values[5] = NAN;
  write_file("m-3", names, 2, values);
  assert_int_equal(ad_safetensors_open(at("m-3"), &file), AD_OK);
  assert_int_equal(ad_safetensors_check_values(file), AD_INVALID);
  assert_says("/m-3", "d[1", "1]", "e[1");
  ad_safetensors_close(file);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_files, remove_files)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_tensor_is_found_in_its_shard),
      TEST(an_index_in_the_working_folder_needs_no_path),
      TEST(what_an_index_says_wrongly_is_named),
      TEST(two_shards_may_not_have_one_tensor),
      TEST(too_many_files_are_refused_before_one_is_opened),
      TEST(a_failing_allocation_leaves_nothing_behind),
      TEST(a_value_that_is_not_finite_is_named_with_its_place),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
