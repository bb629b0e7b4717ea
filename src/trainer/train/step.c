/* The step: everything that trains or proves takes it here. It knows the laws (counts, microbatches, phases forward and
 * back, sums, norms, updates) and no model. Also the loss alone, by the same forward pass. */
#include <math.h>
#include <stdatomic.h>
#include "array/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/seams.h"
#include "module/module.h"
#include "program/program.h"
#include "train/run.h"

typedef struct step_state {
  int64_t step;
  double losses[AD_LOSSES_MAX];  // this rank's addends of each; on all ranks but one of those that have the same, 0
  double scale;                  // what the losses are multiplied by before backward: a power of two
  int counted;                   // 1: the counts were waited for
  ad_status (*back)(ad_run *run, size_t m);  // one microbatch; NULL: nothing goes back
} step_state;

static atomic_int interrupt_flag, checkpoint_flag;
void ad_train_interrupt(void) { atomic_store(&interrupt_flag, 1); }
int ad_interrupt_asked(void) { return atomic_load(&interrupt_flag); }
void ad_interrupt_clear(void) { atomic_store(&interrupt_flag, 0); }
void ad_train_checkpoint(void) { atomic_store(&checkpoint_flag, 1); }

static size_t microbatches(const ad_run *run) { return (size_t)run->recipe->train.microbatches; }
static size_t losses(const ad_run *run) { return ad_program_loss_count(run->program); }
static size_t modules(const ad_run *run) { return ad_program_module_count(run->program); }
static size_t phases(const ad_run *run) { return ad_program_phase_count(run->program); }

/* ---- the batch and its counts (law 5) ---- */

static ad_status read_batch(ad_run *run, step_state *state, ad_held_out held_out) {
  int64_t of = state->step;
  ad_wire_overflow_clear(run);
  ad_seam_pass(AD_SEAM_READ, &of);
  ad_trace_begin(&run->trace, AD_TRACE_READ, state->step, 0);
  AD_TRY(ad_program_kind_of(run->program)->read(ad_program_own(run->program), of, held_out, run->counted));
  ad_trace_end(&run->trace, AD_TRACE_READ, state->step);
  for (size_t i = 0; i < ad_program_count_count(run->program); i++)
    if (run->counts[i]) AD_TRY(ad_count_post(run->counts[i], run->counted[i]));
  return AD_OK;
}

static ad_status wait_for_counts(ad_run *run, step_state *state) {
  for (size_t i = 0; !state->counted && i < ad_program_count_count(run->program); i++)
    if (run->counts[i]) AD_TRY(ad_count_wait(run->counts[i], NULL));
  state->counted = 1;
  return AD_OK;
}

/* ---- one microbatch, forward ---- */

static ad_microbatch_run *microbatch(const ad_run *run, size_t m) { return &run->microbatches[m % run->under_way]; }

/* What phase `p` hands in. */
static ad_handed_loss *losses_of(const ad_run *run, size_t p, size_t m) {
  return microbatch(run, m)->losses + p * losses(run);
}

/* What the microbatch had whose place it takes. */
static void begin_microbatch(const ad_run *run, size_t m) {
  ad_microbatch_run *at = microbatch(run, m);
  for (size_t i = 0; i < losses(run) * phases(run); i++) at->losses[i] = (ad_handed_loss){0};
  for (size_t v = 0; v < run->program->value_count; v++) {
    at->values[v].output = NULL;
    at->values[v].arrived = NULL;
    for (size_t p = 0; p < phases(run); p++) at->values[v].inputs[p] = at->values[v].needed[p] = NULL;
  }
}

/* The first mistake of a phase is told there: in what follows from it nobody would find it. */
static ad_status check_phase(const ad_run *run, size_t p, size_t m) {
  const ad_phase *phase = ad_program_phase(run->program, p);
  AD_TRY(ad_tape_status(ad_run_tape(run, p, m)));
  for (size_t v = 0; v < run->program->value_count; v++) {
    if (microbatch(run, m)->values[v].output || !ad_phase_lists(phase->gives, run->program->values[v])) continue;
    return ad_fail(AD_INVALID, "phase `%s` did not give `%s`", phase->name, run->program->values[v]);
  }
  return AD_OK;
}

