/* Tests the document of a run and its HTML page: a missing or broken file is reported and harms nothing else, and no
 * text can break out of the page's data. */
#include <math.h>
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
#include "addend/report.h"
#include "base/memory.h"
#include "files/file.h"
#include "report/document.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static char base[64], folder[96], file[160];
static const char line[] = "{\"step\":0,\"loss\":1.5,\"lr\":0.5,\"tokens\":8,\"seconds\":0.25}\n";

static const char *in_folder(const char *name) {
  snprintf(file, sizeof file, "%s/%s", folder, name);
  return file;
}

/* The folder's name, "<", would end a script if it were not escaped. */
static int make_folder(void **state) {
  snprintf(base, sizeof base, "/tmp/addend-report-XXXXXX");
  if (!mkdtemp(base)) return 1;
  snprintf(folder, sizeof folder, "%s/<", base);
  if (mkdir(folder, 0777)) return 1;
  snprintf(folder, sizeof folder, "%s/</script>", base);
  return mkdir(folder, 0777);
}

static int remove_folder(void **state) {
  char outer[96];
  snprintf(outer, sizeof outer, "%s/<", base);
  return ad_folder_remove(folder) || rmdir(outer) || rmdir(base);
}

static void put(const char *name, const char *text) {
  FILE *out = fopen(in_folder(name), "w");
  assert_non_null(out);
  fputs(text, out);
  fclose(out);
}

static json_t *document(void) {
  json_t *run;
  if (ad_report_document(folder, &run)) fail_msg("%s", ad_last_error());
  return run;
}

static void says(const json_t *object, const char *key, const char *expected) {
  char *text = json_dumps(json_object_get(object, key), JSON_ENCODE_ANY | JSON_COMPACT);
  assert_string_equal(text ? text : "", expected);
  free(text);
}

static void metrics_alone_are_a_run(void **state) {
  put("metrics.jsonl", line);
  json_t *run = document();
  says(run, "metrics", "[{\"step\":0,\"loss\":1.5,\"lr\":0.5,\"tokens\":8,\"seconds\":0.25}]");
  says(run, "metrics_every", "1");
  says(run, "run", "null");
  says(run, "timeline", "null");
  says(run, "check", "null");
  says(run, "broken", "{}");
  assert_string_equal(json_string_value(json_object_get(run, "folder")), folder);
  json_decref(run);
}

static void a_folder_without_metrics_holds_no_run(void **state) {
  json_t *run;
  put("run.json", "{}");
  assert_int_equal(ad_report_document(folder, &run), AD_INVALID);
  assert_says(folder, "metrics.jsonl");
  assert_int_equal(ad_report_document("/nowhere", &run), AD_INVALID);
  assert_says("/nowhere");
}

static void a_line_that_is_being_written_ends_the_metrics(void **state) {
  static const char *const ends[] = {"{\"step\":1,\"lo", "{\"step\":1,\"lo\n{\"step\":2}\n", "[]\n{\"step\":2}\n",
                                     "\n"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    char text[256];
    snprintf(text, sizeof text, "%s%s", line, ends[i]);
    put("metrics.jsonl", text);
    json_t *run = document();
    assert_int_equal(json_array_size(json_object_get(run, "metrics")), 1);
    json_decref(run);
  }
  put("metrics.jsonl", "");
  json_t *run = document();
  says(run, "metrics", "[]");
  json_decref(run);
}

static void a_long_run_is_thinned_but_for_what_is_measured_rarely(void **state) {
  enum { LINES = 50000 };
  FILE *out = fopen(in_folder("metrics.jsonl"), "w");
  for (int i = 0; i < LINES; i++) fprintf(out, "{\"step\":%d%s}\n", i, i == 1000 ? ",\"validation_loss\":2.5" : "");
  fclose(out);
  json_t *run = document(), *lines = json_object_get(run, "metrics");
  says(run, "metrics_every", "3");
  assert_int_equal(json_array_size(lines), (LINES + 2) / 3 + 2);  // every third line, line 1000 and the last one
  assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, 334), "step")), 1000);
  assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, json_array_size(lines) - 1), "step")),
                   LINES - 1);
  json_decref(run);
}

static void a_file_that_cannot_be_used_is_reported(void **state) {
  static const char *const wrong[] = {"", "{", "[1]", "nonsense", "{\"a\":\"\xff\"}"};
  static const char *const names[] = {"run.json", "trace.json", "check.json"};
  static const char *const keys[] = {"run", "timeline", "check"};
  put("metrics.jsonl", line);
  for (size_t n = 0; n < 3; n++) {
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
      put(names[n], wrong[i]);
      json_t *run = document();
      says(run, keys[n], "null");
      const json_t *broken = json_object_get(run, "broken");
      assert_int_equal(json_object_size(broken), 1);
      assert_facts(json_string_value(json_object_get(broken, names[n])), names[n]);
      json_decref(run);
    }
    unlink(in_folder(names[n]));
  }
}

