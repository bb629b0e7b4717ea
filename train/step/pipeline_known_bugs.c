/* The known bugs of pipelines that cannot be seen in a table of actions. They concern the embedding that two stages
 * use, the norm over all stages, and the divisors of losses and gradients (core/docs/pipeline.md says who published
 * them). Nothing in this file is part of what a step does. */
#include <string.h>

#include "array/array.h"
#include "array/transit.h"
#include "bridge/bridge.h"
#include "kernels/kernels.h"
#include "module/module.h"
#include "program/program.h"
#include "reduce/count.h"
#include "reduce/reducer.h"
#include "tensor/operation.h"
#include "tensor/tape.h"
#include "step/known_bugs.h"
#include "step/run.h"

static void fire(void *context) { ((ad_known_bug_scene *)context)->fired = 1; }

static void keep_run(void *context, void *passing) { ((ad_known_bug_scene *)context)->kept = passing; }

static void note_microbatch(void *context, void *passing) {
  ((ad_known_bug_scene *)context)->microbatch = (int64_t) * (const size_t *)passing;
}

static int is_pipeline(const ad_run *run) { return ad_program_stage_count(run->program) > 1; }

/* Returns the mesh that has this rank's stages. */
static const ad_mesh *own_mesh(const ad_run *run) {
  size_t m = 0;
  while (!ad_run_module(run, m)) m++;
  return ad_program_module(run->program, m)->mesh;
}

/* ---- known bugs of the embedding that the first and last stages share ---- */

/* The bug: leaves out the head's gradient of the tied embedding when it comes back to the first stage. */
static void leave_head_out(void *context, void *passing) {
  const ad_transfer_passing *at = passing;
  if (!is_pipeline(at->run) || !at->transfer->spec->is_parameter || !at->array->data) return;
  memset(at->array->data, 0, ad_array_bytes(at->array));
  fire(context);
}

static ad_tensor *constant_copy(ad_tape *t, ad_tensor *of) {
  ad_tensor *copy = ad_scale(t, of, 1);
  ad_tape_lend(copy);
  return ad_constant(t, ad_tensor_array(copy));
}

/* The bug: looks tokens up in a copy of the embedding that gets no gradient, so that the embedding has only the head's
 * gradient. */
static void look_up_in_constant(void *context, void *passing) {
  static ad_tensor *with[AD_OPERANDS_MAX];
  ad_operation_passing *at = passing;
  if (strcmp(at->op->name, "embedding")) return;
  memcpy(with, at->operands, (size_t)at->count * sizeof *with);
  with[0] = constant_copy(at->tape, at->operands[0]);
  at->operands = with;
  fire(context);
}

/* Returns 1 if the transition sums or selects sums of squares for the norm: these are f64, and not on a tape. */
static int counts_for_the_norm(const ad_transit_passing *pass, ad_move move) {
  return pass->transit->move == move && pass->transit->what && pass->in->shape.ndim == 1 && pass->in->dtype == AD_F64;
}

/* The bug: counts the tied embedding twice in the norm, in the first stage and in the last. */
static void count_twice(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  ad_transit_passing *pass = passing;
  if (!scene->kept || !counts_for_the_norm(pass, AD_MOVE_ONCE) || pass->in->shape.dim[0] > 1) return;
  if (!ad_program_gives_param(((const ad_run *)scene->kept)->program, pass->transit->what)) return;
  *(double *)pass->out->data *= 2;
  fire(context);
}

/* ---- known bugs of norms and divisors ---- */

/* The bug: sums squares only over the ranks of one stage, so that each stage has its own norm. */
static void sum_over_stage(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  ad_transit_passing *pass = passing;
  if (!scene->kept || !counts_for_the_norm(pass, AD_MOVE_ALL_REDUCE) || strcmp(pass->transit->what, "norm")) return;
  if (ad_mesh_size(pass->in->layout.mesh) < ad_comm_size(pass->comm)) return;
  ad_collective sum = {.size = sizeof sum, .op = AD_ALL_REDUCE, .dtype = AD_F64, .site = AD_HERE};
  sum.count = ad_array_numel(pass->in);
  sum.group = ad_mesh_group(own_mesh(scene->kept), AD_AXES_ALL, ad_comm_rank(pass->comm));
  sum.in = sum.out = pass->out->data;
  pass->status = ad_comm_run(pass->comm, &sum);
  pass->handled = 1;
  fire(context);
}

