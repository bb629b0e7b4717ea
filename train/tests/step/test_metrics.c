/* Tests what a line of metrics.jsonl says of a step: each number under its key, and nothing that was not measured; and
 * the smoothed numbers from which progress is reported. */
#include <math.h>
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
#include "base/error.h"
#include "program/program.h"
#include "step/metrics.h"

#define must(call)                                        \
  do {                                                    \
    if ((call) != AD_OK) fail_msg("%s", ad_last_error()); \
  } while (0)

/* ---- programs on paper ---- */

/* A program that measures two series: one number, and three. */
static const double *measured(const void *own, size_t index, const char **name, size_t *count) {
  static const double one[] = {0.5}, three[] = {1.5, 2.5, 3.5};
  if (index > 1) return NULL;
  *name = index ? "three" : "one";
  *count = index ? 3 : 1;
  return index ? three : one;
}

static const ad_program_kind silent_kind = {.size = sizeof silent_kind, .name = "silent"};
static const ad_program_kind measuring_kind = {
    .size = sizeof measuring_kind, .name = "measuring", .account = {.measured = measured}};
static ad_loss_spec losses[] = {{.name = "cross_entropy"}, {.name = "balance"}, {.name = "strength"}};
static const ad_program silent = {.kind = &silent_kind, .losses = losses, .loss_count = 1};
static const ad_program two_losses = {.kind = &silent_kind, .losses = losses, .loss_count = 2};
static const ad_program measuring = {.kind = &measuring_kind, .losses = losses, .loss_count = 3};

/* ---- lines of single steps ---- */

#define CHANGE_NONE \
  { .change = NAN, .standard_error = NAN }
#define CHANGES_NONE \
  { .since_first = CHANGE_NONE, .since_best = CHANGE_NONE }

static const ad_step_report step_7 = {.step = 7,
                                      .loss = 2.123456789,
                                      .losses = {2.0625, 0.03125, 9.5},
                                      .count = 48,
                                      .norm = 1.234567891,
                                      .lr = 0.00125,
                                      .seconds = 0.5,
                                      .wait_seconds = 0.062501,
                                      .reduction_seconds = 0.250007};

#define STEP_7 "\"step\":7,\"loss\":2.12345679,\"lr\":0.00125,\"tokens\":48,\"seconds\":0.5,"
#define TIMES_7 "\"tokens_per_second\":96.0,\"wait_seconds\":0.062501,\"reduction_seconds\":0.250007"

static char folder[64], path[96];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-metrics-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
  return 0;
}

static int remove_folder(void **state) {
  unlink(path);
  return rmdir(folder);
}

/* The line that is written of a metric must be this document. */
static void is_written_as(const ad_metric *metric, const char *expected) {
  ad_metrics metrics;
  must(ad_metrics_open(folder, 0, &metrics));
  must(ad_metrics_add(&metrics, metric));
  must(ad_metrics_close(&metrics));
  ad_metrics_destroy(&metrics);
  json_t *found = json_load_file(path, 0, NULL), *wanted = json_loads(expected, 0, NULL);
  assert_non_null(wanted);
  if (!json_equal(found, wanted)) {
    char *text = json_dumps(found, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    fail_msg("%s, not %s", text ? text : "no line", expected);
  }
  json_decref(found);
  json_decref(wanted);
}

static void a_line_has_every_number_of_its_step(void **state) {
  ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7 "}");
  metric.report.seconds = 0;  // a clock that did not move
  is_written_as(&metric,
                "{\"step\":7,\"loss\":2.12345679,\"lr\":0.00125,\"tokens\":48,\"seconds\":0.0,\"norm\":1.23456789,"
                "\"tokens_per_second\":0.0,\"wait_seconds\":0.062501,\"reduction_seconds\":0.250007}");
}

static void a_skipped_step_has_no_norm_and_says_so(void **state) {
  ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
  metric.report.loss_scale = 16;
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789,\"loss_scale\":16," TIMES_7 "}");
  metric.report.norm = INFINITY;
  metric.report.skipped = 1;
  is_written_as(&metric, "{" STEP_7 "\"norm\":null,\"skipped\":true,\"loss_scale\":16," TIMES_7 "}");
  metric.report.loss_scale = -3;
  is_written_as(&metric, "{" STEP_7 "\"norm\":null,\"skipped\":true,\"loss_scale\":-3," TIMES_7 "}");
}

