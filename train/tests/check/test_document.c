/* Tests that the document of a check has every number of the findings, in its own place: findings made up by the test,
 * no two of whose numbers are equal, against train/tests/check/findings.json. */
#include "world.h"

#include <math.h>

#include "check/document.h"

enum { PARAMS = 3, MISTAKES = 9 };

/* The numbers of a parameter; those of another begin at another value. */
static ad_proof_param param_of(const char *name, double from) {
  ad_proof_param param = {.step = (int64_t)from,
                          .ratio = from + 0.125,
                          .max_rel_err = from + 0.25,
                          .bound = from + 0.375,
                          .one_process = from + 0.5,
                          .wires = from + 0.625,
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

static ad_proof *proof_of(double from) {
  ad_proof *proof = calloc(1, sizeof *proof + PARAMS * sizeof *proof->params);
  assert_non_null(proof);
  *proof =
      (ad_proof){.complete = 1,
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
                 .turned = from + 13,
                 .turned_bound = from + 14,
                 .difference = from + 15,
                 .derivative = from + 16,
                 .directional_err = from + 17,
                 .overflow = {(int64_t)from + 18, (int64_t)from + 19, (int)from + 20, (int)from + 21, "overflowed"},
                 .call_count = (int64_t)from + 22,
                 .call_bytes = (uint64_t)from + 23,
                 .counted = (int64_t)from + 24,
                 .param_count = PARAMS};
  strcpy(proof->stopped, "model.c:7");
  strcpy(proof->calls, "an all_reduce too many");
  strcpy(proof->reports, "rank 2 has another loss");
  ad_causes_add(&proof->norm_causes, AD_CAUSE_DOUBLED, AD_AXES(AD_TP), from + 25, "in the norm");
  proof->params[0] = param_of("a", from + 30);
  proof->params[1] = param_of("b", from + 40);
  proof->params[2] = param_of("c", from + 50);
  proof->params[1].reached = 0;
  proof->params[1].counted = from + 26;
  proof->params[2].replicas_equal = 0;
  proof->params[2].counted = NAN;
  ad_causes_add(&proof->params[0].causes, AD_CAUSE_AVERAGED, AD_AXES_DP, from + 27, "averaged");
  ad_causes_add(&proof->params[2].causes, AD_CAUSE_MISSING, 0, 0, "missing");
  ad_causes_add(&proof->params[2].causes, AD_CAUSE_UNKNOWN, AD_AXES(AD_CP), NAN, "unknown");
  return proof;
}

static ad_sabotage derived(const char *name, ad_caught caught, ad_operator operator_, ad_place_phase phase) {
  ad_sabotage sabotage = {.caught = caught, .expected_ratio = NAN, .ratio = NAN, .loss_err = NAN, .moved = NAN};
  snprintf(sabotage.name, sizeof sabotage.name, "%s", name);
  sabotage.planting = (ad_planting){.operator_ = operator_, .axis = AD_CP, .in_record = caught == AD_CAUGHT_TYPE};
  sabotage.planting.place = (ad_place){.phase = phase,
                                       .move = AD_MOVE_ALL_REDUCE,
                                       .from = AD_P,
                                       .to = AD_R,
                                       .axes = AD_AXES(AD_DP_SHARD) | AD_AXES(AD_TP),
                                       .named = AD_AXES(AD_TP)};
  snprintf(sabotage.planting.place.what, sizeof sabotage.planting.place.what, "place of %s", name);
  return sabotage;
}

static ad_sabotage known(const ad_mistake *mistake, ad_caught caught, const char *message) {
  ad_sabotage sabotage = {.known = mistake,
                          .catalogue = mistake->catalogue,
                          .caught = caught,
                          .expected_ratio = 0.5,
                          .ratio = 0.25,
                          .loss_err = 0.125,
                          .moved = 0.75,
                          .param = "p"};
  snprintf(sabotage.name, sizeof sabotage.name, "%s", mistake->name);
  snprintf(sabotage.message, sizeof sabotage.message, "%s", message);
  return sabotage;
}

static ad_sabotages *sabotages_of(void) {
  static const ad_mistake plain = {.name = "plain", .words = "w", .catalogue = 12},
                          narrow = {.name = "narrow", .words = "w", .of_dtype = 1};
  ad_sabotages *list = calloc(1, sizeof *list + MISTAKES * sizeof *list->list);
  assert_non_null(list);
  list->count = MISTAKES, list->derived = 5, list->derived_in_all = 71, list->places = 61, list->seed = 81;
  list->clean = 1;
  list->list[0] = derived("d0", AD_CAUGHT_TYPE, AD_OPERATOR_MORE_AXES, AD_PLACE_FORWARD);
  list->list[1] = derived("d1", AD_CAUGHT_NUMBER, AD_OPERATOR_LEFT_OUT, AD_PLACE_BACKWARD);
  list->list[2] = derived("d2", AD_CAUGHT_NUMBER, AD_OPERATOR_DOUBLED, AD_PLACE_STEP);
  list->list[3] = derived("d3", AD_CAUGHT_NONE, AD_OPERATOR_AVERAGED, AD_PLACE_STEP);
  list->list[4] = derived("d4", AD_CAUGHT_PROTOCOL, AD_OPERATOR_OTHER_GROUP, AD_PLACE_FORWARD);
  list->list[1].ratio = 3;
  strcpy(list->list[1].param, "q");
  ad_causes_add(&list->list[1].causes, AD_CAUSE_PARTIAL, AD_AXES(AD_TP), 3, "partial");
  list->list[5] = known(&plain, AD_CAUGHT_NUMBER, "by number");
  list->list[6] = known(&narrow, AD_CAUGHT_NO_EFFECT, "without effect");
  list->list[7] = known(&plain, AD_CAUGHT_UNPLANTED, "no ring");
  list->list[8] = known(&narrow, AD_CAUGHT_UNTRIED, "not tried");
  return list;
}

static void a_document_has_every_number_of_the_findings(void **state) {
  ad_recipe_mesh meshes[] = {{.module = (char *)"near", .text = (char *)"dp=2"},
                             {.module = (char *)"far", .text = (char *)"dp=3"}};
  ad_recipe recipe = {.name = (char *)"synthetic", .meshes = meshes, .mesh_count = 2};
  ad_check_options options = {.size = sizeof options};
  ad_proof *proof = proof_of(100), *own = proof_of(200), *slope = proof_of(300);
  ad_sabotages *sabotages = sabotages_of();
  for (int i = 0; i < PARAMS; i++) proof->params[i].one_process = NAN; /* a proof in f64 has no such numbers */
  const ad_findings findings = {.recipe = &recipe,
                                .options = &options,
                                .steps = 91,
                                .proof = proof,
                                .own = own,
                                .slope = slope,
                                .not_smooth = "it has steps",
                                .sabotages = sabotages,
                                .world = 92,
                                .engine = "shm",
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
  free(proof), free(own), free(slope), free(sabotages);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_document_has_every_number_of_the_findings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
