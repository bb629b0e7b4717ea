/* Tests plans of pipelines: the planned bytes over bridges are what ranks of a run receive; numbers of stages follow
 * from the model's size; times of actions are read from a trace as it was written. */
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
#include "addend/schedule.h"
#include "base/error.h"
#include "base/injection.h"
#include "plan/plan.h"
#include "plan/schedule.h"
#include "ranks.h"
#include "says.h"
#include "step/transfers.h"
#include "step/run.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { D_MODEL = 8, HIDDEN = 12, SEQ = 6, VOCABULARY = 256, BRIDGES_MAX = 8 };

/* A pipeline small enough to be run. */
typedef struct pipeline {
  const char *mesh, *schedule; /* the recipe's section `schedule`, in flow style */
  const char *model;           /* further keys of `model` */
  int ranks, layers, batch, microbatches;
} pipeline;

static ad_recipe *recipe_of(const pipeline *of) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: small\nmodel: {kind: gpt, layers: %d, d_model: %d, heads: 2, d_hidden: %d%s}\n"
           "data: {text: [/usr/share/common-licenses], seq: %d}\nmesh: \"%s\"\nschedule: %s\n"
           "train: {global_batch: %d, microbatches: %d, steps: 2, lr: 1e-3}\n",
           of->layers, D_MODEL, HIDDEN, of->model, SEQ, of->mesh, of->schedule, of->batch, of->microbatches);
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

static json_t *plan_of(const ad_recipe *recipe) {
  json_t *plan = NULL;
  must(ad_plan_document(recipe, NULL, &plan));
  return plan;
}

