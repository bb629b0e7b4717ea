/* Trains from the first step to the last: from where to begin, the loop over steps, when checkpoints are written, and
 * what the first rank writes. */
#include "addend/report.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/environment.h"
#include "comm/settings.h"
#include "base/error.h"
#include "base/text.h"
#include "base/memory.h"
#include "base/options.h"
#include "products/products.h"
#include "comm/agree.h"
#include "files/file.h"
#include "files/lock.h"
#include "base/unfinished.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/recipe.h"
#include "step/companions.h"
#include "step/folder.h"
#include "step/metrics.h"
#include "step/pretrain.h"
#include "step/prompts.h"
#include "step/provenance.h"
#include "step/run.h"
#include "step/validation.h"

enum { MEASUREMENTS = 10 };

typedef struct training {
  ad_train_options options;
  ad_pretrain pretrain;
  ad_run *run;
  ad_metrics metrics;            /* only on the first rank */
  ad_prompts prompts;            /* only on the first rank */
  ad_validation validation;      /* only on the first rank */
  ad_evaluation before;          /* the evaluation before the first step; samples is 0 if there was none */
  json_t *provenance;            /* the contents of run.json; only on the first rank */
  char *checkpoints;             /* path of the folder of checkpoints */
  ad_checkpointer *checkpointer; /* NULL if no checkpoint was due yet and the recipe asks for none */
  int64_t first_step;            /* number of steps that earlier trainings have taken */
  int keeps_weights;             /* 1: the folder already has the weights of the last step, from an earlier run */
  int lock;                      /* the lock on the folder, which the first rank has */
  int has_folder;                /* 1: the run has locked its folder already */
} training;

static ad_status agree(ad_run *run, ad_status own, const char *site) {
  return ad_agree(run->comm, &run->everyone, own, site);
}

/* Returns 1 if memory is measured after this step, which takes longer than writing a line. If the recipe does not say
 * when to evaluate, the validation loss is measured after the same steps. */
static int measures(const ad_recipe *recipe, int64_t step) {
  int64_t interval = recipe->train.steps / MEASUREMENTS + 1;
  return step + 1 == recipe->train.steps || step % interval == 0;
}

static int evaluates(const ad_recipe *recipe, int64_t step) {
  int64_t every = recipe->evaluate.every;
  if (!every) return measures(recipe, step);
  return step + 1 == recipe->train.steps || (step + 1) % every == 0;
}

/* Evaluates the validation set. The first rank compares each sample's loss with that of earlier evaluations. */
static ad_status evaluate(training *t, int64_t step, ad_evaluation *out, ad_validation_changes *changes) {
  ad_sample_losses samples;
  AD_TRY(ad_run_evaluate_samples(t->run, &samples, out));
  int can_compare = ad_run_is_first(t->run) && !isnan(out->standard_error);
  ad_status status = can_compare ? ad_validation_add(&t->validation, step, &samples, changes) : AD_OK;
  ad_release(samples.sums);
  return ad_run_report_error(t->run, status);
}

static void report_evaluated(const training *t, int64_t step, const ad_evaluation *evaluation,
                             const ad_validation_changes *changes) {
  if (!ad_run_is_first(t->run) || !evaluation->samples || isnan(evaluation->loss)) return;
  if (t->options.evaluated) t->options.evaluated(t->options.context, step, evaluation);
  if (t->options.compared && !isnan(changes->since_first.change))
    t->options.compared(t->options.context, step, &changes->since_first, &changes->since_best);
}

static const ad_validation_changes no_changes = {.since_first.change = NAN, .since_best.change = NAN};

/* Evaluates the validation set before the first step, so that the report can say how far the loss fell. */
static ad_status evaluate_before(training *t) {
  ad_validation_changes changes = no_changes;
  if (t->first_step || !t->run->recipe->train.steps || !ad_run_evaluated(t->run)) return AD_OK;
  AD_TRY(evaluate(t, AD_BEFORE_FIRST_STEP, &t->before, &changes));
  report_evaluated(t, AD_BEFORE_FIRST_STEP, &t->before, &changes);
  return AD_OK;
}

static ad_status measure_step(training *t, int64_t step, ad_metric *metric) {
  ad_run *run = t->run;
  int is_due = evaluates(run->recipe, step);
  if (is_due) AD_TRY(evaluate(t, step, &metric->validation, &metric->changes));
  if (is_due && run->recipe->evaluate.prompt_count) AD_TRY(ad_prompts_sample(&t->prompts, run, step));
  return measures(run->recipe, step) ? ad_run_measure_memory(run, &metric->memory) : AD_OK;
}

