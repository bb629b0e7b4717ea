/* Tests the verdict from both sides, on a check made up by the test: each number in turn is just within its bound, at
 * it, and just beyond it. */
#include "says.h"
#include "world.h"

#include <math.h>

#include "check/document.h"

enum { PARAMS = 3 };
#define LITTLE 1e-6

/* One of the numbers that a check judges by a bound. */
typedef struct number {
  const char *name;
  size_t at, bound_at; /* offsets of the number and its bound; bound_at 0: the bound is the constant `bound` */
  double bound;
  int may_be_missing; /* NaN in a check in f64, where it does not exist */
} number;

/* The numbers of a whole check. All bounds differ, so that a number judged by another's bound is noticed. */
static const number of_check[] = {
    {"loss", offsetof(ad_check_result, loss_err), offsetof(ad_check_result, loss_bound), 0, 0},
    {"norm", offsetof(ad_check_result, norm_err), offsetof(ad_check_result, norm_bound), 0, 0},
    {"choices", offsetof(ad_check_result, choice_error), offsetof(ad_check_result, choice_bound), 0, 0},
    {"all gradients side by side", offsetof(ad_check_result, process_share), 0, 1, 0},
    {"states", offsetof(ad_check_result, state_err), 0, 1e-12, 0},
};
static const number of_param[] = {
    {"error", offsetof(ad_check_param, max_rel_err), offsetof(ad_check_param, bound), 0, 0},
    {"sum of the ranks' addends", offsetof(ad_check_param, sum_share), 0, 1, 1},
    {"one process", offsetof(ad_check_param, process_share), 0, 1, 1},
};
static const number slope = {"slope", offsetof(ad_check_result, directional_err), 0, 1e-7, 0};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static double *number_at(void *in, size_t offset) { return (double *)(void *)((char *)in + offset); }

static double bound_of(const number *n, void *in) { return n->bound_at ? *number_at(in, n->bound_at) : n->bound; }

static void halve(const number *list, size_t count, void *in) {
  for (size_t i = 0; i < count; i++) *number_at(in, list[i].at) = bound_of(&list[i], in) / 2;
}

/* A check in which every number is half of its bound. */
static ad_check_result *sound_result(void) {
  ad_check_result *result = calloc(1, sizeof *result + PARAMS * sizeof *result->params);
  result->complete = result->initial_equal = result->updates_equal = result->judges_states = 1;
  result->counted = 7;
  result->derivative = 0.5;
  result->param_count = PARAMS;
  result->loss_bound = 1e-12;
  result->norm_bound = 3e-6;
  result->choice_bound = 2e-3;
  result->margin = INFINITY;
  halve(of_check, COUNT(of_check), result);
  halve(&slope, 1, result);
  for (int i = 0; i < PARAMS; i++) {
    ad_check_param *param = &result->params[i];
    snprintf(param->name, sizeof param->name, "p%d", i);
    param->ratio = 1;
    param->bound = (i + 1) * 5e-5;
    param->reached = param->replicas_equal = param->update_equal = 1;
    param->one_process = param->comm_rounding = 0;
    param->cosine = 1;
    halve(of_param, COUNT(of_param), param);
  }
  return result;
}

/* The verdict of the check, which must be the same in ad_check_result_passes and in the document. */
static int holds(const ad_check_result *result, int directional) {
  ad_recipe_mesh mesh = {.text = (char *)"dp_shard=2"};
  ad_recipe recipe = {.name = (char *)"synthetic", .meshes = &mesh, .mesh_count = 1};
  ad_check_options options = {.size = sizeof options, .directional = directional};
  ad_findings findings = {.recipe = &recipe, .options = &options, .result = result, .steps = 2, .backend = "shm"};
  int verdict = ad_findings_hold(&findings);
  json_t *document = ad_findings_document(&findings);
  json_t *summary = json_object_get(document, "summary");
  assert_int_equal(json_is_true(json_object_get(document, "holds")), verdict);
  assert_int_equal(json_is_true(json_object_get(summary, "pass")), verdict);
  assert_int_equal(ad_check_result_matches(result, directional), verdict);
  json_decref(document);
  return verdict;
}

/* The verdict of a sound check in f64 together with `own`, a check in the recipe's own dtypes. */
static int holds_as_own(const ad_check_result *own) {
  ad_check_result *result = sound_result();
  ad_recipe recipe = {0};
  ad_check_options options = {.size = sizeof options};
  ad_findings findings = {.recipe = &recipe, .options = &options, .result = result, .own = own};
  int verdict = ad_findings_hold(&findings);
  free(result);
  return verdict;
}