static ad_status wait_for_value(void *run, size_t value, size_t m) { return ad_crossings_wait_value(run, value, m); }

/* The exponent, the same until a step's norm is judged. */
static int loss_scale_of(const ad_run *run) { return run->loss_scale.enabled ? run->loss_scale.exponent : 0; }

static ad_phase_run phase_run(ad_run *run, size_t p, size_t m) {
  size_t module = ad_program_phase(run->program, p)->module;
  return (ad_phase_run){.program = run->program,
                        .phase = p,
                        .microbatch = m,
                        .trains = run->trains,
                        .loss_scale = loss_scale_of(run),
                        .rounds = run->rounds_wires,
                        .wire_scale = run->wire_scale,
                        .overflows = run->overflows,
                        .tape = ad_run_tape(run, p, m),
                        .module = run->modules[module],
                        .parameters = run->parameters[module],
                        .values = microbatch(run, m)->values,
                        .losses = losses_of(run, p, m),
                        .wait = wait_for_value,
                        .run = run};
}

static void note_samples(const ad_run *run, ad_tape *t, size_t m) {
  int64_t first = ad_cut(run->recipe->train.global_batch, (int64_t)m, (int64_t)microbatches(run)).first;
  if (run->samples) run->samples->first = run->samples->batch + (size_t)first;
  ad_tape_note_samples(t, run->samples);
}

static ad_status run_phase(ad_run *run, size_t p, size_t m) {
  const ad_phase *phase = ad_program_phase(run->program, p);
  ad_store *store = ad_module_store(run->modules[phase->module]);
  ad_phase_run at = phase_run(run, p, m);
  ad_tape_reset(at.tape);
  note_samples(run, at.tape, m);
  ad_seam_pass(AD_SEAM_PHASE, &m);
  ad_trace_begin(&run->trace, AD_TRACE_FORWARD, (int64_t)m, 0);
  AD_TRY(ad_store_begin_pass(store, AD_FORWARD));
  ad_status status = phase->run(ad_program_own(run->program), &at);
  if (!status) status = check_phase(run, p, m);
  if (!status) status = ad_store_end_pass(store);
  ad_trace_end(&run->trace, AD_TRACE_FORWARD, (int64_t)m);
  return status;
}

static int is_handed_in(const ad_run *run, size_t loss, size_t m) {
  for (size_t p = 0; p < phases(run); p++)
    if (losses_of(run, p, m)[loss].numerator) return 1;
  return 0;
}

/* Only a rank that runs every phase can say that nobody handed a loss in. */
static ad_status check_losses(const ad_run *run, size_t m) {
  for (size_t p = 0; p < phases(run); p++)
    if (!ad_run_tape(run, p, m)) return AD_OK;
  for (size_t i = 0; i < losses(run); i++) {
    if (is_handed_in(run, i, m)) continue;
    return ad_fail(AD_INVALID, "no phase handed in the loss `%s`", ad_program_loss(run->program, i)->name);
  }
  return AD_OK;
}

static double coefficient_of(const ad_run *run, size_t i) {
  const ad_loss_spec *spec = ad_program_loss(run->program, i);
  return spec->coefficient == 0 ? 1 : spec->coefficient;
}

/* Loss number `i` divided by its count, or with its microbatch's share of it; backward starts from it times its
 * coefficient. */
static void divide_loss(ad_run *run, const step_state *state, size_t p, size_t i, size_t m) {
  const ad_loss_spec *spec = ad_program_loss(run->program, i);
  ad_handed_loss *handed = &losses_of(run, p, m)[i];
  ad_tape *t = ad_run_tape(run, p, m);
  const ad_count *count = run->counts[spec->count];
  ad_tensor *loss = handed->numerator;
  loss = spec->per_microbatch ? ad_share(t, loss, count, m) : ad_divide(t, loss, count);
  double factor = state->scale * coefficient_of(run, i);
  handed->numerator = loss;
  handed->start = factor == 1 ? loss : ad_scale(t, loss, factor);
}

// Where a loss is the same on every rank of an axis, the first one counts; 0 * NaN tells of the others.
static double own_addend(const ad_run *run, const ad_tensor *loss) {
  const ad_layout *layout = &ad_tensor_array(loss)->layout;
  int64_t rank = ad_comm_rank(run->comm);
  ad_group copies = ad_mesh_group(layout->mesh, AD_AXES_ALL & ~ad_layout_axes_of(layout, AD_P), rank);
  return (ad_group_index(&copies, rank) == 0 ? 1 : 0) * ad_tensor_scalar(loss);
}

