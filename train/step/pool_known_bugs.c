/* The known bugs between modules: in values that one module gets from another, in gradients that come back, in
 * communication dtypes, and in the number of ranks by which gradients are divided. Nothing in this file is part of a
 * step. */
#include <string.h>

#include "array/array.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "bridge/bridge.h"
#include "module/module.h"
#include "program/program.h"
#include "tensor/operation.h"
#include "step/known_bugs.h"
#include "step/run.h"
#include "mesh/mesh.h"

static void fire(void *context) { ((ad_known_bug_scene *)context)->fired = 1; }

static void end_step(void *context, void *passing) { ((ad_known_bug_scene *)context)->steps++; }

static ad_axes sharding_axes_of(const ad_bridge *bridge) {
  ad_layout from = ad_bridge_from(bridge);
  return ad_layout_sharded_axes(&from);
}

/* ---- known bugs of values that are a step old ---- */

/* The value of one transfer in this step and in the step before. Kept until the process ends. */
typedef struct earlier_value {
  const ad_value_transfer *of;
  char *before, *now;
  size_t bytes;
} earlier_value;

static earlier_value earlier[AD_VALUES_MAX];

static earlier_value *earlier_of(const ad_value_transfer *transfer, size_t bytes) {
  earlier_value *kept = earlier;
  while (kept->of && kept->of != transfer) kept++;
  kept->of = transfer;
  if (bytes <= kept->bytes) return kept;
  if (ad_grow(&kept->before, kept->bytes, bytes) || ad_grow(&kept->now, kept->bytes, bytes)) return NULL;
  kept->bytes = bytes;
  return kept;
}

static void begin_step(earlier_value *kept, const ad_array *array) {
  char *before = kept->before;
  kept->before = kept->now;
  kept->now = before;
  memcpy(kept->now, array->data, ad_array_bytes(array));
}

/* The bug: replaces the values of parameters on other ranks by those of the step before, as if no update were sent. */
static void keep_those_before(void *context, void *passing) {
  const ad_known_bug_scene *scene = context;
  const ad_transfer_passing *at = passing;
  if (ad_transfer_is_split(at->transfer->spec) || !at->array->data) return;
  earlier_value *kept = earlier_of(at->transfer, ad_array_bytes(at->array));
  if (!kept) return;
  if (at->microbatch == 0) begin_step(kept, at->array);
  if (!scene->steps) return;
  memcpy(at->array->data, kept->before, ad_array_bytes(at->array));
  fire(context);
}

/* ---- known bugs of a gradient that comes back ---- */

/* Returns the axes along which several ranks have a replica of the value. On these axes the returned gradient is P:
 * only the first rank has it. */
static ad_axes replicas_of(const ad_array *gradient) {
  return ad_layout_axes_of(&gradient->layout, AD_P) & ad_mesh_large(gradient->layout.mesh);
}

/* The bug: gives the gradient of the first replica to all replicas, so that the sum over them counts it once for each
 * replica. */
static void broadcast_leaders(void *context, void *passing) {
  const ad_transfer_passing *at = passing;
  const ad_array *gradient = at->array;
  ad_collective broadcast = {
      .size = sizeof broadcast, .op = AD_ALL_REDUCE, .in = gradient->data, .out = gradient->data, .site = AD_HERE};
  if (!replicas_of(gradient)) return;
  broadcast.group = ad_mesh_group(gradient->layout.mesh, replicas_of(gradient), ad_comm_rank(at->run->comm));
  broadcast.count = ad_array_numel(gradient);
  broadcast.dtype = gradient->dtype;
  if (!ad_comm_run(at->run->comm, &broadcast)) fire(context);
}

static int comes_from_clamp(const ad_tensor *value) {
  while (value && value->op && !value->op->not_linear) value = value->operand_count == 1 ? value->operand[0] : NULL;
  return value && value->op;
}

