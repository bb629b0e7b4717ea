/* The schedule of a pipeline in a plan: its table of actions. Times come from the stages' matrix products or from the
 * trace of a run. */
#include "plan/schedule.h"

#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "files/json.h"
#include "program/program.h"
#include "step/run.h"
#include "recipe/schedule.h"

static int is_pipeline(const ad_run *run) { return ad_program_stage_count(ad_run_program(run)) > 1; }

/* ---- costs of actions, by matrix products or by a trace ---- */

/* The least cost that a stage is given, in units of the mean cost. A stage without matrix products takes a little time,
 * too. */
static const double least_share = 0.01;
/* The costs of F, B, I and W, if the stage's forward pass costs 1. */
static const double passes[] = {[AD_ACTION_F] = 1, [AD_ACTION_B] = 2, [AD_ACTION_I] = 1, [AD_ACTION_W] = 1};
enum { PASSES = sizeof passes / sizeof *passes };

/* Finds the stages' shares of the matrix products, scaled to a mean of 1. */
static void weigh_stages(const ad_program *program, size_t count, double *shares) {
  const ad_program_kind *kind = ad_program_kind_of(program);
  double sum = 0;
  for (size_t s = 0; s < count; s++) {
    shares[s] = kind->stage_flops ? kind->stage_flops(ad_program_own((ad_program *)(uintptr_t)program), s, 1) : 1;
    sum += shares[s];
  }
  for (size_t s = 0; s < count; s++) {
    shares[s] *= (double)count / sum;
    if (!(shares[s] > least_share)) shares[s] = least_share;
  }
}

static ad_status by_products(const ad_run *run, ad_plan_costs *out) {
  size_t count = ad_program_stage_count(ad_run_program(run));
  AD_TRY(ad_new(count, &out->of_stage));
  weigh_stages(ad_run_program(run), count, out->of_stage);
  out->costs = (ad_table_costs){.size = sizeof out->costs,
                                .f = passes[AD_ACTION_F],
                                .b = passes[AD_ACTION_B],
                                .i = passes[AD_ACTION_I],
                                .w = passes[AD_ACTION_W],
                                .of_stage = out->of_stage,
                                .stage_count = count};
  return AD_OK;
}

static ad_status by_trace(const ad_run *run, const char *folder, ad_plan_costs *out) {
  const ad_table *table = run->order.table;
  size_t stages = (size_t)ad_table_stage_count(table), microbatches = (size_t)ad_table_microbatch_count(table);
  AD_TRY(ad_new(PASSES * stages * microbatches, &out->of_action));
  out->costs = (ad_table_costs){
      .size = sizeof out->costs, .stage_count = stages, .of_action = out->of_action, .microbatch_count = microbatches};
  return ad_plan_measure(folder, table, out->of_action);
}

ad_status ad_plan_costs_find(const ad_run *run, const char *trace, ad_plan_costs *out) {
  ad_plan_costs costs = {.of_stage = NULL};
  ad_status status = trace ? by_trace(run, trace, &costs) : by_products(run, &costs);
  if (status)
    ad_plan_costs_release(&costs);
  else
    *out = costs;
  return status;
}

void ad_plan_costs_release(ad_plan_costs *costs) {
  ad_release(costs->of_stage);
  ad_release(costs->of_action);
}

/* ---- writing the schedule's document ---- */

static int has_kind(const ad_table *table, ad_action_kind kind) {
  for (size_t i = 0; i < ad_table_action_count(table, 0); i++)
    if (ad_table_action(table, 0, i)->kind == kind) return 1;
  return 0;
}

/* Returns the cost of an action of this kind on this stage. Measured costs are averaged over the microbatches. */
static double cost_of(const ad_table_costs *costs, int kind, size_t stage) {
  const double *own = costs->of_action;
  double sum = 0;
  if (!own) return passes[kind] * costs->of_stage[stage];
  own += ((size_t)kind * costs->stage_count + stage) * costs->microbatch_count;
  for (size_t m = 0; m < costs->microbatch_count; m++) sum += own[m];
  return sum / (double)costs->microbatch_count;
}

static json_t *stage_costs(const ad_table *table, const ad_table_costs *costs, size_t stage) {
  json_t *document = json_object();
  for (int kind = 0; kind < PASSES; kind++)
    if (has_kind(table, (ad_action_kind)kind))
      json_object_set_new(document, ad_action_name((ad_action_kind)kind), json_real(cost_of(costs, kind, stage)));
  return document;
}

static json_t *costs_document(const ad_table *table, const ad_plan_costs *of) {
  json_t *stages = json_array();
  for (size_t s = 0; s < of->costs.stage_count; s++) json_array_append_new(stages, stage_costs(table, &of->costs, s));
  return json_pack("{s:s, s:s, s:o}", "by", of->of_action ? "trace" : "products", "unit",
                   of->of_action ? "seconds" : "forward of the mean stage", "of_stage", stages);
}