static void a_document_of_any_depth_is_refused(void **state) {
  enum { DEPTH = 100000 };
  char *text;
  must(ad_new(DEPTH + 8, &text));
  memcpy(text, "{\"a\":", 5);
  memset(text + 5, '[', DEPTH);
  put("metrics.jsonl", line);
  put("check.json", text);
  ad_release(text);
  json_t *run = document();
  assert_non_null(json_object_get(json_object_get(run, "broken"), "check.json"));
  json_decref(run);
}

/* ---- the timeline ---- */

#define STEP(n, begin)                                                                                               \
  "{\"ph\":\"X\",\"name\":\"step\",\"cat\":\"step\",\"pid\":0,\"ts\":" begin ",\"dur\":500000,\"args\":{\"step\":" n \
  ",\"index\":" n ",\"bytes\":0}},"
#define HALF(phase, time)                                                                    \
  "{\"ph\":\"" phase "\",\"name\":\"bucket 3\",\"cat\":\"reduction\",\"pid\":1,\"ts\":" time \
  ",\"args\":{\"step\":1,\"index\":3,\"bytes\":64}}"
#define TRACE(events) "{\"traceEvents\":[{\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"rank 1\"}}," events "{}]}"

static json_t *timeline_of(const char *trace) {
  put("metrics.jsonl", line);
  put("trace.json", trace);
  json_t *run = document(), *timeline = json_incref(json_object_get(run, "timeline"));
  json_decref(run);
  return timeline;
}

static void steps_are(const char *trace, const char *expected) {
  json_t *timeline = timeline_of(trace);
  says(timeline, "steps", expected);
  json_decref(timeline);
}

static void an_early_step_and_the_last_are_shown(void **state) {
  steps_are(TRACE(STEP("0", "0") STEP("1", "1e6") STEP("2", "2e6") STEP("90", "9e7")), "[1,90]");
  steps_are(TRACE(STEP("0", "0") STEP("1", "1e6")), "[1]");
  steps_are(TRACE(STEP("7", "0")), "[7]");
  steps_are(TRACE(), "");
}

static void spans_are_in_seconds_and_of_all_ranks(void **state) {
  json_t *timeline =
      timeline_of(TRACE(STEP("0", "0") STEP("1", "1e6") HALF("b", "1100000") "," HALF("e", "1300000") ","));
  says(timeline, "ranks", "2");
  const json_t *spans = json_object_get(timeline, "spans"), *step = json_array_get(spans, 0),
               *reduction = json_array_get(spans, 1);
  assert_int_equal(json_array_size(spans), 2);
  says(step, "kind", "\"step\"");
  assert_true(json_real_value(json_object_get(step, "end")) == 1.5);
  says(reduction, "kind", "\"reduction\"");
  says(reduction, "rank", "1");
  says(reduction, "index", "3");
  says(reduction, "bytes", "64");
  assert_true(fabs(json_real_value(json_object_get(reduction, "begin")) - 1.1) < 1e-9);
  assert_true(fabs(json_real_value(json_object_get(reduction, "end")) - 1.3) < 1e-9);
  json_decref(timeline);
}

static void half_a_reduction_is_no_span(void **state) {
  json_t *timeline = timeline_of(TRACE(STEP("0", "0") STEP("1", "1e6") HALF("e", "1") "," HALF("b", "2") ","));
  assert_int_equal(json_array_size(json_object_get(timeline, "spans")), 1);
  json_decref(timeline);
}

#define SPAN(rank, kind, microseconds) \
  "{\"ph\":\"X\",\"cat\":\"" kind "\",\"pid\":" rank ",\"ts\":0,\"dur\":" microseconds ",\"args\":{\"step\":3}},"

/* The share of idle time counts all steps, also those that are not drawn. */
static void a_rank_is_idle_while_it_waits_for_other_ranks(void **state) {
  json_t *timeline = timeline_of(
      TRACE(STEP("0", "0") STEP("1", "1e6") STEP("2", "2e6") STEP("3", "3e6") SPAN("0", "wait for value", "300000")
                SPAN("0", "wait for gradient", "200000") SPAN("0", "wait for room", "90000") SPAN("0", "forward", "7e5")
                    SPAN("0", "loss and norm", "10000") SPAN("0", "wait for bucket", "50000") SPAN("2", "step", "8e5")
                        SPAN("2", "wait for value", "2e5") SPAN("-3", "step", "1")));
  const json_t *idle = json_object_get(timeline, "idle");
  assert_int_equal(json_array_size(idle), 3);
  assert_true(fabs(json_real_value(json_array_get(idle, 0)) - 0.3) < 1e-12);
  assert_true(json_is_null(json_array_get(idle, 1)));
  assert_true(fabs(json_real_value(json_array_get(idle, 2)) - 0.25) < 1e-12);
  json_decref(timeline);
}

