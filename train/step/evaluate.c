/* Measures the loss on the validation set, batch by batch, and its standard error. */
#include <math.h>
#include "base/error.h"
#include "base/memory.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "step/run.h"

int64_t ad_run_evaluated(const ad_run *run) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  int64_t wanted = run->recipe->evaluate.samples, all = wanted;
  if (!wanted || !ad_program_has_validation(run->program)) return 0;
  if (kind->data.validation_samples)
    all = AD_GUEST(kind, "validation_samples", kind->data.validation_samples(ad_program_own(run->program)));
  return wanted < all ? wanted : all;
}

static int64_t batches_of(const ad_run *run, int64_t samples) {
  int64_t batch = run->recipe->train.global_batch;
  return (samples + batch - 1) / batch;
}

/* ---- the mean loss on the validation set ---- */

/* Adds a batch's loss times its count: the loss was divided by this count, but batches are weighted by their counts. */
static ad_status add_batch(ad_run *run, int64_t batch, double *sum, double *count) {
  ad_step_report report;
  run->samples->batch = (size_t)(batch * run->recipe->train.global_batch);
  AD_TRY(ad_run_batch_losses(run, batch, AD_VALIDATION_SET, &report));
  *sum += ad_run_task_loss(run, &report) * (double)report.count;
  *count += (double)report.count;
  return AD_OK;
}

static void report_progress(const ad_run *run, int64_t done, int64_t of) {
  if (run->listener.report_progress && ad_run_is_first(run))
    run->listener.report_progress(run->listener.context, "evaluate", done, of);
}

static ad_status find_loss(ad_run *run, int64_t batches, double *out) {
  double sum = 0, count = 0;
  for (int64_t i = 0; i < batches; i++) {
    AD_TRY(add_batch(run, i, &sum, &count));
    report_progress(run, i + 1, batches);
  }
  *out = count > 0 ? sum / count : NAN;
  return AD_OK;
}

/* ---- the loss's standard error ---- */

static ad_status sum_over(ad_run *run, ad_group group, double *values, size_t count) {
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = group,
                          .in = values,
                          .out = values,
                          .count = count,
                          .dtype = AD_F64,
                          .site = AD_HERE};
  return ad_comm_run(run->comm, &reduce);
}

/* Sums values of samples over all ranks. With leaves, the ranks of each data-parallel position are summed first, because
 * one position has all of a sample's addends and the others add 0: so the sum has the same bits on any number of
 * positions. */
static ad_status sum_over_ranks(ad_run *run, double *values, size_t count) {
  if (!run->leaves) return sum_over(run, run->everyone, values, count);
  const ad_mesh *mesh = ad_program_full_mesh(run->program, 0);
  int64_t rank = ad_comm_rank(run->comm);
  AD_TRY(sum_over(run, ad_mesh_group(mesh, AD_AXES_ALL & ~AD_AXES_DP, rank), values, count));
  return sum_over(run, ad_mesh_group(mesh, AD_AXES_DP, rank), values, count);
}

static double total(const double *values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += values[i];
  return sum;
}

/* Returns 1 if `noted`, the loss that follows from the losses of samples, is the measured `loss`. It is not if the
 * program records other numbers as losses of samples. */
static int is_of(double loss, double noted) { return fabs(noted - loss) <= 1e-3 * fabs(loss); }

/* Returns the standard error of a ratio of sums over samples, by linearisation; NaN if the losses of samples do not
 * give the loss. */
static double standard_error(const ad_sample_losses *of, double loss) {
  double counts = total(of->counts, of->size), ratio = total(of->sums, of->size) / counts, squares = 0, n = 0;
  if (!(counts > 0) || !is_of(loss, ratio)) return NAN;
  for (size_t i = 0; i < of->size; i++) {
    double residual = of->sums[i] - ratio * of->counts[i];
    squares += residual * residual;
    n += of->counts[i] > 0;
  }
  return n > 1 ? sqrt(n / (n - 1) * squares) / counts : NAN;
}

/* ---- evaluating a run ---- */

static ad_status evaluate(ad_run *run, ad_sample_losses *samples, ad_evaluation *out) {
  run->samples = samples;
  ad_status status = find_loss(run, batches_of(run, out->samples), &out->loss);
  run->samples = NULL;
  if (!status) status = sum_over_ranks(run, samples->sums, 2 * samples->size);
  if (!status) out->standard_error = standard_error(samples, out->loss);
  return status;
}

ad_status ad_run_evaluate_samples(ad_run *run, ad_sample_losses *samples, ad_evaluation *out) {
  ad_evaluation evaluation = {.loss = NAN, .standard_error = NAN, .samples = ad_run_evaluated(run)};
  ad_sample_losses noted = {.size = (size_t)evaluation.samples};
  ad_status status = AD_OK;
  if (noted.size) {
    AD_TRY(ad_run_report_error(run, ad_new(2 * noted.size, &noted.sums)));
    noted.counts = noted.sums + noted.size;
    status = evaluate(run, &noted, &evaluation);
  }
  if (status) return ad_release(noted.sums), status;
  *samples = noted;
  *out = evaluation;
  return AD_OK;
}

ad_status ad_run_evaluate(ad_run *run, ad_evaluation *out) {
  AD_NEED(run, out);
  ad_sample_losses samples;
  AD_TRY(ad_run_evaluate_samples(run, &samples, out));
  ad_release(samples.sums);
  return AD_OK;
}
