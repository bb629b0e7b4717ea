/* Tests safetensors files: what is written is read back, and a file that contradicts itself is refused by name. */
#include <setjmp.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>
#include "allocations.h"
#include "addend/safetensors.h"
#include "base/memory.h"
#include "files/header_text.h"
#include "files/safetensors.h"
#include "says.h"

static char folder[64], path[128];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-safetensors-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/file", folder);
  return 0;
}

static int remove_folder(void **state) {
  unlink(path);
  return rmdir(folder);
}

/* ---- writing and reading back ---- */

enum { TENSORS = 5 };
static const double wide[6] = {1, -2, 0.5, 3e300, 0, -0.25};
static const float scalar[1] = {7.5F};
static const int32_t whole[2] = {-1, 1 << 30};
static const uint16_t narrow[3] = {0x3f80, 0x4000, 0xc040};
static const ad_safetensor tensors[TENSORS] = {{"wide", AD_F64, {2, {2, 3}}, wide, sizeof wide},
                                               {"a.scalar", AD_F32, {0, {0}}, scalar, sizeof scalar},
                                               {"\xc3\xa4 \"whole\"", AD_I32, {1, {2}}, whole, sizeof whole},
                                               {"narrow", AD_BF16, {3, {1, 3, 1}}, narrow, sizeof narrow},
                                               {"nothing", AD_F16, {2, {0, 9}}, "", 0}};

