/* The parts of a plan about updates on whole matrices, such as Muon's: by which moves shards become matrices, which way
 * was chosen and what the others would cost, and which rank works on how many matrices. Empty for a recipe whose
 * optimizers are elementwise. */
#ifndef PLAN_UPDATES_H
#define PLAN_UPDATES_H
#include <stdio.h>
#include "optim/whole.h"
#include "plan/pools.h"
#include "reduce/plan.h"

int ad_plan_has_updates(const ad_plan_pools *pools); /* returns 1 if some rank updates parameters as whole matrices */
/* Returns the stacks of matrices that a module updates as a whole; NULL, with *count 0, if there are none. */
const ad_stack *ad_plan_stacks(const ad_run *run, size_t module, size_t *count);
/* Lists the parameters of a stack, numbered as in their module, in `params`, which has room for stack->params numbers. */
void ad_plan_stack_params(const ad_run *run, size_t module, const ad_stack *stack, size_t *params);
/* Describes move number `index` of each round of a stack, there and back; `bucket` is the stack's number. Returns 0 if
 * there is no such move. A move that sends nothing has the size 0. */
int ad_plan_stack_move(const ad_run *run, const ad_stack *stack, size_t number, int index,
                       ad_reduction_plan *out) AD_CHECKED;

/* Adds "updates", "owners" and "owners_most" to the document. */
ad_status ad_plan_add_updates(const ad_plan_pools *pools, const ad_plan_world *world, json_t *document) AD_CHECKED;
void ad_plan_print_updates(FILE *file, const json_t *plan); /* prints nothing if the plan has no updates */

#endif
