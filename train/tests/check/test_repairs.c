/* Tests the repair that a type error proposes: every program in which one transition is missing and is refused for it
 * is run with the proposed conversion, and checked. */
#include "alone.h"
#include "base/injection.h"
#include "layout/sentences.h"
#include "plan/plan.h"
#include "plan/repairs.h"
#include "says.h"
#include "tensor/repair.h"
#include "../../../tests/support/draw.h"

static const char *const worlds[][2] = {
    {"tp", "model: {kind: gpt, layers: 1, d_model: 12, heads: 3}\nmesh: \"dp_shard=1 tp=3\"\n"},
    {"tp, a cut sequence",
     "model: {kind: gpt, layers: 1, d_model: 12, heads: 2, sequence_parallel: true}\nmesh: \"dp_shard=2 tp=2\"\n"},
    {"cp", "model: {kind: gpt, layers: 1, d_model: 12, heads: 2}\nmesh: \"dp_replicate=1 cp=3\"\n"},
    {"experts whole, scores before them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6, shared_experts: 5}\n"
     "mesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=4 etp=1\"}\n"},
    {"experts whole, scores after them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 3, experts: 5, top_k: 2, expert_hidden: 6,"
     " score_before_experts: false}\nmesh: \"dp_shard=1 tp=3\"\nviews: {sparse: \"efsdp=1 ep=3 etp=1\"}\n"},
    {"experts cut, scores after them",
     "model: {kind: moe, layers: 1, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6,"
     " score_before_experts: false}\nmesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}\n"},
    {"a loss for balance",
     "model: {kind: moe, layers: 2, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 6, balance_loss: 0.1}\n"
     "mesh: \"dp_shard=2 tp=2\"\nviews: {sparse: \"efsdp=1 ep=2 etp=2\"}\n"},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static ad_recipe *recipe_of(const char *const world[2]) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: refused\n%sdata: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL
           "}\n"
           "train: {seed: 4, global_batch: 12, steps: 5, lr: 1e-2, weight_decay: 0.1, clip: 0.5, microbatches: 2}\n",
           world[1]);
  must(ad_recipe_parse(text, world[0], NULL, 0, &recipe));
  return recipe;
}

typedef struct repaired_job {
  ad_check_job job;
  ad_mutation *mutation;
  const ad_repair *repair;
} repaired_job;

