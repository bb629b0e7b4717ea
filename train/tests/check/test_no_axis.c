/* Tests why a cause or a mistake is reported without an axis, by tables of synthetic causes and counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "check/no_axis.h"

static const ad_axes DP = AD_AXES(AD_DP_SHARD), TP = AD_AXES(AD_TP);

typedef struct given {
  ad_cause_kind kind;
  ad_axes axes;
  const char *place;
  ad_no_axis no_axis;
} given;
#define ON(kind, axes) \
  { AD_CAUSE_##kind, axes, "", AD_AXIS_IS_NAMED }
#define OFF(kind, place, why) \
  { AD_CAUSE_##kind, 0, place, AD_NO_AXIS_##why }

static ad_causes causes_of(const given *list, int count) {
  ad_causes causes = {0};
  for (int i = 0; i < count; i++) {
    ad_cause *cause = ad_causes_add(&causes, list[i].kind, list[i].axes, NAN, "cause %d", i);
    strcpy(cause->place, list[i].place);
    cause->no_axis = list[i].no_axis;
  }
  return causes;
}

static void axes_are_those_that_all_causes_name(void **state) {
  const struct {
    int count;
    given list[3];
    ad_axes axes;
    ad_no_axis why;
  } cases[] = {
      {0, {ON(UNKNOWN, 0)}, 0, AD_NO_AXIS_NO_CAUSE},
      {1, {ON(AVERAGED, DP)}, DP, AD_AXIS_IS_NAMED},
      {1, {{AD_CAUSE_AVERAGED, DP | TP, AD_MICROBATCHES, AD_AXIS_IS_NAMED}}, DP | TP, AD_AXIS_IS_NAMED},
      {1, {{AD_CAUSE_MISSING, DP, "", AD_NO_AXIS_POOLS}}, DP, AD_AXIS_IS_NAMED},
      {3, {ON(AVERAGED, DP), ON(UNKNOWN, DP), ON(DOUBLED, DP)}, DP, AD_AXIS_IS_NAMED},
      {2, {ON(AVERAGED, DP), ON(AVERAGED, TP)}, 0, AD_NO_AXIS_SEVERAL},
      {2, {ON(AVERAGED, DP), ON(AVERAGED, DP | TP)}, 0, AD_NO_AXIS_SEVERAL},
      {3, {ON(AVERAGED, DP), ON(AVERAGED, TP), ON(AVERAGED, DP)}, 0, AD_NO_AXIS_SEVERAL},
      {2, {ON(UNKNOWN, DP), OFF(UNKNOWN, "", FORMULA)}, 0, AD_NO_AXIS_SEVERAL},
      {2, {OFF(UNKNOWN, "", FORMULA), ON(UNKNOWN, DP)}, 0, AD_NO_AXIS_SEVERAL},
      {2, {OFF(UNKNOWN, "", FORMULA), ON(ROUNDING, 0)}, 0, AD_NO_AXIS_NONE_NAMED},
      {3, {OFF(UNKNOWN, "", FORMULA), ON(ROUNDING, 0), OFF(UNKNOWN, "", FORMULA)}, 0, AD_NO_AXIS_NONE_NAMED},
      {2, {OFF(UNKNOWN, "", FORMULA), OFF(DOUBLED, "", FORMULA)}, 0, AD_NO_AXIS_FORMULA},
      {1, {ON(ROUNDING, 0)}, 0, AD_NO_AXIS_ROUNDING},
      {1, {OFF(ROUNDING, "", EVERY_ADDEND)}, 0, AD_NO_AXIS_EVERY_ADDEND},
      {1, {{AD_CAUSE_AVERAGED, 0, AD_MICROBATCHES, AD_AXIS_IS_NAMED}}, 0, AD_NO_AXIS_MICROBATCHES},
      {1, {{AD_CAUSE_AVERAGED, 0, "images", AD_AXIS_IS_NAMED}}, 0, AD_NO_AXIS_NOT_SHOWN},
      {1, {ON(MISSING, 0)}, 0, AD_NO_AXIS_NOT_SHOWN},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_causes causes = causes_of(cases[i].list, cases[i].count);
    ad_no_axis why;
    if (ad_causes_axes(&causes, &why) != cases[i].axes || why != cases[i].why)
      fail_msg("case %zu: %s", i, ad_no_axis_name(why));
  }
}

/* Causes are those of numbers: what was killed otherwise has none that count. */
static void a_mutant_that_no_number_killed_names_no_axis(void **state) {
  ad_mutant mutant = {.causes = causes_of(&(given)ON(AVERAGED, DP), 1)};
  for (int killed_by = AD_KILLED_BY_NONE; killed_by <= AD_KILLED_BY_UNTRIED; killed_by++) {
    ad_no_axis why;
    mutant.killed_by = (ad_killed_by)killed_by;
    assert_int_equal(ad_mutant_axes(&mutant, &why), killed_by == AD_KILLED_BY_NUMBER ? DP : 0);
    assert_int_equal(why, killed_by == AD_KILLED_BY_NUMBER     ? AD_AXIS_IS_NAMED
                          : killed_by == AD_KILLED_BY_PROTOCOL ? AD_NO_AXIS_PROTOCOL
                                                               : AD_NO_AXIS_NO_NUMBER);
  }
}