/* One rate for each entry of `groups`, in their order, by the schedule of the recipe. */
static void groups_have_their_own_rates(void **state) {
  static ad_recipe_group groups[] = {
      {.gives = AD_GIVES_LR, .lr = 0.5}, {.frozen = 1, .gives = AD_GIVES_FROZEN}, {.gives = AD_GIVES_DECAY}};
  ad_recipe recipe = {.train = {.lr = 0.25, .steps = 8, .final_lr_fraction = 1}, .groups = groups, .group_count = 3};
  ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .recipe = &recipe, .program = &silent};
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7 ",\"group_lr\":[0.5,null,0.25]}");
  recipe.group_count = 0;
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7 "}");
}

static void several_losses_and_what_the_program_measures_are_by_name(void **state) {
  ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &two_losses};
  is_written_as(
      &metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7 ",\"losses\":{\"cross_entropy\":2.0625,\"balance\":0.03125}}");
  metric.program = &measuring;
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7
                         ",\"losses\":{\"cross_entropy\":2.0625,\"balance\":0.03125,\"strength\":9.5},"
                         "\"measured\":{\"one\":0.5,\"three\":[1.5,2.5,3.5]}}");
}

/* What an evaluation gives, and what of it is left out: everything if no sample counts or the loss is no number, the
 * standard error alone where samples cannot be separated. */
static void an_evaluation_is_written_as_far_as_it_is_known(void **state) {
  static const struct {
    ad_evaluation evaluation;
    const char *validation, *before;
  } cases[] = {
      {{1.75, 0.0625, 7},
       ",\"validation_loss\":1.75,\"validation_samples\":7,\"validation_standard_error\":0.0625",
       ",\"validation_before\":{\"loss\":1.75,\"samples\":7,\"standard_error\":0.0625}"},
      {{1.75, NAN, 1},
       ",\"validation_loss\":1.75,\"validation_samples\":1",
       ",\"validation_before\":{\"loss\":1.75,\"samples\":1}"},
      {{NAN, NAN, 7}, "", ""},
      {{1.75, 0.0625, 0}, "", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int before = 0; before < 2; before++) {
      ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
      *(before ? &metric.before : &metric.validation) = cases[i].evaluation;
      char expected[512];
      snprintf(expected, sizeof expected, "{%s%s%s%s}", STEP_7, "\"norm\":1.23456789,", TIMES_7,
               before ? cases[i].before : cases[i].validation);
      is_written_as(&metric, expected);
    }
  }
}

static void a_change_is_written_with_its_verdict(void **state) {
  static const char *const verdicts[] = {"lower", "noise", "higher"};
  for (int verdict = -1; verdict <= 1; verdict++) {
    for (int best = 0; best < 2; best++) {
      ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
      *(best ? &metric.changes.since_best : &metric.changes.since_first) =
          (ad_validation_change){.since = 4, .change = -0.125, .standard_error = 0.015625, .verdict = verdict};
      char expected[512];
      snprintf(expected, sizeof expected,
               "{%s%s%s,\"validation_since_%s\":{\"step\":4,\"change\":-0.125,\"standard_error\":0.015625,"
               "\"verdict\":\"%s\"}}",
               STEP_7, "\"norm\":1.23456789,", TIMES_7, best ? "best" : "first", verdicts[verdict + 1]);
      is_written_as(&metric, expected);
    }
  }
}

static void memory_is_written_where_it_was_measured(void **state) {
  ad_metric metric = {
      .report = step_7, .changes = CHANGES_NONE, .program = &silent, .memory = {.rank_bytes = 1234, .all_bytes = 5678}};
  is_written_as(&metric, "{" STEP_7 "\"norm\":1.23456789," TIMES_7 ",\"pss_rank_bytes\":1234,\"pss_all_bytes\":5678}");
}

/* ---- several steps ---- */

