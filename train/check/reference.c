/* The reference of a check: three runs of one rank each. `run` computes gradients in f64 from the distributed values.
 * `fed` updates its parameters with the distributed gradients, in the distributed run's dtypes; if these dtypes round,
 * it also computes gradients in them. `free` is a training in the same dtypes that gets nothing from the distributed
 * run. */
#include "check/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/addends.h"
#include "recipe/alone.h"
#include "check/lifted_injections.h"
#include "check/slack.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "step/run.h"

struct ad_reference {
  ad_comm *comm;
  ad_recipe recipe; /* the recipe for one process */
  ad_run *run, *fed, *free;
  ad_array *fed_gradients; /* the caller's memory, described on the reference's meshes */
  const ad_array **fed_list;
  ad_draws draws;   /* gradients in the fed run's dtypes, if these dtypes round */
  ad_addends exact; /* gradients of the f64 run without the roundings of transfers, if there are any */
  ad_slack slack;   /* how far the states of the f64 run's last step may be off */
  char *kept;       /* copies of the fed run's arrays, one after another; NULL: ad_reference_keep was not called */
};

static int has_comm_dtypes(const ad_program *program) {
  for (size_t i = 0; i < ad_program_transfer_count(program); i++) {
    const ad_transfer_spec *transfer = ad_program_transfer(program, i);
    if (transfer->comm_dtype || transfer->gradient_comm_dtype) return 1;
  }
  return 0;
}

/* Makes the f64 run round to the recipe's communication dtypes, too, so that the f64 run and the fed run differ by
 * computing alone. */
static ad_status round_transfers(ad_reference *reference) {
  if (!ad_run_rounds_transfers(reference->fed) || !has_comm_dtypes(reference->run->program)) return AD_OK;
  ad_run_round_transfers(reference->run, 1);
  return ad_addends_create(reference->run, 0, &reference->exact);
}

static ad_status create_runs(ad_reference *reference, const ad_reference_options *of) {
  ad_run_options options = {.size = sizeof options, .dtype = of->dtype, .quiet = 1};
  ad_run_options wide = {.size = sizeof wide, .dtype = AD_F64, .quiet = 1};
  options.given_states = wide.given_states = of->rounds;
  options.cuts = wide.cuts = of->cuts ? of->cuts->list : NULL;
  AD_TRY(ad_comm_open_alone(&reference->comm));
  AD_TRY(ad_run_create(reference->comm, &reference->recipe, &wide, &reference->run));
  AD_TRY(ad_run_create(reference->comm, &reference->recipe, &options, &reference->fed));
  if (of->several_steps) AD_TRY(ad_run_create(reference->comm, &reference->recipe, &options, &reference->free));
  if (of->rounds) AD_TRY(ad_draws_create(reference->fed, of->shards_formulas, &reference->draws));
  AD_TRY(round_transfers(reference));
  size_t count = ad_run_param_count(reference->run);
  AD_TRY(ad_new(count, &reference->fed_gradients));
  return ad_new(count, &reference->fed_list);
}

ad_status ad_reference_create(const ad_recipe *recipe, const ad_reference_options *options, ad_reference **out) {
  ad_reference *reference;
  AD_TRY(ad_new(1, &reference));
  ad_status status = ad_alone_create(recipe, &reference->recipe);
  if (!status) status = create_runs(reference, options);
  if (status) {
    ad_reference_destroy(reference);
    return status;
  }
  *out = reference;
  return AD_OK;
}

void ad_reference_destroy(ad_reference *reference) {
  if (!reference) return;
  ad_draws_destroy(&reference->draws);
  ad_slack_release(&reference->slack);
  ad_addends_destroy(&reference->exact);
  ad_run_destroy(reference->run);
  ad_run_destroy(reference->fed);
  ad_run_destroy(reference->free);
  ad_comm_close(reference->comm);
  ad_alone_release(&reference->recipe);
  ad_release(reference->fed_gradients);
  ad_release(reference->fed_list);
  ad_release(reference->kept);
  ad_release(reference);
}

static void widen(const ad_array *to, const ad_array *from) {
  ad_cast(to->data, to->dtype, from->data, from->dtype, ad_array_numel(from));
}

/* ---- restoring the reference's state of the first step ---- */