static void report_step(const training *t, const ad_step_report *report) {
  int64_t steps = t->run->recipe->train.steps;
  const ad_metrics *metrics = &t->metrics;
  if (!t->options.progress) return;
  t->options.progress(t->options.context, report, steps,
                      metrics->step_seconds > 0 ? metrics->step_tokens / metrics->step_seconds : 0,
                      (double)(steps - report->step - 1) * metrics->step_seconds);
}

static ad_status keep_metric(training *t, const ad_metric *metric) {
  if (!ad_run_is_first(t->run)) return AD_OK;
  AD_TRY(ad_run_report_error(t->run, ad_metrics_add(&t->metrics, metric)));
  report_step(t, &metric->report);
  report_evaluated(t, metric->report.step, &metric->validation, &metric->changes);
  return AD_OK;
}

static ad_status make_checkpointer(training *t) {
  return ad_checkpointer_create(t->run->comm, t->run->everyone.mesh, t->checkpoints, t->run->recipe->checkpoint.keep,
                                &t->checkpointer);
}

static int is_due(const training *t, int64_t taken) {
  const ad_recipe *recipe = t->run->recipe;
  if (t->run->asked_to_save || t->run->interrupted) return 1;
  return recipe->checkpoint.every && (taken % recipe->checkpoint.every == 0 || taken >= recipe->train.steps);
}

// Saves a checkpoint if one is due; after the last step it always is.
static ad_status save_when_due(training *t, int64_t taken) {
  if (t->checkpointer) AD_TRY(ad_checkpointer_poll(t->checkpointer));
  if (!is_due(t, taken)) return AD_OK;
  if (!t->checkpointer) AD_TRY(make_checkpointer(t));
  return ad_run_save(t->run, t->checkpointer, taken);
}

static ad_status train_steps(training *t) {
  AD_TRY(evaluate_before(t));
  for (int64_t step = t->first_step; step < t->run->recipe->train.steps; step++) {
    ad_metric metric = {.recipe = t->run->recipe, .program = t->run->program, .changes = no_changes};
    if (!step) metric.before = t->before;
    AD_TRY(ad_run_step(t->run, step, &metric.report));
    AD_TRY(measure_step(t, step, &metric));
    AD_TRY(keep_metric(t, &metric));
    AD_TRY(save_when_due(t, step + 1));
    if (t->run->interrupted) {
      ad_interrupt_clear();
      return ad_fail(AD_INTERRUPTED, "the training stopped on request (by a signal) after step %lld of %lld",
                     (long long)step, (long long)t->run->recipe->train.steps);
    }
  }
  return AD_OK;
}

static ad_status print_timeline(FILE *file, void *context) {
  ad_timeline_print(context, file);
  return AD_OK;
}

static ad_status write_trace(const training *t, ad_timeline *timeline) {
  char *path;
  AD_TRY(ad_path_in(t->options.folder, "trace.json", &path));
  ad_status status = ad_unfinished_write(path, print_timeline, timeline, NULL);
  ad_release(path);
  return status;
}

static ad_status write_report(const training *t) {
  char *path;
  AD_TRY(ad_path_in(t->options.folder, "report.html", &path));
  ad_status status = ad_report_write(&t->options.folder, 1, path);
  ad_release(path);
  return status;
}

static ad_status print_text(FILE *file, void *context) {
  fputs(context, file);
  return AD_OK;
}

static ad_status write_text(const training *t, const char *name, char *text) {
  char *path;
  AD_TRY(ad_path_in(t->options.folder, name, &path));
  ad_status status = ad_unfinished_write(path, print_text, text, NULL);
  ad_release(path);
  return status;
}

/* Writes result.json, the program's own results, if the run has the values of the last step. */
static ad_status write_result(training *t) {
  char *text;
  AD_TRY(ad_run_show(t->run, &text));
  ad_status status = text ? write_text(t, "result.json", text) : AD_OK;
  free(text);
  return agree(t->run, status, AD_HERE);
}

static ad_status write_weights(const training *t) {
  char *path;
  AD_TRY(ad_path_in(t->options.folder, "weights.safetensors", &path));
  ad_status status = ad_run_write_weights(t->run, path);
  ad_release(path);
  return status;
}

/* Returns 1 if earlier trainings took all steps. */
static int is_complete(const training *t) { return t->first_step == t->run->recipe->train.steps; }

