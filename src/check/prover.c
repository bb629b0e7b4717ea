/* One rank's share of a proof: takes the distributed step, brings whole gradients and states together, and on the first
 * rank holds them against the reference. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/switches.h"
#include "check/directional.h"
#include "check/proof.h"
#include "check/reference.h"
#include "check/replicas.h"

/* What replicas must agree on: the gradient, and after the update the value and its moments. */
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
  ad_reference *reference; /* on the first rank, NULL elsewhere */
} ad_prover;

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
  ad_run_options run = {.size = sizeof run, .dtype = forced_dtype(options)};
  prover->comm = comm;
  prover->job = job;
  AD_TRY(ad_run_create(comm, job->recipe, &run, &prover->run));
  const ad_mesh *mesh = ad_run_mesh(prover->run);
  prover->everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  prover->param_count = ad_run_param_count(prover->run);
  AD_TRY(create_arrays(prover));
  if (options->directional || ad_comm_rank(comm) != ad_mesh_first_rank(mesh)) return AD_OK;
  return ad_reference_create(job->recipe, run.dtype, options->steps > 1, &prover->reference);
}

static void prover_destroy(ad_prover *prover) {
  ad_reference_destroy(prover->reference);
  for (size_t i = 0; i < prover->param_count && prover->gradients; i++)
    ad_array_destroy(prover->comm, &prover->gradients[i]);
  ad_array_destroy(prover->comm, &prover->scratch);
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

static void describe_param(const ad_param_spec *spec, double bound, ad_proof_param *out) {
  *out = (ad_proof_param){.ratio = 1, .bound = bound, .replicas_equal = 1, .step = 0};
  snprintf(out->name, sizeof out->name, "%s", spec->name);
  ad_layout_print(&spec->layout, out->layout, sizeof out->layout);
  ad_layout_print(&spec->storage, out->storage, sizeof out->storage);
  ad_axes_print(ad_proof_reduced_axes(&spec->layout), out->reduced_over, sizeof out->reduced_over);
}

/* dist = ratio * ref, up to what rounding explains. */
static int is_proportional(const ad_array *dist, const ad_array *ref, double ratio) {
  size_t numel = ad_array_numel(ref);
  double worst = 0, largest = ad_largest(ref->data, ref->dtype, numel) * fabs(ratio);
  for (size_t i = 0; i < numel; i++) {
    double d = dist->dtype == AD_F64 ? ((double *)dist->data)[i] : ((float *)dist->data)[i];
    double r = ref->dtype == AD_F64 ? ((double *)ref->data)[i] : ((float *)ref->data)[i];
    worst = fmax(worst, fabs(d - ratio * r));
  }
  return isfinite(ratio) && worst <= 1e-4 * largest;
}

/* Unequal replicas outrank any error, and no number outranks every number. */
static int is_worse(const ad_proof_param *now, const ad_proof_param *before) {
  if (now->replicas_equal != before->replicas_equal) return !now->replicas_equal;
  if (isnan(before->max_rel_err)) return 0;
  return isnan(now->max_rel_err) || now->max_rel_err > before->max_rel_err;
}

static void judge_param(ad_prover *prover, size_t i, int64_t step, double largest) {
  const ad_array *dist = &prover->gradients[i], *ref = ad_reference_gradient(prover->reference, i);
  const ad_replicas *replicas = worst_replicas(prover, i);
  const ad_param_spec *spec = ad_run_param(prover->run, i);
  ad_proof_param *kept = &prover->job->proof->params[i], now = *kept;
  now.step = step;
  now.replicas_equal = replicas->equal;
  ad_compare(dist->data, ref->data, ref->dtype, ad_array_numel(ref), largest, &now.ratio, &now.max_rel_err);
  now.cause = ad_diagnose(spec->layout.mesh, ad_proof_reduced_axes(&spec->layout), &now,
                          is_proportional(dist, ref, now.ratio), replicas->differs, replicas->odd_rank);
  if (step == 0 || is_worse(&now, kept)) *kept = now;
}

static double worst_of(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

static void judge_numbers(ad_proof *proof, const ad_step_report *dist, const ad_step_report *ref) {
  proof->loss_dist = dist->loss;
  proof->loss_ref = ref->loss;
  proof->norm_dist = dist->norm;
  proof->norm_ref = ref->norm;
  proof->loss_err = worst_of(proof->loss_err, ad_relative_difference(dist->loss, ref->loss));
  proof->norm_err = worst_of(proof->norm_err, ad_relative_difference(dist->norm, ref->norm));
}

/* On the first rank, after its own step: the same step in one process, and every number of it. */
static ad_status judge(ad_prover *prover, const ad_step_report *dist) {
  ad_step_report ref;
  AD_TRY(ad_reference_step(prover->reference, dist->step, &ref));
  judge_numbers(prover->job->proof, dist, &ref);
  double largest = 0;
  for (size_t i = 0; i < prover->param_count; i++) {
    const ad_array *gradient = ad_reference_gradient(prover->reference, i);
    largest = fmax(largest, ad_largest(gradient->data, gradient->dtype, ad_array_numel(gradient)));
  }
  for (size_t i = 0; i < prover->param_count; i++) judge_param(prover, i, dist->step, largest);
  double factor = ad_clip_factor(dist->norm, prover->job->recipe->train.clip);
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
      if (part == AD_RESTART_VALUE) judge_free_running(prover, i, &whole);
    }
  }
  return AD_OK;
}

static ad_status prove_step(ad_prover *prover, int64_t step) {
  ad_step_report report;
  AD_TRY(restart_reference(prover, step));
  AD_TRY(ad_run_step(prover->run, step, &report));
  AD_TRY(gather_gradients(prover));
  AD_TRY(compare_replicas(prover));
  if (prover->reference) AD_TRY(judge(prover, &report));
  return compare_updates(prover);
}

static ad_status prove_steps(ad_prover *prover) {
  const ad_check_options *options = prover->job->options;
  ad_proof *proof = prover->job->proof;
  double bound = ad_proof_bound_of(prover->job->recipe, options);
  if (prover->reference) {
    proof->updates_equal = proof->initial_equal = 1;
    proof->norm_bound = bound;
    for (size_t i = 0; i < prover->param_count; i++)
      describe_param(ad_run_param(prover->run, i), bound, &proof->params[i]);
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
