/* Tests how changes of the validation loss are judged: sample by sample, on either side of the bound, and the same
 * after a resumed training has read validation.jsonl. */
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
#include "allocations.h"
#include "base/memory.h"
#include "step/validation.h"

#define must(call)                                        \
  do {                                                    \
    if ((call) != AD_OK) fail_msg("%s", ad_last_error()); \
  } while (0)

enum { SAMPLES = 40, POSITIONS = 16 };

/* The losses of samples at one evaluation. */
typedef struct losses {
  double sums[SAMPLES], counts[SAMPLES];
} losses;

static ad_sample_losses noted(losses *of, size_t size) {
  return (ad_sample_losses){.sums = of->sums, .counts = of->counts, .size = size};
}

/* Samples that are unlike each other: their losses are 1 to 5 nats per position. Each is lower or higher by `change`
 * than it would be, give or take `noise` in turn. */
static losses losses_of(double change, double noise) {
  losses out;
  for (int i = 0; i < SAMPLES; i++) {
    out.counts[i] = POSITIONS;
    out.sums[i] = POSITIONS * (1 + 4. * ((i * 17) % SAMPLES) / SAMPLES + change + (i % 2 ? noise : -noise));
  }
  return out;
}

static ad_validation_change compare(losses before, losses now, size_t size) {
  ad_validation_point point = {.step = 7, .noted = noted(&before, size)};
  ad_sample_losses after = noted(&now, size);
  return ad_validation_compare(&point, &after);
}

/* The losses themselves have a standard error of 0.18; differences have one of 0.009. */
static void a_change_is_judged_by_the_differences_of_samples(void **state) {
  static const double noise = 0.056;
  for (int sign = -1; sign <= 1; sign += 2) {
    ad_validation_change found = compare(losses_of(0, 0), losses_of(sign * 0.034, noise), SAMPLES);
    assert_int_equal(found.since, 7);
    assert_true(fabs(found.change - sign * 0.034) < 1e-12);
    assert_true(fabs(found.standard_error - noise * sqrt(1. / (SAMPLES - 1))) < 1e-12);
    assert_int_equal(found.verdict, sign);
  }
  assert_int_equal(compare(losses_of(0, 0), losses_of(0, 0), SAMPLES).verdict, 0);
}

/* Student's t of 0.975: 2.776 for 5 samples, 2.228 for 11, 2.023 for 40. */
static void the_bound_is_students(void **state) {
  static const struct {
    size_t samples;
    double t;
  } bounds[] = {{5, 2.776}, {11, 2.228}, {SAMPLES, 2.023}};
  for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
    double noise = 0.1, error = compare(losses_of(0, 0), losses_of(0, noise), bounds[b].samples).standard_error;
    double centre = compare(losses_of(0, 0), losses_of(0, noise), bounds[b].samples).change;
    for (int sign = -1; sign <= 1; sign += 2) {
      double beyond = sign * 1.03 * bounds[b].t * error - centre, within = sign * 0.97 * bounds[b].t * error - centre;
      assert_int_equal(compare(losses_of(0, 0), losses_of(beyond, noise), bounds[b].samples).verdict, sign);
      assert_int_equal(compare(losses_of(0, 0), losses_of(within, noise), bounds[b].samples).verdict, 0);
    }
  }
  assert_int_equal(compare(losses_of(0, 0), losses_of(1, 0.001), 4).verdict, 0);  // too few to judge
  assert_true(isnan(compare(losses_of(0, 0), losses_of(1, 0), 1).change));
}

/* On another mesh a sample counts as often as it has replicas; a sample that does not count changes nothing; and other
 * samples cannot be compared. */
