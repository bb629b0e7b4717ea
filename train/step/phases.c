/* One phase of one microbatch, forward and backward: its tape, the values that it needs and gives, and its losses. With
 * train.leaves the run's microbatch is a round, and the program's microbatch is the leaf that this rank runs in that
 * round. In a round of ZeRO 3 in which this rank has no leaf to compute, it runs some leaf nevertheless, to gather
 * parameters together with the other ranks, and its results are discarded. */
#include <math.h>
#include "array/array.h"
#include "base/error.h"
#include "base/injection.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/execute.h"
#include "tensor/tape.h"

static size_t losses(const ad_run *run) { return ad_program_loss_count(run->program); }
static size_t phases(const ad_run *run) { return ad_program_phase_count(run->program); }

/* ---- one phase forward ---- */

/* Returns the losses that phase `p` of this rank submits for microbatch m, one entry for each loss of the program. */
static ad_submitted_loss *losses_of(const ad_run *run, size_t p, size_t m) {
  return ad_run_microbatch(run, m)->losses + ad_run_phase(run, p)->place * losses(run);
}

/* Reports the first error of a phase immediately, because errors that follow from it would hide it. */
static ad_status check_phase(const ad_run *run, size_t p, size_t m) {
  const ad_phase *phase = ad_program_phase(run->program, p);
  AD_TRY(ad_tape_status(ad_run_tape(run, p, m)));
  for (size_t v = 0; v < run->program->value_count; v++) {
    if (ad_run_microbatch(run, m)->values[v].output || !ad_phase_lists(phase->gives, run->program->values[v])) continue;
    return ad_fail(AD_INVALID, "phase `%s` did not give its value `%s`; call ad_phase_give for every name in `gives`",
                   phase->name, run->program->values[v]);
  }
  return AD_OK;
}

static ad_status wait_for_value(void *run, size_t value, size_t m) { return ad_transfers_wait_value(run, value, m); }

/* Returns the microbatch that the program sees in the run's microbatch m: m itself or, with train.leaves, the leaf that
 * this rank runs in round m. The rank must run one. */
static size_t part_of(const ad_run *run, size_t m) { return (size_t)ad_run_pass_of(run, m); }

/* Returns 1 if this rank's results in the run's microbatch m are discarded, because it runs a leaf only to gather
 * parameters. */
static int drops(const ad_run *run, size_t m) { return ad_run_part_of(run, m) < 0; }

static ad_phase_run phase_run(ad_run *run, size_t p, size_t m) {
  size_t module = ad_program_phase(run->program, p)->module;
  return (ad_phase_run){.program = run->program,
                        .phase = p,
                        .place = ad_run_phase(run, p)->place,
                        .microbatch = part_of(run, m),
                        .trains = run->trains,
                        .discards = drops(run, m),
                        .loss_scale = ad_run_loss_scale_exponent(run),
                        .rounds = ad_run_rounds_transfers(run),
                        .comm_scale = run->transfers.scale,
                        .overflows = run->overflows.noted,
                        .tape = ad_run_tape(run, p, m),
                        .module = ad_run_module(run, module),
                        .parameters = ad_run_parameters(run, module),
                        .values = ad_run_microbatch(run, m)->values,
                        .losses = losses_of(run, p, m),
                        .wait = wait_for_value,
                        .run = run};
}

static void note_samples(const ad_run *run, ad_tape *t, size_t m) {
  int64_t part = (int64_t)part_of(run, m);
  int64_t first = ad_cut(run->recipe->train.global_batch, part, ad_recipe_parts(run->recipe)).first;
  if (run->samples) run->samples->first = run->samples->batch + (size_t)first;
  ad_tape_note_samples(t, drops(run, m) ? NULL : run->samples);
}

/* Refuses to reset a tape on which gradients of weights are still to be computed. */
static ad_status check_over(const ad_run *run, size_t p, size_t m) {
  if (!ad_run_tape(run, p, m)->defers_weights) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the schedule runs phase `%s` of microbatch %zu on the tape of an earlier microbatch before the "
                 "weight gradients (W) of that earlier microbatch are computed; put this W first",
                 ad_program_phase(run->program, p)->name, m);
}

/* Refuses to run a phase twice in one microbatch, because the second run would reset the tape with the values of the
 * first. */
static ad_status check_first_run(const ad_run *run, size_t p, size_t m) {
  const ad_passed_value *values = ad_run_microbatch(run, m)->values;
  for (size_t v = 0; v < run->program->value_count; v++)
    if (values[v].inputs[ad_run_phase(run, p)->place] ||
        (values[v].output && ad_phase_lists(run->program->phases[p].gives, run->program->values[v])))
      return ad_fail(AD_INVALID,
                     "the schedule runs phase `%s` a second time in microbatch %zu; leave the second run out",
                     run->program->phases[p].name, m);
  return AD_OK;
}

