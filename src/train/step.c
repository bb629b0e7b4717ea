/* The step: everything that trains or proves takes it here. Also the loss alone, by the same forward pass. */
#include <math.h>
#include <stdatomic.h>
#include "array/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/switches.h"
#include "train/run.h"

typedef struct step_state step_state;
struct step_state {
  int64_t step;
  int64_t total;      // counted tokens of the step, all microbatches and ranks (law 5)
  double loss;        // this rank's addend of the mean
  ad_axes addend_of;  // axes on which losses are addends
  double scale;       // what the losses are multiplied by before backward: a power of two
  ad_status (*take)(ad_run *run, step_state *state, size_t m);  // one microbatch
};

static atomic_int interrupt_flag;
void ad_train_interrupt(void) { atomic_store(&interrupt_flag, 1); }
int ad_interrupt_asked(void) { return atomic_load(&interrupt_flag); }
void ad_interrupt_clear(void) { atomic_store(&interrupt_flag, 0); }

static ad_status post_count(ad_run *run, int64_t local) {
  ad_group group = ad_mesh_group(run->mesh, run->batch.cut_axes, ad_comm_rank(run->comm));
  return ad_count_post(run->count, &group, local, AD_HERE);
}

static ad_status read_batch(ad_run *run, step_state *state, int held_out) {
  ad_trace_begin(&run->trace, AD_TRACE_READ, state->step, 0);
  ad_batch_read(&run->batch, run->text, state->step, held_out);
  ad_trace_end(&run->trace, AD_TRACE_READ, state->step);
  return post_count(run, ad_batch_counted(&run->batch));
}

// Sabotage: each microbatch is a mean of its own, and the step is the mean of those.
static ad_status mean_of_means(ad_run *run, size_t m, double *out) {
  int64_t counted;
  AD_TRY(post_count(run, run->batch.microbatches[m].counted));
  AD_TRY(ad_count_wait(run->count, &counted));
  *out = (double)counted * (double)run->batch.count;
  return AD_OK;
}

static ad_status find_divisor(ad_run *run, step_state *state, size_t m, double *out) {
  if (m == 0) AD_TRY(ad_count_wait(run->count, &state->total));
  if (ad_switched(AD_SWITCH_MEAN_OF_MEANS)) return mean_of_means(run, m, out);
  *out = (double)state->total;
  return AD_OK;
}

static ad_status forward(ad_run *run, step_state *state, size_t m, ad_tensor **out) {
  const ad_microbatch *microbatch = &run->batch.microbatches[m];
  ad_tape_reset(run->tape);
  ad_trace_begin(&run->trace, AD_TRACE_FORWARD, (int64_t)m, 0);
  AD_TRY(ad_store_begin_pass(run->store, 0));
  ad_tensor *loss = ad_model_loss(run->model, run->tape, run->computed, &microbatch->tokens, &microbatch->targets);
  AD_TRY(ad_store_end_pass(run->store));
  ad_trace_end(&run->trace, AD_TRACE_FORWARD, (int64_t)m);
  double divisor = 0;
  AD_TRY(find_divisor(run, state, m, &divisor));
  *out = ad_divide(run->tape, loss, divisor / state->scale);
  return AD_OK;
}

static ad_status backward(ad_run *run, size_t m, ad_tensor *loss) {
  ad_trace_begin(&run->trace, AD_TRACE_BACKWARD, (int64_t)m, 0);
  AD_TRY(ad_store_begin_pass(run->store, 1));
  AD_TRY(ad_backward(run->tape, loss));
  AD_TRY(ad_store_end_pass(run->store));
  ad_trace_end(&run->trace, AD_TRACE_BACKWARD, (int64_t)m);
  return AD_OK;
}

static void add_loss(const ad_tensor *loss, step_state *state) {
  if (ad_tensor_array(loss)->data) state->loss += ad_tensor_scalar(loss) / state->scale;  // engine dry has no values
  state->addend_of = ad_layout_axes_of(&ad_tensor_array(loss)->layout, AD_P);
}

static ad_sync sync_of(const ad_run *run, size_t m) {
  if (m + 1 == run->batch.count) return AD_SYNC_ALL;
  return m < run->recipe->train.sync_count ? run->recipe->train.sync[m] : AD_SYNC_SHARD;
}

