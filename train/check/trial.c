/* Tries mutants one after another on the same ranks. Makes one mutant, takes the first two steps again, and compares
 * the ranks' arrays, losses and norms bit for bit with those of the clean run, the run without mutation. If a bit
 * differs, the check judges the mutant. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "check/lifted_injections.h"
#include "check/checker.h"
#include "check/mutants.h"
#include "kernels/kernels.h"
#include "comm/agree.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/run.h"

enum { STEPS = 2 };

/* A copy of this rank's arrays, one after another in memory. */
typedef struct snapshot {
  char *bytes;
} snapshot;

typedef struct trials {
  const ad_trial_job *job;
  ad_checker checker;
  size_t state_bytes, all_bytes; /* bytes of a snapshot: state_bytes without gradients, all_bytes with gradients */
  snapshot start;                /* the state before the first step, without gradients */
  snapshot after[STEPS];         /* the state after each step of the clean run, the run without mutation */
  ad_step_report reports[STEPS]; /* reports of the clean run's steps */
  ad_loss_scale loss_scale;      /* the loss scale before the first step */
  ad_known_bug_scene scene;
  double *moved; /* [parameters]: norm of the difference that a mutant which only rounds made to the gradient */
} trials;

/* ---- snapshots of what a rank holds ---- */

typedef void (*array_visitor)(void *context, const ad_array *array);

/* Visits each array of the run: values, masters, optimizer states and states of modules; with `gradients`, the
 * gradients, too. */
static void visit_arrays(const ad_run *run, int gradients, array_visitor visit, void *context) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    for (int part = 0; part < AD_PART_KEPT; part++) {
      const ad_array *array = ad_run_part(run, i, (ad_param_part)part);
      if (array) visit(context, array);
    }
  }
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) {
    for (size_t i = 0; ad_run_module(run, m) && i < ad_module_state_count(ad_run_module(run, m)); i++)
      visit(context, ad_module_state(ad_run_module(run, m), i));
  }
  for (size_t i = 0; i < ad_run_param_count(run) && gradients; i++) {
    const ad_array *array = ad_run_part(run, i, AD_PART_GRADIENT);
    if (array) visit(context, array);
  }
}

static void add_bytes(void *context, const ad_array *array) { *(size_t *)context += ad_array_bytes(array); }

static void copy_out(void *context, const ad_array *array) {
  char **at = context;
  if (array->data) memcpy(*at, array->data, ad_array_bytes(array));
  *at += ad_array_bytes(array);
}

static void copy_back(void *context, const ad_array *array) {
  const char **at = context;
  if (array->data) memcpy(array->data, *at, ad_array_bytes(array));
  *at += ad_array_bytes(array);
}

typedef struct comparison {
  const char *at;
  int differs;
} comparison;

static void compare_array(void *context, const ad_array *array) {
  comparison *with = context;
  if (array->data && memcmp(array->data, with->at, ad_array_bytes(array))) with->differs = 1;
  with->at += ad_array_bytes(array);
}

static void take_snapshot(const trials *t, int gradients, snapshot *to) {
  char *at = to->bytes;
  visit_arrays(t->checker.run, gradients, copy_out, &at);
}

/* ---- restoring the run's state, and making a mutation ---- */

/* Restores the arrays and step counts that the ranks, their optimizers and the reference had before the first step. */
static ad_status start_again(trials *t) {
  const ad_run *run = t->checker.run;
  const char *at = t->start.bytes;
  visit_arrays(run, 0, copy_back, &at);
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) {
    if (ad_run_module(run, m) && ad_module_optimizer(ad_run_module(run, m)))
      AD_TRY(ad_optimizer_set_steps(ad_module_optimizer(ad_run_module(run, m)), 0));
  }
  t->checker.run->loss_scale = t->loss_scale;
  if (t->checker.reference) AD_TRY(ad_reference_start_again(t->checker.reference));
  return ad_run_refresh(t->checker.run, AD_MASTERS_WRITTEN);
}

static void mutate(trials *t, ad_mutant *mutant) {
  if (mutant->known)
    ad_known_bug_inject(mutant->known, &t->scene);
  else
    ad_mutation_begin(&mutant->mutation);
}