ad_status ad_phase_values(ad_run *run, size_t p, size_t m) {
  const ad_phase *phase = ad_program_phase(run->program, p);
  ad_store *store = ad_module_store(ad_run_module(run, phase->module));
  ad_phase_run at = phase_run(run, p, m);
  AD_TRY(ad_transfers_wait_space(run, p, m));
  AD_TRY(check_over(run, p, m));
  AD_TRY(check_first_run(run, p, m));
  ad_tape_reset(at.tape);
  note_samples(run, at.tape, m);
  size_t part = part_of(run, m);
  if (!drops(run, m)) ad_inject(AD_INJECT_PHASE, &part);
  at.microbatch = part;
  ad_trace_begin_pass(&run->trace, AD_TRACE_FORWARD, p, m);
  AD_TRY(ad_store_begin_pass(store, AD_FORWARD));
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  ad_status status = AD_GUEST_PHASE(kind, phase, "`run`", phase->run(ad_program_own(run->program), &at));
  if (!status) status = check_phase(run, p, m);
  if (!status) status = ad_store_end_pass(store);
  ad_trace_end(&run->trace, AD_TRACE_FORWARD, (int64_t)m);
  return status;
}

static int is_submitted(const ad_run *run, size_t loss, size_t m) {
  for (size_t p = 0; p < phases(run); p++)
    if (losses_of(run, p, m)[loss].numerator) return 1;
  return 0;
}

/* Checks that some phase submitted each loss. Only ranks that run every phase can check this. */
static ad_status check_losses(const ad_run *run, size_t m) {
  if (ad_run_own_phases(run) < phases(run)) return AD_OK;
  for (size_t i = 0; i < losses(run); i++) {
    if (is_submitted(run, i, m)) continue;
    return ad_fail(AD_INVALID,
                   "no phase of the program submitted the loss `%s`; call ad_phase_loss for this loss in one phase",
                   ad_program_loss(run->program, i)->name);
  }
  return AD_OK;
}

double ad_loss_coefficient(const ad_run *run, size_t loss) {
  const ad_loss_spec *spec = ad_program_loss(run->program, loss);
  return spec->coefficient == 0 ? 1 : spec->coefficient;
}

/* Divides the loss `i` by its count or, with per_microbatch, multiplies it by the microbatch's share of the count.
 * Backward starts from the result times the loss's coefficient and the loss scale. */
static void divide_loss(ad_run *run, const ad_step_state *state, size_t p, size_t i, size_t m) {
  const ad_loss_spec *spec = ad_program_loss(run->program, i);
  ad_submitted_loss *submitted = &losses_of(run, p, m)[i];
  ad_tape *t = ad_run_tape(run, p, m);
  const ad_count *count = ad_run_count(run, spec->count);
  ad_tensor *loss = submitted->numerator;
  loss = spec->per_microbatch ? ad_share(t, loss, count, part_of(run, m)) : ad_divide(t, loss, count);
  double factor = state->scale * ad_loss_coefficient(run, i);
  submitted->numerator = loss;
  submitted->start = factor == 1 ? loss : ad_scale(t, loss, factor);
}

/* Returns this rank's addend of the loss. If several ranks have the same loss, the first returns it and the others
 * return 0 * loss, so that a NaN on any of them shows. */
static double own_addend(const ad_run *run, const ad_tensor *loss) {
  const ad_layout *layout = &ad_tensor_array(loss)->layout;
  int64_t rank = ad_comm_rank(run->comm);
  ad_group replicas = ad_mesh_group(layout->mesh, AD_AXES_ALL & ~ad_layout_axes_of(layout, AD_P), rank);
  return (ad_group_index(&replicas, rank) == 0 ? 1 : 0) * ad_tensor_scalar(loss);
}

/* Divides the losses that the phase submitted, and adds them to the state's losses unless this microbatch's results are
 * discarded. */
static ad_status take_losses(ad_run *run, ad_step_state *state, size_t p, size_t m) {
  const ad_submitted_loss *submitted = losses_of(run, p, m);
  for (size_t i = 0; i < losses(run); i++) {
    if (!submitted[i].numerator) continue;
    AD_TRY(ad_step_wait_for_counts(run, state));
    divide_loss(run, state, p, i, m);
    const ad_array *loss = ad_tensor_array(submitted[i].numerator);
    if (!loss || !loss->data || drops(run, m)) continue;  // on backend dry the loss has no value
    double own = own_addend(run, submitted[i].numerator);
    state->losses[i] += own;
    if (run->recipe->train.leaves) ad_exact_add(&state->exact[i], own);
  }
  return ad_tape_status(ad_run_tape(run, p, m));
}

