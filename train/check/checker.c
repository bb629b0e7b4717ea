/* One rank's share of a check: takes the distributed step, gathers full gradients and states, and on the first rank
 * compares them with the reference. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "check/account.h"
#include "check/directional.h"
#include "check/dump.h"
#include "check/formulas.h"
#include "check/frozen.h"
#include "check/norm.h"
#include "check/overflow.h"
#include "check/lifted_injections.h"
#include "check/checker.h"
#include "base/roundoff.h"
#include "check/rounding.h"
#include "check/shards.h"
#include "comm/agree.h"
#include "layout/shown.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/recipe.h"
#include "reduce/plan.h"
#include "step/run.h"

static int rounds(const ad_check_job *job) { return !ad_check_is_wide(job->recipe, job->options); }

/* ---- sharing the ranks' choices (e.g. of experts), for the reference to make the same ---- */

/* Sets *out to the choices that the program made in the step by comparing numbers that rounding changes (such as
 * choosing experts by scores), or to NULL if it made none. */
static ad_status own_decisions(const ad_checker *checker, int32_t **out, size_t *count) {
  const ad_program *program = ad_run_program(checker->run);
  const ad_program_kind *kind = ad_program_kind_of(program);
  *out = NULL;
  return rounds(checker->job) && kind->choices.decisions
             ? AD_GUEST(kind, "decisions", kind->choices.decisions(ad_program_own(program), AD_DECIDES, out, count))
             : AD_OK;
}

/* Makes the reference use the ranks' choices. If scores are nearly equal, rounding decides the choice; the reference
 * might choose differently and so compute another formula. */
static ad_status share_decisions(ad_checker *checker) {
  int32_t *decisions;
  size_t count;
  AD_TRY(own_decisions(checker, &decisions, &count));
  if (!decisions) return AD_OK;
  ad_collective largest = {.size = sizeof largest,
                           .op = AD_ALL_REDUCE,
                           .group = checker->everyone,
                           .in = decisions,
                           .out = decisions,
                           .count = count,
                           .dtype = AD_I32,
                           .reduction = AD_MAX,
                           .site = AD_HERE};
  AD_TRY(ad_comm_run(checker->comm, &largest));
  return checker->reference ? ad_reference_decide(checker->reference, decisions, count) : AD_OK;
}

/* ---- creating and destroying a checker ---- */

static ad_status create_full(ad_checker *checker, size_t param, ad_array *out) {
  const ad_array *part = ad_run_part(checker->run, param, AD_PART_GRADIENT);
  if (!ad_run_trains(checker->run, param)) return AD_OK;
  ad_layout full = ad_layout_all(checker->everyone.mesh, AD_R);
  return ad_array_create(checker->comm, part->dtype, &part->shape, &full, out);
}

static int64_t larger(int64_t a, const ad_shape *shape) {
  int64_t numel = ad_shape_numel(shape);
  return numel > a ? numel : a;
}

static ad_status create_scratch(ad_checker *checker) {
  const ad_program *program = ad_run_program(checker->run);
  ad_layout full = ad_layout_all(checker->everyone.mesh, AD_R);
  ad_shape shape = {.ndim = 1};
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *module = ad_program_module(program, m);
    for (size_t i = 0; i < module->param_count; i++) shape.dim[0] = larger(shape.dim[0], &module->params[i].shape);
    for (size_t i = 0; i < module->state_count; i++) shape.dim[0] = larger(shape.dim[0], &module->states[i].shape);
  }
  return ad_array_create(checker->comm, AD_F64, &shape, &full, &checker->scratch);
}

static ad_status create_arrays(ad_checker *checker) {
  size_t count = checker->param_count;
  AD_TRY(ad_new(count, &checker->gradients));
  AD_TRY(ad_new(count, &checker->full_gradients));
  AD_TRY(ad_new(count, &checker->parts));
  AD_TRY(ad_new(count, &checker->cancels));
  AD_TRY(ad_new(count, &checker->frozen));
  for (int part = 0; part < AD_PART_COUNT; part++) AD_TRY(ad_new(count, &checker->replicas[part]));
  for (size_t i = 0; i < count; i++) {
    AD_TRY(create_full(checker, i, &checker->gradients[i]));
    if (ad_run_trains(checker->run, i)) checker->full_gradients[i] = &checker->gradients[i];
  }
  return create_scratch(checker);
}

