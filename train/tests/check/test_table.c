/* Tests that the printed table begins and ends with the verdict, has a row for what does not match and a line for what does,
 * and that the list has a row for every parameter and mutant of the JSON document. */
#include "says.h"
#include "world.h"

#include <math.h>
#include "check/document.h"
#include "check/no_axis.h"

static char *table_of(int world, const char *error, const char *equal) {
  char document[1024], *table;
  snprintf(document, sizeof document,
           "{\"recipe\":\"tiny\",\"world\":%d,\"mesh\":\"dp=3\",\"backend\":\"shm\",\"dtype\":\"f64\",\"steps\":1,"
           "\"seconds\":1.0,\"loss\":{\"dist\":1.0,\"ref\":1.0,\"rel_err\":0.0,\"bound\":1e-12},"
           "\"norm\":{\"dist\":1.0,\"ref\":1.0,\"rel_err\":0.0,\"bound\":1e-12},"
           "\"params\":[{\"name\":\"w\",\"mesh\":\"dp=3\",\"layout\":\"dp=R\",\"storage\":\"dp=R\","
           "\"reduced_over\":\"dp\",\"step\":0,\"ratio\":1.0,\"max_rel_err\":%s,\"bound\":1e-12,"
           "\"replicas_equal\":%s,\"cause\":null}],"
           "\"summary\":{\"params\":1,\"worst_ratio_error\":0.0,\"worst_rel_err\":0.0,\"replicas_equal\":true,"
           "\"pass\":false,\"counted\":1,\"initial_equal\":true,\"updates_equal\":true}}",
           world, error, equal);
  assert_int_equal(ad_check_list(document, AD_PLAIN_TEXT, &table), AD_OK);
  return table;
}

static void says(const char *error, const char *equal, int good) {
  char *table = table_of(3, error, equal);
  const char *row = strstr(table, " w ");
  assert_non_null(row);
  while (row > table && row[-1] != '\n') row--;
  char *line = strndup(row, strcspn(row, "\n"));
  assert_non_null(line);
  assert_says_in(good ? "a parameter that holds" : "a parameter that does not hold", line, SAYS_FACTS(NULL));
  free(line);
  free(table);
}

static void a_parameter_that_does_not_hold_is_bad(void **state) {
  says("1e-13", "true", 1);
  says("1e-12", "true", 1);
  says("1.1e-12", "true", 0);
  says("1e-13", "false", 0);
  says("null", "true", 0);
}

static void a_check_on_one_rank_says_that_it_is_none_of_sums(void **state) {
  char *of_three = table_of(3, "1e-13", "true");
  for (int world = 1; world <= 2; world++) {
    char *table = table_of(world, "1e-13", "true");
    const char *at = table, *head = next_line_beyond(&at, of_three);
    assert_non_null(head); /* the number of ranks */
    const char *note = next_line_beyond(&at, of_three);
    if (world > 1 || !note)
      assert_true(world > 1 && !note);
    else
      assert_says_in(__func__, note, SAYS_FACTS(NULL));
    free(table);
  }
  free(of_three);
}

/* A frozen parameter has no gradient: its row says whether it stayed, and the lines for all count it apart. */
static char *table_of_frozen(const char *frozen, const char *equal, int all) {
  const char *holds = !strcmp(frozen, "unchanged") && !strcmp(equal, "true") ? "true" : "false";
  char document[1024], *table = NULL;
  snprintf(document, sizeof document,
           "{\"recipe\":\"tiny\",\"world\":3,\"holds\":%s,\"dtype\":\"f64\",\"steps\":1,\"seconds\":1.0,"
           "\"params\":[{\"name\":\"e\",\"ratio\":null,\"max_rel_err\":null,\"bound\":1e-12,\"replicas_equal\":%s,"
           "\"cause\":null,\"reached\":false,\"frozen\":\"%s\"},{\"name\":\"w\",\"reduced_over\":\"dp\",\"ratio\":1.0,"
           "\"max_rel_err\":1e-13,\"bound\":1e-12,\"replicas_equal\":true,\"cause\":null,\"reached\":true}],"
           "\"summary\":{\"params\":2,\"reached\":1,\"frozen\":1,\"counted\":1,\"worst_rel_err\":1e-13,\"pass\":%s}}",
           holds, equal, frozen, holds);
  assert_int_equal((all ? ad_check_list : ad_check_table)(document, AD_PLAIN_TEXT, &table), AD_OK);
  return table;
}