static void counts_show_what_they_go_by(void **state) {
  static const struct {
    const char *counts;
    ad_no_axis why;
  } cases[] = {
      {"[[0, 0], [0, 0]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[0.25], [0.25], [0.25]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[null, 2], [2, null]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[0, 1], [0, 1]]", AD_NO_AXIS_MICROBATCHES},
      {"[[null, 1], [0, null]]", AD_NO_AXIS_MICROBATCHES},
      {"[[0, 1], [1, 1]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[1], [0]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[null], [null]]", AD_NO_AXIS_NOT_SHOWN},
      {"null", AD_NO_AXIS_NOT_SHOWN},
      /* fitted counts, just within and just beyond what is the same */
      {"[[1], [1.00009]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[1], [0.99991]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[1], [1.00011]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[1], [0.99989]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[0], [0.00009]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[0], [0.00011]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[-1000], [-1000.09]]", AD_NO_AXIS_EVERY_ADDEND},
      {"[[-1000], [-1000.11]]", AD_NO_AXIS_NOT_SHOWN},
      {"[[1, 3], [1.00009, 3]]", AD_NO_AXIS_MICROBATCHES},
      {"[[1, 3], [1.00011, 3]]", AD_NO_AXIS_NOT_SHOWN},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *judged = json_pack("{s:o}", "counts", json_loads(cases[i].counts, JSON_DECODE_ANY, NULL));
    ad_no_axis why = ad_no_axis_of_counts(judged);
    if (why != cases[i].why) fail_msg("%s: %s", cases[i].counts, ad_no_axis_name(why));
    json_decref(judged);
  }
}

static void every_reason_has_a_word_and_a_clause_of_its_own(void **state) {
  for (int i = 0; i <= AD_NO_AXIS_NO_NUMBER; i++) {
    const char *name = ad_no_axis_name((ad_no_axis)i), *clause = ad_no_axis_clause(name);
    assert_int_equal(*clause != 0, i != AD_AXIS_IS_NAMED);
    for (int k = 0; k < i; k++) {
      assert_string_not_equal(name, ad_no_axis_name((ad_no_axis)k));
      assert_string_not_equal(clause, ad_no_axis_clause(ad_no_axis_name((ad_no_axis)k)));
    }
  }
  assert_string_equal(ad_no_axis_clause("of a later version"), "");
  assert_string_equal(ad_no_axis_clause(""), "");
  assert_string_equal(ad_no_axis_clause(NULL), "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(axes_are_those_that_all_causes_name),
      cmocka_unit_test(a_mutant_that_no_number_killed_names_no_axis),
      cmocka_unit_test(counts_show_what_they_go_by),
      cmocka_unit_test(every_reason_has_a_word_and_a_clause_of_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