static void replicas_and_uncounted_samples_change_nothing(void **state) {
  losses before = losses_of(0, 0.3), now = losses_of(-0.1, 0.2), doubled = now;
  ad_validation_change plain = compare(before, now, SAMPLES);
  for (int i = 0; i < SAMPLES; i++) doubled.sums[i] *= 2, doubled.counts[i] *= 2;
  ad_validation_change other = compare(before, doubled, SAMPLES);
  assert_true(fabs(other.change - plain.change) < 1e-12 && fabs(other.standard_error - plain.standard_error) < 1e-12);
  before.sums[SAMPLES - 1] = now.sums[SAMPLES - 1] = before.counts[SAMPLES - 1] = now.counts[SAMPLES - 1] = 0;
  ad_validation_change shorter = compare(before, now, SAMPLES - 1);
  assert_true(compare(before, now, SAMPLES).change == shorter.change);
  assert_true(compare(before, now, SAMPLES).standard_error == shorter.standard_error);
  for (int now_counts = 0; now_counts < 2; now_counts++) {  // a sample that counts in one of the two alone
    losses more = now_counts ? now : before;
    more.sums[SAMPLES - 1] = 7, more.counts[SAMPLES - 1] = POSITIONS;
    ad_validation_change one = now_counts ? compare(before, more, SAMPLES) : compare(more, now, SAMPLES);
    assert_true(one.change == shorter.change && one.standard_error == shorter.standard_error);
  }
  ad_validation_point none = {0};
  ad_sample_losses after = noted(&now, SAMPLES);
  assert_true(isnan(ad_validation_compare(&none, &after).change));
}

/* ---- a run's evaluations, and those of a resumed one ---- */

static ad_validation_changes add(ad_validation *to, int64_t step, double change) {
  losses now = losses_of(change, step % 2 ? 0.05 : -0.05);
  ad_sample_losses given = noted(&now, SAMPLES);
  ad_validation_changes found;
  must(ad_validation_add(to, step, &given, &found));
  return found;
}

static void same_change(ad_validation_change a, ad_validation_change b) {
  assert_true(a.since == b.since && a.change == b.change && a.standard_error == b.standard_error);
  assert_int_equal(a.verdict, b.verdict);
}

