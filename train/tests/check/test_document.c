/* Tests that the document of a check has every number of the findings, in its own place: findings made up by the test,
 * no two of whose numbers are equal, against train/tests/check/findings.json. */
#include "world.h"

#include <math.h>

#include "check/document.h"

enum { PARAMS = 3, MISTAKES = 9 };

/* The numbers of a parameter; those of another begin at another value. */
static ad_check_param param_of(const char *name, double from) {
  ad_check_param param = {.step = (int64_t)from,
                          .ratio = from + 0.125,
                          .max_rel_err = from + 0.25,
                          .bound = from + 0.375,
                          .one_process = from + 0.5,
                          .comm_rounding = from + 0.625,
                          .cosine = from / 1024,
                          .sum_share = from + 0.75,
                          .process_share = from + 0.875,
                          .reached = 1,
                          .replicas_equal = 1,
                          .update_equal = 1,
                          .counted = 1};
  snprintf(param.name, sizeof param.name, "%s", name);
  snprintf(param.mesh, sizeof param.mesh, "dp=%g", from);
  snprintf(param.layout, sizeof param.layout, "layout of %s", name);
  snprintf(param.storage, sizeof param.storage, "storage of %s", name);
  snprintf(param.reduced_over, sizeof param.reduced_over, "axes of %s", name);
  return param;
}

static ad_check_result *result_of(double from) {
  ad_check_result *result = calloc(1, sizeof *result + PARAMS * sizeof *result->params);
  assert_non_null(result);
  *result = (ad_check_result){
      .complete = 1,
      .loss_dist = from + 1,
      .loss_ref = from + 2,
      .loss_err = from + 3,
      .loss_bound = from + 4,
      .norm_dist = from + 5,
      .norm_ref = from + 6,
      .norm_err = from + 7,
      .norm_bound = from + 8,
      .initial_equal = 1,
      .judges_states = 1,
      .state_err = from + 9,
      .free_difference = from + 10,
      .margin = from + 11,
      .process_share = from + 12,
      .choice_error = from + 13,
      .choice_bound = from + 14,
      .difference = from + 15,
      .derivative = from + 16,
      .directional_err = from + 17,
      .overflow = {(int64_t)from + 18, (int64_t)from + 19, (int)from + 20, (int)from + 21, "overflowed"},
      .call_count = (int64_t)from + 22,
      .call_bytes = (uint64_t)from + 23,
      .counted = (int64_t)from + 24,
      .param_count = PARAMS};
  strcpy(result->stopped, "model.c:7");
  strcpy(result->calls, "an all_reduce too many");
  strcpy(result->reports, "rank 2 has another loss");
  ad_causes_add(&result->norm_causes, AD_CAUSE_DOUBLED, AD_AXES(AD_TP), from + 25, "in the norm");
  result->params[0] = param_of("a", from + 30);
  result->params[1] = param_of("b", from + 40);
  result->params[2] = param_of("c", from + 50);
  result->params[1].reached = 0;
  result->params[1].counted = from + 26;
  result->params[2].replicas_equal = 0;
  result->params[2].counted = NAN;
  ad_causes_add(&result->params[0].causes, AD_CAUSE_AVERAGED, AD_AXES_DP, from + 27, "averaged");
  ad_causes_add(&result->params[2].causes, AD_CAUSE_MISSING, 0, 0, "missing");
  ad_causes_add(&result->params[2].causes, AD_CAUSE_UNKNOWN, AD_AXES(AD_CP), NAN, "unknown");
  return result;
}

static ad_mutant derived(const char *name, ad_killed_by killed_by, ad_operator operator_, ad_place_phase phase) {
  ad_mutant mutant = {.killed_by = killed_by, .expected_ratio = NAN, .ratio = NAN, .loss_err = NAN, .moved = NAN};
  snprintf(mutant.name, sizeof mutant.name, "%s", name);
  mutant.mutation = (ad_mutation){.operator_ = operator_, .axis = AD_CP, .in_record = killed_by == AD_KILLED_BY_TYPE};
  mutant.mutation.place = (ad_place){.phase = phase,
                                     .move = AD_MOVE_ALL_REDUCE,
                                     .from = AD_P,
                                     .to = AD_R,
                                     .axes = AD_AXES(AD_DP_SHARD) | AD_AXES(AD_TP),
                                     .named = AD_AXES(AD_TP)};
  snprintf(mutant.mutation.place.what, sizeof mutant.mutation.place.what, "place of %s", name);
  return mutant;
}

static ad_mutant known(const ad_known_bug *bug, ad_killed_by killed_by, const char *message) {
  ad_mutant mutant = {.known = bug,
                      .catalogue = bug->catalogue,
                      .killed_by = killed_by,
                      .expected_ratio = 0.5,
                      .ratio = 0.25,
                      .loss_err = 0.125,
                      .moved = 0.75,
                      .param = "p"};
  snprintf(mutant.name, sizeof mutant.name, "%s", bug->name);
  snprintf(mutant.message, sizeof mutant.message, "%s", message);
  return mutant;
}

