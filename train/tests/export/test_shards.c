/* Tests how tensors are divided among files: on both sides of a shard's size, with the index that joins the files, and
 * with every tensor's own elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "addend/safetensors.h"
#include "base/error.h"
#include "export/shards.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)
enum { TENSORS = 4 };

/* Tensors of 24, 8, 12 and 4 bytes. */
static const ad_export_tensor tensors[TENSORS] = {
    {.name = "a", .param = 5, .dtype = AD_F32, .shape = {2, {2, 3}}},
    {.name = "b", .param = 6, .dtype = AD_F64, .shape = {1, {1}}},
    {.name = "c", .param = 7, .dtype = AD_BF16, .shape = {2, {3, 2}}},
    {.name = "d", .param = 8, .dtype = AD_F16, .shape = {1, {2}}},
};
static const int64_t bytes_of[TENSORS] = {24, 8, 12, 4};

static char folder[64], path[256];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-shards-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static const char *in_folder(const char *name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* Each byte of a tensor is the number of its parameter. */
static ad_status fill(void *context, const ad_export_tensor *tensor, void *memory) {
  int *filled = context;
  size_t number = (size_t)(tensor - tensors);
  if (filled[number]++) return AD_INVALID;
  memset(memory, (int)tensor->param, (size_t)bytes_of[number]);
  return AD_OK;
}

static void has_tensor(const char *name, size_t i) {
  ad_safetensors *file;
  must(ad_safetensors_open(in_folder(name), &file));
  const ad_safetensor *found = ad_safetensors_find(file, tensors[i].name);
  assert_non_null(found);
  assert_int_equal(found->dtype, tensors[i].dtype);
  assert_int_equal(found->shape.ndim, tensors[i].shape.ndim);
  for (int dim = 0; dim < found->shape.ndim; dim++) assert_int_equal(found->shape.dim[dim], tensors[i].shape.dim[dim]);
  for (int64_t k = 0; k < bytes_of[i]; k++) assert_int_equal(((const char *)found->data)[k], tensors[i].param);
  ad_safetensors_close(file);
}

static size_t tensors_in(const char *name) {
  ad_safetensors *file;
  must(ad_safetensors_open(in_folder(name), &file));
  size_t count = ad_safetensors_count(file);
  ad_safetensors_close(file);
  return count;
}

static void has_index(size_t count, char names[TENSORS][48]) {
  json_t *index = json_load_file(in_folder("model.safetensors.index.json"), 0, NULL);
  json_t *map = json_object_get(index, "weight_map");
  assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), 48);
  assert_int_equal(json_object_size(map), count);
  for (size_t i = 0; i < count; i++)
    assert_string_equal(json_string_value(json_object_get(map, tensors[i].name)), names[i]);
  json_decref(index);
}

static void a_file_is_filled_up_to_its_size(void **state) {
  static const struct {
    int64_t shard_bytes;
    int files, file_of[TENSORS];
  } cases[] = {
      {48, 1, {1, 1, 1, 1}}, {49, 1, {1, 1, 1, 1}}, {47, 2, {1, 1, 1, 2}}, {44, 2, {1, 1, 1, 2}},
      {43, 2, {1, 1, 2, 2}}, {32, 2, {1, 1, 2, 2}}, {31, 2, {1, 2, 2, 2}}, {24, 2, {1, 2, 2, 2}},
      {23, 3, {1, 2, 2, 3}}, {16, 3, {1, 2, 3, 3}}, {15, 4, {1, 2, 3, 4}}, {1, 4, {1, 2, 3, 4}}, /* none is cut */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int filled[TENSORS] = {0};
    int64_t files = 0, bytes = 0;
    char names[TENSORS][48];
    size_t in_files = 0;
    assert_int_equal(make_folder(NULL), 0);
    must(ad_export_shards(folder, tensors, TENSORS, cases[i].shard_bytes, fill, filled, &files, &bytes));
    if (files != cases[i].files || bytes != 48) fail_msg("shards of %d bytes", (int)cases[i].shard_bytes);
    for (size_t k = 0; k < TENSORS; k++) {
      snprintf(names[k], sizeof names[k], "model-%05d-of-%05d.safetensors", cases[i].file_of[k], cases[i].files);
      if (files == 1) strcpy(names[k], "model.safetensors");
      has_tensor(names[k], k);
      assert_int_equal(filled[k], 1);
      if (!k || strcmp(names[k], names[k - 1]) != 0) in_files += tensors_in(names[k]);
    }
    assert_int_equal(in_files, TENSORS);
    if (files > 1) has_index(TENSORS, names);
    assert_int_equal(!access(in_folder("model.safetensors.index.json"), F_OK), files > 1);
    for (size_t k = 0; k < TENSORS; k++) unlink(in_folder(names[k]));
    unlink(in_folder("model.safetensors.index.json"));
    assert_int_equal(rmdir(folder), 0);  // nothing else is written
  }
}

static ad_status fail_at_c(void *context, const ad_export_tensor *tensor, void *memory) {
  return *tensor->name == 'c' ? ad_fail(AD_NUMBER, "%s", tensor->name) : fill(context, tensor, memory);
}

static void what_cannot_be_filled_ends_the_export(void **state) {
  for (int64_t shard_bytes = 1; shard_bytes < 64; shard_bytes += 31) {
    int filled[TENSORS] = {0};
    int64_t files, bytes;
    assert_int_equal(make_folder(NULL), 0);
    assert_int_equal(ad_export_shards(folder, tensors, TENSORS, shard_bytes, fail_at_c, filled, &files, &bytes),
                     AD_NUMBER);
    assert_int_equal(filled[3], 0);
    assert_int_not_equal(access(in_folder("model.safetensors.index.json"), F_OK), 0);
    assert_int_not_equal(access(in_folder("model.safetensors"), F_OK), 0);
    for (int i = 1; i < 3; i++) {
      char name[48];
      for (int of = 2; of < 5; of++)
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, of), unlink(in_folder(name));
    }
    assert_int_equal(rmdir(folder), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_is_filled_up_to_its_size),
      cmocka_unit_test(what_cannot_be_filled_ends_the_export),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
