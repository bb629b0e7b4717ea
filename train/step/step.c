/* The step, which training and checks take here. It knows the laws (counts, microbatches, phases forward and backward,
 * sums, norms, updates) but no model. Also computes the loss alone, with the same forward pass. */
#include <math.h>
#include <stdatomic.h>
#include "array/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/injection.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "step/execute.h"

static atomic_int interrupt_flag, checkpoint_flag;
void ad_train_interrupt(void) { atomic_store(&interrupt_flag, 1); }
static int interrupt_asked(void) { return atomic_load(&interrupt_flag); }
void ad_interrupt_clear(void) { atomic_store(&interrupt_flag, 0); }
void ad_train_checkpoint(void) { atomic_store(&checkpoint_flag, 1); }

static size_t parts(const ad_run *run) { return (size_t)ad_recipe_parts(run->recipe); }
static size_t losses(const ad_run *run) { return ad_program_loss_count(run->program); }
static size_t modules(const ad_run *run) { return ad_program_module_count(run->program); }

/* ---- reading the batch, and its counts (law 5) ---- */

static ad_status read_batch(ad_run *run, ad_step_state *state, ad_data_split validation) {
  int64_t of = state->step;
  ad_transfer_overflow_clear(run);
  ad_inject(AD_INJECT_READ, &of);
  ad_trace_begin(&run->trace, AD_TRACE_READ, state->step, 0);
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  AD_TRY(AD_GUEST(kind, "read", kind->read(ad_program_own(run->program), of, validation, ad_run_counted(run))));
  ad_trace_end(&run->trace, AD_TRACE_READ, state->step);
  return ad_run_counts_post(run);
}

/* ---- summing the losses over ranks ---- */

static int is_finite_here(const ad_run *run, const ad_step_state *state) {
  for (size_t i = 0; i < losses(run); i++)
    if (!ad_program_loss(run->program, i)->is_metric && !isfinite(state->losses[i])) return 0;
  return 1;
}

// Called if the sum of losses is not finite: finds the first rank whose own addend is not finite, and names it in the
// error.
static ad_status fail_number(ad_run *run, const ad_step_state *state, double sum) {
  double world = (double)ad_comm_size(run->comm);
  AD_TRY(ad_transfer_overflow_agree(run));
  if (ad_run_transfer_overflow(run)->spec) return ad_transfer_overflow_fail(run, state->step);
  run->sums[0] = is_finite_here(run, state) ? world : (double)ad_comm_rank(run->comm);
  AD_TRY(ad_run_reduce_sums(run, 1, AD_MIN, AD_HERE));
  if (run->sums[0] == world) {
    return ad_fail(AD_NUMBER,
                   "step %lld: the sum of the ranks' losses is %g, so nothing was updated; a smaller train.lr or "
                   "train.clip may help",
                   (long long)state->step, sum);
  }
  return ad_fail(AD_NUMBER,
                 "step %lld: the loss on rank %d is NaN or infinite, so nothing was updated; a smaller train.lr or "
                 "train.clip may help",
                 (long long)state->step, (int)run->sums[0]);
}

/* Returns the requests to this process as an addend of a sum over fewer than 2^32 ranks: 1 is a request to stop, 2^-32
 * one to save a checkpoint. */
static double own_requests(void) { return interrupt_asked() + 0x1p-32 * atomic_exchange(&checkpoint_flag, 0); }

static void take_requests(ad_run *run, double sum) {
  run->interrupted = sum >= 1;
  run->asked_to_save = sum > floor(sum);
}

// Writes the times of this rank's finished reductions to `sums`, so that they are summed together with the losses.
static void put_times(const ad_run *run, double *sums) {
  sums[0] = 1e-9 * (double)run->trace.waited;
  sums[1] = 1e-9 * (double)run->trace.reducing;
}