static int has_fired(const trials *t, const ad_mutant *mutant) {
  return mutant->known ? t->scene.fired : mutant->mutation.fired;
}

/* ---- the clean run, to which each trial is compared ---- */

static ad_status take_memory(trials *t) {
  visit_arrays(t->checker.run, 0, add_bytes, &t->state_bytes);
  visit_arrays(t->checker.run, 1, add_bytes, &t->all_bytes);
  AD_TRY(ad_new(t->state_bytes, &t->start.bytes));
  for (int step = 0; step < STEPS; step++) AD_TRY(ad_new(t->all_bytes, &t->after[step].bytes));
  return ad_new(t->checker.param_count, &t->moved);
}

static ad_status take_clean_steps(trials *t, ad_needs *seen) {
  ad_checker_begin(&t->checker);
  ad_known_watch(seen);
  for (int step = 0; step < STEPS; step++) {
    AD_TRY(ad_checker_step(&t->checker, step, &t->reports[step]));
    take_snapshot(t, 1, &t->after[step]);
  }
  ad_injections_clear();
  return AD_OK;
}

/* Takes the steps without a mutation. If one is skipped, a mutant would not show in it; then takes the steps again at
 * the lower loss scale that training would use next. */
static ad_status take_steps_that_count(trials *t, ad_needs *seen) {
  ad_loss_scale *scale = &t->checker.run->loss_scale;
  AD_TRY(take_clean_steps(t, seen));
  while (t->checker.overflow.skipped && scale->exponent < t->loss_scale.exponent) {
    t->loss_scale.exponent = scale->exponent;
    AD_TRY(start_again(t));
    AD_TRY(take_clean_steps(t, seen));
  }
  return AD_OK;
}

static ad_status run_clean(trials *t) {
  ad_run *run = t->checker.run;
  ad_mutants *shared = t->job->mutants;
  AD_TRY(take_memory(t));
  take_snapshot(t, 0, &t->start);
  if (t->checker.reference) AD_TRY(ad_reference_keep(t->checker.reference));
  t->loss_scale = run->loss_scale;
  ad_needs seen = 0;
  AD_TRY(take_steps_that_count(t, &seen));
  atomic_fetch_or(&shared->facts, ad_known_facts(run, t->checker.shards_formulas) | seen);
  t->scene = (ad_known_bug_scene){.rank = ad_comm_rank(run->comm), .microbatches = ad_recipe_parts(run->recipe)};
  if (!t->checker.reference) return AD_OK;
  t->checker.knows_cancelling = 1;
  t->job->result.result->complete = 1;
  shared->clean = ad_check_result_passes(t->job->result.result, 0);
  return AD_OK;
}

/* ---- trying one mutant ---- */

enum { DIFFERS, FIRED, WORDS };

static int same_bits(double a, double b) {
  uint64_t bits[2];
  memcpy(&bits[0], &a, sizeof a);
  memcpy(&bits[1], &b, sizeof b);
  return bits[0] == bits[1];
}

/* Returns 1 if this rank's arrays, losses or norms after the step differ from the clean run's in any bit. */
static int differs_here(const trials *t, int step, const ad_step_report *report) {
  comparison with = {t->after[step].bytes, 0};
  visit_arrays(t->checker.run, 1, compare_array, &with);
  const ad_step_report *clean = &t->reports[step];
  int differs = with.differs || !same_bits(report->loss, clean->loss) || !same_bits(report->norm, clean->norm);
  for (int i = 0; i < AD_LOSSES_MAX; i++) differs |= !same_bits(report->losses[i], clean->losses[i]);
  for (int i = 0; i < AD_NORM_GROUPS_MAX; i++) differs |= !same_bits(report->norms[i], clean->norms[i]);
  return differs;
}

/* Replaces each of the words by its maximum over all ranks. */
static ad_status over_all(trials *t, int32_t words[WORDS]) {
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = t->checker.everyone,
                        .in = words,
                        .out = words,
                        .count = WORDS};
  call.dtype = AD_I32;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  return ad_comm_run(t->checker.comm, &call);
}