static ad_status gradient_microbatch(ad_run *run, step_state *state, size_t m) {
  ad_tensor *loss;
  AD_TRY(ad_reducer_begin_microbatch(run->reducer, sync_of(run, m)));
  AD_TRY(forward(run, state, m, &loss));
  AD_TRY(backward(run, m, loss));
  add_loss(loss, state);
  return ad_reducer_end_microbatch(run->reducer);
}

static ad_status loss_microbatch(ad_run *run, step_state *state, size_t m) {
  ad_tensor *loss;
  AD_TRY(forward(run, state, m, &loss));
  AD_TRY(ad_tape_status(run->tape));
  add_loss(loss, state);
  return AD_OK;
}

static ad_status addend_microbatch(ad_run *run, step_state *state, size_t m) {
  ad_tensor *loss;
  AD_TRY(forward(run, state, m, &loss));
  return backward(run, m, loss);
}

static ad_status run_microbatches(ad_run *run, step_state *state) {
  for (size_t m = 0; m < run->batch.count; m++) AD_TRY(state->take(run, state, m));
  return AD_OK;
}

ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) {
  ad_collective reduce = {.op = AD_ALL_REDUCE,
                          .group = run->everyone,
                          .in = run->sums,
                          .out = run->sums,
                          .count = count,
                          .dtype = AD_F64,
                          .reduction = reduction,
                          .site = site};
  return ad_comm_run(run->comm, &reduce);
}

// The sum is not finite: finds the first rank whose own addend is not.
static ad_status fail_number(ad_run *run, const step_state *state, double sum) {
  double world = (double)ad_comm_size(run->comm);
  run->sums[0] = isfinite(state->loss) ? world : (double)ad_comm_rank(run->comm);
  AD_TRY(ad_run_reduce_sums(run, 1, AD_MIN, AD_HERE));
  if (run->sums[0] == world) {
    return ad_fail(AD_NUMBER, "step %lld: the sum of the ranks' losses is %g; nothing was updated",
                   (long long)state->step, sum);
  }
  return ad_fail(AD_NUMBER, "step %lld: the loss on rank %d is not a finite number; nothing was updated",
                 (long long)state->step, (int)run->sums[0]);
}

// Where losses are the same on every rank of an axis, the first one counts; 0 * NaN tells of the others.
static double own_addend(const ad_run *run, const step_state *state) {
  ad_group copies = ad_mesh_group(run->mesh, AD_AXES_ALL & ~state->addend_of, ad_comm_rank(run->comm));
  return ad_group_index(&copies, ad_comm_rank(run->comm)) == 0 ? state->loss : 0 * state->loss;
}

static ad_status sum_loss(ad_run *run, const step_state *state, double *out) {
  run->sums[0] = own_addend(run, state);
  run->sums[1] = ad_interrupt_asked();
  AD_TRY(ad_run_reduce_sums(run, AD_RUN_SUMS, AD_SUM, AD_HERE));
  run->interrupted = run->sums[1] > 0;
  double sum = run->sums[0];
  if (!isfinite(sum)) return fail_number(run, state, sum);
  *out = sum;
  return AD_OK;
}

static void warn_without_tokens(const ad_run *run, const step_state *state) {
  if (state->total || !ad_run_warns(run) || ad_comm_is_dry(run->comm)) return;  // dry: the others' are not known
  ad_log(AD_LOG_WARNING, "step %lld: no token of the batch counts; its gradient is 0", (long long)state->step);
}

// Sabotage: after the reduction one rank's copy of the last parameter's gradient is another.
static void perturb_replica(ad_run *run) {
  if (!ad_switched(AD_SWITCH_PERTURBED_REPLICA)) return;
  if (ad_group_index(&run->everyone, ad_comm_rank(run->comm)) != 1) return;
  size_t last = run->param_count - 1;
  while (last && !ad_array_numel(ad_run_gradient(run, last))) last--;  // of which this rank holds something
  const ad_array *gradient = ad_run_gradient(run, last);
  double amount = 1e-3;
  if (ad_array_numel(gradient) && gradient->data) ad_accumulate(gradient->data, gradient->dtype, &amount, AD_F64, 1, 1);
}