/* Makes the document of a pool from `row`, its row in the report on the table, in which each pool counts as one rank.
 * Takes ownership of `row`. */
static json_t *pool_row(const ad_plan_pools *pools, size_t pool, json_t *row) {
  json_t *document = json_pack("{s:I, s:o}", "pool", (json_int_t)pool, "stages", ad_plan_pool_stages(pools, pool));
  json_object_update(document, row);
  return document;
}

static json_t *schedule_document(const ad_plan_pools *pools, const ad_plan_costs *costs, const json_t *report) {
  static const char *const kept[] = {"stages", "microbatches", "makespan", "bubble", "in_flight", "deferred"};
  const ad_run *run = pools->list[0].run;
  json_t *rows = json_array(), *row;
  json_t *document = json_pack("{s:s}", "kind", ad_recipe_schedule(ad_run_recipe(run)));
  size_t i;
  for (i = 0; i < sizeof kept / sizeof *kept; i++) json_object_set(document, kept[i], json_object_get(report, kept[i]));
  json_array_foreach(json_object_get(report, "per_rank"), i, row) json_array_append_new(rows, pool_row(pools, i, row));
  json_object_set_new(document, "costs", costs_document(run->order.table, costs));
  json_object_set_new(document, "per_pool", rows);
  return document;
}

/* Makes the report on a table with these costs, as JSON. */
static ad_status report_of(const ad_table *table, const ad_table_costs *costs, json_t **out) {
  ad_table_options options = {.size = sizeof options, .costs = costs};
  char *text;
  int holds;
  AD_TRY(ad_table_report(table, &options, &holds, &text));
  *out = json_loads(text, 0, NULL);
  free(text);
  return *out ? AD_OK : ad_fail(AD_MEMORY, "no memory for the schedule of a plan");
}

ad_status ad_plan_add_schedule(const ad_plan_pools *pools, const char *trace, json_t *document) {
  const ad_run *run = pools->list[0].run;
  ad_plan_costs costs;
  json_t *report;
  if (!is_pipeline(run))
    return trace ? ad_fail(AD_INVALID,
                           "--trace takes the measured times of the actions of a pipeline, but this recipe has no "
                           "pipeline; leave out --trace")
                 : AD_OK;
  AD_TRY(ad_plan_costs_find(run, trace, &costs));
  ad_status status = report_of(run->order.table, &costs.costs, &report);
  if (!status) {
    json_object_set_new(document, "schedule", schedule_document(pools, &costs, report));
    json_decref(report);
  }
  ad_plan_costs_release(&costs);
  return status;
}

/* ---- drawing the schedule ---- */

static ad_status draw_schedule(const ad_run *run, const char *trace, const ad_table_drawing *drawing, char **out) {
  ad_plan_costs costs;
  AD_TRY(ad_plan_costs_find(run, trace, &costs));
  ad_table_options options = {.size = sizeof options, .costs = &costs.costs};
  ad_status status = ad_table_svg(run->order.table, &options, drawing, out);
  ad_plan_costs_release(&costs);
  return status;
}

/* Draws the schedule of a run. `typed` is the command as printable text, or JSON null if there is none. */
static ad_status draw_run(const ad_run *run, const char *trace, const json_t *typed, char **out) {
  const ad_recipe *recipe = ad_run_recipe(run);
  char title[1280], mesh[1024];
  snprintf(title, sizeof title, "%s: mesh %s, schedule %s", recipe->name,
           ad_recipe_mesh_text(recipe, mesh, sizeof mesh), ad_recipe_schedule(recipe));
  ad_table_drawing drawing = {.size = sizeof drawing,
                              .title = title,
                              .subtitle = json_string_value(typed),
                              .ranks_per_row = ad_mesh_size(ad_program_mesh(ad_run_program(run), 0))};
  return draw_schedule(run, trace, &drawing, out);
}

ad_status ad_plan_draw_schedule(const ad_recipe *recipe, const ad_plan_options *given, const char *command,
                                char **out) {
  ad_plan_options options;
  ad_plan_world world;
  ad_comm *comm;
  ad_run *run;
  *out = NULL;
  AD_TRY(ad_options_take(&options, sizeof options, given, "ad_plan_options"));
  AD_TRY(ad_plan_world_of(recipe, given, &world));
  AD_TRY(ad_plan_act(recipe, 0, &world, 0, &comm, &run));
  json_t *typed = command ? ad_json_text(command) : json_null();
  ad_status status = typed ? AD_OK : ad_fail(AD_MEMORY, "no memory for the command line that a picture shows");
  if (!status && is_pipeline(run)) status = draw_run(run, options.trace, typed, out);
  json_decref(typed);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}