/* Returns the sum of (now - clean)^2 over this rank's elements. */
static double squares_between(const ad_array *now, const char *clean) {
  size_t size = ad_dtype_size(now->dtype);
  double squares = 0;
  for (size_t k = 0; now->data && k < ad_array_numel(now); k++) {
    double value, before;
    ad_cast(&value, AD_F64, (const char *)now->data + k * size, now->dtype, 1);
    ad_cast(&before, AD_F64, clean + k * size, now->dtype, 1);
    squares += (value - before) * (value - before);
  }
  return squares;
}

/* Measures t->moved in the first step that differs from the clean run's step, which began from the same state. Every
 * element of a gradient is on equally many ranks, so the sums over all ranks are divided by that number. */
static ad_status measure_moved(trials *t, int step) {
  const char *clean = t->after[step].bytes + t->state_bytes;
  size_t count = t->checker.param_count;
  double(*sums)[2]; /* sum of squares, number of elements */
  AD_TRY(ad_new(count, &sums));
  for (size_t i = 0; i < count; i++) {
    const ad_array *gradient = ad_run_part(t->checker.run, i, AD_PART_GRADIENT);
    if (!gradient) continue;
    sums[i][0] = squares_between(gradient, clean);
    sums[i][1] = gradient->data ? (double)ad_array_numel(gradient) : 0;
    clean += ad_array_bytes(gradient);
  }
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = t->checker.everyone, .in = sums, .out = sums};
  call.count = 2 * count;
  call.dtype = AD_F64;
  call.site = AD_HERE;
  ad_status status = ad_comm_run(t->checker.comm, &call);
  for (size_t i = 0; i < count; i++) {
    if (!t->checker.full_gradients[i]) continue;
    double copies = sums[i][1] / (double)ad_array_numel(&t->checker.gradients[i]);
    t->moved[i] = ldexp(sqrt(sums[i][0] / copies), -t->reports[step].loss_scale);
  }
  ad_release(sums);
  return status;
}

/* Takes the two steps with the mutation and compares them with the clean run. `found` is the same on all ranks. */
static ad_status try_mutant(trials *t, ad_mutant *mutant, int32_t found[WORDS]) {
  AD_TRY(start_again(t));
  mutate(t, mutant);
  found[DIFFERS] = found[FIRED] = 0;
  for (int step = 0; step < STEPS && !found[DIFFERS]; step++) {
    ad_step_report report;
    mutant->mutation.executions = 0;
    AD_TRY(ad_run_step(t->checker.run, step, &report));
    ad_lifted_injections lifted = ad_injections_lift();
    found[DIFFERS] = differs_here(t, step, &report);
    found[FIRED] = has_fired(t, mutant);
    AD_TRY(over_all(t, found));
    if (found[DIFFERS] && mutant->known && mutant->known->rounds) AD_TRY(measure_moved(t, step));
    ad_injections_restore(&lifted);
  }
  ad_injections_clear();
  return AD_OK;
}

/* Sends the first rank's verdict to all ranks. */
static ad_status share_verdict(trials *t, int64_t *passes) {
  return ad_share_first(t->checker.comm, &t->checker.everyone, passes, 1, AD_HERE);
}

/* Marks the mutant as without effect if it changes a sum whose addends cancel except for rounding, so that it changes
 * only rounding. */
static void report_cancelled(const trials *t, ad_mutant *mutant) {
  const ad_place *place = &mutant->mutation.place;
  for (size_t i = 0; i < t->checker.param_count && !mutant->known && place->is_segment; i++) {
    if (!t->checker.cancels[i] || strcmp(place->what, t->job->result.result->params[i].name) != 0) continue;
    mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
    snprintf(mutant->message, sizeof mutant->message,
             "the gradient is zero except for rounding, with the mutation and without it");
  }
}

static int is_judged_by_roundings(const trials *t, const ad_mutant *mutant) {
  return mutant->known && mutant->known->rounds &&
         ad_program_kind_is_custom(ad_program_kind_of(t->checker.run->program));
}