/* Returns array `number` of all arrays of a run that ad_reference_keep copies: the parts of each parameter, one
 * parameter after another. Returns NULL if the parameter has no such part. */
static const ad_array *kept_array(const ad_run *run, size_t number) {
  size_t params = ad_run_param_count(run);
  return number < params * AD_PART_KEPT
             ? ad_run_part(run, number / AD_PART_KEPT, (ad_param_part)(number % AD_PART_KEPT))
             : NULL;
}

static size_t kept_bytes(const ad_run *run) {
  size_t bytes = 0;
  for (size_t i = 0; i < ad_run_param_count(run) * AD_PART_KEPT; i++)
    if (kept_array(run, i)) bytes += ad_array_bytes(kept_array(run, i));
  return bytes;
}

ad_status ad_reference_keep(ad_reference *reference) {
  AD_TRY(ad_new(kept_bytes(reference->fed), &reference->kept));
  char *at = reference->kept;
  for (size_t i = 0; i < ad_run_param_count(reference->fed) * AD_PART_KEPT; i++) {
    const ad_array *array = kept_array(reference->fed, i);
    if (!array) continue;
    memcpy(at, array->data, ad_array_bytes(array));
    at += ad_array_bytes(array);
  }
  return AD_OK;
}

ad_status ad_reference_start_again(ad_reference *reference) {
  const char *at = reference->kept;
  for (size_t i = 0; i < ad_run_param_count(reference->fed) * AD_PART_KEPT; i++) {
    const ad_array *array = kept_array(reference->fed, i);
    if (!array) continue;
    memcpy(array->data, at, ad_array_bytes(array));
    at += ad_array_bytes(array);
  }
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(reference->fed)); m++) {
    ad_optimizer *optimizer = ad_module_optimizer(ad_run_module(reference->fed, m));
    if (optimizer) AD_TRY(ad_optimizer_set_steps(optimizer, 0));
  }
  return ad_run_refresh(reference->fed, AD_MASTERS_WRITTEN);
}

/* Gradients are computed from the values with which the distributed ranks compute, not from their master weights. */
void ad_reference_restart(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full) {
  memcpy(ad_run_part(reference->fed, index, part)->data, full->data, ad_array_bytes(full));
  if (part == AD_PART_VALUE) widen(ad_run_part(reference->run, index, part), full);
}

/* Returns the state `index` of the run, counted over all modules. */
static ad_array *state_at(const ad_run *run, size_t index) {
  size_t module = 0;
  while (index >= ad_program_module(run->program, module)->state_count)
    index -= ad_program_module(run->program, module++)->state_count;
  return ad_run_state(run, module, index);
}

void ad_reference_restart_state(ad_reference *reference, size_t index, const ad_array *full) {
  widen(state_at(reference->run, index), full);
  widen(state_at(reference->fed, index), full);
}

/* Takes the draws of the fed run: computes its gradients several times, in its own dtypes, from its parameters' present
 * values. */
static ad_status compute_own(ad_reference *reference, int64_t step) {
  if (!reference->draws.addends.run) return AD_OK;
  AD_TRY(ad_run_refresh(reference->fed, AD_MASTERS_WRITTEN));
  return ad_draws_take(&reference->draws, step, reference->run);
}

/* Computes the f64 gradients without the roundings of transfers. */
static ad_status compute_exact(ad_reference *reference, int64_t step) {
  if (!reference->exact.run) return AD_OK;
  ad_run_round_transfers(reference->run, 0);
  ad_status status = ad_addends_measure(&reference->exact, step, 0, NULL);
  ad_run_round_transfers(reference->run, 1);
  return status;
}

ad_status ad_reference_step(ad_reference *reference, int64_t step, int loss_scale, ad_step_report *out) {
  ad_run_scale_transfers(reference->run, loss_scale);
  ad_run_scale_transfers(reference->fed, loss_scale);
  ad_lifted_injections lifted = ad_injections_lift();
  ad_status status = ad_run_refresh(reference->run, AD_VALUES_WRITTEN);
  if (!status) status = compute_exact(reference, step);
  ad_slack_watch(&reference->slack);
  if (!status) status = ad_run_step(reference->run, step, out);
  ad_injection_set(AD_INJECT_STATES, (ad_injection){0});
  if (!status) status = reference->slack.status;
  if (!status) status = compute_own(reference, step);
  ad_step_report ignored;
  if (!status && reference->free) status = ad_run_step(reference->free, step, &ignored);
  ad_injections_restore(&lifted);
  return status;
}