/* The losses that the phase handed in. */
static ad_status take_losses(ad_run *run, step_state *state, size_t p, size_t m) {
  const ad_handed_loss *handed = losses_of(run, p, m);
  for (size_t i = 0; i < losses(run); i++) {
    if (!handed[i].numerator) continue;
    AD_TRY(wait_for_counts(run, state));
    divide_loss(run, state, p, i, m);
    const ad_array *loss = ad_tensor_array(handed[i].numerator);
    if (loss && loss->data) state->losses[i] += own_addend(run, handed[i].numerator);  // engine dry has no values
  }
  return ad_tape_status(ad_run_tape(run, p, m));
}

static ad_status forward_phase(ad_run *run, step_state *state, size_t p, size_t m) {
  if (ad_run_tape(run, p, m)) {
    AD_TRY(ad_crossings_wait_room(run, p, m));
    AD_TRY(run_phase(run, p, m));
    AD_TRY(take_losses(run, state, p, m));
  }
  return ad_crossings_post_values(run, p, m);
}

/* Microbatch `m` of the last phases, and of each other what it is ahead. */
static ad_status forward(ad_run *run, step_state *state, int64_t m) {
  int64_t count = (int64_t)microbatches(run), newest = m + (int64_t)run->under_way - 1;
  if (newest < count) begin_microbatch(run, (size_t)newest);
  for (size_t p = 0; p < phases(run); p++) {
    int64_t own = m + (int64_t)run->lead[p];
    if (own >= 0 && own < count) AD_TRY(forward_phase(run, state, p, (size_t)own));
  }
  return m < 0 ? AD_OK : check_losses(run, (size_t)m);
}

/* ---- one microbatch, backward ---- */

/* What a phase's backward starts from. */
typedef struct starts {
  ad_tensor *outputs[AD_LOSSES_MAX + AD_VALUES_MAX];
  const ad_array *gradients[AD_LOSSES_MAX + AD_VALUES_MAX]; /* NULL: a loss */
  ad_array sums[AD_VALUES_MAX];
  size_t count;
} starts;

static void start_from_losses(const ad_run *run, size_t p, size_t m, starts *from) {
  for (size_t i = 0; i < losses(run); i++) {
    const ad_handed_loss *loss = &losses_of(run, p, m)[i];
    if (!loss->numerator || ad_program_loss(run->program, i)->is_metric) continue;
    from->gradients[from->count] = NULL;
    from->outputs[from->count++] = loss->start;
  }
}