/* Checks again, with the mutation, up to the first step that fails, and records what killed the mutant. */
static ad_status judge_mutant(trials *t, ad_mutant *mutant) {
  ad_check_result *result = t->job->result.result;
  int64_t passes = 1;
  AD_TRY(start_again(t));
  ad_checker_begin(&t->checker);
  t->checker.accounts = 1;
  mutate(t, mutant);
  for (int step = 0; step < STEPS && passes; step++) {
    ad_step_report report;
    mutant->mutation.executions = 0;
    AD_TRY(ad_checker_step(&t->checker, step, &report));
    ad_lifted_injections lifted = ad_injections_lift();
    if (t->checker.reference) result->complete = 1;
    passes = ad_check_result_passes(result, 0);
    AD_TRY(share_verdict(t, &passes));
    ad_injections_restore(&lifted);
  }
  ad_injections_clear();
  if (mutant->known && t->scene.ratio != 0) mutant->expected_ratio = t->scene.ratio;
  if (!passes && t->checker.reference) ad_mutant_killed_by_number(result, mutant);
  if (passes && t->checker.reference) {
    report_cancelled(t, mutant);
    if (is_judged_by_roundings(t, mutant))
      ad_mutant_moved_by_rounding(result, &t->checker.computing, t->moved, t->checker.shards_formulas, mutant);
  }
  return AD_OK;
}

/* Reports a mutation that no step reached. In addend's own programs, the AD_NEED_... bits of a run show which known
 * bugs a step reaches, so this is a mistake in the list of known bugs. A custom program may not have what a bug
 * changes, such as a norm or a residual stream. */
static void report_not_fired(const trials *t, ad_mutant *mutant) {
  if (mutant->known && ad_program_kind_is_custom(ad_program_kind_of(t->checker.run->program))) {
    mutant->killed_by = AD_KILLED_BY_NOT_APPLICABLE;
    snprintf(mutant->message, sizeof mutant->message, "no step of this program reaches what the mutation changes");
    return;
  }
  snprintf(mutant->message, sizeof mutant->message,
           "addend's list of known bugs is wrong: it expects this mutant to be killed, but the step never reached what "
           "the mutation changes");
}

static void report_no_effect(const trials *t, ad_mutant *mutant) {
  const char *why = mutant->known ? mutant->known->no_effect : NULL;
  if (!mutant->known) {
    ad_derived_report_no_effect(mutant);
    return;
  }
  if (!why && ad_program_kind_is_custom(ad_program_kind_of(t->checker.run->program)))
    why =
        "in two steps every compared number has the same bits as without the mutation: what the mutation changes is "
        "zero in this program, or has no effect";
  if (!why) return;
  mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
  snprintf(mutant->message, sizeof mutant->message, "%s", why);
}

/* Takes a step of a run that was created with the mutation, and compares its precision policies and collectives with
 * the plan's. All ranks find the same result, because precision policies and groups are the same on all ranks. */
static ad_status look_at_run(trials *t, ad_run *run, const ad_calls *planned, ad_mutant *mutant) {
  char policy[AD_CALLS_TEXT] = "", calls[AD_CALLS_TEXT] = "";
  ad_calls made = {0};
  ad_step_report report;
  ad_calls_watch(&made, t->checker.comm);
  ad_status status = ad_run_step(run, 0, &report);
  ad_injections_clear();
  if (!status) status = made.status;
  int kept = ad_calls_keep_policies(run, policy, sizeof policy);
  int equal = (!status && report.skipped) || ad_calls_equal(&made, planned, calls, sizeof calls);
  ad_calls_release(&made);
  if (status || (kept && equal)) return status;
  mutant->killed_by = AD_KILLED_BY_PLAN;
  snprintf(mutant->message, sizeof mutant->message, "%s%s%s", policy, kept || equal ? "" : "; ", calls);
  return AD_OK;
}

