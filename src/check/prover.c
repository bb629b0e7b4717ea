/* One rank's share of a proof: takes the distributed step, brings whole gradients and states together, and on the first
 * rank holds them against the reference. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/kernels.h"
#include "base/memory.h"
#include "base/switches.h"
#include "check/addends.h"
#include "check/directional.h"
#include "check/proof.h"
#include "check/reference.h"
#include "check/replicas.h"
#include "check/rounding.h"
#include "layout/shown.h"

/* What replicas must agree on: the gradient, and after the update the value, its master and its moments. */
enum { REPLICA_GRADIENT, REPLICA_STATE, REPLICA_KINDS = REPLICA_STATE + AD_RESTART_COUNT };

typedef struct ad_prover {
  ad_comm *comm;
  const ad_proof_job *job;
  ad_run *run;
  ad_group everyone;
  size_t param_count;
  ad_array *gradients;              /* whole, one a parameter */
  const ad_array **whole_gradients; /* their addresses */
  const ad_array **parts;           /* this rank's arrays, for the comparison of replicas */
  ad_replicas *replicas[REPLICA_KINDS];
  ad_array scratch;        /* whole; as large as the largest parameter */
  ad_addends addends;      /* where rounding is judged by them */
  double compute;          /* what computing may add to every element, over the parameter's largest */
  ad_reference *reference; /* on the first rank, NULL elsewhere */
} ad_prover;

static int rounds(const ad_proof_job *job) { return !ad_proof_is_wide(job->recipe, job->options); }

static ad_dtype forced_dtype(const ad_check_options *options) {
  if (options->recipe_dtype) return 0;
  return options->dtype ? options->dtype : AD_F64;
}

static ad_status create_whole(ad_prover *prover, size_t param, ad_array *out) {
  const ad_array *part = ad_run_gradient(prover->run, param);
  ad_layout whole = ad_layout_all(ad_run_mesh(prover->run), AD_R);
  return ad_array_create(prover->comm, part->dtype, &part->shape, &whole, out);
}

static ad_status create_scratch(ad_prover *prover) {
  ad_layout whole = ad_layout_all(ad_run_mesh(prover->run), AD_R);
  ad_shape shape = {.ndim = 1};
  for (size_t i = 0; i < prover->param_count; i++) {
    int64_t numel = ad_shape_numel(&ad_run_value(prover->run, i)->shape);
    if (numel > shape.dim[0]) shape.dim[0] = numel;
  }
  return ad_array_create(prover->comm, AD_F64, &shape, &whole, &prover->scratch);
}

static ad_status create_arrays(ad_prover *prover) {
  size_t count = prover->param_count;
  AD_TRY(ad_new(count, &prover->gradients));
  AD_TRY(ad_new(count, &prover->whole_gradients));
  AD_TRY(ad_new(count, &prover->parts));
  for (int kind = 0; kind < REPLICA_KINDS; kind++) AD_TRY(ad_new(count, &prover->replicas[kind]));
  for (size_t i = 0; i < count; i++) {
    AD_TRY(create_whole(prover, i, &prover->gradients[i]));
    prover->whole_gradients[i] = &prover->gradients[i];
  }
  return create_scratch(prover);
}

static ad_status prover_create(ad_prover *prover, ad_comm *comm, const ad_proof_job *job) {
  const ad_check_options *options = job->options;
  ad_run_options run = {.size = sizeof run, .dtype = forced_dtype(options), .quiet = job->quiet};
  prover->comm = comm;
  prover->job = job;
  AD_TRY(ad_run_create(comm, job->recipe, &run, &prover->run));
  const ad_mesh *mesh = ad_run_mesh(prover->run);
  prover->everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  prover->param_count = ad_run_param_count(prover->run);
  AD_TRY(create_arrays(prover));
  prover->compute = ad_proof_bound_of(job->recipe, options);
  if (rounds(job)) AD_TRY(ad_addends_create(prover->run, &prover->addends));
  if (options->directional || ad_comm_rank(comm) != ad_mesh_first_rank(mesh)) return AD_OK;
  return ad_reference_create(job->recipe, run.dtype, options->steps > 1, &prover->reference);
}

