/* The schedule of a pipeline: what its actions take, and what follows for ranks; in the plan's document, its tables and
 * its picture. */
#ifndef PLAN_SCHEDULE_H
#define PLAN_SCHEDULE_H
#include <stdio.h>
#include "addend/schedule.h"
#include "plan/pools.h"

/* What the actions of a pipeline's table take. */
typedef struct ad_plan_costs {
  ad_table_costs costs;
  double *of_stage;  /* shares of matrix products: 1 is the mean stage's forward pass; or NULL */
  double *of_action; /* as measured, in seconds; or NULL */
} ad_plan_costs;

/* trace: the folder of a run of this pipeline; NULL: by products. */
ad_status ad_plan_costs_find(const ad_run *run, const char *trace, ad_plan_costs *out) AD_CHECKED;
void ad_plan_costs_release(ad_plan_costs *costs);
/* of_action as in ad_table_costs: means over the steps of the folder's trace.json, the first left out where there are
 * more, and over the ranks of a stage; what a pass waited for values is no part of it. AD_INVALID: the trace is of
 * another pipeline; AD_IO. */
ad_status ad_plan_measure(const char *folder, const ad_table *table, double *of_action) AD_CHECKED;

/* Fills "schedule"; nothing where there is no pipeline. */
ad_status ad_plan_add_schedule(const ad_plan_pools *pools, const char *trace, json_t *document) AD_CHECKED;
/* The same for people, from the document. */
void ad_plan_print_schedule(FILE *file, const json_t *plan);
/* The picture of ad_plan_picture; *out NULL: there is no pipeline. */
ad_status ad_plan_draw_schedule(const ad_recipe *recipe, const ad_plan_options *options, const char *command,
                                char **out) AD_CHECKED;

#endif