/* Tries a mutation that takes effect when a run is created: makes the mutation and creates another run. */
static ad_status try_created(trials *t, ad_mutant *mutant) {
  ad_calls planned = {0};
  ad_run *run = NULL;
  ad_status status = ad_calls_plan(t->checker.run, 0, &planned);
  mutate(t, mutant);
  if (!status) status = ad_run_create(t->checker.comm, t->checker.run->recipe, &t->checker.run->options, &run);
  if (run) run->loss_scale = t->loss_scale;
  if (!has_fired(t, mutant)) report_not_fired(t, mutant);
  if (!status) status = look_at_run(t, run, &planned, mutant);
  ad_injections_clear();
  ad_run_destroy(run);
  ad_calls_release(&planned);
  return status;
}

/* Tries one mutant. `mutant` is this rank's copy; try_all stores the first rank's copy as the result. */
static ad_status try_one(trials *t, ad_mutant *mutant) {
  int32_t found[WORDS] = {0};
  if (mutant->known && mutant->known->at_creation) return try_created(t, mutant);
  AD_TRY(try_mutant(t, mutant, found));
  if (!found[FIRED])
    report_not_fired(t, mutant);
  else if (found[DIFFERS])
    return judge_mutant(t, mutant);
  else
    report_no_effect(t, mutant);
  return AD_OK;
}

/* Judges a mutant that changes nothing. It must pass: otherwise mutants could count as killed that were not. */
static ad_status try_nothing(trials *t) {
  static const ad_known_bug nothing = {.name = "nothing"};
  ad_mutant mutant = {.known = &nothing};
  AD_TRY(judge_mutant(t, &mutant));
  if (mutant.killed_by == AD_KILLED_BY_NONE) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the check passed once, but fails when it is repeated without a mutation, so mutants were not tried; "
                 "change the program so that it computes the same in every run");
}

/* ---- trying all mutants ---- */

static int is_tried_here(const ad_trial_job *job, const ad_mutant *mutant) {
  if (!mutant->known) return !job->of_dtype && !mutant->mutation.in_record;
  return !mutant->known->of_bits && ad_mutant_is_of_dtype(mutant) == job->of_dtype;
}

static int is_to_be_tried(const ad_mutants *shared, ad_mutant *mutant) {
  if (mutant->known && !ad_known_shows(mutant, shared->facts)) return 0;
  if (!shared->clean) mutant->killed_by = AD_KILLED_BY_UNTRIED;
  return shared->clean;
}

static void report_progress(const trials *t, size_t done) {
  const ad_check_options *options = t->job->result.options;
  const ad_mutants *shared = t->job->mutants;
  if (options->progress)
    options->progress(options->context, shared->list[done].name, (int64_t)done, (int64_t)shared->count);
}

static ad_status try_all(trials *t) {
  ad_mutants *shared = t->job->mutants;
  size_t first = shared->next;
  AD_TRY(ad_comm_barrier(t->checker.comm, &t->checker.everyone)); /* wait until all ranks have read `next` */
  for (size_t i = first; i < shared->count; i++) {
    ad_mutant own = shared->list[i];
    if (!is_tried_here(t->job, &own)) continue;
    if (!is_to_be_tried(shared, &own)) {
      if (t->checker.reference) shared->list[i] = own;
      continue;
    }
    if (t->checker.reference) {
      shared->next = i;
      report_progress(t, i);
    }
    AD_TRY(try_one(t, &own));
    if (t->checker.reference) shared->list[i] = own;
  }
  if (t->checker.reference) shared->next = shared->count;
  return AD_OK;
}

static void release_trials(trials *t) {
  ad_injections_clear();
  ad_checker_destroy(&t->checker);
  ad_release(t->start.bytes);
  for (int step = 0; step < STEPS; step++) ad_release(t->after[step].bytes);
  ad_release(t->moved);
}

ad_status ad_trials(ad_comm *comm, const ad_trial_job *job) {
  trials t = {.job = job};
  ad_status status = ad_checker_create(&t.checker, comm, &job->result);
  if (!status) status = run_clean(&t);
  int64_t clean = job->mutants->clean;
  if (!status) status = share_verdict(&t, &clean);
  if (!status && clean) status = try_nothing(&t);
  if (!status) status = try_all(&t);
  if (!status) status = ad_comm_barrier(comm, &t.checker.everyone);
  release_trials(&t);
  return status;
}
