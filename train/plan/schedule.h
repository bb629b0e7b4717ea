/* The schedule of a pipeline in a plan: what its actions cost and when ranks execute them, in the plan's document,
 * tables and picture. */
#ifndef PLAN_SCHEDULE_H
#define PLAN_SCHEDULE_H
#include <stdio.h>
#include "addend/schedule.h"
#include "plan/pools.h"

/* The costs of the actions in a pipeline's table. Exactly one of of_stage and of_action is set. */
typedef struct ad_plan_costs {
  ad_table_costs costs;
  double *of_stage;  /* computed from matrix products, in units of the mean stage's forward pass; or NULL */
  double *of_action; /* seconds, measured in a run; or NULL */
} ad_plan_costs;

/* Finds the costs: if `trace` is the folder of a run of this pipeline, those measured in that run; if `trace` is NULL,
 * those of the matrix products. */
ad_status ad_plan_costs_find(const ad_run *run, const char *trace, ad_plan_costs *out) AD_CHECKED;
void ad_plan_costs_release(ad_plan_costs *costs);
/* Fills of_action (see ad_table_costs) with the mean seconds in the folder's trace.json, over steps and over the ranks
 * of a stage. The first step is left out if there are more. The time that a pass waited for values is subtracted.
 * Returns AD_INVALID if the trace is of another pipeline, AD_IO if it cannot be read. */
ad_status ad_plan_measure(const char *folder, const ad_table *table, double *of_action) AD_CHECKED;

/* Adds "schedule" to the document, if the program is a pipeline. */
ad_status ad_plan_add_schedule(const ad_plan_pools *pools, const char *trace, json_t *document) AD_CHECKED;
/* Prints the document's schedule as a table. */
void ad_plan_print_schedule(FILE *file, const json_t *plan);
/* Draws the picture of ad_plan_picture for a pipeline. Sets *out to NULL if the program is no pipeline. */
ad_status ad_plan_draw_schedule(const ad_recipe *recipe, const ad_plan_options *options, const char *command,
                                char **out) AD_CHECKED;

#endif