/* The gradients that the phases left that needed the value; those of several are added (law 6). */
static ad_status start_from_value(const ad_run *run, size_t v, size_t m, starts *from) {
  const ad_passed_value *value = &microbatch(run, m)->values[v];
  ad_array *sum = &from->sums[v];
  int arrived = 0;
  AD_TRY(ad_passed_gradients(run->program, value, sum, &arrived));
  AD_TRY(ad_crossings_add_returned(run, v, m, sum, &arrived));
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

static ad_status backward_phase(ad_run *run, size_t p, size_t m) {
  starts from;
  ad_tape *t = ad_run_tape(run, p, m);
  AD_TRY(ad_tape_status(t));
  AD_TRY(ad_crossings_wait_gradients(run, p, m));
  AD_TRY(find_starts(run, p, m, &from));
  if (!from.count) return AD_OK;
  ad_store *store = ad_module_store(run->modules[ad_program_phase(run->program, p)->module]);
  ad_trace_begin(&run->trace, AD_TRACE_BACKWARD, (int64_t)m, 0);
  AD_TRY(ad_store_begin_pass(store, AD_BACKWARD));
  AD_TRY(ad_backward_from(t, from.outputs, from.gradients, from.count, AD_LAST_START));
  AD_TRY(ad_store_end_pass(store));
  ad_trace_end(&run->trace, AD_TRACE_BACKWARD, (int64_t)m);
  return AD_OK;
}

static ad_status backward(ad_run *run, size_t m) {
  for (size_t p = phases(run); p-- > 0;) {
    if (ad_run_tape(run, p, m)) AD_TRY(backward_phase(run, p, m));
    AD_TRY(ad_crossings_post_gradients(run, p, m));
  }
  return AD_OK;
}

/* ---- microbatches ---- */

static ad_sync sync_of(const ad_run *run, size_t m) {
  if (m + 1 == microbatches(run)) return AD_SYNC_ALL;
  return m < run->recipe->train.sync_count ? run->recipe->train.sync[m] : AD_SYNC_SHARD;
}

static ad_status after_backward(ad_run *run, size_t m) {
  for (size_t p = 0; p < phases(run); p++) {
    const ad_phase *phase = ad_program_phase(run->program, p);
    ad_phase_run at = phase_run(run, p, m);
    if (at.tape && phase->after) AD_TRY(phase->after(ad_program_own(run->program), &at));
  }
  return AD_OK;
}

/* What all losses that learn are divided by; 0: it is no single number, or not known here. */
static double divisor_of(const ad_run *run) {
  size_t none = ad_program_count_count(run->program), count = none;
  double total = 0;
  for (size_t i = 0; i < losses(run); i++) {
    const ad_loss_spec *spec = ad_program_loss(run->program, i);
    if (spec->is_metric) continue;
    if (spec->per_microbatch || (count != none && count != spec->count)) return 0;
    count = spec->count;
  }
  for (size_t m = 0; count != none && run->counts[count] && m < microbatches(run); m++)
    total += (double)ad_count_of(run->counts[count], m);
  return total > 0 ? total : 0;
}

static ad_status end_microbatch(ad_reducer *reducer, double divisor) {
  ad_reducer_divided_by(reducer, divisor);
  return ad_reducer_end_microbatch(reducer);
}

static ad_status backward_reducing(ad_run *run, size_t m) {
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) AD_TRY(ad_reducer_begin_microbatch(ad_module_reducer(run->modules[i]), sync_of(run, m)));
  AD_TRY(backward(run, m));
  AD_TRY(after_backward(run, m));
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) AD_TRY(end_microbatch(ad_module_reducer(run->modules[i]), divisor_of(run)));
  return AD_OK;
}

static ad_status run_microbatches(ad_run *run, step_state *state) {
  run->trains = state->back == backward_reducing && !run->options.given_states;
  for (int64_t m = 1 - (int64_t)run->under_way; m < (int64_t)microbatches(run); m++) {
    AD_TRY(forward(run, state, m));
    if (m >= 0 && state->back) AD_TRY(state->back(run, (size_t)m));
  }
  AD_TRY(wait_for_counts(run, state));
  return ad_crossings_settle(run);
}

/* ---- sums of the losses ---- */

ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) {
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = run->everyone,
                          .in = run->sums,
                          .out = run->sums,
                          .count = count,
                          .dtype = AD_F64,
                          .reduction = reduction,
                          .site = site};
  return ad_comm_run(run->comm, &reduce);
}

static int is_finite_here(const ad_run *run, const step_state *state) {
  for (size_t i = 0; i < losses(run); i++)
    if (!ad_program_loss(run->program, i)->is_metric && !isfinite(state->losses[i])) return 0;
  return 1;
}

// The sum is not finite: finds the first rank whose own addend is not.
static ad_status fail_number(ad_run *run, const step_state *state, double sum) {
  double world = (double)ad_comm_size(run->comm);
  AD_TRY(ad_wire_overflow_agree(run));
  if (run->overflow.spec) return ad_wire_overflow_fail(run, state->step);
  run->sums[0] = is_finite_here(run, state) ? world : (double)ad_comm_rank(run->comm);
  AD_TRY(ad_run_reduce_sums(run, 1, AD_MIN, AD_HERE));
  if (run->sums[0] == world) {
    return ad_fail(AD_NUMBER, "step %lld: the sum of the ranks' losses is %g; nothing was updated",
                   (long long)state->step, sum);
  }
  return ad_fail(AD_NUMBER, "step %lld: the loss on rank %d is not a finite number; nothing was updated",
                 (long long)state->step, (int)run->sums[0]);
}

// What this process was asked for, as one addend of a sum over fewer than 2^32 ranks: 1 to stop, 2^-32 to checkpoint.
static double own_requests(void) { return ad_interrupt_asked() + 0x1p-32 * atomic_exchange(&checkpoint_flag, 0); }