static void take_times(const ad_run *run, const double *sums, ad_step_report *report) {
  double ranks = (double)ad_comm_size(run->comm);
  report->wait_seconds = sums[0] / ranks;
  report->reduction_seconds = sums[1] / ranks;
}

// Returns the first count, summed over microbatches, on one of the ranks that know it, and 0 on the others, so that the
// sum over ranks is right.
static int64_t own_count(const ad_run *run) {
  int64_t total = 0, rank = ad_comm_rank(run->comm);
  if (!ad_run_count(run, 0)) return 0;
  int reports = rank == ad_mesh_first_rank(ad_program_count(run->program, 0)->layout.mesh) || ad_comm_is_dry(run->comm);
  for (size_t m = 0; reports && m < parts(run); m++) total += ad_count_of(ad_run_count(run, 0), m);
  return total;
}

/* Sums the losses of a run with train.leaves over ranks, into run->sums: exactly, so that no bit depends on which rank
 * computed which leaf. */
static ad_status sum_exactly(ad_run *run, const ad_step_state *state) {
  ad_exact sums[AD_LOSSES_MAX];
  size_t count = losses(run);
  for (size_t i = 0; i < count; i++) {
    sums[i] = state->exact[i];
    ad_exact_carry(&sums[i]);
  }
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = run->everyone,
                          .in = sums,
                          .out = sums,
                          .count = count * AD_EXACT_NUMBERS,
                          .dtype = AD_I64,
                          .site = AD_HERE};
  AD_TRY(ad_comm_run(run->comm, &reduce));
  for (size_t i = 0; i < count; i++) run->sums[i] = ad_exact_value(&sums[i]);
  return AD_OK;
}

static ad_status sum_losses(ad_run *run, const ad_step_state *state, ad_step_report *report) {
  size_t count = losses(run);
  double sum = 0;
  for (size_t i = 0; i < count; i++) run->sums[i] = state->losses[i];
  run->sums[count] = own_requests();
  put_times(run, &run->sums[count + 1]);
  run->sums[count + 3] = (double)own_count(run);
  AD_TRY(ad_run_reduce_sums(run, count + 4, AD_SUM, AD_HERE));
  if (run->recipe->train.leaves) AD_TRY(sum_exactly(run, state));
  take_requests(run, run->sums[count]);
  take_times(run, &run->sums[count + 1], report);
  report->count = (int64_t)run->sums[count + 3];
  for (size_t i = 0; i < count; i++) {
    report->losses[i] = run->sums[i];
    if (!ad_program_loss(run->program, i)->is_metric) sum += ad_loss_coefficient(run, i) * run->sums[i];
  }
  if (!isfinite(sum)) return fail_number(run, state, sum);
  report->loss = sum;
  return AD_OK;
}

/* ---- after the last microbatch: norm and update ---- */

/* Warns once about a step without tokens. At its end the training reports how many such steps there were. */
static void warn_without_tokens(ad_run *run, const ad_step_report *report) {
  if (report->count || ad_comm_is_dry(run->comm)) return;  // on backend dry the other ranks' counts are not known
  if (run->uncounted++ || !ad_run_warns(run)) return;
  ad_log(AD_LOG_WARNING,
         "step %lld: no token of the batch counts in the loss, so the gradient is 0; check the masks of the data",
         (long long)report->step);
}

static ad_status finish_gradients(ad_run *run, ad_step_state *state, ad_step_report *report) {
  for (size_t i = 0; i < modules(run); i++)
    if (ad_run_module(run, i)) AD_TRY(ad_reducer_finish(ad_module_reducer(ad_run_module(run, i))));
  ad_inject(AD_INJECT_GRADIENTS, run);
  ad_trace_begin(&run->trace, AD_TRACE_NORM, state->step, 0);
  AD_TRY(sum_losses(run, state, report));
  AD_TRY(ad_norms_find(run, state->scale, report));
  AD_TRY(ad_norms_report(run, state->scale, report));
  ad_trace_end(&run->trace, AD_TRACE_NORM, state->step);
  warn_without_tokens(run, report);
  return AD_OK;
}