static void prover_destroy(ad_prover *prover) {
  ad_reference_destroy(prover->reference);
  for (size_t i = 0; i < prover->param_count && prover->gradients; i++)
    ad_array_destroy(prover->comm, &prover->gradients[i]);
  ad_array_destroy(prover->comm, &prover->scratch);
  ad_addends_destroy(&prover->addends);
  ad_release(prover->gradients);
  ad_release(prover->whole_gradients);
  ad_release(prover->parts);
  for (int kind = 0; kind < REPLICA_KINDS; kind++) ad_release(prover->replicas[kind]);
  ad_run_destroy(prover->run);
}

/* Brings a part together in the scratch memory, on all ranks. */
static ad_status gather(ad_prover *prover, const ad_array *part, ad_array *whole) {
  ad_layout layout = ad_layout_all(ad_run_mesh(prover->run), AD_R);
  *whole = ad_array_describe(prover->comm, part->dtype, &part->shape, &layout);
  whole->data = prover->scratch.data;
  return ad_array_whole(prover->comm, part, AD_HERE, whole);
}

static const ad_array *part_of(ad_run *run, size_t param, ad_restart_part part) {
  if (part == AD_RESTART_VALUE) return ad_run_value(run, param);
  if (part == AD_RESTART_MASTER) return ad_run_master(run, param);
  return ad_adamw_state(ad_run_optimizer(run), param, part == AD_RESTART_SECOND_MOMENT);
}

/* The reference starts the step from the distributed state; at the first step that must be its own. */
static void restart_part(ad_prover *prover, int64_t step, size_t param, ad_restart_part part, const ad_array *whole) {
  if (step == 0 && !ad_reference_agrees(prover->reference, param, part, whole)) prover->job->proof->initial_equal = 0;
  ad_reference_restart(prover->reference, param, part, whole);
}

static ad_status restart_reference(ad_prover *prover, int64_t step) {
  for (size_t i = 0; i < prover->param_count; i++) {
    for (int part = 0; part < AD_RESTART_COUNT; part++) {
      ad_array whole;
      AD_TRY(gather(prover, part_of(prover->run, i, (ad_restart_part)part), &whole));
      if (prover->reference) restart_part(prover, step, i, (ad_restart_part)part, &whole);
    }
  }
  return AD_OK;
}

static ad_status gather_gradients(ad_prover *prover) {
  for (size_t i = 0; i < prover->param_count; i++)
    AD_TRY(ad_array_whole(prover->comm, ad_run_gradient(prover->run, i), AD_HERE, &prover->gradients[i]));
  return AD_OK;
}

static const ad_array *replica_part(const ad_prover *prover, size_t param, int kind) {
  if (kind == REPLICA_GRADIENT) return ad_run_gradient(prover->run, param);
  return part_of(prover->run, param, (ad_restart_part)(kind - REPLICA_STATE));
}

static ad_status compare_replicas(ad_prover *prover) {
  for (int kind = 0; kind < REPLICA_KINDS; kind++) {
    for (size_t i = 0; i < prover->param_count; i++) prover->parts[i] = replica_part(prover, i, kind);
    AD_TRY(ad_replicas_compare(prover->comm, &prover->everyone, prover->parts, prover->param_count,
                               prover->replicas[kind]));
  }
  return AD_OK;
}

/* The first kind that differs, or the last. */
static const ad_replicas *worst_replicas(const ad_prover *prover, size_t param) {
  int kind = 0;
  while (kind + 1 < REPLICA_KINDS && prover->replicas[kind][param].equal) kind++;
  return &prover->replicas[kind][param];
}

/* Not proven until a step was judged. */
static void describe_param(const ad_param_spec *spec, double bound, ad_proof_param *out) {
  *out = (ad_proof_param){.ratio = NAN, .max_rel_err = NAN, .bound = bound, .replicas_equal = 1, .step = -1};
  out->cause = (ad_cause){.kind = AD_CAUSE_UNKNOWN, .factor = NAN, .text = "no step was taken: every one overflowed"};
  snprintf(out->name, sizeof out->name, "%s", spec->name);
  ad_layout_shown(&spec->layout, out->layout, sizeof out->layout);
  ad_layout_shown(&spec->storage, out->storage, sizeof out->storage);
  ad_axes_print(ad_proof_reduced_axes(&spec->layout), out->reduced_over, sizeof out->reduced_over);
}