static void take_requests(ad_run *run, double sum) {
  run->interrupted = sum >= 1;
  run->asked_to_save = sum > floor(sum);
}

// What travels with the losses: times of reductions that are over.
static void put_times(const ad_run *run, double *sums) {
  sums[0] = 1e-9 * (double)run->trace.waited;
  sums[1] = 1e-9 * (double)run->trace.reducing;
}

static void take_times(const ad_run *run, const double *sums, ad_step_report *report) {
  double ranks = (double)ad_comm_size(run->comm);
  report->wait_seconds = sums[0] / ranks;
  report->reduction_seconds = sums[1] / ranks;
}

// What the first count of all is, as the addend of one rank that knows it.
static int64_t own_count(const ad_run *run) {
  int64_t total = 0, rank = ad_comm_rank(run->comm);
  if (!run->counts[0]) return 0;
  int tells = rank == ad_mesh_first_rank(ad_program_count(run->program, 0)->layout.mesh) || ad_comm_is_dry(run->comm);
  for (size_t m = 0; tells && m < microbatches(run); m++) total += ad_count_of(run->counts[0], m);
  return total;
}

static ad_status sum_losses(ad_run *run, const step_state *state, ad_step_report *report) {
  size_t count = losses(run);
  double sum = 0;
  for (size_t i = 0; i < count; i++) run->sums[i] = state->losses[i];
  run->sums[count] = own_requests();
  put_times(run, &run->sums[count + 1]);
  run->sums[count + 3] = (double)own_count(run);
  AD_TRY(ad_run_reduce_sums(run, count + 4, AD_SUM, AD_HERE));
  take_requests(run, run->sums[count]);
  take_times(run, &run->sums[count + 1], report);
  report->count = (int64_t)run->sums[count + 3];
  for (size_t i = 0; i < count; i++) {
    report->losses[i] = run->sums[i];
    if (!ad_program_loss(run->program, i)->is_metric) sum += coefficient_of(run, i) * run->sums[i];
  }
  if (!isfinite(sum)) return fail_number(run, state, sum);
  report->loss = sum;
  return AD_OK;
}

/* ---- after the last microbatch ---- */

/* The first of them is told at once, how many there were by the training at its end. */
static void warn_without_tokens(ad_run *run, const ad_step_report *report) {
  if (report->count || ad_comm_is_dry(run->comm)) return;  // dry: the others' are not known
  if (run->uncounted++ || !ad_run_warns(run)) return;
  ad_log(AD_LOG_WARNING, "step %lld: no token of the batch counts; its gradient is 0", (long long)report->step);
}

/* One norm for each group; the whole gradient's is that of all groups together. */
static ad_status find_norms(ad_run *run, double scale, ad_step_report *report) {
  double squares = 0;
  for (size_t i = 0; i < run->norm_group_count; i++) {
    const ad_norm_group *group = &run->norm_groups[i];
    double sum = 0;
    AD_TRY(ad_square_sum_named(run->comm, &run->everyone, group->arrays, (const char *const *)group->names,
                               group->count, AD_HERE, &sum));
    report->norms[i] = sqrt(sum) / scale;
    squares += sum;
  }
  report->norm = sqrt(squares) / scale;
  return AD_OK;
}

static int is_normed(const ad_run *run, size_t module, size_t group) {
  return !ad_program_module(run->program, module)->is_mirror && run->norm_group_of[module] == group;
}

/* To a dump, where it is the norm of this module alone; gradients carry the loss scale. */
static ad_status report_norm(const ad_run *run, size_t module, double scale, const ad_step_report *report) {
  size_t group = run->norm_group_of[module], members = 0;
  for (size_t i = 0; i < modules(run); i++) members += is_normed(run, i, group);
  if (members != 1 || !is_normed(run, module, group)) return AD_OK;
  return ad_reducer_reported(ad_module_reducer(run->modules[module]), scale * report->norms[group]);
}

static ad_status report_norms(const ad_run *run, double scale, const ad_step_report *report) {
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) AD_TRY(report_norm(run, i, scale, report));
  return AD_OK;
}