/* The first step touches new memory, so it is forgotten with the second; from then on each step weighs a tenth. */
static void smoothed_numbers_leave_the_first_step_out(void **state) {
  static const double seconds[] = {8, 2, 4, 1}, tokens[] = {10, 100, 200, 50};
  static const double smooth_seconds[] = {8, 2, 2.2, 2.08}, smooth_tokens[] = {10, 100, 110, 104};
  ad_metrics metrics;
  must(ad_metrics_open(folder, 0, &metrics));
  assert_true(metrics.step_seconds == 0 && metrics.step_tokens == 0);
  for (int i = 0; i < 4; i++) {
    ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
    metric.report.seconds = seconds[i];
    metric.report.count = (int64_t)tokens[i];
    must(ad_metrics_add(&metrics, &metric));
    assert_true(fabs(metrics.step_seconds - smooth_seconds[i]) < 1e-12);
    assert_true(fabs(metrics.step_tokens - smooth_tokens[i]) < 1e-10);
  }
  ad_metrics_destroy(&metrics);
}

static void add_steps(int64_t first, int64_t end) {
  ad_metrics metrics;
  must(ad_metrics_open(folder, first, &metrics));
  for (int64_t step = first; step < end; step++) {
    ad_metric metric = {.report = step_7, .changes = CHANGES_NONE, .program = &silent};
    metric.report.step = step;
    metric.report.count = 100 * first + step;
    must(ad_metrics_add(&metrics, &metric));
  }
  must(ad_metrics_close(&metrics));
  ad_metrics_destroy(&metrics);
}

/* Appends text without an end of line, as a writer leaves it that was killed. */
static void append(const char *text) {
  FILE *file = fopen(path, "a");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

/* The lines of the file must be those of steps 0 to `count`, whose tokens say which training wrote them: one that
 * began at `first`, or one from step 0. */
static void has_lines(int64_t count, int64_t first) {
  FILE *file = fopen(path, "r");
  char line[1024];
  int64_t lines = 0;
  assert_non_null(file);
  for (; fgets(line, sizeof line, file); lines++) {
    json_t *object = json_loads(line, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), lines);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), (lines < first ? 0 : 100 * first) + lines);
    json_decref(object);
  }
  fclose(file);
  assert_int_equal(lines, count);
}

/* A training that resumes from step N keeps the lines of the N steps before, and no other: not those of steps that are
 * taken again, and none that was cut short. */
static void a_resumed_training_keeps_the_lines_of_earlier_steps(void **state) {
  int64_t count = -1;
  must(ad_metrics_count(folder, &count));
  assert_int_equal(count, 0);
  add_steps(0, 5);
  must(ad_metrics_count(folder, &count));
  assert_int_equal(count, 5);
  append("{\"step\":5,\"loss\":2.");
  must(ad_metrics_count(folder, &count));
  assert_int_equal(count, 5);
  add_steps(5, 6);
  has_lines(6, 5);
  add_steps(0, 5);
  add_steps(3, 7);
  has_lines(7, 3);
  add_steps(0, 2);
  has_lines(2, 0);
  append("{\"steps\":2}\n{\"step\":2}\n");  // a line that is of no step ends them
  must(ad_metrics_count(folder, &count));
  assert_int_equal(count, 2);
}

static void trying_leaves_nothing_behind_and_changes_no_file(void **state) {
  add_steps(0, 2);
  must(ad_metrics_try(folder));
  has_lines(2, 0);
  assert_int_equal(unlink(path), 0);
  must(ad_metrics_try(folder));
  assert_int_equal(rmdir(folder), 0);  // it is empty
  assert_int_equal(ad_metrics_try(folder), AD_IO);
  assert_non_null(mkdtemp(strcpy(folder, "/tmp/addend-metrics-XXXXXX")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_line_has_every_number_of_its_step, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_skipped_step_has_no_norm_and_says_so, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(groups_have_their_own_rates, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(several_losses_and_what_the_program_measures_are_by_name, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(an_evaluation_is_written_as_far_as_it_is_known, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_change_is_written_with_its_verdict, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(memory_is_written_where_it_was_measured, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(smoothed_numbers_leave_the_first_step_out, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_resumed_training_keeps_the_lines_of_earlier_steps, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(trying_leaves_nothing_behind_and_changes_no_file, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