double ad_reference_state_error(const ad_reference *reference, size_t index, const ad_array *full) {
  return ad_slack_error(&reference->slack, state_at(reference->run, index), full->data);
}

ad_run *ad_reference_run(const ad_reference *reference) { return reference->run; }

static ad_status give_decisions(const ad_run *run, const int32_t *decisions, size_t count) {
  const ad_program *program = ad_run_program(run);
  int32_t *own = NULL;
  size_t own_count = 0;
  const ad_program_kind *kind = ad_program_kind_of(program);
  AD_TRY(AD_GUEST(kind, "decisions", kind->choices.decisions(ad_program_own(program), AD_OBEYS, &own, &own_count)));
  if (own_count != count)
    return ad_fail(
        AD_INVALID,
        "the reference (one process) makes %zu discrete choices (such as of experts) in a step, but the distributed "
        "run makes %zu; change the program so that it makes the same number of choices on any mesh",
        own_count, count);
  memcpy(own, decisions, count * sizeof *own);
  return AD_OK;
}

ad_status ad_reference_decide(ad_reference *reference, const int32_t *decisions, size_t count) {
  AD_TRY(give_decisions(reference->run, decisions, count));
  return give_decisions(reference->fed, decisions, count);
}

double ad_reference_margin(const ad_reference *reference) {
  const ad_program *program = ad_run_program(reference->run);
  const ad_program_kind *kind = ad_program_kind_of(program);
  return kind->choices.margin ? AD_GUEST(kind, "margin", kind->choices.margin(ad_program_own(program))) : INFINITY;
}

const ad_array *ad_reference_gradient(const ad_reference *reference, size_t index) {
  return ad_run_part(reference->run, index, AD_PART_GRADIENT);
}

const ad_array *ad_reference_exact_gradient(const ad_reference *reference, size_t index) {
  return reference->exact.run ? &reference->exact.themselves.full[index] : ad_reference_gradient(reference, index);
}

const ad_draws *ad_reference_draws(const ad_reference *reference) { return &reference->draws; }

static ad_status feed_module(ad_reference *reference, size_t m, size_t first, const ad_step_report *report) {
  const ad_run *fed = reference->fed;
  double clip, rates[AD_GROUPS_MAX];
  AD_TRY(ad_recipe_rates(&reference->recipe, report->step, rates));
  AD_TRY(ad_clip_factor(report->norms[ad_run_norm_group_of(fed, m)], reference->recipe.train.clip, &clip));
  return ad_module_update_from(ad_run_module(fed, m), reference->fed_list + first, rates,
                               clip * ldexp(1, -report->loss_scale), AD_HERE);
}

ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients, const ad_step_report *report) {
  for (size_t i = 0; i < ad_run_param_count(reference->fed); i++) {
    reference->fed_list[i] = gradients[i] ? &reference->fed_gradients[i] : NULL;
    if (!gradients[i]) continue;
    reference->fed_gradients[i] = *gradients[i];
    reference->fed_gradients[i].layout = ad_run_part(reference->fed, i, AD_PART_VALUE)->layout;
  }
  const ad_program *program = ad_run_program(reference->fed);
  ad_lifted_injections lifted = ad_injections_lift();
  ad_status status = AD_OK;
  for (size_t m = 0, first = 0; m < ad_program_module_count(program) && !status; m++) {
    status = feed_module(reference, m, first, report);
    first += ad_program_module(program, m)->param_count;
  }
  ad_injections_restore(&lifted);
  return status;
}

int ad_reference_agrees(ad_reference *reference, size_t index, ad_param_part part, const ad_array *full) {
  return memcmp(ad_run_part(reference->fed, index, part)->data, full->data, ad_array_bytes(full)) == 0;
}

const ad_array *ad_reference_free_value(const ad_reference *reference, size_t index) {
  return reference->free ? ad_run_part(reference->free, index, AD_PART_MASTER) : NULL;
}