/* Returns 1 if this result must be written: the file does not exist, or steps were taken now or after it was
 * written. */
static int is_missing(const training *t, const char *name) {
  char *result = NULL, *metrics = NULL;
  if (!is_complete(t)) return 1;
  int is_old = ad_path_in(t->options.folder, name, &result) ||
               ad_path_in(t->options.folder, "metrics.jsonl", &metrics) || ad_file_is_older(result, metrics);
  ad_release(result);
  ad_release(metrics);
  return is_old;
}

static ad_status write_provenance(const training *t, int finished) {
  AD_TRY(ad_provenance_end(t->provenance, finished));
  return ad_provenance_write(t->provenance, t->options.folder);
}

static ad_status write_results(training *t, ad_timeline *timeline, int finished) {
  if (!ad_run_is_first(t->run)) return AD_OK;
  AD_TRY(ad_metrics_close(&t->metrics));
  AD_TRY(ad_prompts_close(&t->prompts));
  AD_TRY(ad_validation_close(&t->validation));
  if (is_missing(t, "trace.json")) AD_TRY(write_trace(t, timeline));
  if (is_missing(t, "run.json")) AD_TRY(write_provenance(t, finished));
  return is_missing(t, "report.html") ? write_report(t) : AD_OK;
}

static void report_uncounted(const ad_run *run) {
  if (run->uncounted > 1 && ad_run_warns(run))
    ad_log(AD_LOG_WARNING,
           "in %lld steps no token of the batch counted in the loss, so all gradients of these steps were 0; check the "
           "masks of the data",
           (long long)run->uncounted);
}

static ad_status finish(training *t, int finished) {
  ad_timeline timeline = {0};
  report_uncounted(t->run);
  if (t->checkpointer) AD_TRY(ad_checkpointer_finish(t->checkpointer));
  if (!t->keeps_weights) AD_TRY(write_weights(t));
  if (!t->keeps_weights && finished) AD_TRY(write_result(t));
  AD_TRY(ad_run_report_error(t->run, ad_trace_settle(&t->run->trace)));
  AD_TRY(ad_timeline_gather(t->run->comm, &t->run->everyone, &t->run->trace, &timeline));
  ad_status status = agree(t->run, write_results(t, &timeline, finished), AD_HERE);
  ad_timeline_destroy(&timeline);
  return status;
}

static ad_status look_for(const training *t, ad_resumption *out) {
  return ad_run_is_first(t->run) ? ad_run_folder_resumption(t->run->recipe, t->options.folder, out) : AD_OK;
}

/* Finds out on the first rank from what the training can resume, and informs all ranks. */
static ad_status find_resumption(training *t, ad_resumption *out) {
  *out = (ad_resumption){.newest = -1};
  AD_TRY(agree(t->run, look_for(t, out), AD_HERE));
  return ad_share_first(t->run->comm, &t->run->everyone, &out->newest, sizeof *out / sizeof out->newest, AD_HERE);
}

static void report_it_begins(const training *t) {
  if (ad_run_is_first(t->run))
    ad_log(AD_LOG_INFO, "%s: there is no checkpoint to continue from (--resume), so the run begins with its first step",
           t->checkpoints);
}

/* Logs that steps are repeated, if the finished run in the folder went further than its newest checkpoint. */
static void report_what_is_repeated(const training *t, const ad_resumption *found) {
  if (found->finished > t->first_step && ad_run_is_first(t->run))
    ad_log(AD_LOG_INFO,
           "%s: the run was finished after %lld step%s, but its newest checkpoint is of step %lld, so training repeats "
           "the steps after the checkpoint",
           t->checkpoints, (long long)found->finished, ad_plural(found->finished), (long long)t->first_step);
}

static ad_status resume(training *t) {
  int64_t steps = t->run->recipe->train.steps;
  ad_resumption found;
  AD_TRY(find_resumption(t, &found));
  if (found.is_over) return t->keeps_weights = 1, t->first_step = steps, AD_OK;
  if (found.newest < 0) return report_it_begins(t), AD_OK;
  AD_TRY(ad_run_load(t->run, t->checkpoints, &t->first_step));
  report_what_is_repeated(t, &found);
  if (t->first_step <= steps) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the checkpoint was written after %lld step%s, but the recipe asks for %lld; set train.steps to "
                 "at least %lld",
                 t->checkpoints, (long long)t->first_step, ad_plural(t->first_step), (long long)steps,
                 (long long)t->first_step);
}