static void expect(const char *what, const ad_check_result *result, int directional, int wanted) {
  if (holds(result, directional) != wanted) fail_msg("%s: the verdict is %d", what, !wanted);
  if (!directional && holds_as_own(result) != wanted) fail_msg("%s in own dtypes: the verdict is %d", what, !wanted);
}

static void try_number(ad_check_result *result, const number *n, void *in, int directional) {
  double *value = number_at(in, n->at), kept = *value, bound = bound_of(n, in);
  const struct {
    double value;
    int holds;
  } tries[] = {{0, 1},        {bound * (1 - LITTLE), 1}, {bound, 1}, {bound * (1 + LITTLE), 0}, {10 * bound, 0},
               {INFINITY, 0}, {NAN, n->may_be_missing},  {kept, 1}};
  for (size_t i = 0; i < COUNT(tries); i++) {
    *value = tries[i].value;
    expect(n->name, result, directional, tries[i].holds);
  }
}

static void each_number_decides_at_its_bound(void **state) {
  ad_check_result *result = sound_result();
  expect("nothing", result, 0, 1);
  for (size_t i = 0; i < COUNT(of_check); i++) try_number(result, &of_check[i], result, 0);
  for (int p = 0; p < PARAMS; p++)
    for (size_t i = 0; i < COUNT(of_param); i++) try_number(result, &of_param[i], &result->params[p], 0);
  free(result);
}

static void try_flag(ad_check_result *result, const char *name, int *flag) {
  *flag = 0;
  expect(name, result, 0, 0);
  *flag = 1;
  expect(name, result, 0, 1);
}

static void each_fact_decides(void **state) {
  ad_check_result *result = sound_result();
  try_flag(result, "complete", &result->complete);
  try_flag(result, "initial values", &result->initial_equal);
  try_flag(result, "updates", &result->updates_equal);
  strcpy(result->reports, "the norm is 1 on rank 0 and 2 on rank 1");
  expect("ranks report other norms", result, 0, 0);
  *result->reports = 0;
  for (int p = 0; p < PARAMS; p++) {
    try_flag(result, "replicas", &result->params[p].replicas_equal);
    result->params[p].ratio = NAN;
    expect("no ratio", result, 0, 0);
    result->params[p].ratio = 1;
  }
  result->counted = 0;
  expect("nothing counted", result, 0, 0);
  result->counted = 1;
  expect("one token", result, 0, 1);
  free(result);
}

/* A parameter that no gradient reached says nothing, and does no harm beside one that a gradient reached. */
static void where_no_gradient_reached_a_parameter_nothing_is_checked(void **state) {
  ad_check_result *result = sound_result();
  for (int p = 0; p < PARAMS; p++) {
    expect("some are reached", result, 0, 1);
    result->params[p].reached = 0;
  }
  expect("none is reached", result, 0, 0);
  assert_true(ad_check_result_passes(result, 0));
  expect("a slope", result, 1, 1);
  result->derivative = 0;
  expect("no slope", result, 1, 0);
  free(result);
}

/* A directional check judges the slope and nothing else; other checks do not judge it. */
static void a_slope_is_judged_alone(void **state) {
  ad_check_result *result = sound_result();
  try_number(result, &slope, result, 1);
  for (size_t i = 0; i < COUNT(of_check); i++) *number_at(result, of_check[i].at) = NAN;
  result->params[1].max_rel_err = 1;
  expect("a slope beside wrong numbers", result, 1, 1);
  result->complete = 0;
  expect("a slope that is not there", result, 1, 0);
  free(result);
  result = sound_result();
  result->directional_err = 1;
  expect("numbers beside a wrong slope", result, 0, 1);
  free(result);
}

/* ---- the summary names the worst parameter ---- */

static json_t *document_of(const ad_check_result *result, const ad_check_result *own, const ad_mutants *mutants) {
  ad_recipe_mesh mesh = {.text = (char *)"dp_shard=2"};
  ad_recipe recipe = {.name = (char *)"synthetic", .meshes = &mesh, .mesh_count = 1};
  ad_check_options options = {.size = sizeof options};
  ad_findings findings = {.recipe = &recipe,
                          .options = &options,
                          .result = result,
                          .own = own,
                          .mutants = mutants,
                          .steps = 2,
                          .world = 2,
                          .backend = "shm"};
  return ad_findings_document(&findings);
}

static double number_in(const json_t *document, const char *part, const char *name) {
  const json_t *found = json_object_get(json_object_get(document, part), name);
  assert_true(json_is_number(found));
  return json_number_value(found);
}