static void write_tensors(void) {
  const char *metadata[] = {"format", "pt", "step", "12", NULL};
  ad_safetensors_writer *writer;
  int64_t bytes = 0;
  assert_int_equal(ad_safetensors_create(path, tensors, TENSORS, metadata, &writer), AD_OK);
  for (int i = 0; i < TENSORS; i++) assert_int_equal(ad_safetensors_add(writer, tensors[i].data), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, &bytes, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  fseek(file, 0, SEEK_END);
  assert_int_equal(ftell(file), bytes);
  fclose(file);
}

static void what_is_written_reads_back_as_the_same(void **state) {
  ad_safetensors *file;
  write_tensors();
  assert_int_equal(ad_safetensors_open(path, &file), AD_OK);
  assert_int_equal(ad_safetensors_count(file), TENSORS);
  for (int i = 0; i < TENSORS; i++) {
    const ad_safetensor *found = ad_safetensors_find(file, tensors[i].name);
    assert_non_null(found);
    assert_int_equal(found->dtype, tensors[i].dtype);
    assert_true(ad_shape_equal(&found->shape, &tensors[i].shape));
    assert_int_equal(found->bytes, tensors[i].bytes);
    assert_memory_equal(found->data, tensors[i].data, found->bytes);
    assert_int_equal((uintptr_t)found->data % ad_dtype_size(found->dtype), 0);
  }
  assert_string_equal(ad_safetensors_at(file, 0)->name, "a.scalar");
  assert_null(ad_safetensors_at(file, TENSORS));
  assert_null(ad_safetensors_find(file, "other"));
  assert_string_equal(ad_safetensors_metadata(file, "step"), "12");
  assert_null(ad_safetensors_metadata(file, "steps"));
  ad_safetensors_close(file);
}

static void a_file_cut_at_any_byte_is_refused(void **state) {
  static char bytes[4096];
  write_tensors();
  FILE *in = fopen(path, "rb");
  size_t size = fread(bytes, 1, sizeof bytes, in);
  fclose(in);
  for (size_t cut = 0; cut < size; cut++) {
    char *exact = malloc(cut + !cut);  // of exact size, so that a sanitizer sees a read beyond it
    memcpy(exact, bytes, cut);
    ad_safetensors *file = NULL;
    assert_int_equal(ad_safetensors_parse(exact, cut, "cut", &file), AD_INVALID);
    assert_null(file);
    free(exact);
  }
}

static int entries(void) {
  DIR *in = opendir(folder);
  int count = 0;
  assert_non_null(in);
  for (const struct dirent *entry = readdir(in); entry; entry = readdir(in)) count += entry->d_name[0] != '.';
  closedir(in);
  return count;
}

static void holds_tensors(int count) {
  ad_safetensors *file;
  assert_int_equal(ad_safetensors_open(path, &file), AD_OK);
  assert_int_equal(ad_safetensors_count(file), count);
  ad_safetensors_close(file);
  assert_int_equal(entries(), 1);
}

static void a_file_gets_its_name_when_it_is_finished(void **state) {
  ad_safetensors_writer *writer;
  write_tensors();
  assert_int_equal(ad_safetensors_create(path, tensors, 1, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, tensors[0].data), AD_OK);
  assert_int_equal(entries(), 2);
  ad_safetensors_writer_destroy(writer);
  holds_tensors(TENSORS); /* the old file is still there */
  assert_int_equal(ad_safetensors_create(path, tensors, 1, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, tensors[0].data), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  holds_tensors(1);
  ad_safetensors_writer_destroy(writer);
  holds_tensors(1);
}

/* A limit on file size makes a write fail as a full disk does. */
static void a_file_that_finds_no_room_leaves_what_was_there(void **state) {
  static const float many[4096] = {1};
  const ad_safetensor large = {"many", AD_F32, {1, {4096}}, many, sizeof many};
  struct rlimit usual, little;
  ad_safetensors_writer *writer;
  write_tensors();
  getrlimit(RLIMIT_FSIZE, &usual);
  little = (struct rlimit){4096, usual.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(ad_safetensors_create(path, &large, 1, NULL, &writer), AD_OK);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
  ad_status status = ad_safetensors_add(writer, many);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
  assert_int_equal(status, AD_IO);
  assert_says(path);
  ad_safetensors_writer_destroy(writer);
  holds_tensors(TENSORS);
}

static void a_file_that_is_not_finished_is_removed(void **state) {
  ad_safetensors_writer *writer;
  unlink(path);
  assert_int_equal(ad_safetensors_create(path, tensors, TENSORS, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, tensors[0].data), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_INVALID);
  assert_int_equal(entries(), 1);
  ad_safetensors_writer_destroy(writer);
  assert_int_equal(entries(), 0);
}

static void one_name_is_given_once(void **state) {
  const ad_safetensor twice[2] = {tensors[0], tensors[0]};
  ad_safetensors_writer *writer = NULL;
  assert_int_equal(ad_safetensors_create(path, twice, 2, NULL, &writer), AD_INVALID);
  assert_listed();
  assert_null(writer);
}

static void dtypes_of_collectives_alone_are_not_written(void **state) {
  for (ad_dtype dtype = AD_U8; dtype <= AD_BOOL; dtype++) {
    ad_safetensor tensor = tensors[0];
    ad_safetensors_writer *writer = NULL;
    tensor.dtype = dtype;
    assert_int_equal(ad_safetensors_create(path, &tensor, 1, NULL, &writer), AD_INVALID);
    assert_says("wide", ad_dtype_name(dtype), "F64", "I64");
    assert_null(writer);
  }
}

/* ---- files that contradict themselves ---- */

static ad_status parse(const char *header, size_t data_bytes, ad_safetensors **out) {
  size_t length = strlen(header), size = 8 + length + data_bytes;
  char *bytes = calloc(1, size);
  for (int i = 0; i < 8; i++) bytes[i] = (char)(length >> 8 * i);
  memcpy(bytes + 8, header, length);
  ad_status status = ad_safetensors_parse(bytes, size, "odd.safetensors", out);
  free(bytes);
  return status;
}

static void is_refused(const char *header, size_t data_bytes) {
  ad_safetensors *file = NULL;
  assert_int_equal(parse(header, data_bytes, &file), AD_INVALID);
  assert_null(file);
}
#define refused(header, data_bytes, ...) \
  (is_refused((header), (data_bytes)),   \
   assert_says_in(#header, ad_last_error(), SAYS_FACTS("odd.safetensors", __VA_ARGS__)))

#define T(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void good_headers_are_taken(void **state) {
  static const char *const headers[] = {"{" T("a", "F32", "[2]", "[0,8]") "}   ", "{}", " {\"__metadata__\":{}}",
                                        "{" T("z", "F32", "[0]", "[0,0]") "," T("a", "F16", "[]", "[0,2]") "}"};
  static const size_t sizes[] = {8, 0, 0, 2};
  for (int i = 0; i < 4; i++) {
    ad_safetensors *file;
    assert_int_equal(parse(headers[i], sizes[i], &file), AD_OK);
    ad_safetensors_close(file);
  }
}

static void hostile_headers_are_refused(void **state) {
  refused("{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, "b", "data_offsets");
  refused("{" T("a", "F32", "[2]", "[4,12]") "}", 12, "a", "data_offsets");
  refused("{" T("a", "F32", "[2]", "[0,8]") "}", 12, "4 bytes");
  refused("{" T("a", "F32", "[2]", "[0,8]") "}", 7, "a", "bytes 0", "of 7");
  refused("{" T("a", "F32", "[2]", "[8,0]") "}", 8, "a", "bytes 8", "of 8");
  refused("{" T("a", "F32", "[2]", "[-8,0]") "}", 8, "a", "bytes -8", "of 8");
  refused("{" T("a", "F32", "[3]", "[0,8]") "}", 8, "8 bytes", "12");
  refused("{" T("a", "F32", "[1]", "[0,8]") "}", 8, "8 bytes", "4");
  refused("{" T("a", "F32", "[2]", "[0,0]") "}", 0, "0 bytes", "8");
  refused("{" T("a", "F32", "[-1]", "[0,8]") "}", 8, "a", "shape", "0");
  refused("{" T("a", "F32", "[1.5]", "[0,8]") "}", 8, "a", "shape", "0");
  refused("{" T("a", "F32", "[4294967296,4294967296,4]", "[0,8]") "}", 8, "a", "shape");
  refused("{" T("a", "F32", "[1,1,1,1,1,1,1]", "[0,4]") "}", 4, "7 dimensions");
  refused("{" T("a", "U8", "[2]", "[0,2]") "}", 2, "U8", "F64", "F32", "BF16", "F16", "I32", "I64");
  refused("{" T("a", "I8", "[2]", "[0,2]") "}", 2, "I8", "F64");
  refused("{" T("a", "I16", "[2]", "[0,4]") "}", 4, "I16", "F64");
  refused("{" T("a", "BOOL", "[2]", "[0,2]") "}", 2, "BOOL", "F64");
  refused("{" T("a", "F32", "2", "[0,8]") "}", 8, "a", "shape");
  refused("{" T("a", "F32", "[2]", "[0]") "}", 8, "a", "data_offsets");
  refused("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a", "dtype");
  refused("{\"a\":3}", 0, "a", "dtype");
  refused("{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, "JSON", "\"a\"", "byte 57");
  refused("[]", 0, "JSON");
  refused("{", 0, "JSON", "byte 1");
  refused("", 0, "JSON", "byte 0");
  refused("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__", "x");
}

static void a_header_longer_than_the_file_is_refused(void **state) {
  ad_safetensors *file;
  static const unsigned char longer[16] = {9, 0, 0, 0, 0, 0, 0, 0}, huge[16] = {255, 255, 255, 255, 255, 255, 255, 255};
  assert_int_equal(ad_safetensors_parse(longer, 16, "x", &file), AD_INVALID);
  assert_int_equal(ad_safetensors_parse(huge, 16, "x", &file), AD_INVALID);
  assert_says("18446744073709551615");
}

static void what_is_no_file_is_named(void **state) {
  ad_safetensors *file;
  assert_int_equal(ad_safetensors_open("/nowhere/x.safetensors", &file), AD_IO);
  assert_says("/nowhere/x.safetensors");
  assert_int_equal(ad_safetensors_open(folder, &file), AD_IO);
}

/* ---- files that share most of their header's text ---- */

/* Writes a file with this header and four bytes of data. */
static void write_raw(const char *at, const char *header) {
  size_t length = strlen(header);
  FILE *file = fopen(at, "wb");
  assert_non_null(file);
  for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 0xff), file);
  fwrite(header, 1, length, file);
  fwrite("\x01\x02\x03\x04", 1, 4, file);
  assert_int_equal(fclose(file), 0);
}

#define OTHER "\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
#define TENSOR "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
static const char first_header[] = "{\"__metadata__\": {\"x\": \"a\\\\\", \"y\": \"{\\\"b\\\"\"}, " TENSOR;

/* Opens a file with this header with the help of one that has `first_header`. */
static ad_status open_second(const char *header, ad_safetensors **out, int *shares, int *shares_y) {
  ad_safetensors *first;
  write_raw(path, first_header);
  assert_int_equal(ad_safetensors_open(path, &first), AD_OK);
  unlink(path);
  write_raw(path, header);
  ad_status status = ad_safetensors_open_like(path, first, out);
  if (!status) *shares = ad_safetensors_share(first, *out);
  if (!status) *shares_y = ad_safetensors_metadata(first, "y") == ad_safetensors_metadata(*out, "y");
  ad_safetensors_close(first);
  return status;
}

static void what_headers_have_in_common_is_shared(void **state) {
  static const struct {
    const char *header, *x, *y;
    int shares, shares_y;
  } cases[] = {
      {first_header, "a\\", "{\"b\"", 1, 1},
      {"{\"__metadata__\": {\"x\": \"a\", \"y\": \"{\\\"b\\\"\"}, " TENSOR, "a", "{\"b\"", 1, 1},
      /* padded with spaces */
      {"{\"__metadata__\": {\"x\": \"a\", \"y\": \"{\\\"b\\\"\"}, " TENSOR "   ", "a", "{\"b\"", 1, 1},
      {"{\"__metadata__\": {\"y\": \"{\\\"b\\\"c\"}, " TENSOR, NULL, "{\"b\"c", 1, 0},
      {"{\"__metadata__\": {\"x\": \"}, \\\\\\\" \"}, " TENSOR, "}, \\\" ", NULL, 1, 0},
      {"{\"__metadata__\": {\"y\": \"{\\\"b\\\"\"},  " TENSOR, NULL, "{\"b\"", 0, 0},
      {"{\"__metadata__\": {\"z\": \"{\\\"b\\\"\"}, " TENSOR, NULL, NULL, 1, 0}, /* another key of the same length */
      {"{\"__metadata__\": {\"yy\": \"a\", \"y\": \"{\\\"c\\\"\"}, " TENSOR, NULL, "{\"c\"", 1, 0},
      /* the same key written with an escape */
      {"{\"__metadata__\": {\"\\u0079\": \"{\\\"b\\\"\"}, " TENSOR, NULL, "{\"b\"", 1, 0},
      {"{\"__metadata__\": {\"x\": \"a\\\\\\\\\", \"y\": \"\\\\\"}, " TENSOR, "a\\\\", "\\", 1, 0},
      {"{\"__metadata__\": {\"x\\\\\": \"a\", \"y\": \"\\\\\\\"\"}, " TENSOR, NULL, "\\\"", 1, 0},
      /* a tensor of another name, as long as the first */
      {"{\"__metadata__\": {\"y\": \"{\\\"b\\\"\"}, " OTHER, NULL, "{\"b\"", 0, 0},
      {"{\"__metadata__\": {}, " TENSOR, NULL, NULL, 0, 0},
      {"{" TENSOR, NULL, NULL, 0, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_safetensors *file;
    int shares, shares_y;
    assert_int_equal(open_second(cases[i].header, &file, &shares, &shares_y), AD_OK);
    const char *x = ad_safetensors_metadata(file, "x"), *y = ad_safetensors_metadata(file, "y");
    assert_int_equal(shares, cases[i].shares);
    assert_int_equal(shares_y, cases[i].shares_y);
    assert_true(x == cases[i].x || !strcmp(x, cases[i].x));
    assert_true(y == cases[i].y || !strcmp(y, cases[i].y));
    assert_string_equal(ad_safetensors_at(file, 0)->name, "a");
    assert_memory_equal(ad_safetensors_find(file, "a")->data, "\x01\x02\x03\x04", 4);
    ad_safetensors_close(file);
  }
}

static void a_wrong_header_is_refused_beside_a_right_one(void **state) {
  static const char *const wrong[] = {"{\"__metadata__\": {\"x\": \"a\", \"x\": \"a\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\", \"\\u0078\": \"a\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\\\\\", \"x\": \"a\\\\\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\\\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\", \"y\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": 1}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\",}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"\\q\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\" \"a\"}, " TENSOR,
                                      "{\"__metadata__\": {\"x\": \"a\"}}, " TENSOR};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_safetensors *file;
    int unused;
    assert_int_equal(open_second(wrong[i], &file, &unused, &unused), AD_INVALID);
  }
}

static void what_is_more_than_a_header_is_refused_beside_a_right_one(void **state) {
  ad_safetensors *first, *file;
  write_raw(path, first_header);
  assert_int_equal(ad_safetensors_open(path, &first), AD_OK);
  unlink(path);
  write_raw(path, first_header);
  FILE *more = fopen(path, "ab");
  fwrite("\x05\x06\x07\x08", 1, 4, more);
  assert_int_equal(fclose(more), 0);
  assert_int_equal(ad_safetensors_open_like(path, first, &file), AD_INVALID);
  assert_says("4");
  ad_safetensors_close(first);
}

/* Opens two files whose headers have `keys` keys: as many values as can be kept are shared, further ones are read
 * anyway. */
static void open_many(int keys) {
  char header[1024] = "{\"__metadata__\": {";
  ad_safetensors *first, *second;
  for (int key = 0; key < keys; key++)
    snprintf(header + strlen(header), sizeof header - strlen(header), "%s\"k%d\":\"v\"", key ? "," : "", key);
  snprintf(header + strlen(header), sizeof header - strlen(header), "}, " TENSOR);
  write_raw(path, header);
  assert_int_equal(ad_safetensors_open(path, &first), AD_OK);
  assert_int_equal(ad_safetensors_open_like(path, first, &second), AD_OK);
  assert_int_equal(ad_safetensors_share(first, second), keys <= AD_HEADER_PAIRS);
  snprintf(header, sizeof header, "k%d", keys - 1);
  assert_string_equal(ad_safetensors_metadata(second, header), "v");
  assert_null(ad_safetensors_metadata(second, "k"));
  ad_safetensors_close(first);
  ad_safetensors_close(second);
}

static void a_header_may_have_more_texts_than_are_shared(void **state) {
  for (int keys = AD_HEADER_PAIRS - 1; keys <= AD_HEADER_PAIRS + 1; keys++) open_many(keys);
}

/* A header that ends inside a value must not be read beyond its end. */
static void a_text_that_ends_inside_of_a_value_is_not_read_on(void **state) {
  static const char like[] = "{\"__metadata__\":{\"x\":\"abc}}defgh\"}}", cut[] = "{\"__metadata__\":{\"x\":\"abc}}";
  ad_header_text first = {.metadata = json_object()}, second = {0};
  char *exact = malloc(strlen(cut)); /* of exact size, so that a sanitizer sees a read beyond it */
  ad_header_text_split(like, strlen(like), &first);
  assert_int_equal(first.count, 1);
  memcpy(exact, cut, strlen(cut));
  assert_int_equal(ad_header_text_like(&first, exact, strlen(cut), &second), 0);
  free(exact);
  ad_header_text_clear(&first);
}

static ad_status write_and_read(void) {
  ad_safetensors_writer *writer;
  ad_safetensors *file;
  AD_TRY(ad_safetensors_create(path, tensors, TENSORS, NULL, &writer));
  ad_status status = AD_OK;
  for (int i = 0; i < TENSORS && !status; i++) status = ad_safetensors_add(writer, tensors[i].data);
  if (!status) status = ad_safetensors_finish(writer, NULL, NULL);
  ad_safetensors_writer_destroy(writer);
  if (!status) status = ad_safetensors_open(path, &file);
  if (!status) ad_safetensors_close(file);
  return status;
}

static void without_memory_nothing_is_left(void **state) {
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_memory_fail_at(n);
    status = write_and_read();
    assert_true(reports_allocation(n, status));
    assert_true(n < 100);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_reads_back_as_the_same),
      cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
      cmocka_unit_test(a_file_that_is_not_finished_is_removed),
      cmocka_unit_test(a_file_gets_its_name_when_it_is_finished),
      cmocka_unit_test(a_file_that_finds_no_room_leaves_what_was_there),
      cmocka_unit_test(one_name_is_given_once),
      cmocka_unit_test(dtypes_of_collectives_alone_are_not_written),
      cmocka_unit_test(good_headers_are_taken),
      cmocka_unit_test(hostile_headers_are_refused),
      cmocka_unit_test(a_header_longer_than_the_file_is_refused),
      cmocka_unit_test(what_is_no_file_is_named),
      cmocka_unit_test(what_headers_have_in_common_is_shared),
      cmocka_unit_test(a_wrong_header_is_refused_beside_a_right_one),
      cmocka_unit_test(what_is_more_than_a_header_is_refused_beside_a_right_one),
      cmocka_unit_test(a_header_may_have_more_texts_than_are_shared),
      cmocka_unit_test(a_text_that_ends_inside_of_a_value_is_not_read_on),
      cmocka_unit_test(without_memory_nothing_is_left),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
