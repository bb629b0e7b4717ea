/* Tests the form of the documents that commands print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_document_has_a_line_for_each_entry_all_digits_and_no_control_character),
      cmocka_unit_test(a_document_without_memory_is_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
