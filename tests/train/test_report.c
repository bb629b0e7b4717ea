/* The report's table of a proof: what does not hold is marked as such. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "train/report.h"

static char folder[64], path[96];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-report-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/check.json", folder);
  return 0;
}

static int remove_folder(void **state) {
  unlink(path);
  return rmdir(folder);
}

/* The proof of one parameter and one planted mistake, as a page; release with free. */
static char *page_of(const char *error, const char *equal, const char *caught) {
  char *page = NULL;
  size_t size;
  FILE *document = fopen(path, "w");
  assert_non_null(document);
  fprintf(document,
          "{\"mesh\":\"dp=3\",\"world\":3,\"dtype\":\"f64\",\"params\":[{\"name\":\"w\",\"layout\":\"dp=R\","
          "\"reduced_over\":\"dp\",\"ratio\":1.0,\"max_rel_err\":%s,\"bound\":1e-12,\"replicas_equal\":%s,"
          "\"cause\":null}],\"summary\":{\"pass\":false},\"sabotage\":[{\"name\":\"planted\",\"caught_by\":\"%s\","
          "\"param\":null,\"ratio\":null,\"cause\":null,\"message\":null}],\"survivors\":0}",
          error, equal, caught);
  fclose(document);
  FILE *out = open_memstream(&page, &size);
  assert_non_null(out);
  ad_report_proof(out, folder);
  fclose(out);
  return page;
}

static void marks(const char *error, const char *equal, const char *caught, const char *row) {
  char *page = page_of(error, equal, caught);
  if (!strstr(page, row)) fail_msg("no \"%s\" in: %s", row, page);
  free(page);
}

static void what_does_not_hold_is_marked(void **state) {
  marks("1e-13", "true", "number", "<tr class=yes><td>w");
  marks("1.1e-12", "true", "number", "<tr class=no><td>w");
  marks("1e-13", "false", "number", "<tr class=no><td>w");
  marks("null", "true", "number", "<tr class=no><td>w");
  marks("1e-13", "true", "number", "<tr class=yes><td>planted");
  marks("1e-13", "true", "none", "<tr class=no><td>planted");
  marks("1e-13", "true", "number", "<p class=no>It does not hold");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_does_not_hold_is_marked, make_folder, remove_folder)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