static ad_status create_parts(ad_checker *checker, ad_comm *comm, const ad_check_job *job) {
  const ad_check_options *options = job->options;
  ad_run_options run = {.size = sizeof run, .dtype = ad_check_dtype(options), .quiet = job->quiet};
  run.given_states = rounds(job);
  checker->comm = comm;
  checker->job = job;
  AD_TRY(ad_run_create(comm, job->recipe, &run, &checker->run));
  checker->everyone = ad_run_everyone(checker->run);
  checker->param_count = ad_run_param_count(checker->run);
  AD_TRY(create_arrays(checker));
  int32_t *decisions; /* this call also makes the program keep its choices from now on */
  size_t decision_count;
  AD_TRY(own_decisions(checker, &decisions, &decision_count));
  if (rounds(job)) AD_TRY(ad_addends_create(checker->run, 1, &checker->addends));
  if (!options->directional) AD_TRY(ad_formulas_sharded(checker->run, &checker->shards_formulas));
  if (options->directional || ad_group_index(&checker->everyone, ad_comm_rank(comm)) != 0) return AD_OK;
  if (rounds(job)) AD_TRY(ad_computing_create(checker->run, checker->shards_formulas, job->steps, &checker->computing));
  ad_cuts cuts;
  AD_TRY(ad_cuts_create(checker->run, &cuts));
  ad_reference_options reference = {.dtype = run.dtype,
                                    .cuts = &cuts,
                                    .rounds = rounds(job),
                                    .shards_formulas = checker->shards_formulas,
                                    .several_steps = job->steps > 1};
  ad_status status = ad_reference_create(job->recipe, &reference, &checker->reference);
  ad_cuts_release(&cuts);
  return status;
}

ad_status ad_checker_create(ad_checker *checker, ad_comm *comm, const ad_check_job *job) {
  *checker = (ad_checker){0};
  ad_status status = create_parts(checker, comm, job);
  if (status) ad_checker_destroy(checker);
  return status;
}

void ad_checker_destroy(ad_checker *checker) {
  ad_reference_destroy(checker->reference);
  for (size_t i = 0; i < checker->param_count && checker->gradients; i++)
    ad_array_destroy(checker->comm, &checker->gradients[i]);
  ad_array_destroy(checker->comm, &checker->scratch);
  ad_addends_destroy(&checker->addends);
  ad_computing_destroy(&checker->computing);
  ad_places_release(&checker->places);
  ad_calls_release(&checker->made);
  ad_calls_release(&checker->planned);
  ad_release(checker->gradients);
  ad_release(checker->full_gradients);
  ad_release(checker->parts);
  ad_release(checker->cancels);
  ad_release(checker->frozen);
  for (int part = 0; part < AD_PART_COUNT; part++) ad_release(checker->replicas[part]);
  ad_run_destroy(checker->run);
  *checker = (ad_checker){0};
}

/* ---- gathering values ---- */

/* Gathers a sharded array into the scratch memory, on all ranks. */
static ad_status gather(ad_checker *checker, const ad_array *part, ad_array *full) {
  ad_layout layout = ad_layout_all(checker->everyone.mesh, AD_R);
  *full = ad_array_describe(checker->comm, part->dtype, &part->shape, &layout);
  full->data = checker->scratch.data;
  return ad_run_full(checker->run, part, full);
}

/* Copies a full array of the distributed run to the reference, whose step starts from it. Before the first step the
 * array must equal the initial values that the reference drew. */
static void restart_part(ad_checker *checker, int64_t step, size_t param, ad_param_part part, const ad_array *full) {
  if (step == 0 && !ad_reference_agrees(checker->reference, param, part, full)) checker->job->result->initial_equal = 0;
  ad_reference_restart(checker->reference, param, part, full);
}

/* Gathers every state of every module. On the first rank calls `visit` with the state's index over all modules. */
static ad_status visit_states(ad_checker *checker,
                              void (*visit)(ad_checker *checker, size_t index, const ad_array *full)) {
  const ad_program *program = ad_run_program(checker->run);
  size_t index = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    for (size_t i = 0; i < ad_program_module(program, m)->state_count; i++, index++) {
      ad_array full;
      AD_TRY(gather(checker, ad_run_state(checker->run, m, i), &full));
      if (checker->reference) visit(checker, index, &full);
    }
  }
  return AD_OK;
}

static void restart_state(ad_checker *checker, size_t index, const ad_array *full) {
  ad_reference_restart_state(checker->reference, index, full);
}