static int is_one_of_several(const ad_transfer_passing *at) {
  int count = 0;
  for (size_t i = 0; i < at->run->transfers.count; i++) {
    const ad_value_transfer *c = &at->run->transfers.list[i];
    count += c->value == at->transfer->value && !c->spec->one_way;
  }
  return count > 1;
}

static int would_be_clamped(const ad_transfer_passing *at, size_t i) {
  const ad_array *value = ad_tensor_array(at->given), *gradient = at->array;
  return ad_element(value->dtype, value->data, i) <= 0 && ad_element(gradient->dtype, gradient->data, i) > 0;
}

static int is_clamped_alone(const ad_transfer_passing *at) {
  if (!comes_from_clamp(at->given) || !is_one_of_several(at)) return 0;
  for (size_t i = 0; i < ad_array_numel(at->array); i++)
    if (would_be_clamped(at, i)) return 1;
  return 0;
}

/* The bug: applies the clamp's backward to each module's returned gradient instead of to the sum of them. This backward
 * drops gradients that would move a value further beyond the clamp. */
static void clamp_before_adding(void *context, void *passing) {
  const ad_transfer_passing *at = passing;
  if (!is_clamped_alone(at)) return;
  for (size_t i = 0; i < ad_array_numel(at->array); i++)
    if (would_be_clamped(at, i)) ad_set_element(at->array->dtype, at->array->data, i, 0);
  fire(context);
}

ad_needs ad_pool_known_bugs_show(const ad_transfer_passing *at) {
  ad_needs shown = 0;
  if (replicas_of(at->array)) shown |= AD_NEED_REPLICAS_RETURN;
  return is_clamped_alone(at) ? shown | AD_NEED_SHARED_CLAMP : shown;
}

/* ---- known bug: scaling by another module's average ---- */

/* Returns the data-parallel size of the module from which this module gets its values, divided by this module's own. */
static double ratio_of_averages(const ad_run *run, size_t module) {
  int64_t own = ad_mesh_ranks_over(ad_program_module(run->program, module)->mesh, AD_AXES_DP);
  for (size_t i = 0; i < ad_program_transfer_count(run->program); i++) {
    const ad_transfer_spec *spec = ad_program_transfer(run->program, i);
    ad_layout from = ad_bridge_from(spec->bridge);
    if (spec->module == module && sharding_axes_of(spec->bridge))
      return (double)ad_mesh_ranks_over(from.mesh, AD_AXES_DP) / (double)own;
  }
  return 1;
}

/* The bug: averages gradients over the ranks of their module, and multiplies the loss by one factor. The factor undoes
 * the average of the module that gives the values, and is wrong for the module that computes the loss. */
static void scale_for_other_average(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_run *run = passing;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    double ratio = ratio_of_averages(run, ad_run_param_at(run, i).module);
    if (ratio == 1) continue;
    scene->ratio = ratio;
    if (!gradient || !gradient->data) continue;
    ad_cast_scaled(gradient->data, gradient->dtype, gradient->data, gradient->dtype, ratio, ad_array_numel(gradient));
    scene->fired = 1;
  }
}

/* ---- known bugs: values are sent in a narrower dtype than the recipe says ---- */

static void narrow(void *context, ad_comm_dtype_passing *at) {
  if (at->dtype != AD_F16) return;
  at->dtype = AD_BF16;
  fire(context);
}

static void narrow_values(void *context, void *passing) {
  ad_comm_dtype_passing *at = passing;
  if (!at->backward) narrow(context, at);
}

static void narrow_gradients(void *context, void *passing) {
  ad_comm_dtype_passing *at = passing;
  if (at->backward) narrow(context, at);
}

/* ---- the list of known bugs, and which runs can show them ---- */

static int has_gradient(const ad_run *run, size_t param) {
  const ad_array *gradient = ad_run_part(run, param, AD_PART_GRADIENT);
  for (size_t i = 0; gradient && gradient->data && i < ad_array_numel(gradient); i++)
    if (ad_element(gradient->dtype, gradient->data, i) != 0) return 1;
  return 0;
}