static void a_document_sums_up_by_the_worst_parameter(void **state) {
  ad_check_result *result = sound_result();
  for (int p = 0; p < PARAMS; p++) {
    ad_check_param *worst = &result->params[p], kept = *worst;
    for (int side = -1; side <= 1; side += 2) {
      worst->max_rel_err = 0.9 * worst->bound;
      worst->ratio = 1 + side * 1e-3;
      worst->cosine = 0.25;
      json_t *document = document_of(result, result, NULL);
      double largest = 0; /* a parameter's error may be larger than another's if its bound is */
      for (int i = 0; i < PARAMS; i++) largest = fmax(largest, result->params[i].max_rel_err);
      assert_true(number_in(document, "summary", "worst_rel_err") == largest);
      assert_true(fabs(number_in(document, "summary", "worst_ratio_error") - 1e-3) < 1e-9);
      assert_true(number_in(document, "own_dtypes", "worst_share_of_bound") == ad_param_share(worst));
      assert_true(number_in(document, "own_dtypes", "err") == worst->max_rel_err);
      assert_true(number_in(document, "own_dtypes", "worst_cosine") == 0.25);
      const json_t *own = json_object_get(document, "own_dtypes");
      assert_string_equal(json_string_value(json_object_get(own, "param")), worst->name);
      json_decref(document);
    }
    worst->max_rel_err = worst->ratio = NAN;
    json_t *document = document_of(result, result, NULL);
    assert_true(json_is_null(json_object_get(json_object_get(document, "summary"), "worst_rel_err")));
    assert_true(json_is_null(json_object_get(json_object_get(document, "summary"), "worst_ratio_error")));
    json_decref(document);
    *worst = kept;
  }
  free(result);
}

/* ---- the verdict with mutants ---- */

static int holds_with(const ad_check_result *result, const ad_mutants *mutants) {
  json_t *document = document_of(result, NULL, mutants);
  int verdict = json_is_true(json_object_get(document, "holds"));
  json_decref(document);
  return verdict;
}

static void one_mutant_that_survives_decides_and_so_do_none_that_show(void **state) {
  enum { MUTATED = 3 };
  ad_check_result *result = sound_result();
  ad_mutants *mutants = calloc(1, sizeof *mutants + MUTATED * sizeof *mutants->list);
  mutants->count = MUTATED;
  mutants->derived = MUTATED;
  for (int i = 0; i < MUTATED; i++) mutants->list[i].killed_by = AD_KILLED_BY_NO_EFFECT;
  assert_false(holds_with(result, mutants));
  for (int i = 0; i < MUTATED; i++) {
    static const ad_killed_by shows[] = {AD_KILLED_BY_NUMBER, AD_KILLED_BY_PROTOCOL};
    for (size_t k = 0; k < COUNT(shows); k++) {
      mutants->list[i].killed_by = shows[k];
      assert_true(holds_with(result, mutants));
    }
    mutants->list[i].killed_by = AD_KILLED_BY_TYPE; /* refused by types, before anything was computed */
    assert_false(holds_with(result, mutants));
    mutants->list[i].killed_by = AD_KILLED_BY_NO_EFFECT;
  }
  for (int i = 0; i < MUTATED; i++) mutants->list[i].killed_by = AD_KILLED_BY_NUMBER;
  assert_true(holds_with(result, mutants));
  for (int i = 0; i < MUTATED; i++) {
    mutants->list[i].killed_by = AD_KILLED_BY_NONE;
    assert_false(holds_with(result, mutants));
    mutants->list[i].killed_by = AD_KILLED_BY_NUMBER;
  }
  free(mutants);
  free(result);
}

/* ---- the table names the number that decides ---- */

/* The table of a check with one number that decides; `own` (or NULL): the check in the recipe's own
 * dtypes beside it. */
static char *table_of(const ad_check_result *result, const ad_check_result *own) {
  json_t *document = document_of(result, own, NULL);
  char *json = json_dumps(document, 0), *table;
  assert_int_equal(ad_check_table(json, AD_PLAIN_TEXT, &table), AD_OK);
  json_decref(document);
  free(json);
  return table;
}

/* The table of a wrong check has a line that no table of a sound one has, also where the wrong check is the one in the
 * recipe's own dtypes. Its sentence is in the list of `what`. */
static void expect_reported(const ad_check_result *wrong, const char *what) {
  ad_check_result *sound = sound_result();
  char *reported[] = {table_of(sound, sound), table_of(sound, NULL), table_of(wrong, NULL), table_of(sound, wrong)};
  const char *at = strchr(reported[2], '\n'), *line = next_line_beyond(&at, reported[1]); /* after the verdict */
  if (!line) fail_msg("%s: nothing is said:\n%s", what, reported[2]);
  assert_says_in(what, line, SAYS_FACTS(NULL));
  if (strstr(reported[0], line)) fail_msg("\"%s\" is said of a sound proof:\n%s", line, reported[0]);
  if (!strstr(reported[3], line)) fail_msg("\"%s\" is not said of own dtypes:\n%s", line, reported[3]);
  for (int i = 0; i < 4; i++) free(reported[i]);
  free(sound);
}