static ad_status begin_provenance(training *t) {
  AD_TRY(ad_provenance_create(t->run, t->options.folder, t->options.resume, &t->provenance));
  if (is_complete(t)) return AD_OK;
  AD_TRY(ad_provenance_start(t->provenance, t->first_step));
  return ad_provenance_write(t->provenance, t->options.folder);
}

static ad_status begin_files(training *t) {
  if (!ad_run_is_first(t->run)) return AD_OK;
  if (!is_complete(t)) AD_TRY(ad_metrics_open(t->options.folder, t->first_step, &t->metrics));
  AD_TRY(ad_companions_copy(t->run, t->options.folder));
  if (!is_complete(t)) AD_TRY(ad_prompts_open(t->run->recipe, &t->options, t->first_step, &t->prompts));
  if (!is_complete(t) && ad_run_evaluated(t->run))
    AD_TRY(ad_validation_open(t->options.folder, t->first_step, &t->validation));
  return begin_provenance(t);
}

/* Locks the folder on the first rank, so that no other process writes there until the training ends. */
static ad_status take_folder(training *t, const ad_recipe *recipe) {
  AD_TRY(ad_folder_make(t->options.folder));
  AD_TRY(ad_lock_take(t->options.folder, &t->lock));
  AD_TRY(ad_run_folder_check(recipe, &t->options));
  AD_TRY(ad_run_folder_tidy(t->options.folder));
  if (!t->options.overwrite) return AD_OK;
  AD_TRY(ad_metrics_try(t->options.folder));
  return ad_run_folder_clear(t->options.folder);
}

static ad_status take_folder_for_all(training *t, ad_comm *comm, const ad_group *everyone, const ad_recipe *recipe) {
  int takes = !t->has_folder && ad_group_index(everyone, ad_comm_rank(comm)) == 0;
  t->has_folder = 1;
  return ad_agree(comm, everyone, takes ? take_folder(t, recipe) : AD_OK, AD_HERE);
}

static ad_status dump_modules(const training *t, const char *folder) {
  uint64_t after = (uint64_t)(t->options.dump_step - t->first_step);
  for (size_t i = 0; i < ad_program_module_count(t->run->program); i++) {
    if (ad_run_module(t->run, i))
      AD_TRY(ad_reducer_dump(ad_module_reducer(ad_run_module(t->run, i)), folder, after, t->options.dump_step));
  }
  return AD_OK;
}

static ad_status begin_dump(const training *t) {
  char *folder;
  if (t->options.dump_step < t->first_step)
    return ad_fail(AD_INVALID,
                   "step %lld cannot be dumped, because this training continues from a checkpoint after %lld step%s; "
                   "choose a later step",
                   (long long)t->options.dump_step, (long long)t->first_step, ad_plural(t->first_step));
  AD_TRY(ad_run_dump_folder(&t->options, &folder));
  ad_status status = ad_run_is_first(t->run) ? ad_folder_make(folder) : AD_OK;
  status = agree(t->run, status, AD_HERE);
  if (!status) status = agree(t->run, dump_modules(t, folder), AD_HERE);
  ad_release(folder);
  return status;
}

static ad_status begin_training(training *t) {
  const ad_recipe *recipe = t->run->recipe;
  AD_TRY(ad_trace_start(&t->run->trace, t->run->comm, &t->run->everyone));
  AD_TRY(take_folder_for_all(t, t->run->comm, &t->run->everyone, recipe));
  AD_TRY(ad_path_in(t->options.folder, "checkpoints", &t->checkpoints));
  if (t->options.resume) AD_TRY(resume(t));
  AD_TRY(agree(t->run, begin_files(t), AD_HERE));
  if (t->options.dumps) AD_TRY(begin_dump(t));
  if (!recipe->checkpoint.every) return AD_OK;
  return make_checkpointer(t);
}

// An interrupted training writes its files, too, because all ranks stopped after the same step.
static ad_status run_training(training *t) {
  AD_TRY(begin_training(t));
  ad_status trained = train_steps(t);
  if (trained && trained != AD_INTERRUPTED) return trained;
  char message[AD_MESSAGE_MAX];
  snprintf(message, sizeof message, "%s", ad_last_error());
  AD_TRY(finish(t, !trained));
  return trained ? ad_fail(trained, "%s", message) : AD_OK;
}

enum { FOLDER_MAX = 512 };

/* Checks that a dump is asked for only once, by the options or by the environment, that its step will be taken, and that
 * the run can be dumped. */