static ad_status finish_gradients(ad_run *run, step_state *state, ad_step_report *report) {
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) AD_TRY(ad_reducer_finish(ad_module_reducer(run->modules[i])));
  ad_seam_pass(AD_SEAM_GRADIENTS, run);
  ad_trace_begin(&run->trace, AD_TRACE_NORM, state->step, 0);
  AD_TRY(sum_losses(run, state, report));
  AD_TRY(find_norms(run, state->scale, report));
  AD_TRY(report_norms(run, state->scale, report));
  ad_trace_end(&run->trace, AD_TRACE_NORM, state->step);
  warn_without_tokens(run, report);
  return AD_OK;
}

// The norm is one number for all ranks: they skip together, and all modules or none. No scale of the loss makes a value
// smaller that overflows on a wire.
static ad_status judge_norm(ad_run *run, ad_step_report *report) {
  double norm = report->norm;
  if (!isfinite(norm)) AD_TRY(ad_wire_overflow_agree(run));
  if (run->overflow.spec && !(run->overflow.backward && run->loss_scale.enabled))
    return ad_wire_overflow_fail(run, report->step);
  ad_seam_pass(AD_SEAM_NORM, &norm);
  report->skipped = !ad_loss_scale_update(&run->loss_scale, norm);
  if (!report->skipped) return AD_OK;
  if (!run->loss_scale.enabled) {
    return ad_fail(AD_NUMBER, "step %lld: the norm of the gradient is %g although the loss is %g; nothing was updated",
                   (long long)report->step, report->norm, report->loss);
  }
  if (ad_run_warns(run)) {
    ad_log(AD_LOG_WARNING, "step %lld: a gradient overflowed f16; nothing was updated, the loss scale falls to 2^%d",
           (long long)report->step, run->loss_scale.exponent);
  }
  return AD_OK;
}

static ad_status update_module(ad_run *run, size_t i, const ad_step_report *report) {
  if (report->skipped) return ad_module_refresh(run->modules[i], AD_MASTERS_WRITTEN);
  double clip = ad_clip_factor(report->norms[run->norm_group_of[i]], run->recipe->train.clip);
  return ad_module_update(run->modules[i], report->lr, clip * ldexp(1, -report->loss_scale));
}

static ad_status update(ad_run *run, const ad_step_report *report) {
  ad_trace_begin(&run->trace, AD_TRACE_UPDATE, report->step, 0);
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) AD_TRY(update_module(run, i, report));
  ad_trace_end(&run->trace, AD_TRACE_UPDATE, report->step);
  return AD_OK;
}

/* ---- the step ---- */

static double learning_rate(const ad_run *run, int64_t step) {
  ad_schedule schedule = {.size = sizeof schedule,
                          .lr = run->recipe->train.lr,
                          .warmup = run->recipe->train.warmup,
                          .steps = run->recipe->train.steps,
                          .final_fraction = run->recipe->train.final_lr_fraction};
  return ad_schedule_at(&schedule, step);
}

static ad_status take_step(ad_run *run, ad_step_report *report) {
  report->loss_scale = loss_scale_of(run);
  step_state state = {.step = report->step, .scale = ldexp(1, report->loss_scale), .back = backward_reducing};
  AD_TRY(read_batch(run, &state, 0));
  AD_TRY(run_microbatches(run, &state));
  AD_TRY(finish_gradients(run, &state, report));
  AD_TRY(judge_norm(run, report));
  AD_TRY(update(run, report));
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  if (kind->course.after_step)
    AD_TRY(kind->course.after_step(ad_program_own(run->program), report->skipped ? AD_STEP_SKIPPED : AD_STEP_TAKEN));
  return ad_comm_health(run->comm);
}

ad_status ad_run_step(ad_run *run, int64_t step, ad_step_report *out) {
  AD_NEED(run, out);
  int64_t begin = ad_now();
  ad_step_report report = {.step = step, .lr = learning_rate(run, step)};
  ad_trace_begin_step(&run->trace, step);
  ad_status status = ad_run_tell(run, take_step(run, &report));
  ad_trace_end_step(&run->trace);
  if (status) return status;
  report.seconds = (double)(ad_now() - begin) * 1e-9;
  *out = report;
  return AD_OK;
}