/* dist = ratio * ref, up to what rounding explains. */
static int is_proportional(const double *dist, const ad_array *ref, double ratio) {
  const double *values = ref->data;
  size_t numel = ad_array_numel(ref);
  double worst = 0, largest = ad_largest(values, AD_F64, numel) * fabs(ratio);
  for (size_t i = 0; i < numel; i++) worst = fmax(worst, fabs(dist[i] - ratio * values[i]));
  return isfinite(ratio) && worst <= 1e-4 * largest;
}

static double share_of_bound(const ad_proof_param *param) { return param->max_rel_err / param->bound; }

/* Unequal replicas outrank any error, and no number outranks every number. */
static int is_worse(const ad_proof_param *now, const ad_proof_param *before) {
  if (before->step < 0) return 1;
  if (now->replicas_equal != before->replicas_equal) return !now->replicas_equal;
  if (isnan(before->max_rel_err)) return 0;
  return isnan(now->max_rel_err) || share_of_bound(now) > share_of_bound(before);
}

/* The distributed gradient in f64 without its loss scale, in the scratch memory. */
static const double *unscaled(ad_prover *prover, const ad_array *gradient, int loss_scale) {
  double *out = prover->scratch.data;
  size_t numel = ad_array_numel(gradient);
  ad_cast(out, AD_F64, gradient->data, gradient->dtype, numel);
  for (size_t i = 0; i < numel && loss_scale; i++) out[i] = ldexp(out[i], -loss_scale);
  return out;
}

static const double *sizes_of(const ad_prover *prover, size_t i) {
  return rounds(prover->job) ? prover->addends.whole[i].data : NULL;
}

static ad_allowance allowance_of(ad_prover *prover, size_t i, const ad_step_report *dist) {
  if (!rounds(prover->job)) return (ad_allowance){0, 0};
  return ad_rounding_allowance(prover->job->recipe, ad_run_param(prover->run, i), prover->gradients[i].dtype,
                               dist->loss_scale);
}

static void judge_param(ad_prover *prover, size_t i, const ad_step_report *report, double largest) {
  const ad_array *ref = ad_reference_gradient(prover->reference, i);
  const double *dist = unscaled(prover, &prover->gradients[i], report->loss_scale);
  const ad_replicas *replicas = worst_replicas(prover, i);
  const ad_param_spec *spec = ad_run_param(prover->run, i);
  size_t numel = ad_array_numel(ref);
  ad_proof_param *kept = &prover->job->proof->params[i], now = *kept;
  double flat_error;
  now.step = report->step;
  now.replicas_equal = replicas->equal;
  ad_compare(dist, ref->data, AD_F64, numel, largest, &now.ratio, &flat_error);
  ad_judge_elements(dist, ref->data, sizes_of(prover, i), numel, largest, prover->compute,
                    allowance_of(prover, i, report), &now.max_rel_err, &now.bound);
  now.cause = ad_diagnose(spec->layout.mesh, ad_proof_reduced_axes(&spec->layout), &now,
                          is_proportional(dist, ref, now.ratio), replicas->differs, replicas->odd_rank);
  if (is_worse(&now, kept)) *kept = now;
}