static ad_status restart_reference(ad_checker *checker, int64_t step) {
  for (size_t i = 0; i < checker->param_count; i++) {
    for (int part = 0; part < AD_PART_KEPT; part++) {
      const ad_array *own = ad_run_part(checker->run, i, (ad_param_part)part);
      ad_array full;
      if (!own) continue;
      AD_TRY(gather(checker, own, &full));
      if (checker->reference) restart_part(checker, step, i, (ad_param_part)part, &full);
    }
  }
  return visit_states(checker, restart_state);
}

static ad_status gather_gradients(ad_checker *checker) {
  for (size_t i = 0; i < checker->param_count; i++) {
    const ad_array *gradient = ad_run_part(checker->run, i, AD_PART_GRADIENT);
    if (checker->full_gradients[i]) AD_TRY(ad_run_full(checker->run, gradient, &checker->gradients[i]));
  }
  return AD_OK;
}

/* Compares the replicas of every array of each parameter: gradient, value, master and optimizer states. */
static ad_status compare_replicas(ad_checker *checker) {
  for (int part = 0; part < AD_PART_COUNT; part++) {
    for (size_t i = 0; i < checker->param_count; i++) {
      const ad_array *own = ad_run_part(checker->run, i, (ad_param_part)part);
      /* a mirror (a module without optimizer) has none of its states, some optimizers have fewer than others, and a
       * frozen parameter has neither states nor a gradient */
      checker->parts[i] = own ? own : ad_run_part(checker->run, i, AD_PART_VALUE);
    }
    AD_TRY(ad_replicas_compare(checker->comm, &checker->everyone, checker->parts, checker->param_count,
                               checker->replicas[part]));
  }
  return AD_OK;
}

/* Stores the first difference between the ranks' reports of a step in the result. A skipped step has no norm to
 * compare. */
static ad_status compare_reports(ad_checker *checker, const ad_step_report *report) {
  char text[AD_REPORTS_TEXT];
  AD_TRY(ad_reports_compare(checker->comm, &checker->everyone, report, text, sizeof text));
  if (!checker->reference || *checker->job->result->reports) return AD_OK;
  snprintf(checker->job->result->reports, sizeof text, "%s", text);
  return AD_OK;
}

/* Measures the ranks' own addends. Meanwhile mutations of the reduction are lifted; those of the computation stay. */
static ad_status measure_addends(ad_checker *checker, int64_t step) {
  ad_lifted_injections lifted = ad_injections_lift_reducing();
  const ad_loss_scale *scale = ad_run_loss_scale(checker->run);
  ad_status status = ad_addends_measure(&checker->addends, step, scale->enabled ? scale->exponent : 0, NULL);
  ad_injections_restore(&lifted);
  return status;
}

/* ---- judging the distributed step by the reference ---- */

/* Returns how replicas compare for the first of a parameter's arrays whose replicas differ, beginning with the
 * gradient; if no replicas differ, for the last array. */
static const ad_replicas *worst_replicas(const ad_checker *checker, size_t param) {
  if (!checker->replicas[AD_PART_GRADIENT][param].equal) return &checker->replicas[AD_PART_GRADIENT][param];
  int part = 0;
  while (part + 1 < AD_PART_COUNT && checker->replicas[part][param].equal) part++;
  return &checker->replicas[part][param];
}

/* Describes the parameter, with the numbers of a parameter that no step has judged. A frozen parameter has none. */
static void describe_param(const ad_run *run, size_t index, ad_check_param *out) {
  ad_run_param at = ad_run_param_at(run, index);
  *out = (ad_check_param){
      .ratio = NAN, .max_rel_err = NAN, .bound = AD_WIDE_BOUND, .replicas_equal = 1, .update_equal = 1, .step = -1};
  out->counted = NAN;
  out->one_process = out->comm_rounding = out->cosine = out->sum_share = out->process_share = NAN;
  out->frozen = !ad_run_trains(run, index);
  if (!out->frozen) ad_causes_add(&out->causes, AD_CAUSE_UNKNOWN, 0, NAN, "no step was taken: every one overflowed");
  ad_program_param_name(ad_run_program(run), at.module, at.param, out->name, sizeof out->name);
  out->group = ad_recipe_group_of(run->recipe, out->name);
  snprintf(out->mesh, sizeof out->mesh, "%s", ad_mesh_text(at.spec->layout.mesh));
  ad_layout_shown(&at.spec->layout, out->layout, sizeof out->layout);
  ad_layout_shown(&at.spec->storage, out->storage, sizeof out->storage);
  ad_axes_print(ad_check_reduced_axes(&at.spec->layout), out->reduced_over, sizeof out->reduced_over);
}