static ad_mutants *mutants_of(void) {
  static const ad_known_bug plain = {.name = "plain", .words = "w", .catalogue = 12},
                            narrow = {.name = "narrow", .words = "w", .of_dtype = 1};
  ad_mutants *list = calloc(1, sizeof *list + MISTAKES * sizeof *list->list);
  assert_non_null(list);
  list->count = MISTAKES, list->derived = 5, list->derived_in_all = 71, list->places = 61, list->seed = 81;
  list->clean = 1;
  list->list[0] = derived("d0", AD_KILLED_BY_TYPE, AD_OPERATOR_MORE_AXES, AD_PLACE_FORWARD);
  list->list[1] = derived("d1", AD_KILLED_BY_NUMBER, AD_OPERATOR_LEFT_OUT, AD_PLACE_BACKWARD);
  list->list[2] = derived("d2", AD_KILLED_BY_NUMBER, AD_OPERATOR_DOUBLED, AD_PLACE_STEP);
  list->list[3] = derived("d3", AD_KILLED_BY_NONE, AD_OPERATOR_AVERAGED, AD_PLACE_STEP);
  list->list[4] = derived("d4", AD_KILLED_BY_PROTOCOL, AD_OPERATOR_OTHER_GROUP, AD_PLACE_FORWARD);
  list->list[1].ratio = 3;
  strcpy(list->list[1].param, "q");
  ad_causes_add(&list->list[1].causes, AD_CAUSE_PARTIAL, AD_AXES(AD_TP), 3, "partial");
  list->list[5] = known(&plain, AD_KILLED_BY_NUMBER, "by number");
  list->list[6] = known(&narrow, AD_KILLED_BY_NO_EFFECT, "without effect");
  list->list[7] = known(&plain, AD_KILLED_BY_NOT_APPLICABLE, "no ring");
  list->list[8] = known(&narrow, AD_KILLED_BY_UNTRIED, "not tried");
  return list;
}

static void a_document_has_every_number_of_the_findings(void **state) {
  ad_recipe_mesh meshes[] = {{.module = (char *)"near", .text = (char *)"dp=2"},
                             {.module = (char *)"far", .text = (char *)"dp=3"}};
  ad_recipe recipe = {.name = (char *)"synthetic", .meshes = meshes, .mesh_count = 2};
  ad_check_options options = {.size = sizeof options};
  ad_check_result *result = result_of(100), *own = result_of(200), *slope = result_of(300);
  ad_mutants *mutants = mutants_of();
  for (int i = 0; i < PARAMS; i++) result->params[i].one_process = NAN; /* a check in f64 has no such numbers */
  const ad_findings findings = {.recipe = &recipe,
                                .options = &options,
                                .steps = 91,
                                .result = result,
                                .own = own,
                                .slope = slope,
                                .not_smooth = "it has steps",
                                .mutants = mutants,
                                .world = 92,
                                .backend = "shm",
                                .seconds = 93.5};
  json_error_t error = {0};
  json_t *found = ad_findings_document(&findings);
  json_t *wanted = json_load_file(AD_TEST_SOURCE "/train/tests/check/findings.json", 0, &error);
  if (!json_equal(found, wanted)) {
    json_dumpf(found, stderr, JSON_INDENT(1));
    fail_msg("is not findings.json: %s", error.text);
  }
  json_decref(found);
  json_decref(wanted);
  free(result), free(own), free(slope), free(mutants);
}

/* The document of a check in the recipe's own dtypes whose first parameter is frozen and has changed, if `changed`. */
static json_t *document_of_frozen(int changed) {
  ad_recipe_mesh mesh = {.text = (char *)"dp=2"};
  ad_recipe recipe = {.name = (char *)"synthetic", .meshes = &mesh, .mesh_count = 1};
  ad_check_options options = {.size = sizeof options};
  ad_check_result *result = result_of(100);
  ad_check_param *frozen = &result->params[0];
  *frozen = (ad_check_param){.frozen = 1, .replicas_equal = 1, .update_equal = !changed};
  frozen->ratio = frozen->max_rel_err = frozen->bound = frozen->one_process = frozen->cosine = NAN;
  const ad_findings findings = {.recipe = &recipe,
                                .options = &options,
                                .steps = 1,
                                .result = result,
                                .own = result,
                                .world = 2,
                                .backend = "shm"};
  json_t *document = ad_findings_document(&findings);
  free(result);
  return document;
}

static void a_frozen_parameter_is_in_no_number(void **state) {
  for (int changed = 0; changed < 2; changed++) {
    json_t *found = document_of_frozen(changed), *summary = json_object_get(found, "summary");
    json_t *param = json_array_get(json_object_get(found, "params"), 0), *own = json_object_get(found, "own_dtypes");
    assert_string_equal(json_string_value(json_object_get(param, "frozen")), changed ? "changed" : "unchanged");
    assert_true(json_is_null(json_object_get(param, "ratio")) && json_is_null(json_object_get(param, "max_rel_err")));
    assert_null(json_object_get(json_array_get(json_object_get(found, "params"), 1), "frozen"));
    assert_int_equal(json_integer_value(json_object_get(summary, "frozen")), 1);
    assert_true(json_number_value(json_object_get(summary, "worst_rel_err")) == 150.25);
    assert_true(json_is_real(json_object_get(summary, "process_share")));
    assert_string_not_equal(json_string_value(json_object_get(own, "param")), "");
    assert_true(json_is_real(json_object_get(own, "worst_cosine")));
    json_decref(found);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_document_has_every_number_of_the_findings),
                                     cmocka_unit_test(a_frozen_parameter_is_in_no_number)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