double ad_run_task_loss(const ad_run *run, const ad_step_report *report) {
  double sum = 0;
  for (size_t i = 0; i < losses(run); i++) {
    const ad_loss_spec *spec = ad_program_loss(run->program, i);
    if (!spec->is_metric && !spec->is_auxiliary) sum += coefficient_of(run, i) * report->losses[i];
  }
  return sum;
}

static ad_status take_losses_alone(ad_run *run, step_state *state, ad_held_out held_out, ad_step_report *out) {
  *out = (ad_step_report){.step = state->step};
  AD_TRY(read_batch(run, state, held_out));
  AD_TRY(run_microbatches(run, state));
  return sum_losses(run, state, out);
}

ad_status ad_run_batch_losses(ad_run *run, int64_t step, ad_held_out held_out, ad_step_report *out) {
  step_state state = {.step = step, .scale = 1};
  return ad_run_tell(run, take_losses_alone(run, &state, held_out, out));
}

ad_status ad_run_loss(ad_run *run, int64_t step, ad_held_out held_out, double *out) {
  AD_NEED(run, out);
  ad_step_report report;
  AD_TRY(ad_run_batch_losses(run, step, held_out, &report));
  *out = held_out ? ad_run_task_loss(run, &report) : report.loss;
  return AD_OK;
}

/* ---- what was learned ---- */

/* A step's forward pass alone; the values stay on the tapes until the next. */
static ad_status forward_alone(void *context, size_t m) {
  ad_run *run = context;
  run->trains = 0;
  begin_microbatch(run, m);
  for (size_t p = 0; p < phases(run); p++) {
    if (ad_run_tape(run, p, m)) {
      AD_TRY(ad_crossings_wait_room(run, p, m));
      AD_TRY(run_phase(run, p, m));
    }
    AD_TRY(ad_crossings_post_values(run, p, m));
  }
  return ad_crossings_settle(run);
}

static void tell(void *context, const char *what, int64_t done, int64_t of) {
  const ad_run *run = context;
  if (run->tell) run->tell(run->tell_context, what, done, of);
}

ad_status ad_run_show(ad_run *run, char **out) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  ad_forward forward = {forward_alone, run, run->everyone, tell};
  *out = NULL;
  return kind->account.show ? ad_run_tell(run, kind->account.show(ad_program_own(run->program), &forward, out)) : AD_OK;
}

/* ---- gradients before any reduction ---- */

/* One module's parameters as a tape sees them that hands gradients to the visitor. */
typedef struct visited_module {
  ad_parameters parameters;
  ad_addend_visitor visit;
  void *context;
  size_t first; /* the module's first parameter among those of all modules */
} visited_module;

static void visit_gradient(void *context, size_t param, const ad_array *gradient) {
  const visited_module *module = context;
  module->visit(module->context, module->first + param, gradient);
}

static ad_status visit_microbatches(ad_run *run, int64_t step, int loss_scale, ad_step_report *report) {
  step_state state = {.step = step, .scale = ldexp(1, loss_scale), .back = backward};
  AD_TRY(read_batch(run, &state, 0));
  AD_TRY(run_microbatches(run, &state));
  if (!report) return AD_OK;
  *report = (ad_step_report){.step = step};
  return sum_losses(run, &state, report);
}

ad_status ad_run_addends(ad_run *run, int64_t step, int loss_scale, ad_addend_visitor visit, void *context,
                         ad_step_report *report) {
  AD_NEED(run);
  visited_module *visited;
  size_t first = 0;
  AD_TRY(ad_run_tell(run, ad_new(modules(run), &visited)));
  for (size_t i = 0; i < modules(run); i++) {
    visited[i] = (visited_module){.visit = visit, .context = context, .first = first};
    first += ad_program_module(run->program, i)->param_count;
    if (!run->modules[i]) continue;
    visited[i].parameters = *ad_module_parameters(run->modules[i]);
    visited[i].parameters.reducer = NULL;
    visited[i].parameters.gradient = visit ? visit_gradient : NULL;
    visited[i].parameters.gradient_context = &visited[i];
    run->parameters[i] = &visited[i].parameters;
  }
  ad_status status = visit_microbatches(run, step, loss_scale, report);
  for (size_t i = 0; i < modules(run); i++)
    if (run->modules[i]) run->parameters[i] = ad_module_parameters(run->modules[i]);
  ad_release(visited);
  return ad_run_tell(run, status);
}