static ad_status finish_gradients(ad_run *run, step_state *state, ad_step_report *report) {
  double norm = 0;
  AD_TRY(ad_reducer_finish(run->reducer));
  perturb_replica(run);
  ad_trace_begin(&run->trace, AD_TRACE_NORM, state->step, 0);
  AD_TRY(sum_loss(run, state, &report->loss));
  AD_TRY(ad_reducer_norm(run->reducer, &run->everyone, &norm));
  ad_trace_end(&run->trace, AD_TRACE_NORM, state->step);
  report->norm = norm / state->scale;
  report->count = state->total;
  warn_without_tokens(run, state);
  return AD_OK;
}

// Sabotage: the gradient overflows on one rank, which then decides for itself.
static double own_norm(const ad_run *run, double norm) {
  int overflows =
      ad_switched(AD_SWITCH_OVERFLOW_PER_RANK) && ad_group_index(&run->everyone, ad_comm_rank(run->comm)) == 1;
  return overflows ? INFINITY : norm;
}

// The norm is one number for all ranks: they skip together.
static ad_status judge_norm(ad_run *run, ad_step_report *report) {
  report->skipped = !ad_loss_scale_update(&run->loss_scale, own_norm(run, report->norm));
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

static ad_status update(ad_run *run, const ad_step_report *report) {
  for (size_t i = 0; i < run->param_count; i++) run->gradient_list[i] = ad_run_gradient(run, i);
  double factor = ad_clip_factor(report->norm, run->recipe->train.clip) * ldexp(1, -report->loss_scale);
  ad_trace_begin(&run->trace, AD_TRACE_UPDATE, report->step, 0);
  if (!report->skipped)
    AD_TRY(ad_adamw_step(run->optimizer, run->masters, run->gradient_list, report->lr, factor, AD_HERE));
  AD_TRY(ad_store_refresh(run->store, 1));
  ad_trace_end(&run->trace, AD_TRACE_UPDATE, report->step);
  return AD_OK;
}

static double learning_rate(const ad_run *run, int64_t step) {
  ad_schedule schedule = {.lr = run->recipe->train.lr,
                          .warmup = run->recipe->train.warmup,
                          .steps = run->recipe->train.steps,
                          .final_fraction = run->recipe->train.final_lr_fraction};
  return ad_schedule_at(&schedule, step);
}

static ad_status take_step(ad_run *run, ad_step_report *report) {
  report->loss_scale = run->loss_scale.enabled ? run->loss_scale.exponent : 0;
  step_state state = {.step = report->step, .scale = ldexp(1, report->loss_scale), .take = gradient_microbatch};
  AD_TRY(read_batch(run, &state, 0));
  AD_TRY(run_microbatches(run, &state));
  AD_TRY(finish_gradients(run, &state, report));
  AD_TRY(judge_norm(run, report));
  AD_TRY(update(run, report));
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

static ad_status take_loss(ad_run *run, step_state *state, int held_out, double *out) {
  if (held_out && !(run->recipe->data.held_out > 0)) {
    return ad_fail(AD_INVALID, "no part of the text is held out; set data.held_out above 0");
  }
  AD_TRY(read_batch(run, state, held_out));
  AD_TRY(run_microbatches(run, state));
  return sum_loss(run, state, out);
}

ad_status ad_run_loss(ad_run *run, int64_t step, int held_out, double *out) {
  AD_NEED(run, out);
  step_state state = {.step = step, .scale = 1, .take = loss_microbatch};
  return ad_run_tell(run, take_loss(run, &state, held_out, out));
}

ad_status ad_run_addends(ad_run *run, int64_t step, ad_addend_visitor visit, void *context) {
  AD_NEED(run);
  ad_tape *own = run->tape;
  step_state state = {.step = step, .scale = 1, .take = addend_microbatch};
  ad_status status = ad_run_open_tape(run, NULL, visit, context, &run->tape);
  if (!status) status = read_batch(run, &state, 0);
  if (!status) status = run_microbatches(run, &state);
  if (run->tape != own) ad_tape_destroy(run->tape);
  run->tape = own;
  return ad_run_tell(run, status);
}