/* ---- the HTML page ---- */

static char *page_of(const char *const *folders, size_t count) {
  char *text;
  int64_t size;
  must(ad_report_write(folders, count, in_folder("page.html")));
  must(ad_file_read(in_folder("page.html"), 1 << 24, &text, &size));
  return text;
}

/* Parses the page's element that holds the data. */
static json_t *data_of(const char *page) {
  static const char begin[] = "<script type=\"application/json\" id=\"runs\">";
  const char *data = strstr(page, begin);
  assert_non_null(data);
  data += strlen(begin);
  const char *end = strstr(data, "</script>");
  assert_non_null(end);
  assert_null(memchr(data, '<', (size_t)(end - data)));
  json_t *runs = json_loadb(data, (size_t)(end - data), 0, NULL);
  assert_non_null(runs);
  return runs;
}

static size_t scripts_in(const char *page) {
  size_t count = 0;
  for (const char *at = page; (at = strstr(at, "</script")); at++) count++;
  return count;
}

static void no_text_gets_out_of_the_data(void **state) {
  const char *folders[] = {folder, folder};
  put("metrics.jsonl", line);
  char *plain = page_of(folders, 1);
  put("run.json", "{\"name\":\"</script><script>alert(1)</script>\",\"recipe\":\"<!--<script\"}");
  char *page = page_of(folders, 2);
  json_t *runs = data_of(page);
  assert_int_equal(json_array_size(runs), 2);
  assert_string_equal(json_string_value(json_object_get(json_object_get(json_array_get(runs, 1), "run"), "name")),
                      "</script><script>alert(1)</script>");
  assert_string_equal(json_string_value(json_object_get(json_array_get(runs, 0), "folder")), folder);
  assert_int_equal(scripts_in(page), scripts_in(plain));
  json_decref(runs);
  ad_release(plain);
  ad_release(page);
}

static void the_page_carries_everything_along(void **state) {
  const char *folders[] = {folder};
  put("metrics.jsonl", line);
  char *page = page_of(folders, 1);
  static const char *const places[] = {"{{data}}",    "{{common.css}}",  "{{page.css}}",      "{{elements.js}}",
                                       "{{page.js}}", "{{dygraph.css}}", "{{dygraph.min.js}}"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) assert_null(strstr(page, places[i]));
  assert_text_says(page, "https://github.com/danvk/dygraphs");
  assert_non_null(strstr(page, "</html>"));
  assert_null(strstr(page, "src=\"http"));
  assert_null(strstr(page, "href=\"http"));
  ad_release(page);
}

static void a_number_is_what_the_file_says(void **state) {
  const char *folders[] = {folder};
  put("metrics.jsonl", "{\"step\":0,\"loss\":0.1,\"lr\":2.0000000000000001e-05}\n");
  char *page = page_of(folders, 1);
  assert_non_null(strstr(page, "\"loss\":0.1,"));
  ad_release(page);
}

static void a_page_that_cannot_be_written_is_named(void **state) {
  const char *folders[] = {folder};
  put("metrics.jsonl", line);
  assert_int_equal(ad_report_write(folders, 1, "/nowhere/page.html"), AD_IO);
  assert_says("/nowhere/page.html");
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(metrics_alone_are_a_run),
      IN_FOLDER(a_folder_without_metrics_holds_no_run),
      IN_FOLDER(a_line_that_is_being_written_ends_the_metrics),
      IN_FOLDER(a_long_run_is_thinned_but_for_what_is_measured_rarely),
      IN_FOLDER(a_file_that_cannot_be_used_is_reported),
      IN_FOLDER(a_document_of_any_depth_is_refused),
      IN_FOLDER(an_early_step_and_the_last_are_shown),
      IN_FOLDER(spans_are_in_seconds_and_of_all_ranks),
      IN_FOLDER(half_a_reduction_is_no_span),
      IN_FOLDER(a_rank_is_idle_while_it_waits_for_other_ranks),
      IN_FOLDER(no_text_gets_out_of_the_data),
      IN_FOLDER(the_page_carries_everything_along),
      IN_FOLDER(a_number_is_what_the_file_says),
      IN_FOLDER(a_page_that_cannot_be_written_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
