/* Tests which parameter and which causes a killed mutant is reported with, on failed checks made up by the test. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "check/computing.h"
#include "check/mutants.h"
#include "says.h"

enum { PARAMS = 3, NORM = PARAMS, NOTHING = -1 };

/* One parameter's numbers: its error as a part of its bound, whether its copies and its update are equal, and whether
 * its ratio is not a number. */
typedef struct shown {
  double share;
  int replicas, update, no_ratio;
} shown;
#define RIGHT \
  { 0.5, 1, 1, 0 }
#define OFF(share) \
  { share, 1, 1, 0 }
#define BEHIND(share) \
  { share, 1, 0, 0 } /* the update alone is not one process's */

/* A check whose norm is within its bound, unless a cause of the norm is given: then it is beyond. */
static ad_check_result *result_of(const shown params[PARAMS], int norm_has_cause) {
  ad_check_result *result = calloc(1, sizeof *result + PARAMS * sizeof *result->params);
  assert_non_null(result);
  result->complete = result->initial_equal = 1;
  result->norm_bound = result->loss_bound = 1e-12;
  result->norm_err = norm_has_cause ? 0.25 : 0;
  result->param_count = PARAMS;
  for (int i = 0; i < PARAMS; i++) {
    ad_check_param *param = &result->params[i];
    snprintf(param->name, sizeof param->name, "p%d", i);
    param->bound = 4;
    param->max_rel_err = 4 * params[i].share;
    param->replicas_equal = params[i].replicas;
    param->update_equal = params[i].update;
    param->ratio = params[i].no_ratio ? NAN : 1 + i;
    ad_causes_add(&param->causes, AD_CAUSE_PARTIAL, 0, 1 + i, "of %d", i);
  }
  if (norm_has_cause) {
    snprintf(result->norm_param, sizeof result->norm_param, "p%d", NORM);
    ad_causes_add(&result->norm_causes, AD_CAUSE_DOUBLED, 0, 1 + NORM, "of the norm");
  }
  return result;
}

static void the_parameter_that_shows_a_mutant_best_is_named(void **state) {
  static const struct {
    shown params[PARAMS];
    int norm_has_cause, named; /* named: the number of the parameter that is reported, NORM: the norm's */
  } cases[] = {
      {{RIGHT, OFF(1.5), RIGHT}, 0, 1},
      {{OFF(1), OFF(1 + 1e-9), OFF(1)}, 0, 1}, /* at its bound an error holds */
      {{OFF(2), OFF(3), OFF(1.5)}, 0, 1},
      {{OFF(2), OFF(2), OFF(2)}, 0, 0},
      {{OFF(9), OFF(8), {0.5, 0, 1, 0}}, 0, 2}, /* copies that differ before the largest error */
      {{OFF(9), {0.5, 0, 1, 0}, {0.25, 0, 1, 0}}, 0, 1},
      {{{0.25, 0, 1, 0}, {2, 0, 1, 0}, OFF(9)}, 0, 1},
      {{OFF(9), RIGHT, {0.5, 1, 1, 1}}, 0, 2}, /* a ratio that is no number is the largest error */
      {{OFF(9), OFF(NAN), RIGHT}, 0, 1},
      {{RIGHT, BEHIND(0.5), RIGHT}, 0, 1},
      {{BEHIND(0.5), BEHIND(0.75), BEHIND(0.25)}, 0, 1},
      {{BEHIND(0.5), OFF(1.5), RIGHT}, 0, 1},
      {{RIGHT, RIGHT, RIGHT}, 1, NORM},
      {{RIGHT, BEHIND(0.5), OFF(1)}, 1, NORM},     /* updates are clipped by the wrong norm */
      {{RIGHT, BEHIND(0.5), OFF(1 + 1e-9)}, 1, 2}, /* the norm of a wrong gradient is no cause of it */
      {{RIGHT, BEHIND(0.5), {0.5, 1, 1, 1}}, 1, 2},
      {{RIGHT, RIGHT, RIGHT}, 0, NOTHING},
      {{OFF(1), OFF(1), OFF(1)}, 0, NOTHING},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_mutant mutant = {.loss_err = NAN, .ratio = NAN};
    ad_check_result *result = result_of(cases[i].params, cases[i].norm_has_cause);
    char wanted[16] = "";
    result->loss_err = 0.125;
    if (cases[i].named != NOTHING) snprintf(wanted, sizeof wanted, "p%d", cases[i].named);
    ad_mutant_killed_by_number(result, &mutant);
    if (strcmp(mutant.param, wanted) != 0) fail_msg("case %zu: `%s`, not `%s`", i, mutant.param, wanted);
    assert_int_equal(mutant.killed_by, AD_KILLED_BY_NUMBER);
    assert_true(mutant.loss_err == 0.125);
    assert_int_equal(mutant.causes.count, cases[i].named != NOTHING);
    if (cases[i].named != NOTHING) assert_true(mutant.causes.list[0].factor == 1 + cases[i].named);
    if (cases[i].named == NORM || cases[i].named == NOTHING || cases[i].params[cases[i].named].no_ratio)
      assert_true(isnan(mutant.ratio));
    else
      assert_true(mutant.ratio == 1 + cases[i].named);
    free(result);
  }
}

