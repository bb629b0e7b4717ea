/* The schedule of a pipeline in a plan: costs of its actions, and the times of ranks that follow from them, in the
 * plan's document, tables and picture. */
#ifndef PLAN_SCHEDULE_H
#define PLAN_SCHEDULE_H
#include <stdio.h>
#include "addend/schedule.h"
#include "plan/pools.h"

/* The costs of the actions in a pipeline's table: either of_stage or of_action is set. */
typedef struct ad_plan_costs {
  ad_table_costs costs;
  double *of_stage;  /* by matrix products, 1 is the mean stage's forward pass; or NULL */
  double *of_action; /* measured seconds; or NULL */
} ad_plan_costs;

/* Finds the costs. `trace`: the folder of a run of this pipeline; NULL: by matrix products. */
ad_status ad_plan_costs_find(const ad_run *run, const char *trace, ad_plan_costs *out) AD_CHECKED;
void ad_plan_costs_release(ad_plan_costs *costs);
/* Fills of_action, as in ad_table_costs, with the mean seconds in the folder's trace.json, over steps and over the
 * ranks of a stage; the first step is left out if there are more. Time that a pass waited for values is subtracted.
 * AD_INVALID: the trace is of another pipeline. AD_IO: it cannot be read. */
ad_status ad_plan_measure(const char *folder, const ad_table *table, double *of_action) AD_CHECKED;

/* Sets "schedule" in the document, if there is a pipeline. */
ad_status ad_plan_add_schedule(const ad_plan_pools *pools, const char *trace, json_t *document) AD_CHECKED;
/* Prints the document's schedule as a table. */
void ad_plan_print_schedule(FILE *file, const json_t *plan);
/* The picture of ad_plan_picture for a pipeline; *out = NULL if there is none. */
ad_status ad_plan_draw_schedule(const ad_recipe *recipe, const ad_plan_options *options, const char *command,
                                char **out) AD_CHECKED;

#endif
