/* The public call: what it gives, what it leaves behind when memory is lacking, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/diff.h"
#include "addend/safetensors.h"
#include "base/memory.h"

enum { RANKS = 3, ROWS = 4, FILES = 2 * RANKS };
static char folder[] = "/tmp/addend_diff_XXXXXX", paths[FILES][64];
static const char *files[FILES];

/* 1/3 of the sum of the ranks' addends, but for `factor`; rank r's addend is r + 1, r + 2, ..., squared in its place.
 * `alike`: or all ranks' are rank 0's. */
static void write_dump_of(double factor, int alike) {
  ad_safetensor tensor = {.name = "w", .dtype = AD_F64, .shape = {1, {ROWS}}};
  double sum[ROWS] = {0}, values[ROWS];
  for (int file = 0; file < FILES; file++) {
    int rank = file % RANKS, is_sum = file >= RANKS;
    char number[16];
    const char *metadata[] = {"addend.version", "1",    "addend.kind", is_sum ? "sum" : "addend",
                              "addend.mesh",    "dp=3", "addend.rank", number,
                              "addend.expect",  "0.5",  NULL};
    snprintf(number, sizeof number, "%d", rank);
    for (int i = 0; i < ROWS; i++) {
      int of = alike ? 0 : rank;
      values[i] = is_sum ? 0.5 * factor * sum[i] : (of + i + 1) * (of == i ? 7 : 1);
      if (!is_sum) sum[i] += values[i];
    }
    ad_safetensors_writer *writer;
    snprintf(paths[file], sizeof paths[file], "%s/%d.safetensors", folder, file);
    files[file] = paths[file];
    assert_int_equal(ad_safetensors_create(paths[file], &tensor, 1, metadata, &writer), AD_OK);
    assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
    assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
    ad_safetensors_writer_destroy(writer);
  }
}

static void write_dump(double factor) { write_dump_of(factor, 0); }

static void a_dump_is_judged(void **state) {
  for (int wrong = 0; wrong < 2; wrong++) {
    int holds = -1;
    char *json, *table;
    write_dump(wrong ? 1.0 / 3 : 1);
    assert_int_equal(ad_diff(files, FILES, NULL, &holds, &json), AD_OK);
    assert_int_equal(holds, !wrong);
    assert_non_null(strstr(json, wrong ? "\"averaged\"" : "\"right\""));
    assert_int_equal(ad_diff_table(json, AD_COLOURED_TEXT, &table), AD_OK);
    assert_non_null(strstr(table, wrong ? "averaged over dp" : "right"));
    free(json);
    free(table);
  }
}

static void equal_addends_tell_nothing_unless_they_are_allowed(void **state) {
  for (int allowed = 0; allowed < 2; allowed++) {
    ad_diff_options options = {.size = sizeof options, .allow_identical = allowed};
    int holds = -1;
    char *json, *table;
    write_dump_of(1, 1);
    assert_int_equal(ad_diff(files, FILES, &options, &holds, &json), AD_OK);
    assert_int_equal(holds, allowed);
    assert_non_null(strstr(json, allowed ? "\"verdict\": \"right\"" : "\"verdict\": \"cannot_tell\""));
    assert_int_equal(ad_diff_table(json, AD_COLOURED_TEXT, &table), AD_OK);
    assert_int_equal(strstr(table, "CANNOT TELL") != NULL, !allowed);
    free(json);
    free(table);
  }
}

/* A document is told in several forms; where there is none each says so. */
static void a_document_has_several_forms(void **state) {
  typedef ad_status form(const char *json, char **out);
  static form *const forms[] = {ad_diff_github, ad_diff_html};
  int holds = -1;
  char *json, *text, *again;
  write_dump(1.0 / 3);
  assert_int_equal(ad_diff(files, FILES, NULL, &holds, &json), AD_OK);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    text = NULL;
    assert_int_equal(forms[i]("{", &text), AD_INVALID);
    assert_null(text);
    assert_int_equal(forms[i](json, &text), AD_OK);
    assert_non_null(strstr(text, i ? "</html>" : "::error title=addend%3A averaged::w: averaged over dp"));
    free(text);
  }
  assert_int_equal(ad_diff_list(json, AD_PLAIN_TEXT, &text), AD_OK);
  assert_int_equal(ad_diff_table(json, AD_PLAIN_TEXT, &again), AD_OK);
  assert_string_equal(text, again); /* of one parameter */
  free(text);
  free(again);
  free(json);
}