static int check(ad_comm *comm, void *context) {
  const repaired_job *p = context;
  ad_mending mending = {.repair = p->repair};
  ad_mutation_begin(p->mutation);
  ad_repair_begin(&mending);
  ad_status status = ad_check_rank(comm, &p->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK || !mending.fired || !p->mutation->fired;
}

static void is_right_when_repaired(const ad_recipe *recipe, ad_mutant *missing, const ad_repair *repair) {
  ad_check_options options = {.size = sizeof options, .steps = 1};
  char text[256];
  ad_check_result *result;
  ad_launch_result launched = {.size = sizeof launched};
  int64_t ranks = 0;
  must(ad_recipe_world(recipe, &ranks));
  must(ad_check_result_create(recipe, &result));
  repaired_job job = {
      {.recipe = recipe, .options = &options, .steps = 1, .result = result}, &missing->mutation, repair};
  ad_launch_options launch = {.size = sizeof launch, .ranks = ranks, .function = check, .context = &job};
  must(ad_launch(&launch, &launched));
  /* the repaired program may take another way to the right gradient, so its collectives need not match the plan */
  result->calls[0] = 0;
  if (!ad_check_result_passes(result, 0))
    fail_msg("%s: %s: does not match", missing->name, ad_repair_print(repair, text, sizeof text));
  ad_check_result_destroy(result);
}

/* Whether the error message names the repair that was found, or says that none was found. */
static int is_said_as_it_is(const ad_recipe *recipe, ad_mutant *missing, const ad_repair *repair, int found) {
  char text[256];
  must(ad_derived_try_record(recipe, missing));
  const char *message_text = missing->message, *named = strstr(message_text, AD_REPAIRS);
  if (found) {
    ad_repair_print(repair, text, sizeof text);
    assert_non_null(named);
    if (strncmp(named + strlen(AD_REPAIRS), text, strlen(text)) != 0) fail_msg("not %s: %s", text, message_text);
    assert_says_in(ad_repair_states(repair) ? "a repair that declares" : "a repair that moves bytes",
                   named + strlen(AD_REPAIRS) + strlen(text), SAYS_FACTS(NULL));
  }
  if (strstr(message_text, AD_MAY_REPAIR)) fail_msg("%s: could have been tried: %s", missing->name, message_text);
  if (!found) printf("%s: %s\n", missing->name, message_text);
  return found || strstr(message_text, AD_NO_REPAIR) != NULL;
}

static void every_repair_that_is_said_repairs(void **state) {
  int refused = 0, repaired = 0;
  for (int w = 0; w < WORLDS; w++) {
    ad_recipe *recipe = recipe_of(worlds[w]);
    ad_mutants *listed;
    must(ad_mutants_create(recipe, 0, 0, &listed));
    for (size_t i = 0; i < listed->count; i++) {
      ad_mutant *one = &listed->list[i];
      ad_repair repair;
      int found = 0;
      if (one->known || !one->mutation.in_record || one->mutation.operator_ != AD_OPERATOR_LEFT_OUT) continue;
      if (one->mutation.place.phase != AD_PLACE_FORWARD) continue;
      must(ad_derived_try_record(recipe, one));
      assert_true(one->mutation.fired);
      if (one->killed_by != AD_KILLED_BY_TYPE) continue;
      must(ad_derived_repair(recipe, one, &repair, &found));
      refused += is_said_as_it_is(recipe, one, &repair, found);
      if (!found || ad_repair_states(&repair)) continue;
      is_right_when_repaired(recipe, one, &repair);
      repaired++;
    }
    ad_mutants_destroy(listed);
    ad_recipe_destroy(recipe);
  }
  printf("%d of %d that an operation refuses are repaired\n", repaired, refused);
  assert_true(repaired >= 20 && 10 * repaired >= 8 * refused);
}

/* Whether the mutation and the repair both take effect in one step. */
static int is_of_that_mutant(const ad_recipe *recipe, ad_mutant *missing, const ad_repair *repair) {
  ad_mending mending = {.repair = repair};
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64, .quiet = 1};
  ad_step_report report;
  ad_comm *comm;
  ad_run *run;
  int64_t world;
  must(ad_recipe_world(recipe, &world));
  must(ad_comm_open_dry(missing->mutation.place.rank, world, &comm));
  must(ad_run_create(comm, recipe, &options, &run));
  ad_mutation_begin(&missing->mutation);
  ad_repair_begin(&mending);
  must(ad_run_step(run, 0, &report));
  ad_injections_clear();
  ad_run_destroy(run);
  ad_comm_close(comm);
  return mending.fired && missing->mutation.fired;
}

/* Checks that a message claims only what was tried: nothing follows the refusal but one clause, and that begins as an
 * untried repair, as one that was tried, or as none that was found. Programs as small as these have all their repairs
 * tried. */
static void is_said_as_sure_as_it_is(const ad_mutant *one) {
  const char *message_text = one->message, *none = strstr(message_text, AD_NO_REPAIR);
  if (none) assert_says_in("all were tried", none + strlen(AD_NO_REPAIR), SAYS_FACTS(NULL));
  const char *const introductions[] = {AD_MAY_REPAIR, AD_REPAIRS, AD_NO_REPAIR}, *clause = strchr(message_text, ';');
  int introduced = 0;
  for (size_t i = 0; i < sizeof introductions / sizeof *introductions; i++)
    introduced += clause && !strncmp(clause, introductions[i], strlen(introductions[i]));
  if (clause && (introduced != 1 || strchr(clause + 1, ';')))
    fail_msg("%s: how sure is this: %s", one->name, message_text);
}

/* Checks the message of every mutant in the record, whatever its operator. */
static void every_sentence_says_how_sure_it_is(void **state) {
  int found_count = 0, may = 0;
  for (int w = 0; w < WORLDS; w++) {
    ad_recipe *recipe = recipe_of(worlds[w]);
    ad_mutants *listed;
    must(ad_mutants_create(recipe, 0, 0, &listed));
    for (size_t i = 0; i < listed->count; i++) {
      ad_mutant *one = &listed->list[i];
      ad_repair repair;
      int found = 0;
      if (one->known || !one->mutation.in_record || one->mutation.place.phase != AD_PLACE_FORWARD) continue;
      must(ad_derived_try_record(recipe, one));
      if (one->killed_by != AD_KILLED_BY_TYPE) continue;
      is_said_as_sure_as_it_is(one);
      may += strstr(one->message, AD_MAY_REPAIR) != NULL;
      must(ad_derived_repair(recipe, one, &repair, &found));
      found_count += found;
      assert_true(!found || is_of_that_mutant(recipe, one, &repair));
    }
    ad_mutants_destroy(listed);
    ad_recipe_destroy(recipe);
  }
  printf("%d that were tried, %d that may\n", found_count, may);
  assert_true(found_count > 0 && may > 0);
}

