/* Tests headers of .npy files: what NumPy writes is read, and anything else is refused with what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "data/npy.h"
#include "says.h"

enum { TOKENS = 2 | 4 };

typedef struct bytes {
  unsigned char of[400];
  size_t size;
} bytes;

/* A file of format `version` with this header, which states its length or `length`, followed by `data` bytes. */
static bytes file_of(int version, const char *header, long length, size_t data) {
  bytes file = {.size = 8};
  size_t reported = length < 0 ? strlen(header) : (size_t)length;
  memcpy(file.of, "\x93NUMPY", 6);
  file.of[6] = (unsigned char)version;
  for (int i = 0; i < (version == 1 ? 2 : 4); i++) file.of[file.size++] = (unsigned char)(reported >> 8 * i);
  memcpy(file.of + file.size, header, strlen(header));
  file.size += strlen(header);
  for (size_t i = 0; i < data; i++) file.of[file.size++] = (unsigned char)(i + 1);
  return file;
}

static void reads(const bytes *file, int widths, int64_t count, int width) {
  ad_npy npy = {0};
  if (ad_npy_parse(file->of, file->size, "x.npy", widths, &npy)) fail_msg("%s", ad_last_error());
  assert_int_equal(npy.count, count);
  assert_int_equal(npy.width, width);
  for (int64_t i = 0; i < count; i++) {
    uint32_t element = 0;
    for (int b = width; b-- > 0;) element = element << 8 | (uint32_t)(i * width + b + 1);
    assert_int_equal(ad_npy_at(&npy, i), element);
  }
}

/* The file is refused with these facts; its sentence is in the list of the case. */
static void refuses(const char *name, const bytes *file, int widths, const char *const *facts) {
  ad_npy npy = {.count = 77};
  assert_int_equal(ad_npy_parse(file->of, file->size, "x.npy", widths, &npy), AD_INVALID);
  assert_facts(ad_last_error(), "x.npy");
  assert_says_in(name, ad_last_error(), facts);
  assert_true(npy.count == 77 && !npy.data);
}

#define READS(header, data, count, width)              \
  do {                                                 \
    for (int version = 1; version <= 3; version++) {   \
      bytes file = file_of(version, header, -1, data); \
      reads(&file, TOKENS | 1, count, width);          \
    }                                                  \
  } while (0)
#define REFUSES(header, data, ...)                            \
  do {                                                        \
    bytes file = file_of(1, header, -1, data);                \
    refuses(#header, &file, TOKENS, SAYS_FACTS(__VA_ARGS__)); \
  } while (0)
#define HEADER(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }"

static void what_numpy_writes_is_read(void **state) {
  READS(HEADER("<u2", "(3,)") "       \n", 6, 3, 2);
  READS(HEADER("<u4", "(2,)") "\n", 8, 2, 4);
  READS(HEADER("|u1", "(5,)") "\n", 5, 5, 1);
  READS(HEADER("|b1", "(5,)") "\n", 5, 5, 1);
  READS("{'shape': (3,), \"fortran_order\": False, \"descr\": \"<u2\"}", 6, 3, 2);
  READS("{ 'descr' : '=u2' ,'shape':( 3L , ),'fortran_order':False}\n", 6, 3, 2);
}

static void other_arrays_are_refused_with_what_to_write(void **state) {
  REFUSES(HEADER("<i8", "(3,)"), 24, "<i8", "uint16", "uint32");
  REFUSES(HEADER("|u1", "(3,)"), 3, "|u1", "uint16", "uint32");
  REFUSES(HEADER("|b1", "(3,)"), 3, "|b1", "uint16", "uint32");
  REFUSES(HEADER("", "(3,)"), 6, "uint16", "uint32");
  REFUSES(HEADER("u2u2", "(3,)"), 6, "u2u2");
  REFUSES(HEADER(">u2", "(3,)"), 6, ">u2", "array.astype('<u2')");
  REFUSES(HEADER("<u2", "(3, 1)"), 6, "2", "array.reshape(-1)");
  REFUSES(HEADER("<u2", "()"), 2, "0");
  REFUSES(HEADER("<u2", "(0,)"), 0, NULL);
  REFUSES("{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", 6, "Fortran", "numpy.ascontiguousarray");
  bytes mask = file_of(1, HEADER("<u2", "(3,)"), -1, 6);
  refuses("a mask of 16 bits", &mask, 1, SAYS_FACTS("<u2", "uint8", "bool"));
}

/* No array is to be cast to bits that cut its numbers: labels of -100 are no 156, and an id of 70000 is no 4464. */
static void no_advice_cuts_a_number(void **state) {
  static const struct {
    const char *descr;
    size_t bytes;
    int may_be_narrow;
  } arrays[] = {{"<i4", 12, 0}, {">i4", 12, 0}, {"<i8", 24, 0}, {"<u8", 24, 0}, {"<f4", 12, 0},
                {"<f8", 24, 0}, {"<f2", 6, 0},  {"<c8", 24, 0}, {"<U5", 60, 0}, {"|O", 24, 0},
                {"<i2", 6, 1},  {"|i1", 3, 1},  {"|u1", 3, 1},  {"|b1", 3, 1}};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    char header[96];
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (3,), }", arrays[i].descr);
    bytes file = file_of(1, header, -1, arrays[i].bytes);
    refuses(arrays[i].descr, &file, TOKENS, SAYS_FACTS(arrays[i].descr, "numpy.uint32"));
    assert_int_equal(strstr(ad_last_error(), "astype(numpy.uint16)") != NULL, arrays[i].may_be_narrow);
    file = file_of(1, header, -1, arrays[i].bytes);
    if (strcmp(arrays[i].descr, "|u1") == 0 || strcmp(arrays[i].descr, "|b1") == 0) continue;
    refuses("as a mask", &file, 1, SAYS_FACTS(arrays[i].descr, "-100"));
    assert_null(strstr(ad_last_error(), "astype"));
  }
}