ad_status ad_phase_forward(ad_run *run, ad_step_state *state, size_t p, size_t m) {
  if (ad_run_pass_of(run, m) < 0) return AD_OK;
  AD_TRY(ad_phase_values(run, p, m));
  AD_TRY(take_losses(run, state, p, m));
  if (!ad_program_phase_learns(run->program, p)) AD_TRY(ad_tape_drop(ad_run_tape(run, p, m)));
  return p + 1 == phases(run) ? check_losses(run, m) : AD_OK;
}

/* ---- one phase backward ---- */

/* The tensors from which a phase's backward starts, with their gradients. */
typedef struct starts {
  ad_tensor *outputs[AD_LOSSES_MAX + AD_VALUES_MAX];
  const ad_array *gradients[AD_LOSSES_MAX + AD_VALUES_MAX]; /* NULL if the output is a loss */
  ad_array sums[AD_VALUES_MAX];
  size_t count;
} starts;

/* Returns 1 if backward cannot start from this output, because it was computed from frozen parameters alone. */
static int is_frozen(const ad_run *run, const ad_tensor *output) {
  return ad_program_has_frozen(run->program) && !output->carries;
}

static void start_from_losses(const ad_run *run, size_t p, size_t m, starts *from) {
  for (size_t i = 0; i < losses(run); i++) {
    const ad_submitted_loss *loss = &losses_of(run, p, m)[i];
    if (!loss->numerator || ad_program_loss(run->program, i)->is_metric || is_frozen(run, loss->start)) continue;
    from->gradients[from->count] = NULL;
    from->outputs[from->count++] = loss->start;
  }
}

/* Adds value v to the outputs from which backward starts. Its gradient is the sum of those of the phases that needed
 * the value, and of those that came from other ranks (law 6, like adds to like). */
static ad_status start_from_value(const ad_run *run, size_t v, size_t m, starts *from) {
  const ad_passed_value *value = &ad_run_microbatch(run, m)->values[v];
  ad_array *sum = &from->sums[v];
  int arrived = 0;
  if (is_frozen(run, value->output)) return AD_OK;
  AD_TRY(ad_passed_gradients(value, ad_run_own_phases(run), sum, &arrived));
  AD_TRY(ad_transfers_add_returned(run, v, m, sum, &arrived));
  if (!arrived) return AD_OK;
  from->gradients[from->count] = sum;
  from->outputs[from->count++] = value->output;
  return AD_OK;
}

static ad_status find_starts(const ad_run *run, size_t p, size_t m, starts *from) {
  from->count = 0;
  start_from_losses(run, p, m, from);
  const ad_phase *phase = ad_program_phase(run->program, p);
  for (size_t v = 0; v < run->program->value_count; v++)
    if (ad_phase_lists(phase->gives, run->program->values[v])) AD_TRY(start_from_value(run, v, m, from));
  return AD_OK;
}

/* Runs backward on a phase's tape from the outputs in `from`. If `from` is NULL, computes the gradients of weights that
 * an earlier backward deferred. */
static ad_status run_pass(ad_run *run, size_t p, size_t m, const starts *from, ad_start start) {
  ad_tape *t = ad_run_tape(run, p, m);
  ad_store *store = ad_module_store(ad_run_module(run, ad_program_phase(run->program, p)->module));
  ad_trace_kind kind = from ? AD_TRACE_BACKWARD : AD_TRACE_WEIGHTS;
  run->drops = drops(run, m);
  ad_trace_begin_pass(&run->trace, kind, p, m);
  AD_TRY(ad_store_begin_pass(store, AD_BACKWARD));
  AD_TRY(AD_GUEST_PHASE(
      ad_program_kind_of(run->program), ad_program_phase(run->program, p), "the backward pass",
      from ? ad_backward_from(t, from->outputs, from->gradients, from->count, start) : ad_backward_weights(t)));
  AD_TRY(ad_store_end_pass(store));
  ad_trace_end(&run->trace, kind, (int64_t)m);
  return AD_OK;
}

ad_status ad_phase_backward(ad_run *run, size_t p, size_t m, ad_start start) {
  starts from;
  AD_TRY(ad_tape_status(ad_run_tape(run, p, m)));
  AD_TRY(ad_transfers_wait_gradients(run, p, m));
  AD_TRY(find_starts(run, p, m, &from));
  return from.count ? run_pass(run, p, m, &from, start) : AD_OK;
}

ad_status ad_phase_weights(ad_run *run, size_t p, size_t m) {
  return ad_run_tape(run, p, m)->defers_weights ? run_pass(run, p, m, NULL, AD_LAST_START) : AD_OK;
}

ad_status ad_phase_after(ad_run *run, size_t p, size_t m) {
  if (drops(run, m)) return AD_OK;
  const ad_phase *phase = ad_program_phase(run->program, p);
  ad_phase_run at = phase_run(run, p, m);
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  return phase->after ? AD_GUEST_PHASE(kind, phase, "`after`", phase->after(ad_program_own(run->program), &at)) : AD_OK;
}