static void a_frozen_parameter_is_judged_by_its_value_alone(void **state) {
  static const struct {
    const char *frozen, *equal;
    int all;
  } cases[] = {{"unchanged", "true", 0}, {"unchanged", "true", 1}, {"changed", "true", 0}, {"unchanged", "false", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *table = table_of_frozen(cases[i].frozen, cases[i].equal, cases[i].all);
    assert_int_equal(strstr(table, "BAD") != NULL, i > 1);
    assert_says_in(__func__, table, SAYS_FACTS(NULL));
    free(table);
  }
}

/* A parameter with several possible causes ranks as bad as one with a single cause, and its row lists all of them. */
static void every_possible_cause_is_in_the_row(void **state) {
  static const char before[] =
      "{\"recipe\":\"tiny\",\"world\":4,\"summary\":{\"params\":1,\"counted\":1},\"params\":[{"
      "\"name\":\"w\",\"max_rel_err\":0.0,\"bound\":1e-12,\"replicas_equal\":true,";
  char document[1024], *table;
  snprintf(document, sizeof document,
           "%s\"cause\":null,\"possible_causes\":[{\"text\":\"averaged over a\"},{\"text\":\"averaged over b\"}]}],"
           "\"mutants\":[{\"name\":\"mistake-1\",\"killed_by\":\"number\",\"param\":\"w\",\"cause\":null,"
           "\"possible_causes\":[{\"text\":\"one\"},{\"text\":\"other\"}]}]}",
           before);
  assert_int_equal(ad_check_list(document, AD_PLAIN_TEXT, &table), AD_OK);
  assert_text_says(table, "BAD");
  assert_text_says(table, "mistake-1");
  assert_text_says(table, "1", "0");
  free(table);
}

/* A mistake, or a parameter's only cause, that names no axis is followed by why; one that names an axis is not. */
static void a_row_without_an_axis_says_why(void **state) {
  static const struct {
    const char *param, *mutant, *why;
  } cases[] = {
      {"\"cause\":{\"text\":\"c\",\"no_axis\":\"no_group\"}", "\"no_axis\":null", "no_group"},
      {"\"cause\":null", "\"no_axis\":\"several\"", "several"},
      {"\"cause\":null", "\"no_axis\":\"no_number\"", NULL}, /* the row says so itself */
      {"\"cause\":{\"text\":\"c\",\"no_axis\":null}", "\"no_axis\":null", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char document[1024], *table;
    snprintf(document, sizeof document,
             "{\"recipe\":\"tiny\",\"world\":4,\"summary\":{\"params\":1,\"counted\":1},\"params\":[{\"name\":\"w\","
             "\"max_rel_err\":1.0,\"bound\":1e-12,\"replicas_equal\":true,%s}],\"mutants\":[{\"name\":\"mistake-1\","
             "\"killed_by\":\"number\",\"param\":\"w\",\"cause\":{\"text\":\"d\",\"no_axis\":\"formula\"},%s}]}",
             cases[i].param, cases[i].mutant);
    assert_int_equal(ad_check_list(document, AD_PLAIN_TEXT, &table), AD_OK);
    for (int why = AD_AXIS_IS_NAMED + 1; why <= AD_NO_AXIS_NO_NUMBER; why++) {
      const char *name = ad_no_axis_name((ad_no_axis)why);
      int is_there = cases[i].why && !strcmp(name, cases[i].why);
      assert_int_equal(strstr(table, ad_no_axis_clause(name)) != NULL, is_there);
    }
    free(table);
  }
}

/* ---- the first line and the last: the verdict ---- */

/* The table of a document whose parameters all hold, with the further members `rest` (begins with a comma). */
static char *table_of_rest(int world, const char *rest) {
  char document[1024], *table;
  snprintf(document, sizeof document,
           "{\"recipe\":\"tiny\",\"world\":%d,\"mesh\":\"dp=3\",\"backend\":\"shm\",\"dtype\":\"f64\",\"steps\":1,"
           "\"seconds\":1.0,\"loss\":{\"dist\":1.0},\"norm\":{\"dist\":1.0},\"params\":[],"
           "\"summary\":{\"params\":2,\"worst_rel_err\":1e-16,\"pass\":true,\"counted\":1}%s}",
           world, rest);
  assert_int_equal(ad_check_table(document, AD_PLAIN_TEXT, &table), AD_OK);
  return table;
}

/* How many lines of the table begin as one of these verdicts does: up to the first colon or parenthesis. */
static int count_verdicts(const char *table, char *const *verdicts, size_t count) {
  int found = 0;
  for (const char *at = table; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n')) {
    int begins = 0;
    for (size_t i = 0; i < count; i++) begins |= !strncmp(at, verdicts[i], strcspn(verdicts[i], ":("));
    found += begins;
  }
  return found;
}

static void the_first_line_and_the_last_are_the_verdict(void **state) {
  static const struct {
    const char *name;
    int world;
    const char *rest, *facts[4];
  } cases[] = {
      {"holds", 3, ",\"holds\":true", {"1e-16", "2"}},
      {"holds on one rank", 1, ",\"holds\":true", {"2"}},
      {"wrong in own dtypes", 3, ",\"holds\":false,\"own_dtypes\":{\"param\":\"w\",\"pass\":false}", {"2"}},
      {"one survived",
       3,
       ",\"holds\":false,\"mutants\":[{\"name\":\"m\",\"killed_by\":\"none\"}],\"survivors\":1",
       {"2", "1", "m"}},
      {"two survived",
       3,
       ",\"holds\":false,\"mutants\":[{\"name\":\"a\",\"killed_by\":\"none\"},{\"name\":\"b\",\"killed_by\":\"none\"}]"
       ",\"survivors\":2",
       {"2", "a", "1"}},
      {"a reason", 1, ",\"holds\":false,\"reason\":\"nothing was counted\",\"summary\":{\"counted\":0}", {"CHECKED"}},
      {"a reason of the check itself", 2, ",\"holds\":false,\"reason\":\"no mutant changes a number\"", {"CANNOT"}},
  };
  enum { CASES = sizeof cases / sizeof *cases };
  char *tables[CASES], *verdicts[CASES];
  for (size_t i = 0; i < CASES; i++) {
    tables[i] = table_of_rest(cases[i].world, cases[i].rest);
    verdicts[i] = strdup(last_line(tables[i]));
    assert_non_null(verdicts[i]);
    assert_says_in(cases[i].name, verdicts[i], cases[i].facts);
    assert_int_equal(strncmp(tables[i], verdicts[i], strlen(verdicts[i])), 0);
  }
  for (size_t i = 0; i < CASES; i++) assert_int_equal(count_verdicts(tables[i], verdicts, CASES), 2);
  for (size_t i = 0; i < CASES; i++) free(tables[i]), free(verdicts[i]);
}

/* ---- a whole table ---- */

/* Everything that a table can have is in the list of all rows; the table has what does not match, and mutants that survived. */
static void a_list_has_all_that_the_document_has_and_a_table_what_does_not_match(void **state) {
  static const char document[] =
      "{\"recipe\":\"whole\",\"world\":6,\"mesh\":{\"near\":\"dp=2\",\"far\":\"dp=4\"},\"dtype\":\"f64\",\"steps\":3,"
      "\"seconds\":2.25,"
      "\"loss\":{\"dist\":1.5,\"ref\":1.25,\"rel_err\":0.5,\"bound\":1e-12,\"cause\":{\"text\":\"the loss is "
      "averaged\",\"no_axis\":\"formula\"}},"
      "\"norm\":{\"dist\":3.5,\"ref\":3.25,\"rel_err\":0.25,\"bound\":1e-11},"
      "\"params\":["
      "{\"name\":\"right\",\"reduced_over\":\"dp\",\"ratio\":1,\"max_rel_err\":1e-13,\"bound\":1e-12,\"replicas_"
      "equal\":true,\"reached\":true},"
      "{\"name\":\"differs\",\"reduced_over\":\"\",\"ratio\":2,\"max_rel_err\":1e-13,\"bound\":1e-12,\"replicas_"
      "equal\":false,\"reached\":true},"
      "{\"name\":\"off\",\"reduced_over\":\"tp\",\"ratio\":3,\"max_rel_err\":4e-12,\"bound\":1e-12,\"replicas_equal\":"
      "true,\"cause\":{\"text\":\"it is tripled\"}},"
      "{\"name\":\"n1\",\"ratio\":1,\"max_rel_err\":0,\"bound\":1e-12,\"replicas_equal\":true,\"reached\":false},"
      "{\"name\":\"n2\",\"ratio\":1,\"max_rel_err\":0,\"bound\":1e-12,\"replicas_equal\":true,\"reached\":false},"
      "{\"name\":\"n3\",\"ratio\":1,\"max_rel_err\":0,\"bound\":1e-12,\"replicas_equal\":true,\"reached\":false},"
      "{\"name\":\"n4\",\"ratio\":1,\"max_rel_err\":0,\"bound\":1e-12,\"replicas_equal\":true,\"reached\":false}],"
      "\"summary\":{\"params\":7,\"reached\":3,\"counted\":9,\"worst_rel_err\":4e-12,\"pass\":false,\"initial_equal\":"
      "false,\"updates_equal\":false,"
      "\"smallest_margin\":0.125,\"process_share\":1.75,\"choices\":{\"below\":0.375,\"bound\":0.0625},"
      "\"collectives\":{\"as_planned\":false,\"difference\":\"all_reduce of f32\"},\"reports_differ\":\"rank 5 has "
      "another loss\","
      "\"states\":{\"rel_err\":0.75,\"bound\":1e-12},\"overflow\":{\"steps\":1,\"scale\":15,\"param\":\"wide\","
      "\"checked_at\":14}},"
      "\"directional\":{\"difference\":0.5,\"derivative\":0.25,\"rel_err\":0.5,\"bound\":1e-7,\"pass\":false},"
      "\"not_smooth\":\"it has steps\","
      "\"own_dtypes\":{\"pass\":false,\"worst_share_of_bound\":1.0625,\"param\":\"off\",\"err\":0.03125,\"one_process_"
      "err\":0.0078125,\"worst_cosine\":0.75,"
      "\"false_alarm\":1e-7,\"replicas_equal\":false,\"overflow\":{\"steps\":2,\"scale\":13,\"param\":\"deep\","
      "\"checked_at\":11},"
      "\"loss\":{\"rel_err\":0.2,\"bound\":0.1},\"norm\":{\"rel_err\":0.1,\"bound\":0.2}},"
      "\"coverage\":{\"mutants\":5,\"drawn_from\":50,\"seed\":8,\"places\":21,\"by_type\":1,\"by_number\":1,\"by_"
      "protocol\":0,\"no_effect\":2,\"survived\":1},"
      "\"mutants\":["
      "{\"name\":\"d1\",\"killed_by\":\"type\",\"derived\":{\"operator\":\"left_out\"}},"
      "{\"name\":\"d2\",\"killed_by\":\"number\",\"derived\":{\"operator\":\"left_out\"},\"param\":\"off\",\"ratio\":0."
      "5,\"cause\":{\"text\":\"left out\"}},"
      "{\"name\":\"d3\",\"killed_by\":\"no_effect\",\"derived\":{\"operator\":\"doubled\"},\"message\":\"over one "
      "rank\"},"
      "{\"name\":\"d4\",\"killed_by\":\"no_effect\",\"derived\":{\"operator\":\"doubled\"},\"message\":\"over one "
      "rank\"},"
      "{\"name\":\"d5\",\"killed_by\":\"none\",\"derived\":{\"operator\":\"doubled\"},\"message\":\"first "
      "line\\nsecond line\"},"
      "{\"name\":\"k1\",\"killed_by\":\"number\",\"derived\":null},"
      "{\"name\":\"k2\",\"killed_by\":\"none\",\"derived\":null},"
      "{\"name\":\"k3\",\"killed_by\":\"no_effect\",\"derived\":null,\"message\":\"a known one\"}],"
      "\"survivors\":2,"
      "\"not_applicable\":[{\"name\":\"u1\",\"why\":\"it has one microbatch\"},{\"name\":\"u2\",\"why\":\"no ring\"}],"
      "\"untried\":[{\"dtype\":\"f64\",\"mutants\":33},{\"dtype\":\"recipe\",\"mutants\":44}],"
      "\"holds\":false}";
  static const char *const all[] = {
      "4e-12", "2",     "7",    "1",     "6",     "3",     "2.2",   "1.5",    "1.25", "3.5",   "3.25", "1",     "1e-13",
      "2",     "1e-13", "3",    "4e-12", "1",     "0",     "1",     "0",      "1",    "0",     "1",    "0",     "1",
      "3",     "2^15",  "2^14", "0.5",   "1e-12", "0.25",  "1e-11", "1.75",   "0.38", "0.062", "5",    "0.75",  "1e-12",
      "0.5",   "0.25",  "0.5",  "1e-07", "0.12",  "1.062", "0.031", "0.0078", "0.75", "1e-07", "2",    "3",     "2^13",
      "2^11",  "0.2",   "0.1",  "5",     "21",    "1",     "1",     "2",      "1",    "45",    "8",    "3",     "1",
      "1",     "1",     "2",    "33",    "44",    "1",     "1",     "0",      "0",    "0",     "0",    "0",     "0",
      "2",     "1",     "2",    "0.5",   "4e-12", "2",     "7",     "1",      "dp=2", "dp=4",  "BAD",  "MATCH", NULL};
  static const char *const few[] = {
      "4e-12", "2",    "7",     "1",     "6",      "3",     "2.2",   "1.5",  "1.25",  "3.5",  "3.25", "2",
      "1e-13", "3",    "4e-12", "1",     "1e-13",  "4",     "3",     "1",    "3",     "2^15", "2^14", "0.5",
      "1e-12", "0.25", "1e-11", "1.75",  "0.38",   "0.062", "5",     "0.75", "1e-12", "0.5",  "0.25", "0.5",
      "1e-07", "0.12", "1.062", "0.031", "0.0078", "0.75",  "1e-07", "2",    "3",     "2^13", "2^11", "0.2",
      "0.1",   "5",    "21",    "1",     "1",      "2",     "1",     "45",   "8",     "3",    "1",    "1",
      "1",     "2",    "33",    "44",    "4e-12",  "2",     "7",     "1",    "MATCH", NULL};
  char *table;
  must(ad_check_list(document, AD_PLAIN_TEXT, &table));
  assert_says_in(__func__, table, all);
  free(table);
  must(ad_check_table(document, AD_PLAIN_TEXT, &table));
  assert_says_in("a table of what does not match", table, few);
  static const char *const rows_of_all[] = {" right ", " n1 ", " d2 ", " k1 ", " u1 ", "left_out"};
  for (size_t i = 0; i < sizeof rows_of_all / sizeof *rows_of_all; i++) assert_null(strstr(table, rows_of_all[i]));
  assert_true(strstr(table, "SURVIVED  d5 ") && strstr(table, "SURVIVED  k2 "));
  free(table);
}

/* ---- angles between a gradient and its reference ---- */

/* The table of a check of one parameter in the recipe's own dtypes. */
static char *table_of_param(double cosine, double error, double *kept) {
  ad_recipe *recipe = small_recipe("dp_shard=2", "", "");
  ad_check_options options = {.size = sizeof options, .recipe_dtype = 1};
  ad_check_result *result = calloc(1, sizeof *result + sizeof *result->params);
  assert_non_null(result);
  result->param_count = 1;
  result->counted = 1;
  result->params[0] = (ad_check_param){
      .name = "w", .ratio = 1, .max_rel_err = error, .bound = 1, .cosine = cosine, .reached = 1, .replicas_equal = 1};
  ad_findings findings = {.recipe = recipe, .options = &options, .result = result, .own = result, .world = 2};
  findings.backend = "shm";
  json_t *document = ad_findings_document(&findings);
  json_t *own = json_object_get(json_object_get(document, "own_dtypes"), "worst_cosine");
  *kept = json_is_number(own) ? json_number_value(own) : NAN;
  char *text = json_dumps(document, 0), *table;
  assert_non_null(text);
  must(ad_check_table(text, AD_PLAIN_TEXT, &table));
  free(text);
  json_decref(document);
  free(result);
  ad_recipe_destroy(recipe);
  return table;
}

static void an_angle_is_no_number_where_a_gradient_has_no_direction(void **state) {
  static const struct {
    const char *name; /* of the list that has the whole table */
    double cosine, error, kept;
    const char *facts[2];
  } cases[] = {
      {"an angle", 0.5, 0.1, 0.5, {"0.5"}},
      {"an angle and an error that are no numbers", NAN, NAN, NAN, {NULL}},
      {"an angle that is no number", NAN, 1, NAN, {NULL}},
      {"the angle of a gradient and a reference of zeros", NAN, 0, 1, {NULL}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double kept;
    char *table = table_of_param(cases[i].cosine, cases[i].error, &kept);
    assert_true(kept == cases[i].kept || (isnan(kept) && isnan(cases[i].kept)));
    assert_says_in(cases[i].name, table, cases[i].facts);
    free(table);
  }
}

/* The table names the smallest cosine. An undefined cosine (null) with an error, a zero on one side only, counts as the
 * smallest; one without error, zero on both sides, counts as 1. */
static void the_smallest_angle_is_named_whichever_parameter_has_it(void **state) {
  static const char *const cosines[] = {"0.9", "0.8", "null", "null"}, *const errors[] = {"0.1", "0.1", "0", "1"};
  static const int worst[4][4] = {{0, 1, 0, 3}, {1, 1, 1, 3}, {0, 1, 2, 3}, {3, 3, 3, 3}};
  for (int i = 0; i < 16; i++) {
    int first = i / 4, second = i % 4;
    char document[512], wanted[32], *table;
    snprintf(
        document, sizeof document,
        "{\"recipe\":\"tiny\",\"world\":2,\"dtype\":\"recipe\",\"summary\":{\"params\":2,\"counted\":1},\"params\":["
        "{\"name\":\"w%d\",\"cosine\":%s,\"max_rel_err\":%s,\"one_process_err\":0},"
        "{\"name\":\"w%d\",\"cosine\":%s,\"max_rel_err\":%s,\"one_process_err\":0}]}",
        first, cosines[first], errors[first], second, cosines[second], errors[second]);
    must(ad_check_table(document, AD_PLAIN_TEXT, &table));
    snprintf(wanted, sizeof wanted, "`w%d`", worst[first][second]);
    assert_text_says(table, wanted);
    free(table);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_angle_is_no_number_where_a_gradient_has_no_direction),
      cmocka_unit_test(the_smallest_angle_is_named_whichever_parameter_has_it),
      cmocka_unit_test(a_row_without_an_axis_says_why),
      cmocka_unit_test(a_list_has_all_that_the_document_has_and_a_table_what_does_not_match),
      cmocka_unit_test(the_first_line_and_the_last_are_the_verdict),
      cmocka_unit_test(a_parameter_that_does_not_hold_is_bad),
      cmocka_unit_test(a_frozen_parameter_is_judged_by_its_value_alone),
      cmocka_unit_test(every_possible_cause_is_in_the_row),
      cmocka_unit_test(a_check_on_one_rank_says_that_it_is_none_of_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