/* Returns 1 if dist = ratio * ref, up to rounding. */
static int is_proportional(const double *dist, const ad_array *ref, double ratio) {
  const double *values = ref->data;
  size_t numel = ad_array_numel(ref);
  double worst = 0, largest = ad_largest(values, AD_F64, numel) * fabs(ratio);
  for (size_t i = 0; i < numel; i++) worst = fmax(worst, fabs(dist[i] - ratio * values[i]));
  return isfinite(ratio) && worst <= 1e-4 * largest;
}

/* Returns 1 if these numbers are worse than those of earlier steps. Replicas that differ are worse than any error, and
 * an error that is NaN is worse than any number. */
static int is_worse(const ad_check_param *now, const ad_check_param *before) {
  if (before->step < 0) return 1;
  if (now->replicas_equal != before->replicas_equal) return !now->replicas_equal;
  if (isnan(before->max_rel_err)) return 0;
  return isnan(now->max_rel_err) || ad_param_share(now) > ad_param_share(before);
}

/* Copies the distributed gradient to the scratch memory, in f64 and divided by its loss scale. */
static const double *unscaled(ad_checker *checker, const ad_array *gradient, int loss_scale) {
  double *out = checker->scratch.data;
  size_t numel = ad_array_numel(gradient);
  ad_cast(out, AD_F64, gradient->data, gradient->dtype, numel);
  for (size_t i = 0; i < numel && loss_scale; i++) out[i] = ldexp(out[i], -loss_scale);
  return out;
}

static ad_allowance allowance_of(const ad_checker *checker, size_t i, const ad_step_report *report) {
  ad_recipe_sharding sharding = ad_run_sharding(checker->run, i);
  return ad_rounding_allowance(checker->job->recipe, &sharding, ad_run_param_at(checker->run, i).spec,
                               checker->gradients[i].dtype, report->loss_scale);
}

static ad_error error_of(ad_checker *checker, size_t i, const double *dist, const ad_step_report *report) {
  const ad_array *ref = ad_reference_gradient(checker->reference, i);
  return ad_measure_error(dist, ref->data, checker->addends.sizes.full[i].data, ad_array_numel(ref),
                          allowance_of(checker, i, report), checker->computing.allowed[i]);
}

static double over(double part, double full) { return part == 0 ? 0 : part / full; }

/* Returns the distance as a share of its bound; infinity for NaN, which is beyond every bound. */
static double share_of(double distance, double bound) {
  double share = over(distance, bound);
  return isnan(share) ? INFINITY : share;
}

/* Returns the distance of the gradient to the sum of the ranks' own addends, divided by how far rounding in the
 * reduction may move it; rounding while addends are computed does not count. A small allowance is added for a gradient
 * that is summed in place in its bucket, because it adds the rows of later microbatches one by one
 * (core/docs/dtypes.md). */
static double share_of_sum(ad_checker *checker, size_t i, const double *dist, ad_allowance allowance) {
  const ad_array *addends = &checker->addends.themselves.full[i], *sizes = &checker->addends.sizes.full[i];
  size_t numel = ad_array_numel(addends);
  double straight =
      16 * ad_unit_roundoff(ad_dtype_wide(ad_run_compute_dtype(checker->run))) * ad_norm_of(sizes->data, numel);
  ad_error error = ad_measure_error(dist, addends->data, sizes->data, numel, allowance, straight);
  return share_of(error.share, 1);
}

/* Judges a gradient in dtypes that round: computes its error, the error's bound, and the members of `out` that end in
 * `_share`. */
static void judge_rounded(ad_checker *checker, size_t i, const double *dist, const ad_step_report *report,
                          double largest, ad_check_param *out) {
  const ad_computing *computing = &checker->computing;
  const ad_array *ref = ad_reference_gradient(checker->reference, i);
  ad_error error = error_of(checker, i, dist, report);
  double norm = fmax(computing->norm[i], 1e-6 * largest * sqrt((double)ad_array_numel(ref)));
  out->max_rel_err = over(error.norm, norm);
  out->bound = over(error.norm == 0 ? computing->allowed[i] + error.reduced : error.norm / error.share, norm);
  out->one_process = over(computing->spread[i].error, norm);
  out->comm_rounding = over(computing->comm_rounding[i], norm);
  out->cosine = ad_cosine(dist, ref->data, ad_array_numel(ref));
  out->sum_share = share_of_sum(checker, i, dist, allowance_of(checker, i, report));
  out->process_share = share_of(computing->distance[i], computing->apart[i]);
}