/* The bug: averages gradients over all ranks, including those of other stages. */
static void average_over_stages(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_run *run = passing;
  scene->ratio = (double)ad_mesh_size(own_mesh(run)) / (double)ad_comm_size(run->comm);
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!gradient || !gradient->data) continue;
    ad_cast_scaled(gradient->data, gradient->dtype, gradient->data, gradient->dtype, scene->ratio,
                   ad_array_numel(gradient));
    scene->fired = 1;
  }
}

/* The bug: divides the loss on the last stage by the tokens of its microbatch, instead of those of all microbatches. */
static void divide_by_microbatch(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  ad_divisor_passing *divisor = passing;
  if (scene->microbatch < 0) return;
  divisor->total = (double)ad_count_of(divisor->count, (size_t)scene->microbatch);
  fire(context);
}

/* Stores on every rank the ratio that the bug should cause, because only ranks of the last stage divide the loss. */
static void expect_share(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  (void)passing;
  scene->ratio = 1 / (double)scene->microbatches;
}

/* The bug: divides the loss by the number of microbatches, in addition to the count of all microbatches. */
static void divide_by_microbatches_too(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  ((ad_divisor_passing *)passing)->total *= (double)scene->microbatches;
  fire(context);
}

/* The bug: divides gradients that come back to a stage by the number of microbatches, although the last stage has done
 * so already. */
static void divide_returned(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  const ad_transfer_passing *at = passing;
  const ad_array *returned = at->array;
  if (!is_pipeline(at->run) || at->transfer->spec->is_parameter || !returned->data) return;
  ad_cast_scaled(returned->data, returned->dtype, returned->data, returned->dtype, 1 / (double)scene->microbatches,
                 ad_array_numel(returned));
  fire(context);
}

/* The bug: divides, at each microbatch, everything accumulated so far by the number of microbatches, instead of only
 * that microbatch's addend. */
static void divide_accumulated(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  const ad_added_passing *added = passing;
  ad_cast_scaled(added->values, added->dtype, added->values, added->dtype, 1 / (double)scene->microbatches,
                 added->numel);
  fire(context);
}

static void write_nothing_in_place(void *context, void *passing) {
  (void)context;
  *(int *)passing = 0;
}

static int64_t total_of(const ad_count *count, int64_t microbatches) {
  int64_t total = 0;
  for (int64_t m = 0; m < microbatches; m++) total += ad_count_of(count, (size_t)m);
  return total;
}

/* The bug: multiplies gradients by the count, as if backward started from the undivided loss and only the reported loss
 * were divided. */
static void multiply_by_count(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_run *run = passing;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!gradient || !gradient->data || !ad_run_count(run, 0)) continue;
    scene->ratio = (double)total_of(ad_run_count(run, 0), scene->microbatches);
    ad_cast_scaled(gradient->data, gradient->dtype, gradient->data, gradient->dtype, scene->ratio,
                   ad_array_numel(gradient));
    scene->fired = 1;
  }
}

/* ---- the list of known bugs, and which runs can show them ---- */

/* Returns 1 if the gradients of some microbatch are added to those of an earlier one before they are reduced. */
static int adds_before_reductions(const ad_run *run) {
  int adds = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_recipe_sharding sharding = ad_run_sharding(run, i);
    for (size_t m = 0; m + 1 < run->recipe->train.sync_count; m++) adds |= sharding.sync[m] == AD_SYNC_NONE;
  }
  return adds;
}