static json_int_t number(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}
static double real(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

/* ---- bytes received over bridges ---- */

/* Bytes that one rank receives in a step, by bridge and direction. */
typedef struct arrivals {
  char values[BRIDGES_MAX][32];
  json_int_t bytes[BRIDGES_MAX][2];
  int count;
} arrivals;

static json_int_t *bytes_of(arrivals *of, const char *value, int backward) {
  int i = 0;
  while (i < of->count && strcmp(of->values[i], value) != 0) i++;
  CHECK(i < BRIDGES_MAX);
  if (i == of->count) snprintf(of->values[of->count++], sizeof *of->values, "%s", value);
  return &of->bytes[i][backward];
}

static void count(arrivals *to, const ad_transfer_passing *passing, int backward) {
  const ad_array *array = passing->array;
  const ad_transfer_spec *spec = passing->transfer->spec;
  *bytes_of(to, spec->value, backward) += ad_shape_numel(&array->local) * (json_int_t)ad_dtype_size(array->dtype);
}

static void count_value(void *context, void *passing) { count(context, passing, 0); }
static void count_gradient(void *context, void *passing) { count(context, passing, 1); }

static void take_step(ad_comm *comm, const ad_recipe *recipe, arrivals *counted) {
  ad_run *run;
  ad_step_report report;
  CHECK_OK(ad_run_create(comm, recipe, NULL, &run));
  ad_injection_set(AD_INJECT_ARRIVED, (ad_injection){count_value, counted});
  ad_injection_set(AD_INJECT_RETURNED, (ad_injection){count_gradient, counted});
  CHECK_OK(ad_run_step(run, 0, &report));
  ad_injections_clear();
  ad_run_destroy(run);
}

static void add_planned(const json_t *bridge, int64_t rank, arrivals *to) {
  const json_t *row;
  size_t i;
  json_array_foreach(json_object_get(bridge, "bytes_per_rank"), i, row) {
    if (number(row, "rank") != rank) continue;
    const char *value = json_string_value(json_object_get(bridge, "site"));
    const json_t *there = json_object_get(row, "forward"), *back = json_object_get(row, "backward");
    *bytes_of(to, value, 0) += number(bridge, "times") * number(there, "receives");
    *bytes_of(to, value, 1) += number(bridge, "times") * number(back, "receives");
  }
}

typedef struct compared {
  const ad_recipe *recipe;
  const json_t *plan;
} compared;

static int compare_bytes(ad_comm *comm, void *context) {
  const compared *of = context;
  const json_t *bridges = json_object_get(of->plan, "bridges"), *bridge;
  arrivals counted = {.count = 0}, planned = {.count = 0};
  json_int_t all = 0;
  size_t i;
  take_step(comm, of->recipe, &counted);
  json_array_foreach(bridges, i, bridge) add_planned(bridge, ad_comm_rank(comm), &planned);
  for (int v = 0; v < planned.count; v++)
    for (int way = 0; way < 2; way++) {
      CHECK(planned.bytes[v][way] == *bytes_of(&counted, planned.values[v], way));
      all += planned.bytes[v][way];
    }
  CHECK(counted.count == planned.count);
  CHECK(all > 0 || ad_comm_size(comm) > 2); /* with three ranks the last one may have no sample */
  return 0;
}

static void ranks_receive_what_the_plan_says(void **state) {
  static const pipeline list[] = {
      {"pp=2 dp_shard=3", "{kind: 1f1b}", "", 6, 3, 7, 3},
      {"pp=2 dp_shard=3", "{kind: gpipe}", ", tied: false", 6, 2, 4, 2},
      {"pp=3 dp_shard=1 tp=2", "{kind: zb}", ", sequence_parallel: true", 6, 4, 5, 4},
      {"pp=2 dp_shard=1 cp=3", "{stages: 4}", "", 6, 5, 3, 3},
      {"pp=3 dp_shard=2", "{layers: [2, 0, 1]}", "", 6, 3, 1, 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    ad_recipe *recipe = recipe_of(&list[i]);
    json_t *plan = plan_of(recipe);
    run_ranks(list[i].ranks, compare_bytes, (&(compared){recipe, plan}));
    json_decref(plan);
    ad_recipe_destroy(recipe);
  }
}

/* ---- memory for activations ---- */

/* Zero for all schedules but zb. */
static const double activations_tolerance = 0.002;

/* Compares the most that this rank's tapes and bridges held with the plan. */
static int compare_activations(ad_comm *comm, void *context) {
  const compared *of = context;
  int64_t rank = ad_comm_rank(comm);
  const json_t *planned = json_array_get(json_object_get(of->plan, "memory_per_rank"), (size_t)rank);
  ad_run *run;
  ad_step_report report;
  CHECK_OK(ad_run_create(comm, of->recipe, NULL, &run));
  for (int64_t step = 0; step < 2; step++) CHECK_OK(ad_run_step(run, step, &report));
  double held = (double)(ad_run_tape_bytes(run) + ad_transfers_bytes(run)), plan = real(planned, "activations");
  ad_run_destroy(run);
  CHECK(fabs(held / plan - 1) <= activations_tolerance);
  return 0;
}

static void hold_what_was_planned(int stages, int ranks, const char *schedule) {
  char mesh[64], section[64];
  snprintf(mesh, sizeof mesh, "mesh=pp=%d dp_shard=1 tp=2", ranks);
  snprintf(section, sizeof section, "schedule={kind: %s, stages: %d}", schedule, stages);
  const char *sets[] = {mesh, section, "train.microbatches=6", "train.global_batch=13", "model.layers=6"};
  ad_recipe *recipe = NULL;
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/gpt-pp.yaml", sets, sizeof sets / sizeof *sets, &recipe));
  json_t *plan = plan_of(recipe);
  run_ranks((int64_t)2 * ranks, compare_activations, (&(compared){recipe, plan}));
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void ranks_hold_the_activations_that_were_planned(void **state) {
  for (int ranks = 2; ranks <= 3; ranks++) {
    hold_what_was_planned(ranks, ranks, "gpipe");
    hold_what_was_planned(ranks, ranks, "1f1b");
    hold_what_was_planned(2 * ranks, ranks, "interleaved");
    hold_what_was_planned(ranks, ranks, "zb");
  }
}

/* ---- the work of stages ---- */

/* Multiplications per token of a stage: the matrices of its blocks and of the head, and attention's products. */
static double stage_elements(int layers, int is_last) {
  double block = 4.0 * D_MODEL * D_MODEL + 3.0 * D_MODEL * HIDDEN + (double)D_MODEL * SEQ;
  return layers * block + (is_last ? (double)VOCABULARY * D_MODEL : 0);
}

static void take_what_their_products_do(const int layers[4]) {
  char section[64];
  int all = layers[0] + layers[1] + layers[2] + layers[3];
  snprintf(section, sizeof section, "{kind: 1f1b, layers: [%d, %d, %d, %d]}", layers[0], layers[1], layers[2],
           layers[3]);
  ad_recipe *recipe = recipe_of(&(pipeline){"pp=4", section, "", 4, all, 6, 6});
  json_t *plan = plan_of(recipe), *schedule = json_object_get(plan, "schedule");
  const json_t *costs = json_object_get(json_object_get(schedule, "costs"), "of_stage");
  double sum = 0;
  for (int s = 0; s < 4; s++) sum += stage_elements(layers[s], s == 3);
  for (size_t s = 0; s < 4; s++) {
    double share = fmax(4 * stage_elements(layers[s], s == 3) / sum, 0.01);
    const json_t *cost = json_array_get(costs, s);
    assert_true(fabs(real(cost, "F") - share) < 1e-12 && fabs(real(cost, "B") - 2 * share) < 1e-12);
    assert_null(json_object_get(cost, "W"));
  }
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* In the second model one stage has less than a hundredth of the mean work. */
static void stages_take_what_their_products_do(void **state) {
  take_what_their_products_do((const int[]){5, 3, 0, 2});
  take_what_their_products_do((const int[]){498, 1, 0, 1});
}

static void check_schedule(const char *kind, int place, int in_flight, int deferred) {
  char section[64];
  snprintf(section, sizeof section, "{kind: %s}", kind);
  ad_recipe *recipe = recipe_of(&(pipeline){"pp=3 dp_shard=1", section, "", 3, 6, 5, 5});
  json_t *plan = plan_of(recipe), *schedule = json_object_get(plan, "schedule");
  const json_t *rows = json_object_get(schedule, "per_pool"), *row = json_array_get(rows, (size_t)place);
  double busy = 0;
  for (size_t i = 0; i < 3; i++) busy += real(json_array_get(rows, i), "busy");
  assert_string_equal(json_string_value(json_object_get(schedule, "kind")), kind);
  /* each of three microbatches has a forward of 5, and a backward twice as long */
  assert_true(fabs(busy - 3 * 3.0 * 5) < 1e-9);
  assert_true(fabs(real(schedule, "bubble") - (1 - busy / (3 * real(schedule, "makespan")))) < 1e-12);
  assert_int_equal(number(row, "in_flight"), in_flight);
  assert_int_equal(number(row, "deferred"), deferred);
  assert_int_equal(number(row, "pool"), place);
  assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "stages"), 0)), place);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void places_hold_what_their_schedule_says(void **state) {
  check_schedule("gpipe", 0, 5, 0);
  check_schedule("1f1b", 0, 3, 0);
  check_schedule("1f1b", 2, 1, 0);
  check_schedule("zb", 0, 3, 1);
  check_schedule("zb", 2, 1, 3);
}

static void one_stage_has_no_schedule(void **state) {
  ad_recipe *recipe = recipe_of(&(pipeline){"dp_shard=2", "{}", "", 2, 2, 2, 2});
  json_t *plan = plan_of(recipe), *none = NULL;
  ad_plan_options traced = {.size = sizeof traced, .trace = "runs/none"};
  assert_null(json_object_get(plan, "schedule"));
  assert_int_equal(ad_plan_document(recipe, &traced, &none), AD_INVALID);
  assert_listed();
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

/* ---- times read from a run's trace ---- */

enum { STAGES = 2, MICROBATCHES = 3 };

static char folder[] = "/tmp/addend-trace-XXXXXX";

/* Duration of a pass in microseconds, different for each pass, stage and microbatch. */
static double taken(int pass, int stage, int microbatch) { return 100 * pass + 10 * stage + microbatch + 1; }

static void write_span(FILE *file, const char *cat, int step, int rank, int stage, int m, double at, double duration) {
  fprintf(file,
          ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"ts\":%g,\"dur\":%g,\"args\":{\"step\":%d,\"index\":%d,"
          "\"stage\":%d}}",
          cat, rank, at, duration, step, m, stage);
}

/* Writes a trace: two ranks of each stage, one slower by 2 microseconds; a forward pass has a wait of 7 in its middle;
 * the first step is slow. */
static void write_steps(int is_split, int stages, int steps) {
  char path[64];
  snprintf(path, sizeof path, "%s/trace.json", folder);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("{\"traceEvents\":[{\"ph\":\"M\"}", file);
  for (int rank = 0; rank < 2 * stages; rank++)
    for (int step = 0; step < steps; step++)
      for (int m = 0; m < MICROBATCHES; m++) {
        int s = rank / 2;
        double at = 1e6 * step + 1000 * m, more = (step ? 0 : 500) + (rank % 2 ? 2 : 0);
        write_span(file, "forward", step, rank, s, m, at, taken(0, s, m) + more + 7);
        write_span(file, "wait for value", step, rank, 0, m, at + 1, 7);
        write_span(file, "wait for value", step, rank, 0, m, at + 700, 9); /* a wait before the next pass */
        write_span(file, "backward", step, rank, s, m, at + 700, taken(1, s, m) + more);
        if (is_split) write_span(file, "backward of weights", step, rank, s, m, at + 900, taken(2, s, m) + more);
      }
  fputs("]}\n", file);
  fclose(file);
}

static void write_trace(int is_split, int stages) { write_steps(is_split, stages, 3); }

static ad_table *table_of(const char *schedule) {
  ad_table *table;
  must(ad_table_make(schedule, &(ad_table_shape){sizeof(ad_table_shape), STAGES, MICROBATCHES, 0}, &table));
  return table;
}

static void check_costs(const char *schedule, int kind, double microseconds_of_microbatch_1_of_stage_1) {
  ad_table *table = table_of(schedule);
  double costs[4 * STAGES * MICROBATCHES] = {0};
  must(ad_plan_measure(folder, table, costs));
  double found = costs[(kind * STAGES + 1) * MICROBATCHES + 1];
  assert_true(fabs(found - 1e-6 * microseconds_of_microbatch_1_of_stage_1) < 1e-12);
  ad_table_destroy(table);
}

static void a_trace_says_what_actions_take(void **state) {
  write_trace(0, STAGES);
  check_costs("1f1b", AD_ACTION_F, taken(0, 1, 1) + 1);
  check_costs("1f1b", AD_ACTION_B, taken(1, 1, 1) + 1);
  write_trace(1, STAGES);
  check_costs("zb", AD_ACTION_I, taken(1, 1, 1) + 1);
  check_costs("zb", AD_ACTION_W, taken(2, 1, 1) + 1);
  check_costs("gpipe", AD_ACTION_B, taken(1, 1, 1) + taken(2, 1, 1) + 2);
}

static void the_first_step_counts_where_there_is_no_other(void **state) {
  write_steps(0, STAGES, 1);
  check_costs("1f1b", AD_ACTION_F, taken(0, 1, 1) + 1 + 500);
  check_costs("1f1b", AD_ACTION_B, taken(1, 1, 1) + 1 + 500);
}

static void refuses(const char *schedule, const char *const *facts) {
  ad_table *table = table_of(schedule);
  double costs[4 * STAGES * MICROBATCHES];
  assert_int_equal(ad_plan_measure(folder, table, costs), AD_INVALID);
  assert_says_all(facts);
  ad_table_destroy(table);
}

static void a_trace_of_something_else_is_refused(void **state) {
  write_trace(0, STAGES);
  refuses("zb", SAYS_FACTS("0I0"));
  write_trace(0, STAGES - 1);
  refuses("1f1b", SAYS_FACTS("1F0"));
  write_trace(0, STAGES + 1);
  refuses("1f1b", SAYS_FACTS("stage 2"));
}

static void a_trace_that_is_not_there_is_refused(void **state) {
  ad_recipe *recipe = recipe_of(&(pipeline){"pp=2", "{}", "", 2, 2, 2, 2});
  json_t *none = NULL;
  ad_plan_options traced = {.size = sizeof traced, .trace = "/nonexistent"};
  assert_int_not_equal(ad_plan_document(recipe, &traced, &none), AD_OK);
  assert_says("/nonexistent/trace.json");
  ad_recipe_destroy(recipe);
}

static int make_folder(void **state) { return mkdtemp(folder) == NULL; }

static int remove_folder(void **state) {
  char path[64];
  snprintf(path, sizeof path, "%s/trace.json", folder);
  return unlink(path) || rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_receive_what_the_plan_says),
                                     cmocka_unit_test(ranks_hold_the_activations_that_were_planned),
                                     cmocka_unit_test(stages_take_what_their_products_do),
                                     cmocka_unit_test(places_hold_what_their_schedule_says),
                                     cmocka_unit_test(one_stage_has_no_schedule),
                                     cmocka_unit_test(a_trace_says_what_actions_take),
                                     cmocka_unit_test(a_trace_of_something_else_is_refused),
                                     cmocka_unit_test(the_first_step_counts_where_there_is_no_other),
                                     cmocka_unit_test(a_trace_that_is_not_there_is_refused)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