/* Decides whether the step is skipped because a gradient overflowed. All ranks have the same norm, so they skip it
 * together, in all modules or in none. If a value (not a gradient) overflows in a transfer, this is an error, because
 * no loss scale makes it smaller. */
static ad_status judge_norm(ad_run *run, ad_step_report *report) {
  double norm = report->norm;
  if (!isfinite(norm)) AD_TRY(ad_transfer_overflow_agree(run));
  if (ad_run_transfer_overflow(run)->spec && !(ad_run_transfer_overflow(run)->backward && run->loss_scale.enabled))
    return ad_transfer_overflow_fail(run, report->step);
  ad_inject(AD_INJECT_NORM, &norm);
  report->skipped = !ad_loss_scale_update(&run->loss_scale, norm);
  if (!report->skipped) return AD_OK;
  if (!run->loss_scale.enabled) {
    return ad_fail(AD_NUMBER,
                   "step %lld: the norm of the gradient is %g, although the loss is %g, so nothing was updated; a "
                   "smaller train.lr or train.clip may help",
                   (long long)report->step, report->norm, report->loss);
  }
  if (ad_run_warns(run)) {
    ad_log(AD_LOG_WARNING,
           "step %lld: a gradient overflowed f16; nothing was updated, and the loss scale falls to 2^%d",
           (long long)report->step, run->loss_scale.exponent);
  }
  return AD_OK;
}

static ad_status update_module(ad_run *run, size_t i, const ad_step_report *report, const double *rates) {
  if (report->skipped) return ad_module_refresh(ad_run_module(run, i), AD_MASTERS_WRITTEN);
  double clip;
  AD_TRY(ad_clip_factor(report->norms[ad_run_norm_group_of(run, i)], run->recipe->train.clip, &clip));
  return ad_module_update(ad_run_module(run, i), rates, clip * ldexp(1, -report->loss_scale));
}

static ad_status update(ad_run *run, const ad_step_report *report) {
  double rates[AD_GROUPS_MAX];
  AD_TRY(ad_recipe_rates(run->recipe, report->step, rates));
  ad_trace_begin(&run->trace, AD_TRACE_UPDATE, report->step, 0);
  for (size_t i = 0; i < modules(run); i++)
    if (ad_run_module(run, i)) AD_TRY(update_module(run, i, report, rates));
  ad_trace_end(&run->trace, AD_TRACE_UPDATE, report->step);
  return AD_OK;
}

/* ---- taking a step ---- */

static ad_status take_step(ad_run *run, ad_step_report *report) {
  report->loss_scale = ad_run_loss_scale_exponent(run);
  ad_step_state state = {.step = report->step, .scale = ldexp(1, report->loss_scale), .updates = 1, .goes_back = 1};
  AD_TRY(read_batch(run, &state, 0));
  AD_TRY(ad_run_execute(run, &state));
  AD_TRY(finish_gradients(run, &state, report));
  AD_TRY(judge_norm(run, report));
  AD_TRY(update(run, report));
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  if (kind->course.after_step)
    AD_TRY(AD_GUEST(
        kind, "after_step",
        kind->course.after_step(ad_program_own(run->program), report->skipped ? AD_STEP_SKIPPED : AD_STEP_TAKEN)));
  return ad_comm_health(run->comm);
}

ad_status ad_run_step(ad_run *run, int64_t step, ad_step_report *out) {
  AD_NEED(run, out);
  int64_t begin = ad_now();
  ad_step_report report = {.step = step};
  double rates[AD_GROUPS_MAX];
  AD_TRY(ad_run_report_error(run, ad_recipe_rates(run->recipe, step, rates)));
  report.lr = rates[0];
  ad_trace_begin_step(&run->trace, step);
  ad_status status = ad_run_report_error(run, take_step(run, &report));
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
    if (!spec->is_metric && !spec->is_auxiliary) sum += ad_loss_coefficient(run, i) * report->losses[i];
  }
  return sum;
}