static void a_resumed_run_compares_with_what_was_before(void **state) {
  char folder[] = "/tmp/addend-validation-XXXXXX", path[96];
  ad_validation run, resumed;
  assert_non_null(mkdtemp(folder));
  must(ad_validation_open(folder, 0, &run));
  assert_true(isnan(add(&run, AD_BEFORE_FIRST_STEP, 0).since_first.change));
  ad_validation_changes second = add(&run, 4, -0.5);
  assert_true(second.since_first.since == AD_BEFORE_FIRST_STEP && second.since_best.since == AD_BEFORE_FIRST_STEP);
  assert_int_equal(second.since_first.verdict, -1);
  ad_validation_changes third = add(&run, 9, -0.3);
  assert_int_equal(third.since_best.since, 4);
  assert_true(third.since_best.verdict == 1 && third.since_first.verdict == -1);
  add(&run, 14, -2);  // the steps after the checkpoint are taken again
  must(ad_validation_close(&run));
  ad_validation_destroy(&run);
  must(ad_validation_open(folder, 10, &resumed));
  ad_validation_changes again = add(&resumed, 14, -0.6);
  assert_true(again.since_first.since == AD_BEFORE_FIRST_STEP && again.since_best.since == 4);
  must(ad_validation_close(&resumed));
  ad_validation_destroy(&resumed);
  must(ad_validation_open(folder, 0, &run));  // the same without a stop
  add(&run, AD_BEFORE_FIRST_STEP, 0), add(&run, 4, -0.5), add(&run, 9, -0.3);
  ad_validation_changes unstopped = add(&run, 14, -0.6);
  same_change(again.since_first, unstopped.since_first);
  same_change(again.since_best, unstopped.since_best);
  ad_validation_destroy(&run);
  snprintf(path, sizeof path, "%s/validation.jsonl", folder);
  assert_int_equal(remove(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* The best evaluation is the one with the lowest mean: a run that resumes with twice the replicas, or half of them,
 * counts each sample as often, which changes sums and counts but no mean. */
static void the_best_evaluation_has_the_lowest_mean(void **state) {
  static const double times[] = {2, 0.5};
  for (int i = 0; i < 2; i++) {
    char folder[] = "/tmp/addend-validation-XXXXXX", path[96];
    ad_validation run;
    ad_validation_changes found;
    assert_non_null(mkdtemp(folder));
    must(ad_validation_open(folder, 0, &run));
    add(&run, 0, -0.5);
    losses now = losses_of(times[i] > 1 ? -0.6 : -0.4, 0.05); /* lower with more replicas, higher with fewer */
    for (int k = 0; k < SAMPLES; k++) now.sums[k] *= times[i], now.counts[k] *= times[i];
    ad_sample_losses given = noted(&now, SAMPLES);
    must(ad_validation_add(&run, 1, &given, &found));
    int64_t best = times[i] > 1;
    double mean = 1 + 4. * (SAMPLES - 1) / 2 / SAMPLES + (best ? -0.6 : -0.5);
    assert_int_equal(run.best.step, best);
    assert_true(fabs(run.best.loss - mean) < 1e-12);
    must(ad_validation_close(&run));
    ad_validation_destroy(&run);
    must(ad_validation_open(folder, 2, &run)); /* the same when a resumed run has read both */
    assert_int_equal(run.best.step, best);
    assert_true(fabs(run.best.loss - mean) < 1e-12);
    ad_validation_destroy(&run);
    snprintf(path, sizeof path, "%s/validation.jsonl", folder);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder), 0);
  }
}

/* Lines that no evaluation wrote are passed over. An evaluation of other samples begins anew. */
static void a_line_that_is_no_evaluation_is_passed_over(void **state) {
  static const struct {
    const char *line;
    int64_t first, best; /* the steps of the first evaluation and of the best, after this line and those before */
  } lines[] = {
      {"{\"step\":0,\"sums\":[],\"counts\":[]}", 0, 0},
      {"{\"step\":1,\"sums\":[4,6],\"counts\":[2,2]}", 1, 1},
      {"{\"step\":2,\"sums\":[1,\"1\"],\"counts\":[2,2]}", 1, 1},
      {"{\"step\":3,\"sums\":[1,1],\"counts\":[2,null]}", 1, 1},
      {"{\"step\":4,\"sums\":[1,1],\"counts\":[2]}", 1, 1},
      {"{\"step\":5,\"sums\":[1,1]}", 1, 1},
      {"{\"step\":6,\"sums\":[4,6],\"counts\":[2,2]}", 1, 1},
      {"{\"step\":7,\"sums\":[4,5],\"counts\":[2,2]}", 1, 7},
      {"{\"step\":8,\"sums\":[3,9],\"counts\":[2,4]}", 1, 8},
      {"{\"step\":9,\"sums\":[5,5,5],\"counts\":[2,2,2]}", 9, 9},
      {"{\"step\":10,\"sums\":[6,5,5],\"counts\":[2,2,2]}", 9, 9},
  };
  char folder[] = "/tmp/addend-validation-XXXXXX", path[96];
  ad_validation run;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/validation.jsonl", folder);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    FILE *file = fopen(path, i ? "a" : "w");
    assert_non_null(file);
    fprintf(file, "%s\n", lines[i].line);
    fclose(file);
    must(ad_validation_open(folder, 100, &run));
    if (run.first.step != lines[i].first || run.best.step != lines[i].best)
      fail_msg("%s: first %d, best %d", lines[i].line, (int)run.first.step, (int)run.best.step);
    must(ad_validation_close(&run));
    ad_validation_destroy(&run);
  }
  assert_int_equal(remove(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  char folder[] = "/tmp/addend-validation-XXXXXX", path[96];
  assert_non_null(mkdtemp(folder));
  ad_validation run;
  must(ad_validation_open(folder, 0, &run));
  add(&run, 1, 0), add(&run, 2, -1);
  ad_validation_destroy(&run);
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_memory_fail_at(n);
    status = ad_validation_open(folder, 5, &run);
    assert_true(reports_allocation(n, status));
    assert_true(n < 100);
  }
  assert_true(run.first.step == 1 && run.best.step == 2);
  ad_validation_destroy(&run);
  snprintf(path, sizeof path, "%s/validation.jsonl", folder);
  assert_int_equal(remove(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_change_is_judged_by_the_differences_of_samples),
      cmocka_unit_test(the_bound_is_students),
      cmocka_unit_test(replicas_and_uncounted_samples_change_nothing),
      cmocka_unit_test(a_resumed_run_compares_with_what_was_before),
      cmocka_unit_test(the_best_evaluation_has_the_lowest_mean),
      cmocka_unit_test(a_line_that_is_no_evaluation_is_passed_over),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