/* Returns 1 if modules on other ranks compute with parameters of this module, or with values of them, that learn. */
static int gives_values_away(const ad_run *run, size_t module) {
  for (size_t i = 0; i < ad_program_transfer_count(run->program); i++) {
    const ad_transfer_spec *spec = ad_program_transfer(run->program, i);
    ad_layout from = ad_bridge_from(spec->bridge);
    int is_from_here = ad_mesh_same_ranks(from.mesh, ad_program_module(run->program, module)->mesh);
    if (is_from_here && ad_bridge_is_disjoint(spec->bridge) && !ad_transfer_is_split(spec) &&
        !ad_gives_frozen(run, spec))
      return 1;
  }
  return 0;
}

/* Returns the AD_NEED_... bits of a transfer that follow from its communication dtypes in the recipe, even if the run
 * computes in another dtype. */
static ad_needs facts_of_comm_dtype(const ad_transfer_spec *transfer) {
  if (!ad_bridge_is_disjoint(transfer->bridge)) return 0;
  ad_needs facts = transfer->comm_dtype == AD_F16 ? AD_NEED_F16_VALUES : 0;
  return facts | (transfer->gradient_comm_dtype == AD_F16 && !transfer->one_way ? AD_NEED_F16_GRADIENTS : 0);
}

ad_needs ad_pool_facts(const ad_run *run) {
  ad_needs facts = 0;
  for (size_t i = 0; i < ad_program_transfer_count(run->program); i++)
    facts |= facts_of_comm_dtype(ad_program_transfer(run->program, i));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    size_t module = ad_run_param_at(run, i).module;
    if (!has_gradient(run, i)) continue;
    if (ratio_of_averages(run, module) != 1) facts |= AD_NEED_OTHER_AVERAGE;
    if (gives_values_away(run, module)) facts |= AD_NEED_VALUES_AWAY;
  }
  return facts;
}

static const ad_known_bug bugs[] = {
    {.name = "values-of-step-before",
     .words = "other ranks compute with the parameter values of the step before",
     .needs = AD_NEED_TOKENS | AD_NEED_VALUES_AWAY,
     .at = {{AD_INJECT_ARRIVED, keep_those_before}, {AD_INJECT_GRADIENTS, end_step}}},
    {.name = "leaders-gradient-broadcast",
     .words = "a gradient that returns for one of several replicas is given to every replica, and these are summed",
     .needs = AD_NEED_TOKENS | AD_NEED_REPLICAS_RETURN,
     .at = {{AD_INJECT_RETURNED, broadcast_leaders}}},
    {.name = "clamped-before-added",
     .words = "the backward of a clamp is applied to each module's gradient, not to their sum",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARED_CLAMP,
     .at = {{AD_INJECT_RETURNED, clamp_before_adding}}},
    {.name = "one-seed-for-two-averages",
     .words = "a loss has the factor of the average over the module that its values come from, but its own parameters "
              "have another average",
     .needs = AD_NEED_TOKENS | AD_NEED_OTHER_AVERAGE,
     .at = {{AD_INJECT_GRADIENTS, scale_for_other_average}}},
    {.name = "bf16-for-f16-values",
     .words = "values go to other ranks in bf16, although the recipe says f16",
     .needs = AD_NEED_TOKENS | AD_NEED_F16_VALUES,
     .of_dtype = 1,
     .rounds = 1,
     .at = {{AD_INJECT_COMM_DTYPE, narrow_values}}},
    {.name = "bf16-for-f16-gradients",
     .words = "gradients return from other ranks in bf16, although the recipe says f16",
     .needs = AD_NEED_TOKENS | AD_NEED_F16_GRADIENTS,
     .of_dtype = 1,
     .rounds = 1,
     .at = {{AD_INJECT_COMM_DTYPE, narrow_gradients}}},
};

const ad_known_bug *ad_pool_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