/* What a runner would read as the end of a title or of a command is written as it reads it. */
static void annotations_are_escaped(void **state) {
  char *text;
  const char json[] =
      "{\"verdict\": \"wrong\", \"params\": [{\"name\": \"a,b:c%\", \"verdict\": \"wrong\", \"kind\": "
      "\"x,y:z%\", \"text\": \"a % b, c: d\"}], \"messages\": []}";
  assert_int_equal(ad_diff_github(json, &text), AD_OK);
  assert_string_equal(text, "::error title=addend%3A x%2Cy%3Az%25::a,b:c%25: a %25 b, c: d\n");
  free(text);
}

static void a_page_is_explained(void **state) {
  char *text = NULL;
  assert_int_equal(ad_explain("own_only", &text), AD_OK);
  assert_non_null(strstr(text, "# own_only: "));
  free(text);
  text = NULL;
  assert_int_equal(ad_explain("own_onyl", &text), AD_INVALID);
  assert_null(text);
  assert_non_null(strstr(ad_last_error(), "did you mean own_only?"));
}

/* Those that are named as safetensors files: what else lies in it is not read. */
static void a_folder_is_its_files(void **state) {
  const char *whole[] = {folder};
  char beside[64], *json;
  int holds = -1;
  write_dump(1);
  snprintf(beside, sizeof beside, "%s/notes.txt", folder);
  FILE *notes = fopen(beside, "w");
  assert_non_null(notes);
  assert_int_equal(fclose(notes), 0);
  assert_int_equal(ad_diff(whole, 1, NULL, &holds, &json), AD_OK);
  assert_int_equal(holds, 1);
  free(json);
  assert_int_equal(unlink(beside), 0);
}

static void what_cannot_be_is_refused(void **state) {
  int holds = -1;
  char *json = NULL;
  ad_diff_options unsized = {.size = 1};
  write_dump(1);
  assert_int_equal(ad_diff(NULL, 0, NULL, &holds, &json), AD_INVALID);
  assert_int_equal(ad_diff(files, FILES, &unsized, &holds, &json), AD_INVALID);
  assert_int_equal(ad_diff(files, FILES - 1, NULL, &holds, &json), AD_INVALID);
  assert_non_null(strstr(ad_last_error(), "rank 2 has no sum file"));
  assert_int_equal(ad_diff_table("{", AD_PLAIN_TEXT, &json), AD_INVALID);
  assert_null(json);
  assert_int_equal(holds, -1);
}

/* The n-th allocation fails, for every n: it is said, and nothing is left (the sanitizers watch). */
static void lacking_memory_is_said(void **state) {
  write_dump(1.0 / 3);
  for (long n = 1;; n++) {
    int holds = -1;
    char *json = NULL;
    ad_memory_fail_at(n);
    ad_status status = ad_diff(files, FILES, NULL, &holds, &json);
    long made = ad_memory_fail_at(0);
    free(json);
    if (!status) {
      assert_true(made < n && n > 50);
      return;
    }
    assert_int_equal(status, AD_MEMORY);
    assert_null(json);
  }
}

static int make_folder(void **state) { return !mkdtemp(folder); }

static int remove_folder(void **state) {
  for (int i = 0; i < FILES; i++) unlink(paths[i]);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dump_is_judged),        cmocka_unit_test(equal_addends_tell_nothing_unless_they_are_allowed),
      cmocka_unit_test(a_folder_is_its_files),   cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(lacking_memory_is_said),  cmocka_unit_test(a_document_has_several_forms),
      cmocka_unit_test(annotations_are_escaped), cmocka_unit_test(a_page_is_explained),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
