/* Tests the form of the documents that commands print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/memory.h"
#include "files/json.h"

static void a_document_has_a_line_for_each_entry_all_digits_and_no_control_character(void **state) {
  json_t *document = json_pack("{s:f, s:[s, i], s:{}}", "share", 1.0 / 3, "axes", "d\x7fp\xc2\x9b", 2, "none");
  char *text = ad_json_dumps(document);
  json_t *again = json_loads(text, 0, NULL);
  assert_string_equal(text,
                      "{\n \"share\": 0.33333333333333331,\n \"axes\": [\n  \"d\\u007fp\\u009b\",\n  2\n ],\n"
                      " \"none\": {}\n}");
  assert_true(json_equal(again, document));
  json_decref(again);
  json_decref(document);
  ad_release(text);
}

static void a_document_without_memory_is_none(void **state) {
  json_t *document = json_pack("{s:i}", "ranks", 4);
  ad_memory_fail_at(1);
  assert_null(ad_json_dumps(document));
  ad_memory_fail_at(0);
  json_decref(document);
}

#if !defined(AD_SANITIZED) /* sanitizers reserve terabytes of addresses */
/* Lets the process have so many more bytes of address space; 0: as many as it had. */
static void limit_memory(size_t more) {
  static struct rlimit before;
  struct rlimit now;
  long pages = 0;
  if (!more) {
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    return;
  }
  FILE *file = fopen("/proc/self/statm", "r");
  assert_true(file && fscanf(file, "%ld", &pages) == 1);
  fclose(file);
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
  now = before;
  now.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
  assert_int_equal(setrlimit(RLIMIT_AS, &now), 0);
}
#endif

static void a_text_is_not_called_wrong_for_want_of_memory(void **state) {
  enum { NUMBERS = 2 << 20 };
  json_t *found;
  json_error_t error;
  ad_memory_fail_at(1);
  assert_int_equal(ad_json_parse("{}", 2, 0, &found, &error), AD_MEMORY);
  ad_memory_fail_at(0);
  assert_null(found);
  char *text = malloc(2 * NUMBERS + 1);
  for (size_t i = 0; i < NUMBERS; i++) memcpy(text + 2 * i, i ? ",0" : "[0", 2);
  text[2 * NUMBERS] = ']';
#if !defined(AD_SANITIZED)
  limit_memory(24 << 20);
  ad_status status = ad_json_parse(text, 2 * NUMBERS + 1, 0, &found, &error);
  limit_memory(0);
  assert_int_equal(status, AD_MEMORY);
  assert_null(found);
#endif
  assert_int_equal(ad_json_parse(text, 2 * NUMBERS + 1, 0, &found, &error), AD_OK);
  assert_int_equal(json_array_size(found), NUMBERS);
  json_decref(found);
  free(text);
}

static void a_wrong_text_says_why(void **state) {
  json_t *found = json_null();
  json_error_t error;
  assert_int_equal(ad_json_parse("{\"a\": 1", 7, 0, &found, &error), AD_OK);
  assert_null(found);
  assert_true(error.text[0] && error.line == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_document_has_a_line_for_each_entry_all_digits_and_no_control_character),
      cmocka_unit_test(a_document_without_memory_is_none),
      cmocka_unit_test(a_text_is_not_called_wrong_for_want_of_memory),
      cmocka_unit_test(a_wrong_text_says_why),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