static double worst_of(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

/* The norm of what every element is allowed bounds how far the norms lie apart. */
static double bound_of_norm(ad_prover *prover, const ad_step_report *dist, const ad_step_report *ref, double largest) {
  double squares = 0;
  if (!rounds(prover->job) || !(ref->norm > 0)) return prover->compute;
  for (size_t i = 0; i < prover->param_count; i++) {
    const ad_array *gradient = ad_reference_gradient(prover->reference, i);
    squares += ad_allowed_squares(gradient->data, sizes_of(prover, i), ad_array_numel(gradient), largest,
                                  prover->compute, allowance_of(prover, i, dist));
  }
  return sqrt(squares) / ref->norm;
}

static void judge_norm(ad_proof *proof, double error, double bound) {
  double before = proof->norm_err / proof->norm_bound;
  if (isnan(before) || error / bound < before) return;
  proof->norm_err = error;
  proof->norm_bound = bound;
}

static void judge_numbers(ad_proof *proof, const ad_step_report *dist, const ad_step_report *ref, double norm_bound) {
  proof->loss_dist = dist->loss;
  proof->loss_ref = ref->loss;
  proof->norm_dist = dist->norm;
  proof->norm_ref = ref->norm;
  proof->loss_err = worst_of(proof->loss_err, ad_relative_difference(dist->loss, ref->loss));
  judge_norm(proof, ad_relative_difference(dist->norm, ref->norm), norm_bound);
}

static double largest_of(const ad_prover *prover) {
  double largest = 0;
  for (size_t i = 0; i < prover->param_count; i++) {
    const ad_array *gradient = ad_reference_gradient(prover->reference, i);
    largest = fmax(largest, ad_largest(gradient->data, gradient->dtype, ad_array_numel(gradient)));
  }
  return largest;
}

/* On the first rank, after its own step: the same step in one process, and every number of it. A step that no rank
 * takes has no gradient to judge, only states that must have stayed as they were. */
static ad_status judge(ad_prover *prover, const ad_step_report *dist) {
  ad_step_report ref;
  if (dist->skipped) return AD_OK;
  AD_TRY(ad_reference_step(prover->reference, dist->step, &ref));
  double largest = largest_of(prover);
  judge_numbers(prover->job->proof, dist, &ref, bound_of_norm(prover, dist, &ref, largest));
  for (size_t i = 0; i < prover->param_count; i++) judge_param(prover, i, dist, largest);
  double factor = ad_clip_factor(dist->norm, prover->job->recipe->train.clip) * ldexp(1, -dist->loss_scale);
  return ad_reference_feed(prover->reference, prover->whole_gradients, dist->lr, factor);
}

static void judge_free_running(ad_prover *prover, size_t param, const ad_array *whole) {
  const ad_array *free = ad_reference_free_value(prover->reference, param);
  if (!free) return;
  double ratio, distance;
  ad_compare(whole->data, free->data, free->dtype, ad_array_numel(free), 0, &ratio, &distance);
  prover->job->proof->free_difference = worst_of(prover->job->proof->free_difference, distance);
}

static ad_status compare_updates(ad_prover *prover) {
  for (size_t i = 0; i < prover->param_count; i++) {
    for (int part = 0; part < AD_RESTART_COUNT; part++) {
      ad_array whole;
      AD_TRY(gather(prover, part_of(prover->run, i, (ad_restart_part)part), &whole));
      if (!prover->reference) continue;
      prover->job->proof->updates_equal &= ad_reference_fed_agrees(prover->reference, i, (ad_restart_part)part, &whole);
      if (part == AD_RESTART_MASTER) judge_free_running(prover, i, &whole);
    }
  }
  return AD_OK;
}

static ad_status prove_step(ad_prover *prover, int64_t step) {
  ad_step_report report;
  AD_TRY(restart_reference(prover, step));
  if (rounds(prover->job)) AD_TRY(ad_addends_measure(&prover->addends, step));
  AD_TRY(ad_run_step(prover->run, step, &report));
  if (prover->reference) prover->job->proof->counted += report.count;
  AD_TRY(gather_gradients(prover));
  AD_TRY(compare_replicas(prover));
  if (prover->reference) AD_TRY(judge(prover, &report));
  return compare_updates(prover);
}

static ad_status prove_steps(ad_prover *prover) {
  const ad_check_options *options = prover->job->options;
  ad_proof *proof = prover->job->proof;
  if (prover->reference) {
    proof->updates_equal = proof->initial_equal = 1;
    proof->norm_bound = proof->loss_bound = prover->compute;
    for (size_t i = 0; i < prover->param_count; i++)
      describe_param(ad_run_param(prover->run, i), prover->compute, &proof->params[i]);
  }
  int64_t steps = options->steps ? options->steps : 1;
  for (int64_t step = 0; step < steps; step++) {
    if (prover->reference && options->progress) options->progress(options->context, "steps", step, steps);
    AD_TRY(prove_step(prover, step));
  }
  return AD_OK;
}

ad_status ad_prove(ad_comm *comm, const ad_proof_job *job) {
  AD_TRY(ad_switch_set(job->sabotage));
  ad_prover prover = {0};
  ad_status status = prover_create(&prover, comm, job);
  if (!status) status = job->options->directional ? ad_directional(comm, prover.run, job->proof) : prove_steps(&prover);
  if (!status) status = ad_comm_barrier(comm, &prover.everyone, AD_HERE);
  if (!status && ad_comm_rank(comm) == 0) job->proof->complete = 1;
  prover_destroy(&prover);
  return status;
}