static ad_status check_dumped(const ad_recipe *recipe, const ad_train_options *options) {
  const char *folder = ad_environment_text("ADDEND_DUMP");
  int64_t own = (int64_t)ad_environment_number("ADDEND_DUMP_STEP", 0), step = folder ? own : options->dump_step;
  if (folder && options->dumps)
    return ad_fail(AD_INVALID,
                   "two dumps are requested, by --dump-step %lld and by ADDEND_DUMP=\"%s\"; leave out one of the two",
                   (long long)options->dump_step, folder);
  if (!folder && !options->dumps) return AD_OK;
  if (recipe->train.leaves)
    return ad_fail(AD_INVALID,
                   "step %lld cannot be dumped (%s), because the recipe has train.leaves=%lld, and addends of leaves "
                   "cannot be dumped yet; leave out one of the two",
                   (long long)step, folder ? "ADDEND_DUMP" : "--dump-step", (long long)recipe->train.leaves);
  if (step >= 0 && step < recipe->train.steps) return AD_OK;
  return ad_fail(AD_INVALID, "step %lld cannot be dumped, because the recipe has steps 0 to %lld; choose one of these",
                 (long long)step, (long long)recipe->train.steps - 1);
}

/* Copies the options to *out, with the name of the default folder if they name none. */
static ad_status take_options(const ad_recipe *recipe, const ad_train_options *options, char folder[FOLDER_MAX],
                              ad_train_options *out) {
  AD_TRY(ad_options_take(out, sizeof *out, options, "ad_train_options"));
  if (out->resume && out->overwrite)
    return ad_fail(AD_INVALID, "`resume` continues a run and `overwrite` replaces it; set only one of the two");
  if (out->fresh_state_count && !out->resume)
    return ad_fail(AD_INVALID,
                   "`fresh_states` says which optimizer states begin anew when a run resumes, but `resume` is not set; "
                   "set both or neither");
  AD_TRY(check_dumped(recipe, out));
  snprintf(folder, FOLDER_MAX, "runs/%s", recipe->name);
  if (!out->folder) out->folder = folder;
  return AD_OK;
}

/* Returns the options of the training that runs first. Its folder is resumed, overwritten or refused like the run's
 * folder. */
static ad_train_options options_before(const ad_train_options *own, const ad_pretrain *pretrain) {
  ad_train_options options = *own;
  options.folder = pretrain->folder;
  options.turns_to = NULL;
  options.dumps = 0;
  options.fresh_state_count = 0;
  return options;
}

/* Adds to an error that it is about the keys train.* of the recipe that was derived from this one. */
static ad_status report_earlier(const ad_recipe *recipe, ad_status status) {
  const char *name = recipe->program->course.pretraining->name;
  return status == AD_INVALID
             ? ad_fail_in(status,
                          "in the earlier training of the %s, whose keys train.* are called %s.* in this recipe", name,
                          name)
             : status;
}

static ad_status make_folder_before(const ad_recipe *recipe, const ad_train_options *own) {
  ad_pretrain pretrain;
  AD_TRY(ad_pretrain_create(recipe, own->folder, &pretrain));
  ad_train_options options = options_before(own, &pretrain);
  ad_status status = AD_OK;
  if (pretrain.first) status = report_earlier(recipe, ad_train_make_folder(pretrain.first, &options));
  ad_pretrain_release(&pretrain);
  return status;
}

ad_status ad_train_make_folder(const ad_recipe *recipe, const ad_train_options *options) {
  AD_NEED(recipe);
  char folder[FOLDER_MAX];
  ad_train_options own;
  AD_TRY(ad_settings_check());  // ranks check this, too, but at that time the folder exists already
  AD_TRY(take_options(recipe, options, folder, &own));
  AD_TRY(ad_prompts_try(recipe, &own));
  AD_TRY(ad_folder_make(own.folder));
  if (access(own.folder, W_OK | X_OK))
    return ad_fail(
        AD_IO, "%s: this folder cannot be written to (%s); change its permissions, or name another folder with --out",
        own.folder, strerror(errno));
  int lock;
  AD_TRY(ad_lock_take(own.folder, &lock));
  ad_lock_give(lock);  // the first rank locks the folder again
  AD_TRY(ad_run_folder_check(recipe, &own));
  return make_folder_before(recipe, &own);
}

/* Logs that bf16 takes less memory on this machine, but more time. Logs this once in a process, which may run two
 * trainings. */