/* ---- how many repairs were tried ---- */

enum { ROWS = 3, INNER = 4, COLUMNS = 5 };

/* A step on one rank of three, on backend dry: `calls` operations, then a product that is refused on `tp`. */
typedef struct long_step {
  ad_comm *comm;
  ad_mesh *mesh;
  int calls;   /* operations before the refused product */
  int goes_on; /* 0: the step then has another error that no conversion of its operands repairs */
  int taken;   /* how often the step was run */
} long_step;

static ad_status take_long_step(void *context) {
  long_step *step = context;
  const ad_shape shapes[] = {{2, {ROWS, INNER}}, {2, {INNER, COLUMNS}}, {2, {ROWS, COLUMNS}}};
  const char *const layouts[] = {"dp=I cp=I tp=I", "dp=I cp=I tp=S1", "dp=I cp=I tp=I"};
  ad_array arrays[3];
  ad_tensor *x[3];
  ad_tape *tape;
  AD_TRY(ad_tape_create(step->comm, step->mesh, NULL, &tape));
  for (int i = 0; i < 3; i++) {
    ad_layout layout;
    must(ad_layout_parse(step->mesh, layouts[i], &layout));
    arrays[i] = ad_array_describe(step->comm, AD_F32, &shapes[i], &layout);
    x[i] = ad_input(tape, &arrays[i]);
  }
  for (int i = 0; i < step->calls; i++) ad_scale(tape, x[1], 2);
  for (int i = 0; i < 6; i++) x[i % 2] = ad_scale(tape, x[i % 2], 2); /* a repair may convert before each of these */
  ad_tensor *y = ad_linear(tape, x[0], x[1]);
  if (!step->goes_on) ad_multiply(tape, ad_all_gather(tape, y, "tp", AD_R), x[2]);
  ad_status status = ad_tape_status(tape);
  ad_tape_destroy(tape);
  step->taken++;
  return status;
}

/* The message says how many conversions were tried, and of how many, where that is not all of them. Its sentence is in
 * the list of the case. */
static void says_of_long_step(const char *name, long_step *step, int is_found, int are_all_tried) {
  char tried[24], listed[24];
  ad_repair repair;
  ad_repair_search search;
  int found;
  ad_status refused = take_long_step(step);
  assert_int_equal(refused, AD_TYPE);
  must(ad_repair_find(take_long_step, step, &repair, &found, &search));
  assert_int_equal(found, is_found);
  assert_int_equal(search.tried == search.listed, are_all_tried);
  if (!are_all_tried) assert_true(search.tried == 64 && search.listed > 64);
  assert_int_equal(take_long_step(step), refused);
  step->taken = 0;
  assert_int_equal(ad_repair_report(refused, take_long_step, step), AD_TYPE);
  assert_int_equal(step->taken, 1 + search.tried); /* one run more, to find the error */
  snprintf(tried, sizeof tried, "%zu", search.tried);
  snprintf(listed, sizeof listed, "%zu", search.listed);
  const char *reported = strstr(ad_last_error(), found ? AD_REPAIRS : AD_NO_REPAIR);
  assert_non_null(reported);
  if (!are_all_tried)
    assert_says_in(name, reported, SAYS_FACTS(tried, listed));
  else
    assert_says_in(name, reported, found ? SAYS_FACTS("tp") : SAYS_FACTS(tried, NULL));
}

/* In a short step all repairs are tried, in a long step only the simplest; the message says which and how many. */
static void how_many_were_tried_is_reported(void **state) {
  long_step step = {0};
  must(ad_comm_open_dry(1, 3, &step.comm));
  must(ad_mesh_create("dp_replicate=1 dp_shard=1 cp=1 tp=3", &step.mesh));
  says_of_long_step("none found, all tried", &step, 0, 1);
  step.calls = 2000;
  says_of_long_step("none found, some tried", &step, 0, 0);
  step.goes_on = 1;
  says_of_long_step("found, some tried", &step, 1, 0);
  step.calls = 0;
  says_of_long_step("found, all tried", &step, 1, 1);
  ad_mesh_destroy(step.mesh);
  ad_comm_close(step.comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(how_many_were_tried_is_reported),
                                     cmocka_unit_test(every_repair_that_is_said_repairs),
                                     cmocka_unit_test(every_sentence_says_how_sure_it_is)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
