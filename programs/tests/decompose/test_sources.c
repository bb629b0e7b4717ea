/* Tests the ascent of adversarial sources by its definition: the same bits in one piece and in any pieces, with both
 * rules and both ways to stay between 0 and 1. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "array/array.h"
#include "addend/helpers.h"
#include "decompose/sources.h"
#include "decompose/model.h"

enum { ROWS = 7, WIDTH = 5, NUMEL = ROWS * WIDTH, STEPS = 4 };

static const ad_decompose_options rules[] = {
    {.ascent_rule = "adam",
     .ascent_scope = "sample",
     .ascent_bounds = "clamp",
     .ascent_lr = 0.2,
     .ascent_epsilon = 1e-8},
    {.ascent_rule = "sign", .ascent_scope = "sample", .ascent_bounds = "clamp", .ascent_lr = 0.2},
    {.ascent_rule = "adam",
     .ascent_scope = "batch",
     .ascent_bounds = "sigmoid",
     .ascent_lr = 2,
     .ascent_epsilon = 1e-8},
    {.ascent_rule = "sign", .ascent_scope = "batch", .ascent_bounds = "sigmoid", .ascent_lr = 2}};
enum { RULES = sizeof rules / sizeof *rules };

static int is_adam(const ad_decompose_options *options) { return !strcmp(options->ascent_rule, "adam"); }
static int is_clamped(const ad_decompose_options *options) { return !strcmp(options->ascent_bounds, "clamp"); }

typedef struct sources {
  double value[NUMEL], first[NUMEL], second[NUMEL];
} sources;

static void begin(sources *s) {
  memset(s, 0, sizeof *s);
  for (size_t k = 0; k < NUMEL; k++) s->value[k] = 0.5;
}

/* Every fifth element's gradient is zero. */
static double gradient_of(int step, size_t k) { return k % 5 != 2 ? ad_random_normal(3, (uint64_t)step, k) : 0; }

static void climb(const ad_decompose_options *options, sources *s, size_t first, size_t count, int step) {
  double gradient[NUMEL];
  for (size_t k = 0; k < count; k++) gradient[k] = gradient_of(step, first + k);
  ad_array array = {.dtype = AD_F64, .shape = {1, {(int64_t)count}}, .local = {1, {(int64_t)count}}, .data = gradient};
  ad_heights at = {.value = s->value + first};
  if (is_adam(options)) at.first = s->first + first, at.second = s->second + first;
  ad_ascend(options, &at, &array, 0.75, step + 1);
}

static void a_step_up_has_the_same_bits_however_rows_are_cut(void **state) {
  for (size_t r = 0; r < RULES; r++) {
    sources full;
    begin(&full);
    for (int step = 0; step < STEPS; step++) climb(&rules[r], &full, 0, NUMEL, step);
    for (int64_t parts = 1; parts <= ROWS + 2; parts++) {
      sources cut;
      begin(&cut);
      for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < parts; i++) {
          ad_span rows = ad_cut(ROWS, i, parts);
          climb(&rules[r], &cut, (size_t)rows.first * WIDTH, (size_t)rows.count * WIDTH, step);
        }
      }
      assert_memory_equal(&cut, &full, sizeof cut);
    }
  }
}

/* ---- the ascent by its definition ---- */

typedef struct walker {
  double x, m, v;
} walker;

static void walk(const ad_decompose_options *options, walker *w, double g, int step) {
  double d = g > 0 ? 1 : g < 0 ? -1 : 0;
  if (is_adam(options)) {
    w->m = 0.9 * w->m + 0.1 * g;
    w->v = 0.999 * w->v + 0.001 * g * g;
    d = w->m / (1 - pow(0.9, step + 1)) / (sqrt(w->v / (1 - pow(0.999, step + 1))) + options->ascent_epsilon);
  }
  w->x += options->ascent_lr * d;
  if (is_clamped(options)) w->x = fmin(1, fmax(0, w->x));
}

static void a_step_up_is_its_rule_and_its_bounds(void **state) {
  for (size_t r = 0; r < RULES; r++) {
    sources s;
    double largest = 0;
    begin(&s);
    for (int step = 0; step < STEPS; step++) climb(&rules[r], &s, 0, NUMEL, step);
    for (size_t k = 0; k < NUMEL; k++) {
      walker w = {0.5, 0, 0};
      for (int step = 0; step < STEPS; step++) walk(&rules[r], &w, 0.75 * gradient_of(step, k), step);
      assert_true(fabs(s.value[k] - w.x) < 1e-13);
      if (k % 5 == 2) assert_true(s.value[k] == 0.5);
      largest = fmax(largest, s.value[k]);
    }
    assert_true(is_clamped(&rules[r]) ? largest == 1 : largest > 1);
  }
}

/* ---- the error that a step may have ---- */

enum { OFF_STEPS = 3 };
static const double off = 1e-12; /* the error of gradients, whose size is 1 */

/* Climbs with gradients that differ from the definition's by up to `off`, which is all of a zero gradient. Gradients
 * are divided by 4, and the call multiplies them by its factor 4. */
static void climb_off(const ad_decompose_options *options, sources *s, uint64_t noise, int step, double *slack) {
  double gradient[NUMEL];
  for (size_t k = 0; k < NUMEL; k++)
    gradient[k] = (gradient_of(step, k) + off * (2 * ad_random_uniform(noise, (uint64_t)step, k) - 1)) / 4;
  ad_array array = {.dtype = AD_F64, .shape = {1, {NUMEL}}, .local = {1, {NUMEL}}, .data = gradient};
  ad_heights at = {.value = s->value};
  if (is_adam(options)) at.first = s->first, at.second = s->second;
  ad_ascend(options, &at, &array, 4, step + 1);
  if (slack) ad_ascent_slack(options, &at, &array, 4, step + 1, 2 * off / 4, slack);
}

/* The allowed error is not too wide: elements with nonzero gradients may differ only by what their gradients' error
 * causes. */
static void what_sources_may_be_off_by_is_what_their_gradients_may(void **state) {
  for (size_t r = 0; r < RULES; r++) {
    for (uint64_t noise = 1; noise <= 20; noise++) {
      sources one, other;
      double slack[NUMEL] = {0}, apart = 0;
      begin(&one);
      begin(&other);
      for (int step = 0; step < OFF_STEPS; step++) climb_off(&rules[r], &one, 0, step, slack);
      for (int step = 0; step < OFF_STEPS; step++) climb_off(&rules[r], &other, noise, step, NULL);
      for (size_t k = 0; k < NUMEL; k++) {
        double least = fabs(gradient_of(0, k));
        for (int step = 1; step < OFF_STEPS; step++) least = fmin(least, fabs(gradient_of(step, k)));
        assert_true(fabs(one.value[k] - other.value[k]) <= slack[k] + 1e-15 * rules[r].ascent_lr);
        if (k % 5 == 2)
          apart = fmax(apart, fabs(one.value[k] - other.value[k]));
        else
          assert_true(slack[k] <= (is_adam(&rules[r]) ? 6 * OFF_STEPS * rules[r].ascent_lr * 2 * off / least : 0));
      }
      assert_true(apart > 1e-6 * rules[r].ascent_lr); /* a fixed bound on values would refuse this difference */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_up_has_the_same_bits_however_rows_are_cut),
      cmocka_unit_test(a_step_up_is_its_rule_and_its_bounds),
      cmocka_unit_test(what_sources_may_be_off_by_is_what_their_gradients_may),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