static void diagnose_shards(const ad_param_spec *spec, const double *dist, const ad_array *ref, ad_check_param *param) {
  double largest = ad_largest(ref->data, ref->dtype, ad_array_numel(ref));
  if (!param->replicas_equal || ad_param_share(param) <= 1 || ref->dtype != AD_F64) return;
  ad_axes axes = ad_shards_summed(ad_param_update(spec), &spec->shape, dist, ref->data, largest);
  if (!axes) axes = ad_shards_summed(&spec->layout, &spec->shape, dist, ref->data, largest);
  if (axes) ad_diagnose_shards(axes, &param->causes);
}

/* A gradient whose largest element is below this share of the largest element of all gradients may be only the rounding
 * that is left of addends that cancel. An example is a bias before the batch's mean is subtracted. */
#define CANCELLED 1e-13

/* Judges an f64 gradient that fails. If the gradient and its reference are zero except for rounding, its error is taken
 * relative to the largest of all gradients, and the parameter counts as not reached. */
static void judge_cancelled(ad_checker *checker, size_t i, const double *dist, double largest, ad_check_param *out) {
  const ad_array *ref = ad_reference_gradient(checker->reference, i);
  size_t numel = ad_array_numel(ref);
  int holds = ad_param_share(out) <= 1 && !isnan(out->ratio);
  if (rounds(checker->job) || holds || (checker->knows_cancelling && !checker->cancels[i])) return;
  if (!(ad_largest(ref->data, AD_F64, numel) <= CANCELLED * largest)) return;
  for (size_t k = 0; k < numel; k++)
    if (!(fabs(dist[k]) <= CANCELLED * largest)) return;
  checker->cancels[i] = 1;
  out->reached = 0;
  out->ratio = 1;
  out->max_rel_err *= 1e-6;
}

static void judge_param(ad_checker *checker, size_t i, const ad_step_report *report, double largest) {
  const ad_array *ref = ad_reference_gradient(checker->reference, i);
  const double *dist = unscaled(checker, &checker->gradients[i], report->loss_scale);
  const ad_replicas *replicas = worst_replicas(checker, i);
  const ad_param_spec *spec = ad_run_param_at(checker->run, i).spec;
  ad_check_param *kept = &checker->job->result->params[i], now = *kept;
  now.step = report->step;
  now.replicas_equal = replicas->equal;
  now.reached = ad_largest(ref->data, AD_F64, ad_array_numel(ref)) != 0;
  ad_compare(dist, ref->data, AD_F64, ad_array_numel(ref), largest, &now.ratio, &now.max_rel_err);
  if (rounds(checker->job)) judge_rounded(checker, i, dist, report, largest, &now);
  judge_cancelled(checker, i, dist, largest, &now);
  now.reached = kept->reached |= now.reached;
  now.proportional = is_proportional(dist, ref, now.ratio);
  ad_diagnose(spec->layout.mesh, ad_check_reduced_axes(&spec->layout), &now, now.proportional, replicas->differs,
              replicas->odd_rank, &now.causes);
  if (replicas != &checker->replicas[AD_PART_GRADIENT][i] && !replicas->equal && ad_param_share(&now) <= 1)
    ad_diagnose_updates(replicas->differs, replicas->odd_rank, &now.causes);
  diagnose_shards(spec, dist, ref, &now);
  ad_diagnose_averages(ad_run_program(checker->run), ad_run_param_at(checker->run, i).module, spec->layout.mesh,
                       ad_check_reduced_axes(&spec->layout), &now.causes);
  if (is_worse(&now, kept)) *kept = now;
}