static void report_what_bf16_is_worth(const training *t) {
  static atomic_flag is_reported = ATOMIC_FLAG_INIT;
  ad_products products = ad_products_in_use();
  if (ad_run_compute_dtype(t->run) != AD_BF16 || !ad_products_widen(products) || !ad_run_is_first(t->run)) return;
  if (atomic_flag_test_and_set(&is_reported)) return;
  ad_log(AD_LOG_INFO,
         "on this machine, computing in bf16 takes less memory than in f32 but more time, since matrix products of "
         "bf16 are computed in f32 (%s)",
         products.units < AD_UNITS_AVX512BF16  ? "this processor has no bf16 instructions"
         : products.units < AD_UNITS_FAST_BF16 ? "this processor has no matrix units (AMX)"
                                               : "ADDEND_PRODUCTS chose so, or oneDNN is missing");
}

static void report_what_is_evaluated(const training *t) {
  int64_t wanted = t->run->recipe->evaluate.samples, there = ad_run_evaluated(t->run);
  if (!there || there >= wanted || !ad_run_is_first(t->run) || !ad_recipe_gives(t->run->recipe, "evaluate.samples"))
    return;
  ad_log(AD_LOG_INFO,
         "evaluate.samples is %lld, but only %lld %s for validation, so each evaluation reads all of these",
         (long long)wanted, (long long)there, there == 1 ? "sample is" : "samples are");
}

/* Tells the caller what the `count` of a step report counts ("tokens"), by the function in its options. */
static void report_what_counts(const training *t) {
  if (t->options.counts && ad_run_is_first(t->run))
    t->options.counts(t->options.context, ad_program_count(t->run->program, 0)->name);
}

static void turn_to(const training *t, const ad_comm *comm, const char *what, const char *folder,
                    const ad_recipe *recipe) {
  if (t->options.turns_to && ad_comm_rank(comm) == 0)
    t->options.turns_to(t->options.context, what, folder, recipe->train.steps);
}

/* Runs the training that comes first. Locks the run's folder already, so that no other process writes there meanwhile
 * and no file of an overwritten run stays beside the new weights. */
static ad_status train_before(training *t, ad_comm *comm, const ad_recipe *recipe) {
  ad_mesh *world;
  char text[48];
  const ad_recipe *first = t->pretrain.first;
  ad_train_options options = options_before(&t->options, &t->pretrain);
  AD_TRY(ad_run_check_world(comm, first));
  snprintf(text, sizeof text, "dp_shard=%lld", (long long)ad_comm_size(comm));
  AD_TRY(ad_mesh_create(text, &world));
  ad_group everyone = ad_mesh_group(world, AD_AXES_ALL, ad_comm_rank(comm));
  ad_status status = take_folder_for_all(t, comm, &everyone, recipe);
  turn_to(t, comm, recipe->program->course.pretraining->name, t->pretrain.folder, first);
  if (!status) status = report_earlier(recipe, ad_train(comm, first, &options));
  ad_mesh_destroy(world);
  return status;
}

static ad_status train_all(training *t, ad_comm *comm, const ad_recipe *recipe) {
  ad_run_options of_run = {.size = sizeof of_run,
                           .any_recipe = t->options.force,
                           .fresh_states = t->options.fresh_states,
                           .fresh_state_count = t->options.fresh_state_count};
  AD_TRY(ad_pretrain_create(recipe, t->options.folder, &t->pretrain));
  if (t->pretrain.first) AD_TRY(train_before(t, comm, recipe));
  turn_to(t, comm, "train", t->options.folder, recipe);
  AD_TRY(ad_run_create(comm, t->pretrain.first ? &t->pretrain.own : recipe, &of_run, &t->run));
  t->run->listener.report_progress = t->options.works;
  t->run->listener.context = t->options.context;
  report_what_counts(t);
  report_what_bf16_is_worth(t);
  report_what_is_evaluated(t);
  return run_training(t);
}

ad_status ad_train(ad_comm *comm, const ad_recipe *recipe, const ad_train_options *options) {
  AD_NEED(comm, recipe);
  char folder[FOLDER_MAX];
  training t = {.lock = AD_LOCK_NONE};
  AD_TRY(take_options(recipe, options, folder, &t.options));
  ad_status status = train_all(&t, comm, recipe);
  ad_checkpointer_destroy(t.checkpointer);
  ad_release(t.checkpoints);
  ad_metrics_destroy(&t.metrics);
  ad_prompts_destroy(&t.prompts);
  ad_validation_destroy(&t.validation);
  json_decref(t.provenance);
  ad_run_destroy(t.run);
  ad_pretrain_release(&t.pretrain);
  ad_lock_give(t.lock);
  return status;
}