ad_needs ad_pipeline_facts(const ad_run *run) {
  if (!is_pipeline(run) || ad_mesh_size(own_mesh(run)) == ad_comm_size(run->comm)) return 0;
  ad_needs facts = AD_NEED_STAGES;
  if (adds_before_reductions(run)) facts |= AD_NEED_ADDED_FIRST;
  for (size_t i = 0; i < ad_program_transfer_count(run->program); i++) {
    const ad_transfer_spec *spec = ad_program_transfer(run->program, i);
    if (!ad_bridge_is_disjoint(spec->bridge)) continue;
    if (spec->is_parameter && !ad_gives_frozen(run, spec)) facts |= AD_NEED_TIED_STAGES;
    if (!spec->is_parameter && !spec->one_way) facts |= AD_NEED_STAGES_RETURN;
  }
  return facts;
}

static const ad_known_bug bugs[] = {
    {.name = "head-left-out-of-tied-gradient",
     .words = "the last stage's gradient of the embedding is not added to the first one's",
     .needs = AD_NEED_TOKENS | AD_NEED_TIED_STAGES,
     .at = {{AD_INJECT_RETURNED, leave_head_out}}},
    {.name = "head-alone-in-tied-gradient",
     .words = "the gradient of the embedding has only the addend of the last stage",
     .needs = AD_NEED_TOKENS | AD_NEED_TIED_STAGES,
     .at = {{AD_INJECT_OPERANDS, look_up_in_constant}}},
    {.name = "embedding-twice-in-norm",
     .catalogue = 28,
     .words = "the embedding of the first stage and of the last counts twice in the norm",
     .needs = AD_NEED_TOKENS | AD_NEED_TIED_STAGES,
     .at = {{AD_INJECT_GRADIENTS, keep_run}, {AD_INJECT_TRANSIT, count_twice}}},
    {.name = "norm-of-each-stage",
     .words = "each stage clips by the norm of its own gradients",
     .needs = AD_NEED_TOKENS | AD_NEED_STAGES,
     .at = {{AD_INJECT_GRADIENTS, keep_run}, {AD_INJECT_TRANSIT, sum_over_stage}}},
    {.name = "averaged-over-stages",
     .words = "gradients are averaged over the ranks of all stages",
     .needs = AD_NEED_TOKENS | AD_NEED_STAGES,
     .at = {{AD_INJECT_GRADIENTS, average_over_stages}}},
    {.name = "divided-by-one-microbatch",
     .words = "a loss is divided by the count of its microbatch alone",
     .needs = AD_NEED_TOKENS | AD_NEED_DIVIDED | AD_NEED_STAGES | AD_NEED_MICROBATCHES,
     .at = {{AD_INJECT_PHASE, note_microbatch}, {AD_INJECT_DIVISOR, divide_by_microbatch}}},
    {.name = "divided-by-microbatches-too",
     .words = "a loss is divided by its count over all microbatches, and by the number of microbatches too",
     .needs = AD_NEED_TOKENS | AD_NEED_DIVIDED | AD_NEED_STAGES | AD_NEED_MICROBATCHES,
     .at = {{AD_INJECT_PHASE, expect_share}, {AD_INJECT_DIVISOR, divide_by_microbatches_too}}},
    {.name = "divided-at-each-stage",
     .words = "the gradient that returns to a stage is divided by the number of microbatches once more",
     .needs = AD_NEED_TOKENS | AD_NEED_STAGES_RETURN | AD_NEED_MICROBATCHES,
     .at = {{AD_INJECT_RETURNED, divide_returned}}},
    {.name = "accumulated-divided-again",
     .words = "after each microbatch, all gradients that have accumulated are divided by the number of microbatches",
     .needs = AD_NEED_TOKENS | AD_NEED_STAGES | AD_NEED_ADDED_FIRST,
     .at = {{AD_INJECT_ADDED, divide_accumulated}, {AD_INJECT_IN_PLACE, write_nothing_in_place}}},
    {.name = "divided-behind-backward",
     .words = "a loss is divided by its count only after backward has run, so no gradient is divided",
     .needs = AD_NEED_TOKENS | AD_NEED_STAGES,
     .at = {{AD_INJECT_GRADIENTS, multiply_by_count}}},
};

const ad_known_bug *ad_pipeline_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
