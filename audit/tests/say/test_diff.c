/* Tests the public call of `addend diff`: its result, what it leaves behind when memory runs out, and
 * what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "allocations.h"
#include "addend/diff.h"
#include "addend/safetensors.h"
#include "base/memory.h"
#include "read/dump.h"
#include "says.h"

enum { RANKS = 3, ROWS = 4, FILES = 2 * RANKS };
static char folder[] = "/tmp/addend_diff_XXXXXX", paths[FILES][64];
static const char *files[FILES];
static const char *declared; /* addend.declared of the next dump; NULL: none */

/* Writes a dump whose sum is 1/3 of the sum of the ranks' addends, times `factor`. Rank r's addend is r + 1, r + 2,
 * ..., squared element by element; if `identical`, all ranks have rank 0's. */
static void write_dump_of(double factor, int identical) {
  ad_safetensor tensor = {.name = "w", .dtype = AD_F64, .shape = {1, {ROWS}}};
  double sum[ROWS] = {0}, values[ROWS];
  for (int file = 0; file < FILES; file++) {
    int rank = file % RANKS, is_sum = file >= RANKS;
    char number[16];
    const char *metadata[] = {"addend.version",
                              "1",
                              "addend.kind",
                              is_sum ? "sum" : "addend",
                              "addend.mesh",
                              "dp=3",
                              "addend.rank",
                              number,
                              "addend.expect",
                              "0.5",
                              declared ? "addend.declared" : NULL,
                              declared,
                              NULL};
    snprintf(number, sizeof number, "%d", rank);
    for (int i = 0; i < ROWS; i++) {
      int of = identical ? 0 : rank;
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

/* The document's only parameter. Release *document with json_decref. */
static const json_t *param_of(const char *json, json_t **document) {
  *document = json_loads(json, 0, NULL);
  const json_t *params = json_object_get(*document, "params");
  assert_int_equal(json_array_size(params), 1);
  return json_array_get(params, 0);
}

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static void a_dump_is_judged(void **state) {
  for (int wrong = 0; wrong < 2; wrong++) {
    int holds = -1;
    char *json, *table;
    json_t *document;
    write_dump(wrong ? 1.0 / 3 : 1);
    assert_int_equal(ad_diff(files, FILES, NULL, &holds, &json), AD_OK);
    assert_int_equal(holds, !wrong);
    const json_t *param = param_of(json, &document);
    assert_string_equal(text_at(param, "verdict"), wrong ? "wrong" : "right");
    assert_string_equal(text_at(param, "kind"), wrong ? "averaged" : "right");
    assert_string_equal(text_at(param, "axis"), wrong ? "dp" : "");
    json_decref(document);
    assert_int_equal(ad_diff_table(json, AD_COLOURED_TEXT, &table), AD_OK);
    if (wrong) assert_text_says(table, "dp", "1/3");
    assert_says_in(wrong ? "the table of a wrong dump" : "the table of a right dump", table, SAYS_FACTS("3"));
    free(json);
    free(table);
  }
}

/* Kilobytes of the dump's files that are mapped and resident in this process. */
static long resident(void) {
  FILE *maps = fopen("/proc/self/smaps", "r");
  char line[512];
  long all = 0, own = 0;
  int is_ours = 0;
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps)) {
    if (strstr(line, folder)) is_ours = 1;
    if (!is_ours || sscanf(line, "Rss: %ld kB", &own) != 1) continue;
    all += own;
    is_ours = 0;
  }
  fclose(maps);
  return all;
}

static void an_open_dump_takes_no_pages_of_its_files(void **state) {
  ad_dump dump;
  write_dump(1);
  assert_int_equal(ad_dump_open(files, FILES, 0, &(ad_dump_opening){.finite = 1}, &dump), AD_OK);
  assert_int_equal(resident(), 0);
  /* reading a mapped file makes it resident, which the test must see */
  (void)*(const volatile char *)ad_safetensors_at(dump.files[0].tensors, 0)->data;
  assert_true(resident() > 0);
  ad_dump_close(&dump);
}

enum { MICROBATCHES = 3, MANY = RANKS * (MICROBATCHES + 1) + 1, WIDE = 12 };

static void write_one(const char *path, const double *values, const char *const *metadata) {
  ad_safetensor tensor = {.name = "w", .dtype = AD_F64, .shape = {1, {WIDE}}};
  ad_safetensors_writer *writer;
  assert_int_equal(ad_safetensors_create(path, &tensor, 1, metadata, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
}

static double addend_of(int rank, int microbatch, int element) {
  return 1 + (rank * 7 + microbatch * 3 + element * element) % 11;
}

/* Writes a dump whose sum is that of all ranks' addends of three microbatches, divided by 2, and a reference in which
 * microbatch m has the weight `weights[m]` and one element differs by `off`. Rank r divided its addends by r + 1, so
 * each counts (r + 1) / 2 times. */
static void write_weighed(const char *names[MANY], char own[MANY][64], const double *weights, double off) {
  double sum[WIDE] = {0}, reference[WIDE] = {0};
  int file = 0;
  for (; file < MANY; file++) {
    int rank = file % RANKS, microbatch = file / RANKS, last = file == MANY - 1, is_sum = microbatch == MICROBATCHES;
    char of_rank[16], of_microbatch[16], of_divisor[16];
    const char *metadata[] = {"addend.version",
                              "1",
                              "addend.kind",
                              last     ? "reference"
                              : is_sum ? "sum"
                                       : "addend",
                              "addend.mesh",
                              "dp=3",
                              "addend.rank",
                              of_rank,
                              "addend.expect",
                              "0.5",
                              "addend.microbatch",
                              of_microbatch,
                              "addend.divisor",
                              of_divisor,
                              NULL};
    double values[WIDE], share = (rank + 1) / 2.0;
    snprintf(of_rank, sizeof of_rank, "%d", rank);
    snprintf(of_microbatch, sizeof of_microbatch, "%d", microbatch);
    snprintf(of_divisor, sizeof of_divisor, "%d", rank + 1);
    for (int i = 0; i < WIDE; i++) {
      double addend = addend_of(rank, microbatch, i);
      values[i] = last ? reference[i] + (i == 5 ? off : 0) : is_sum ? sum[i] : addend;
      if (last || is_sum) continue;
      sum[i] += share * addend / 2;
      reference[i] += weights[microbatch] * share * addend / 2;
    }
    if (is_sum || last) metadata[10] = NULL;
    snprintf(own[file], sizeof own[file], "%s/%d.safetensors", folder, file);
    names[file] = own[file];
    write_one(own[file], values, metadata);
  }
}

/* `facts` NULL: the reference has nothing about microbatches. */
static void expect_reference(const double *weights, double off, const char *const *facts) {
  char own[MANY][64], *json;
  json_t *document;
  const char *names[MANY];
  int holds = -1;
  write_weighed(names, own, weights, off);
  assert_int_equal(ad_diff(names, MANY, NULL, &holds, &json), AD_OK);
  assert_int_equal(holds, 0);
  const json_t *cause = json_object_get(json_object_get(param_of(json, &document), "reference"), "cause");
  assert_non_null(cause);
  assert_string_equal(text_at(cause, "place"), facts ? "microbatches" : "");
  if (facts) assert_says_in("a reference of other weights", text_at(cause, "text"), facts);
  json_decref(document);
  free(json);
  for (int i = FILES; i < MANY; i++) assert_int_equal(unlink(own[i]), 0);
}

/* The dump's sums are right; the reference has each microbatch once, divided by another count. */
static void microbatches_of_other_weights_are_found_by_a_reference(void **state) {
  const double means[] = {1.25, 0.8, 0.8}, identical[] = {2, 2, 2}, lost[] = {1, 0, 1};
  expect_reference(means, 0, SAYS_FACTS("microbatch 0", "0.8", "microbatches 1", "2", "1.25"));
  expect_reference(means, 1e-3, NULL);
  expect_reference(identical, 0, NULL);
  expect_reference(lost, 0, NULL);
}

static void equal_addends_decide_nothing_unless_they_are_allowed(void **state) {
  for (int allowed = 0; allowed < 2; allowed++) {
    ad_diff_options options = {.size = sizeof options, .allow_identical = allowed};
    int holds = -1;
    char *json, *table;
    json_t *document;
    write_dump_of(1, 1);
    assert_int_equal(ad_diff(files, FILES, &options, &holds, &json), AD_OK);
    assert_int_equal(holds, allowed);
    assert_string_equal(text_at(param_of(json, &document), "verdict"), allowed ? "right" : "cannot_tell");
    assert_string_equal(text_at(document, "verdict"), allowed ? "right" : "cannot_tell");
    json_decref(document);
    assert_int_equal(ad_diff_table(json, AD_COLOURED_TEXT, &table), AD_OK);
    assert_says_in(allowed ? "the table where equal addends are allowed" : "the table of equal addends", table,
                   SAYS_FACTS("3"));
    free(json);
    free(table);
  }
}

/* A document can be printed as GitHub annotations and as HTML; each form says if there is no document. */
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
    if (i)
      assert_non_null(strstr(text, "</html>"));
    else
      assert_text_says(text, "title=addend%3A", "dp");
    free(text);
  }
  assert_int_equal(ad_diff_list(json, AD_PLAIN_TEXT, &text), AD_OK);
  assert_int_equal(ad_diff_table(json, AD_PLAIN_TEXT, &again), AD_OK);
  assert_string_equal(text, again); /* the document has one parameter */
  free(text);
  free(again);
  free(json);
}

/* Characters that a GitHub runner would take for the end of a title or of a command are escaped. */
static void annotations_are_escaped(void **state) {
  char *text;
  const char json[] =
      "{\"verdict\": \"wrong\", \"params\": [{\"name\": \"a,b:c%\", \"verdict\": \"wrong\", \"kind\": "
      "\"x,y:z%\", \"text\": \"a % b, c: d\"}], \"messages\": []}";
  assert_int_equal(ad_diff_github(json, &text), AD_OK);
  assert_string_equal(text, "::error title=addend%3A x%2Cy%3Az%25::a,b:c%25: a %25 b, c: d\n");
  free(text);
}

static void kinds_say_whether_counts_give_them(void **state) {
  assert_int_equal(ad_kind_is_counted("averaged"), 1);
  assert_int_equal(ad_kind_is_counted("one_rank"), 1);
  assert_int_equal(ad_kind_is_counted("shifted"), 0);
  assert_int_equal(ad_kind_is_counted("not_fitted"), 0);
  assert_int_equal(ad_kind_is_counted("norm"), -1);
  assert_int_equal(ad_kind_is_counted(NULL), -1);
}

static void a_page_is_explained(void **state) {
  char *text = NULL;
  assert_int_equal(ad_explain("own_only", &text), AD_OK);
  assert_text_says(text, "own_only");
  free(text);
  text = NULL;
  assert_int_equal(ad_explain("own_onyl", &text), AD_INVALID);
  assert_null(text);
  assert_says("own_only");
}

/* Only files with the names of safetensors files are read from a folder. */
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
  assert_says("rank 2");
  assert_int_equal(ad_diff_table("{", AD_PLAIN_TEXT, &json), AD_INVALID);
  assert_null(json);
  assert_int_equal(holds, -1);
}