static ad_status take_losses_alone(ad_run *run, ad_step_state *state, ad_data_split validation, ad_step_report *out) {
  *out = (ad_step_report){.step = state->step};
  AD_TRY(read_batch(run, state, validation));
  AD_TRY(ad_run_execute(run, state));
  return sum_losses(run, state, out);
}

ad_status ad_run_batch_losses(ad_run *run, int64_t step, ad_data_split validation, ad_step_report *out) {
  ad_step_state state = {.step = step, .scale = 1};
  return ad_run_report_error(run, take_losses_alone(run, &state, validation, out));
}

ad_status ad_run_loss(ad_run *run, int64_t step, ad_data_split validation, double *out) {
  AD_NEED(run, out);
  ad_step_report report;
  AD_TRY(ad_run_batch_losses(run, step, validation, &report));
  *out = validation ? ad_run_task_loss(run, &report) : report.loss;
  return AD_OK;
}

/* ---- showing the program's own results ---- */

static ad_status forward_alone(void *context, size_t m) { return ad_run_execute_forward(context, m); }

static void report_progress(void *context, const char *what, int64_t done, int64_t of) {
  const ad_run *run = context;
  if (run->listener.report_progress) run->listener.report_progress(run->listener.context, what, done, of);
}

ad_status ad_run_show(ad_run *run, char **out) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  ad_forward forward = {forward_alone, run, run->everyone, report_progress};
  *out = NULL;
  if (!kind->account.show) return AD_OK;
  return ad_run_report_error(run,
                             AD_GUEST(kind, "show", kind->account.show(ad_program_own(run->program), &forward, out)));
}

/* ---- visiting gradients before any reduction ---- */

/* One module's parameters, for a tape that passes each gradient to the visitor instead of to a reducer. */
typedef struct visited_module {
  ad_parameters parameters;
  const ad_run *run;
  ad_addend_visitor visit;
  void *context;
  size_t first; /* index of the module's first parameter among those of all modules */
} visited_module;

static void visit_gradient(void *context, size_t param, const ad_array *gradient) {
  const visited_module *module = context;
  if (!module->run->drops) module->visit(module->context, module->first + param, gradient);
}

static ad_status visit_microbatches(ad_run *run, int64_t step, int loss_scale, ad_step_report *report) {
  ad_step_state state = {.step = step, .scale = ldexp(1, loss_scale), .goes_back = 1};
  AD_TRY(read_batch(run, &state, 0));
  AD_TRY(ad_run_execute(run, &state));
  if (!report) return AD_OK;
  *report = (ad_step_report){.step = step};
  return sum_losses(run, &state, report);
}

ad_status ad_run_addends(ad_run *run, int64_t step, int loss_scale, ad_addend_visitor visit, void *context,
                         ad_step_report *report) {
  AD_NEED(run);
  visited_module *visited;
  size_t first = 0;
  AD_TRY(ad_run_report_error(run, ad_new(modules(run), &visited)));
  for (size_t i = 0; i < modules(run); i++) {
    visited[i] = (visited_module){.run = run, .visit = visit, .context = context, .first = first};
    first += ad_program_module(run->program, i)->param_count;
    if (!ad_run_module(run, i)) continue;
    visited[i].parameters = *ad_module_parameters(ad_run_module(run, i));
    visited[i].parameters.reducer = NULL;
    visited[i].parameters.gradient = visit ? visit_gradient : NULL;
    visited[i].parameters.gradient_context = &visited[i];
    ad_run_show_parameters(run, i, &visited[i].parameters);
  }
  ad_status status = visit_microbatches(run, step, loss_scale, report);
  for (size_t i = 0; i < modules(run); i++) ad_run_show_parameters(run, i, NULL);
  ad_release(visited);
  return ad_run_report_error(run, status);
}