static double worst_of(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

static int is_of_group(const ad_checker *checker, size_t param, int group) {
  size_t module = ad_run_param_at(checker->run, param).module;
  if (ad_program_module(ad_run_program(checker->run), module)->is_mirror) return 0;
  return group < 0 || (int)ad_run_norm_group_of(checker->run, module) == group;
}

/* Returns the bound of the norm of group `group` (-1: of all gradients): norms differ by no more than the gradients may
 * differ. */
static double bound_of_norm(ad_checker *checker, const ad_step_report *report, double norm, int group) {
  double squares = 0;
  if (!rounds(checker->job) || !(norm > 0)) return AD_WIDE_BOUND;
  for (size_t i = 0; i < checker->param_count; i++) {
    if (!is_of_group(checker, i, group) || !checker->full_gradients[i]) continue;
    const double *dist = unscaled(checker, &checker->gradients[i], report->loss_scale);
    double allowed = checker->computing.allowed[i] + error_of(checker, i, dist, report).reduced;
    squares += allowed * allowed;
  }
  return sqrt(squares) / norm;
}

/* Returns the size of a step's largest loss, the sum of all losses included. */
static double largest_loss(const ad_step_report *report) {
  double largest = fabs(report->loss);
  for (int i = 0; i < AD_LOSSES_MAX; i++) largest = fmax(largest, fabs(report->losses[i]));
  return largest;
}

/* Returns the bound of a loss, relative to the loss. `losses` has the loss of each draw (check/draws.h) of one process
 * in the recipe's own dtypes. */
static double bound_of_loss(const ad_checker *checker, const double losses[AD_DRAWS], double ref, double largest) {
  if (!rounds(checker->job)) return AD_WIDE_BOUND;
  return fmax(AD_WIDE_BOUND, over(ad_computing_of_loss(&checker->computing, losses, ref, largest), fabs(ref)));
}

/* Replaces *kept by `error`, and *kept_bound by `bound`, if `error` is the larger share of its bound. */
static void keep_worst(double error, double bound, double *kept, double *kept_bound) {
  double before = over(*kept, *kept_bound);
  if (isnan(before) || over(error, bound) < before) return;
  *kept = error;
  *kept_bound = bound;
}

static void judge_loss(ad_checker *checker, double dist, const double losses[AD_DRAWS], double ref, double largest) {
  ad_check_result *result = checker->job->result;
  keep_worst(ad_relative_difference(dist, ref), bound_of_loss(checker, losses, ref, largest), &result->loss_err,
             &result->loss_bound);
}

/* Judges choices that the ranks made: by how much the score of a chosen item is below that of an item not chosen.
 * Scores are between 0 and 1; the bound is how far both scores together may be off. */
static void judge_choices(ad_checker *checker) {
  ad_check_result *result = checker->job->result;
  double margin = ad_reference_margin(checker->reference);
  result->margin = fmin(result->margin, margin);
  if (rounds(checker->job))
    keep_worst(fmax(0, -margin), 2 * checker->computing.relative, &result->choice_error, &result->choice_bound);
}

static void judge_norm(ad_checker *checker, const ad_step_report *report, double dist, double ref, int group) {
  ad_check_result *result = checker->job->result;
  keep_worst(ad_relative_difference(dist, ref), bound_of_norm(checker, report, ref, group), &result->norm_err,
             &result->norm_bound);
}

static void judge_losses(ad_checker *checker, const ad_step_report *dist, const ad_step_report *ref) {
  const ad_step_report *drawn = ad_reference_draws(checker->reference)->reports;
  double losses[AD_DRAWS], largest = largest_loss(ref);
  for (int d = 0; d < AD_DRAWS; d++) losses[d] = drawn[d].loss;
  judge_loss(checker, dist->loss, losses, ref->loss, largest);
  for (int i = 0; i < AD_LOSSES_MAX; i++) {
    for (int d = 0; d < AD_DRAWS; d++) losses[d] = drawn[d].losses[i];
    judge_loss(checker, dist->losses[i], losses, ref->losses[i], largest);
  }
}

static void judge_numbers(ad_checker *checker, const ad_step_report *dist, const ad_step_report *ref) {
  ad_check_result *result = checker->job->result;
  result->loss_dist = dist->loss;
  result->loss_ref = ref->loss;
  result->norm_dist = dist->norm;
  result->norm_ref = ref->norm;
  judge_losses(checker, dist, ref);
  judge_norm(checker, dist, dist->norm, ref->norm, -1);
  for (int i = 0; i < AD_NORM_GROUPS_MAX; i++) judge_norm(checker, dist, dist->norms[i], ref->norms[i], i);
}

/* ---- judging replicas that should be equal ---- */

/* Sums the gradient's replicas over these axes, and gathers the sum into the scratch memory. Collective. */
static ad_status sum_replicas(ad_checker *checker, const ad_array *gradient, ad_axes axes, ad_array *full) {
  ad_array sum = *gradient;
  size_t numel = gradient->data ? ad_array_numel(gradient) : 0;
  double *values;
  AD_TRY(ad_new(numel, &values));
  if (numel) ad_cast(values, AD_F64, gradient->data, gradient->dtype, numel);
  sum.dtype = AD_F64;
  sum.data = values;
  ad_status status = AD_OK;
  if (ad_mesh_has_rank(gradient->layout.mesh, ad_comm_rank(checker->comm))) {
    ad_collective call = {
        .size = sizeof call, .op = AD_ALL_REDUCE, .in = values, .out = values, .count = numel, .dtype = AD_F64};
    call.group = ad_mesh_group(gradient->layout.mesh, axes, ad_comm_rank(checker->comm));
    call.site = AD_HERE;
    status = ad_comm_run(checker->comm, &call);
  }
  if (!status) status = gather(checker, &sum, full);
  ad_release(values);
  return status;
}

/* If replicas of a gradient differ and their sum is the reference, sets the cause that a sum over the replicas is
 * missing. */
static ad_status judge_replicas(ad_checker *checker, const ad_step_report *report) {
  for (size_t i = 0; i < checker->param_count; i++) {
    const ad_replicas *replicas = &checker->replicas[AD_PART_GRADIENT][i];
    ad_array full;
    if (!checker->full_gradients[i] || replicas->equal || replicas->odd_rank >= 0 || !replicas->differs) continue;
    AD_TRY(sum_replicas(checker, ad_run_part(checker->run, i, AD_PART_GRADIENT), replicas->differs, &full));
    if (!checker->reference) continue;
    double *sums = full.data;
    ad_check_param *param = &checker->job->result->params[i];
    for (size_t k = 0; k < ad_array_numel(&full); k++) sums[k] = ldexp(sums[k], -report->loss_scale);
    if (param->step == report->step && ad_param_share(param) > 1 &&
        is_proportional(sums, ad_reference_gradient(checker->reference, i), 1))
      ad_diagnose_parts(replicas->differs, &param->causes);
  }
  return AD_OK;
}

/* Returns the largest element, by absolute value, of all the reference's gradients. */
static double largest_of(const ad_checker *checker) {
  double largest = 0;
  for (size_t i = 0; i < checker->param_count; i++) {
    const ad_array *gradient = ad_reference_gradient(checker->reference, i);
    if (gradient) largest = fmax(largest, ad_largest(gradient->data, gradient->dtype, ad_array_numel(gradient)));
  }
  return largest;
}

/* Judges all gradients together as one vector. This shows errors that are too small to show in a single parameter. */
static void judge_computing(ad_checker *checker) {
  ad_computing *computing = &checker->computing;
  double *share = &checker->job->result->process_share;
  ad_computing_measure(computing, checker->run, checker->reference, &checker->addends);
  *share = fmax(*share, share_of(computing->all_distance, computing->all_apart));
}

void ad_checker_judge(ad_checker *checker, const ad_step_report *dist) {
  if (rounds(checker->job)) judge_computing(checker);
  double largest = largest_of(checker);
  judge_choices(checker);
  judge_numbers(checker, dist, &checker->reference_report);
  for (size_t i = 0; i < checker->param_count; i++)
    if (checker->full_gradients[i]) judge_param(checker, i, dist, largest);
}

/* On the first rank: lets the reference take the same step and judges every number. Does nothing for a skipped step,
 * which has no gradient to judge. */
static ad_status judge_step(ad_checker *checker, const ad_step_report *dist) {
  if (dist->skipped) return AD_OK;
  AD_TRY(ad_reference_step(checker->reference, dist->step, dist->loss_scale, &checker->reference_report));
  ad_checker_judge(checker, dist);
  if (!(checker->job->result->norm_err <= checker->job->result->norm_bound)) AD_TRY(ad_norm_explain(checker));
  return ad_reference_feed(checker->reference, checker->full_gradients, dist);
}

static void judge_state(ad_checker *checker, double error) {
  checker->job->result->state_err = worst_of(checker->job->result->state_err, error);
  checker->job->result->judges_states = 1;
}

static void compare_measured(ad_checker *checker) {
  const ad_program *dist = ad_run_program(checker->run), *ref = ad_run_program(ad_reference_run(checker->reference));
  const double *values;
  const char *name;
  size_t count;
  for (size_t i = 0; (values = ad_program_measured(dist, i, &name, &count)); i++) {
    double ratio, error;
    ad_compare(values, ad_program_measured(ref, i, &name, &count), AD_F64, count, 0, &ratio, &error);
    judge_state(checker, error);
  }
}

/* Judges a state after a step, if the reference has taken the same step. */
static void compare_state(ad_checker *checker, size_t index, const ad_array *full) {
  judge_state(checker, ad_reference_state_error(checker->reference, index, full));
}

static void judge_free_running(ad_checker *checker, size_t param, const ad_array *full) {
  const ad_array *free = ad_reference_free_value(checker->reference, param);
  if (!free) return;
  double ratio, distance;
  ad_compare(full->data, free->data, free->dtype, ad_array_numel(free), 0, &ratio, &distance);
  checker->job->result->free_difference = worst_of(checker->job->result->free_difference, distance);
}

static void judge_update(ad_checker *checker, size_t i, ad_param_part part, const ad_array *full) {
  ad_check_param *param = &checker->job->result->params[i];
  if (ad_reference_agrees(checker->reference, i, part, full)) return;
  checker->job->result->updates_equal = param->update_equal = 0;
  if (!param->causes.count) ad_diagnose_update(&param->causes);
}

static ad_status compare_updates(ad_checker *checker, int skipped) {
  for (size_t i = 0; i < checker->param_count; i++) {
    for (int part = 0; part < AD_PART_KEPT && ad_run_trains(checker->run, i); part++) {
      const ad_array *own = ad_run_part(checker->run, i, (ad_param_part)part);
      ad_array full;
      if (!own) continue;
      AD_TRY(gather(checker, own, &full));
      if (!checker->reference) continue;
      judge_update(checker, i, (ad_param_part)part, &full);
      if (part == AD_PART_MASTER) judge_free_running(checker, i, &full);
    }
  }
  if (skipped || !ad_check_is_wide(checker->job->recipe, checker->job->options)) return AD_OK;
  AD_TRY(visit_states(checker, compare_state));
  if (checker->reference) compare_measured(checker);
  return AD_OK;
}

/* Returns the number of stages of the pipeline, each on its own ranks; 1 if there is no pipeline. */
static int64_t stages(const ad_checker *checker) {
  if (ad_recipe_is_disjoint(checker->job->recipe)) return 1;
  return ad_group_size(&checker->everyone) / ad_mesh_size(ad_run_param_at(checker->run, 0).spec->storage.mesh);
}

void ad_checker_begin(ad_checker *checker) {
  ad_check_result *result = checker->job->result;
  checker->overflow = (ad_overflow){0};
  if (!checker->reference) return;
  size_t count = result->param_count;
  memset(result, 0, sizeof *result);
  result->param_count = count;
  result->updates_equal = result->initial_equal = 1;
  result->margin = INFINITY;
  result->norm_bound = result->loss_bound = AD_WIDE_BOUND;
  for (size_t i = 0; i < count; i++) describe_param(checker->run, i, &result->params[i]);
}

ad_status ad_checker_step(ad_checker *checker, int64_t step, ad_step_report *report) {
  AD_TRY(restart_reference(checker, step));
  if (rounds(checker->job)) AD_TRY(measure_addends(checker, step));
  if (checker->job->dumps) AD_TRY(ad_dump_before(checker, step));
  if (checker->accounts) AD_TRY(ad_account_begin(checker, step));
  if (checker->counts_calls) AD_TRY(ad_calls_begin(checker, step));
  ad_frozen_begin(checker);
  ad_status taken = ad_run_step(checker->run, step, report);
  if (checker->counts_calls) ad_calls_stop();
  AD_TRY(taken);
  ad_lifted_injections lifted = ad_injections_lift();
  if (checker->reference) checker->job->result->counted += report->count;
  ad_status status = checker->counts_calls && !report->skipped ? ad_calls_end(checker) : AD_OK;
  if (!status) status = gather_gradients(checker);
  if (!status) ad_overflow_note(checker, report);
  if (!status && checker->reference) checker->job->result->overflow = checker->overflow;
  if (!status) status = share_decisions(checker);
  if (!status && checker->job->dumps) status = ad_dump_after(checker, report);
  if (!status) status = compare_replicas(checker);
  if (!status) status = compare_reports(checker, report);
  if (!status && checker->reference) status = judge_step(checker, report);
  if (!status && !report->skipped && !checker->job->options->directional) status = judge_replicas(checker, report);
  if (!status) status = compare_updates(checker, report->skipped);
  if (!status) status = ad_frozen_end(checker, step);
  if (!status && checker->accounts)
    status = ad_account_end(checker, step, checker->reference && !ad_check_result_passes(checker->job->result, 0));
  if (!status && checker->reference && stages(checker) > 1) ad_diagnose_stages(checker->job->result, stages(checker));
  ad_injections_restore(&lifted);
  return status;
}