static void a_size_that_does_not_fit_is_refused(void **state) {
  bytes shorter = file_of(1, HEADER("<u2", "(3,)"), -1, 5), longer = file_of(1, HEADER("<u2", "(3,)"), -1, 7);
  refuses("a byte too few", &shorter, TOKENS, SAYS_FACTS("3", "2", "5"));
  refuses("a byte too many", &longer, TOKENS, SAYS_FACTS("3", "2", "7"));
  REFUSES(HEADER("<u2", "(9223372036854775807,)"), 8, "9223372036854775807", "2", "8");
  // 2^62 + 1 elements of 2 bytes are 2 more than 2^63 bytes
  REFUSES(HEADER("<u2", "(4611686018427387905,)"), 2, "4611686018427387905", "2");
}

static void a_header_that_is_no_dictionary_is_refused(void **state) {
  static const char *const headers[] = {
      "",
      " ",
      "{",
      "{}",
      "[]",
      "None",
      "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)",
      "{'descr': '<u2', 'fortran_order': False}",
      HEADER("<u2", "(3)"),
      HEADER("<u2", "(-3,)"),
      HEADER("<u2", "(,)"),
      HEADER("<u2", "(3,,)"),
      HEADER("<u2", "(3 3,)"),
      HEADER("<u2", "(L,)"),
      HEADER("<u2", "3"),
      HEADER("<u2", "3,)"),
      HEADER("<u2", "(3,"),
      "'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
      "{'descr' '<u2', 'fortran_order': False, 'shape': (3,), }",
      "{descr: '<u2', 'fortran_order': False, 'shape': (3,), }",
      "{'descr': <u2, 'fortran_order': False, 'shape': (3,), }",
      "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)} }",
      HEADER("<u2", "(9223372036854775808,)"),
      HEADER("<u2", "(3,)") "x",
      HEADER("<u2", "(3,)") HEADER("<u2", "(3,)"),
      "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }",
      "{'descr': '<u2', 'fortran_order': 0, 'shape': (3,), }",
      "{'descr': '<u2' 'fortran_order': False, 'shape': (3,)}",
      "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (3,)}",
      "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'more': 1}",
      "{'descr': '<u2\", 'fortran_order': False, 'shape': (3,)}",
      HEADER("0123456789012345678901234567890123456789", "(3,)"),
      HEADER("<u2", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)")};
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) REFUSES(headers[i], 6, "fortran_order");
}