static void whatever_decides_is_reported_in_the_table(void **state) {
  ad_check_result *result = sound_result();
  result->margin = -1e-3;
  for (size_t i = 0; i < COUNT(of_check); i++) {
    double *value = number_at(result, of_check[i].at), kept = *value;
    double values[] = {1.001 * bound_of(&of_check[i], result), NAN};
    for (size_t k = 0; k < COUNT(values); k++) {
      *value = values[k];
      expect_reported(result, of_check[i].name);
    }
    *value = kept;
  }
  result->initial_equal = 0;
  expect_reported(result, "initial_equal");
  result->initial_equal = 1;
  result->updates_equal = 0;
  expect_reported(result, "updates_equal");
  result->updates_equal = 1;
  strcpy(result->reports, "the norm is 1 on rank 0 and 2 on rank 1");
  expect_reported(result, "reports");
  *result->reports = 0;
  for (int p = 0; p < PARAMS; p++) {
    result->params[p].replicas_equal = 0;
    char *reported = table_of(result, result), *own = NULL;
    result->params[p].replicas_equal = 1;
    char *sound = table_of(result, result);
    const char *at = reported, *line;
    while ((line = next_line_beyond(&at, sound)))
      if (strstr(line, "BAD") && !strstr(line, result->params[p].name)) free(own), own = strdup(line);
    if (!own) fail_msg("no line of own dtypes:\n%s", reported);
    assert_says_in("replicas_equal", own, SAYS_FACTS("BAD"));
    free(own);
    free(sound);
    free(reported);
  }
  free(result);
}

/* A share of a bound is printed with two digits, and with four if two would not show on which side of 1 it is. */
static void a_share_near_1_is_reported_with_more_digits(void **state) {
  static const struct {
    double share;
    const char *reported;
  } cases[] = {{0.5123, "0.51"},    {0.89123, "0.89"},  {0.90123, "0.9012"}, {0.999512, "0.9995"},
               {1.001234, "1.001"}, {1.09876, "1.099"}, {1.16789, "1.2"}};
  ad_check_result *result = sound_result();
  for (size_t i = 0; i < COUNT(cases); i++) {
    result->params[1].max_rel_err = cases[i].share * result->params[1].bound;
    char *reported = table_of(result, result), named[256];
    snprintf(named, sizeof named, "`%s`", result->params[1].name);
    assert_text_says(reported, named, cases[i].reported);
    free(reported);
  }
  free(result);
}

/* ---- which precisions have wide bounds ---- */

static int is_wide(const char *precision, int own, ad_dtype dtype) {
  char train[160];
  snprintf(train, sizeof train, "}\nprecision: {%s", precision);
  ad_recipe *recipe = small_recipe("dp_shard=2", "", train);
  ad_check_options options = {.size = sizeof options, .recipe_dtype = own, .dtype = dtype};
  int wide = ad_check_is_wide(recipe, &options);
  ad_recipe_destroy(recipe);
  return wide;
}

#define ALL_F64 "compute: f64, param: f64"

static void one_dtype_that_rounds_is_enough_for_the_bounds_of_rounding(void **state) {
  static const char *const rounding[] = {"compute: f32, param: f64", "compute: f64, param: f32", ALL_F64 ", grad: f32",
                                         ALL_F64 ", reduce: f32",
                                         ALL_F64 ", overrides: {\"embedding.*\": {param: f32}}"};
  assert_true(is_wide(ALL_F64, 1, 0));
  for (size_t i = 0; i < COUNT(rounding); i++) {
    assert_false(is_wide(rounding[i], 1, 0));
    assert_true(is_wide(rounding[i], 0, 0));
    assert_true(is_wide(rounding[i], 0, AD_F64));
    assert_false(is_wide(rounding[i], 0, AD_F32));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_number_decides_at_its_bound),
      cmocka_unit_test(each_fact_decides),
      cmocka_unit_test(where_no_gradient_reached_a_parameter_nothing_is_checked),
      cmocka_unit_test(a_slope_is_judged_alone),
      cmocka_unit_test(a_document_sums_up_by_the_worst_parameter),
      cmocka_unit_test(one_mutant_that_survives_decides_and_so_do_none_that_show),
      cmocka_unit_test(whatever_decides_is_reported_in_the_table),
      cmocka_unit_test(a_share_near_1_is_reported_with_more_digits),
      cmocka_unit_test(one_dtype_that_rounds_is_enough_for_the_bounds_of_rounding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
