/* Tests the HTML page of `addend diff`: it needs no other file, and no name in it is read as markup. What a reader sees
 * is tested by train/tests/cli/map.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include "addend/diff.h"
#include "base/memory.h"
#include "files/file.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static char path[] = "/tmp/addend-map-XXXXXX";
static const char hostile[] = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>";

/* The page of a document with one parameter, as text. */
static char *page_of(const char *name) {
  int64_t size;
  char *page;
  json_t *document = json_pack("{s:i, s:b, s:i, s:s, s:i, s:[{s:s, s:b, s:s, s:s, s:[[f], [f]]}], s:[s]}", "format", 1,
                               "pass", 0, "world", 2, "mesh", "dp=2", "microbatches", 1, "params", "name", name, "pass",
                               0, "verdict", "wrong", "kind", "missing", "counts", 1.0, 0.1, "messages", name);
  assert_non_null(document);
  char *text = json_dumps(document, 0);
  must(ad_diff_page(text, path));
  free(text);
  json_decref(document);
  must(ad_file_read(path, 1 << 24, &page, &size));
  return page;
}

static size_t scripts_in(const char *page) {
  size_t count = 0;
  for (const char *at = page; (at = strstr(at, "<script")); at++) count++;
  return count;
}

static void no_name_is_read_as_markup(void **state) {
  char *page = page_of(hostile), *plain = page_of("w");
  assert_int_equal(scripts_in(page), scripts_in(plain));
  assert_null(strstr(page, "<img"));
  assert_text_says(page, "u003cimg", "src=x");
  ad_release(plain);
  ad_release(page);
}

static void it_carries_everything_along(void **state) {
  char *page = page_of("w");
  static const char *const places[] = {"{{data}}",        "{{common.css}}", "{{map.css}}",
                                       "{{elements.js}}", "{{causes.js}}",  "{{map.js}}"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) assert_null(strstr(page, places[i]));
  assert_null(strstr(page, "src=\"http"));
  assert_null(strstr(page, "href=\"http"));
  assert_non_null(strstr(page, "[[1.0],[0.1]]"));
  assert_non_null(strstr(page, "</html>"));
  ad_release(page);
}

static void where_it_cannot_be_written_is_named(void **state) {
  assert_int_equal(ad_diff_page("{}", "/nowhere/map.html"), AD_IO);
  assert_says("/nowhere/map.html");
  assert_int_equal(ad_diff_page("{\"half", path), AD_INVALID);
  assert_says("JSON");
}

static int make_file(void **state) {
  int file = mkstemp(path);
  return file < 0 || close(file);
}

static int remove_file(void **state) { return unlink(path); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_name_is_read_as_markup),
      cmocka_unit_test(it_carries_everything_along),
      cmocka_unit_test(where_it_cannot_be_written_is_named),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