static void a_file_of_another_form_is_refused(void **state) {
  bytes file = file_of(4, HEADER("<u2", "(3,)"), -1, 6);
  refuses("format 4.0", &file, TOKENS, SAYS_FACTS("4.0", "1.0", "2.0", "3.0"));
  file = file_of(1, HEADER("<u2", "(3,)"), -1, 6);
  file.of[7] = 1;
  refuses("format 1.1", &file, TOKENS, SAYS_FACTS("1.1", "1.0", "2.0", "3.0"));
  file.of[0] = 'x';
  refuses("another beginning", &file, TOKENS, SAYS_FACTS(".npy", "numpy.save", "addend_train.tokens"));
  file = file_of(2, HEADER("<u2", "(3,)"), 1L << 31, 6);
  refuses("a header of 2^31 bytes", &file, TOKENS, SAYS_FACTS("2147483648", "10000"));
  file = file_of(2, HEADER("<u2", "(3,)"), 200, 6);
  refuses("a header that is cut", &file, TOKENS, SAYS_FACTS("x.npy"));
}

/* A file cut at any byte is refused; nothing beyond its end is read (the address sanitizer would see it). */
static void a_file_that_is_cut_anywhere_is_refused(void **state) {
  for (int version = 1; version <= 2; version++) {
    bytes file = file_of(version, HEADER("<u2", "(3,)"), -1, 6);
    for (size_t size = 0; size < file.size; size++) {
      ad_npy npy;
      char *cut = malloc(size + !size);
      assert_non_null(cut);
      memcpy(cut, file.of, size);
      assert_int_equal(ad_npy_parse(cut, size, "x.npy", TOKENS, &npy), AD_INVALID);
      free(cut);
    }
  }
}

/* The search looks at whole blocks first, and at single elements of the block that has a too large one. */
static void the_first_element_that_is_too_large_is_found(void **state) {
  enum { COUNT = 3 * 4096 + 5 };
  static uint16_t narrow[COUNT];
  static uint32_t wide[COUNT];
  for (size_t at = 0; at < COUNT; at += at % 4096 < 3 || at % 4096 > 4092 || at > COUNT - 9 ? 1 : 61) {
    ad_npy files[] = {{.data = (unsigned char *)narrow, .count = COUNT, .width = 2},
                      {.data = (unsigned char *)wide, .count = COUNT, .width = 4}};
    narrow[at] = 256;
    wide[at] = 256;
    for (int f = 0; f < 2; f++) {
      assert_int_equal(ad_npy_first_from(&files[f], 0, COUNT, 256), at);
      assert_int_equal(ad_npy_first_from(&files[f], 0, COUNT, 257), COUNT);
      assert_int_equal(ad_npy_first_from(&files[f], 0, COUNT, 65536), COUNT);
      assert_int_equal(ad_npy_first_from(&files[f], 0, (int64_t)at, 256), at);
      assert_int_equal(ad_npy_first_from(&files[f], (int64_t)at + 1, COUNT - (int64_t)at - 1, 256), COUNT);
    }
    narrow[at] = 255;
    wide[at] = 0;
  }
  for (int64_t count = 4094; count <= 4098; count++) {
    ad_npy file = {.data = (unsigned char *)narrow, .count = count, .width = 2};
    assert_int_equal(ad_npy_first_from(&file, 0, count, 256), count);
  }
  wide[7] = UINT32_MAX;
  ad_npy file = {.data = (unsigned char *)wide, .count = COUNT, .width = 4};
  assert_int_equal(ad_npy_first_from(&file, 0, COUNT, 70000), 7);
}

static void a_file_that_cannot_be_read_is_named(void **state) {
  ad_npy npy;
  char path[] = "/tmp/addend-npy-XXXXXX";
  assert_int_equal(ad_npy_open("/no/such/file.npy", TOKENS, &npy), AD_IO);
  assert_says("/no/such/file.npy");
  assert_int_equal(ad_npy_open("/tmp", TOKENS, &npy), AD_IO);
  assert_says("/tmp");
  close(mkstemp(path));
  assert_int_equal(ad_npy_open(path, TOKENS, &npy), AD_INVALID);
  assert_listed();
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_numpy_writes_is_read),
      cmocka_unit_test(other_arrays_are_refused_with_what_to_write),
      cmocka_unit_test(no_advice_cuts_a_number),
      cmocka_unit_test(a_size_that_does_not_fit_is_refused),
      cmocka_unit_test(a_header_that_is_no_dictionary_is_refused),
      cmocka_unit_test(a_file_of_another_form_is_refused),
      cmocka_unit_test(a_file_that_is_cut_anywhere_is_refused),
      cmocka_unit_test(the_first_element_that_is_too_large_is_found),
      cmocka_unit_test(a_file_that_cannot_be_read_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