/* Where no gradient shows it, the first of norm, reports, loss and collectives that fails is reported. */
static void what_failed_is_reported_where_all_gradients_hold(void **state) {
  static const double bound = 1e-12;
  static const struct {
    double norm, loss;
    const char *reports, *calls, *fact; /* fact: "" for no message */
  } cases[] = {
      {0, 0, "", "", ""},
      {bound, bound, "", "", ""},
      {0.25, 0.5, "rank 3", "dp_shard", "0.25"},
      {NAN, 0.5, "rank 3", "dp_shard", "nan"},
      {bound, 0.5, "rank 3", "dp_shard", "rank 3"},
      {bound, 0.5, "", "dp_shard", "0.5"},
      {bound, NAN, "", "dp_shard", "nan"},
      {bound, bound, "", "dp_shard", "dp_shard"},
  };
  static const shown right[PARAMS] = {RIGHT, RIGHT, RIGHT}, behind[PARAMS] = {RIGHT, BEHIND(0.5), RIGHT};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_mutant mutant = {.ratio = NAN};
    ad_check_result *result = result_of(right, 0);
    result->norm_err = cases[i].norm;
    result->loss_err = cases[i].loss;
    snprintf(result->reports, sizeof result->reports, "%s", cases[i].reports);
    snprintf(result->calls, sizeof result->calls, "%s", cases[i].calls);
    ad_mutant_killed_by_number(result, &mutant);
    assert_int_equal(*mutant.message != 0, *cases[i].fact != 0);
    if (!strstr(mutant.message, cases[i].fact)) fail_msg("case %zu: %s", i, mutant.message);
    free(result);
  }
  for (int wrong = 0; wrong < 2; wrong++) { /* beside an update that differs, only reports are reported */
    ad_mutant mutant = {.ratio = NAN};
    ad_check_result *result = result_of(behind, 0);
    if (wrong) result->params[0].max_rel_err = 8;
    snprintf(result->reports, sizeof result->reports, "rank 3");
    ad_mutant_killed_by_number(result, &mutant);
    assert_string_equal(mutant.message, wrong ? "" : "rank 3");
    free(result);
  }
}

/* A mistake that only rounds has no effect if it moves gradients by less than half of what the program's own roundings
 * do; where ranks compute formulas in pieces, by less than all of it. The roundings of a parameter are those of one
 * process and of transfers together, and its mean square is over all parameters, moved or not. */
static void a_mutant_that_only_rounds_is_held_to_the_programs_own_roundings(void **state) {
  const struct {
    double moved[PARAMS];
    int shards_formulas;
    double found;
    ad_killed_by killed_by;
  } cases[] = {
      {{0, 0, 0}, 0, 0, AD_KILLED_BY_NO_EFFECT},
      {{2.49, 0.498, 4.98}, 0, 0.498, AD_KILLED_BY_NO_EFFECT},
      {{2.5, 0.5, 5}, 0, 0.5, AD_KILLED_BY_NONE},
      {{2.5, 0.5, 5}, 1, 0.5, AD_KILLED_BY_NO_EFFECT},
      {{4.98, 0.996, 9.96}, 1, 0.996, AD_KILLED_BY_NO_EFFECT},
      {{5, 1, 10}, 1, 1, AD_KILLED_BY_NONE},
      {{0, 0, 8}, 0, 0.8 / sqrt(3), AD_KILLED_BY_NO_EFFECT},
      {{0, 0, 9}, 0, 0.9 / sqrt(3), AD_KILLED_BY_NONE},
      {{3, 0, 8}, 1, sqrt((0.36 + 0.64) / 3), AD_KILLED_BY_NO_EFFECT},
  };
  ad_spread spread[PARAMS] = {{.error = 3}, {.error = 1}, {.error = 0}};
  double comm_rounding[PARAMS] = {4, 0, 10}; /* roundings of 5, 1 and 10 */
  const ad_computing computing = {.count = PARAMS, .spread = spread, .comm_rounding = comm_rounding};
  static const shown params[PARAMS] = {OFF(0.25), OFF(0.75), RIGHT};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_mutant mutant = {.moved = NAN};
    ad_check_result *result = result_of(params, 0);
    char moved[32];
    result->process_share = 0.375;
    ad_mutant_moved_by_rounding(result, &computing, cases[i].moved, cases[i].shards_formulas, &mutant);
    if (mutant.killed_by != cases[i].killed_by || fabs(mutant.moved - cases[i].found) > 1e-12)
      fail_msg("case %zu: %s, moved %g", i, ad_killed_by_name(mutant.killed_by), mutant.moved);
    snprintf(moved, sizeof moved, "%.2g", cases[i].found);
    assert_text_says(mutant.message, moved, cases[i].shards_formulas ? "1" : "0.5", "0.75", "0.38");
    free(result);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_parameter_that_shows_a_mutant_best_is_named),
      cmocka_unit_test(what_failed_is_reported_where_all_gradients_hold),
      cmocka_unit_test(a_mutant_that_only_rounds_is_held_to_the_programs_own_roundings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