/* All folders without anything to read are named in one message, with the other errors. */
static void every_folder_without_a_dump_is_named(void **state) {
  enum { FOLDERS = 2 };
  char inner[FOLDERS][64], notes[FOLDERS][80];
  const char *list[FOLDERS + 1] = {[FOLDERS] = "/tmp/addend_diff_is_not_there"};
  int holds = -1;
  char *json = NULL;
  for (int i = 0; i < FOLDERS; i++) {
    list[i] = inner[i];
    snprintf(inner[i], sizeof inner[i], "%s/other%d", folder, i);
    snprintf(notes[i], sizeof notes[i], "%s/notes.txt", inner[i]);
    assert_int_equal(mkdir(inner[i], 0700), 0);
    FILE *file = fopen(notes[i], "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
  }
  assert_int_not_equal(ad_diff(list, FOLDERS + 1, NULL, &holds, &json), AD_OK);
  const char *reported = ad_last_error();
  assert_text_says(reported, "other0");
  assert_text_says(reported, "other1");
  assert_text_says(reported, "addend_diff_is_not_there");
  assert_null(json);
  for (int i = 0; i < FOLDERS; i++) {
    assert_int_equal(unlink(notes[i]), 0);
    assert_int_equal(rmdir(inner[i]), 0);
  }
}

/* Allocation n fails, for every n: an error is reported, and nothing leaks (the sanitizers watch). */
static void fail_every_allocation(void) {
  for (long n = 1;; n++) {
    int holds = -1;
    char *json = NULL;
    ad_memory_fail_at(n);
    ad_status status = ad_diff(files, FILES, NULL, &holds, &json);
    assert_true(reports_allocation(n, status));
    if (status) assert_null(json);
    free(json);
    if (!status) {
      assert_true(n > 50);
      return;
    }
  }
}

static void missing_memory_is_reported(void **state) {
  write_dump(1.0 / 3);
  fail_every_allocation();
}

/* All ranks have the same addends, R is declared, and nobody sums them. */
static void missing_memory_is_reported_of_declarations(void **state) {
  declared = "{\"w\": [{\"types\": \"dp=R\", \"by\": \"spmd_types\"}]}";
  write_dump_of(1.0 / 3, 1);
  declared = NULL;
  fail_every_allocation();
  int holds;
  char *json;
  json_t *document;
  assert_int_equal(ad_diff(files, FILES, NULL, &holds, &json), AD_OK);
  assert_string_equal(text_at(param_of(json, &document), "verdict"), "cannot_tell");
  const json_t *row = json_array_get(json_object_get(document, "declarations"), 0);
  assert_true(json_is_false(json_object_get(row, "holds")));
  json_decref(document);
  free(json);
}

static int make_folder(void **state) { return !mkdtemp(folder); }

static int remove_folder(void **state) {
  for (int i = 0; i < FILES; i++) unlink(paths[i]);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dump_is_judged),
      cmocka_unit_test(an_open_dump_takes_no_pages_of_its_files),
      cmocka_unit_test(microbatches_of_other_weights_are_found_by_a_reference),
      cmocka_unit_test(equal_addends_decide_nothing_unless_they_are_allowed),
      cmocka_unit_test(a_folder_is_its_files),
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(every_folder_without_a_dump_is_named),
      cmocka_unit_test(missing_memory_is_reported),
      cmocka_unit_test(missing_memory_is_reported_of_declarations),
      cmocka_unit_test(a_document_has_several_forms),
      cmocka_unit_test(annotations_are_escaped),
      cmocka_unit_test(kinds_say_whether_counts_give_them),
      cmocka_unit_test(a_page_is_explained),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
