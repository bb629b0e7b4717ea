/* The command `addend train`: its options and its call. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "encoding.h"
#include "trainer.h"
#include "addend/helpers.h"

enum {
  KEY_RESUME = 'r',
  KEY_FORCE = 256,
  KEY_OVERWRITE,
  KEY_DUMP_STEP,
  KEY_FRESH_STATES,
  FOLDER_SHOWN = 768,
  RECENT = 10,            /* progress shows the mean loss of this many newest steps */
  PATIENCE_SECONDS = 600, /* enough time to finish a step and to write a checkpoint of any size */
};

static const struct argp_option options[] = {
    {"out", 'o', "FOLDER", 0, "Where metrics, trace and report go (default runs/NAME)", 0},
    {"resume", KEY_RESUME, NULL, 0,
     "Go on from the newest usable checkpoint, on this or any other mesh; if the run is finished, write results that "
     "are missing; if there is no checkpoint, begin",
     0},
    {"force", KEY_FORCE, NULL, 0,
     "With --resume: go on even if the checkpoint belongs to another model, data or schedule", 0},
    {"fresh-states", KEY_FRESH_STATES, "PATTERN", 0,
     "With --resume: let the optimizer states of parameters whose names match PATTERN begin anew, as when their "
     "optimizer changes. Repeatable",
     0},
    {"overwrite", KEY_OVERWRITE, NULL, 0, "Replace the run that the folder holds: its metrics, results and checkpoints",
     0},
    {"dump-step", KEY_DUMP_STEP, "N", 0,
     "Write each rank's addends and sums of step N (0 is the first) to FOLDER/dump-N, for addend diff", 0},
    {0},
};

typedef struct train_input {
  ad_cli_recipe_options recipe;
  const char *folder;
  int resume, force, overwrite, dumps;
  int64_t dump_step;
  const char **fresh_states; /* the patterns of --fresh-states; the list is owned */
  size_t fresh_state_count;
} train_input;

static error_t add_pattern(train_input *input, const char *pattern, struct argp_state *state) {
  const char **patterns = realloc(input->fresh_states, (input->fresh_state_count + 1) * sizeof *patterns);
  if (!patterns) {
    argp_failure(state, CLI_UNFINISHED, 0, "no memory for --fresh-states %s", pattern);
    return ENOMEM;
  }
  input->fresh_states = patterns;
  input->fresh_states[input->fresh_state_count++] = pattern;
  return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  train_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      return state->child_inputs[0] = &input->recipe, 0;
    case 'o':
      if (!*argument) ad_cli_wrong(state, "--out takes the name of a folder, which must not be empty");
      return input->folder = argument, 0;
    case KEY_RESUME:
      return input->resume = 1, 0;
    case KEY_FORCE:
      return input->force = 1, 0;
    case KEY_OVERWRITE:
      return input->overwrite = 1, 0;
    case KEY_DUMP_STEP:
      return input->dumps = 1, input->dump_step = ad_cli_parse_number(argument, "--dump-step", 0, state), 0;
    case KEY_FRESH_STATES:
      return add_pattern(input, argument, state);
    case ARGP_KEY_END:
      if (input->overwrite && input->resume)
        ad_cli_wrong(state, "--resume continues a run and --overwrite replaces it; give only one of the two");
      if (input->force && !input->resume) ad_cli_wrong(state, "--force is allowed only with --resume");
      if (input->fresh_state_count && !input->resume)
        ad_cli_wrong(state, "--fresh-states is allowed only with --resume");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp train_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RECIPE",
    .doc =
        "Trains a recipe: starts its ranks on this machine, shows progress, and leaves metrics.jsonl, trace.json (open "
        "it in Perfetto), run.json (what was run), report.html and weights.safetensors in runs/NAME; with "
        "checkpoint.every in the recipe, or when it is stopped, also checkpoints, from which --resume continues."
        "\vExample: addend train recipes/gpt-text.yaml --set train.steps=100 --set checkpoint.every=20",
    .children = ad_cli_recipe_children,
};

/* The mean loss over some steps. A step without counted tokens has no loss and is left out. */
typedef struct mean_loss {
  double sum;
  int64_t steps;
} mean_loss;

/* Memory that is shared by the first rank's process, which writes it, and the process that started the ranks. */
typedef struct train_story {
  char what[32], folder[512]; /* what: "train", or the name of a training that runs before it; folder: the folder of
                               * that training */
  int64_t all_steps;          /* steps of the training that `what` names */
  char counted[48];           /* what the loss is divided by: "tokens", for example */
  double first_loss, last_loss, counted_per_second;
  mean_loss first_tenth, last_tenth; /* over the first and the last tenth of this training's steps */
  double recent[RECENT];             /* losses of the newest steps, that of step i in recent[i % RECENT]; NaN if the
                                      * step counted nothing */
  int64_t first_step, steps;         /* first_step: the steps before this command resumed; steps: all steps taken */
  int stopped;                       /* 1: the training stopped on request, after everything was written */
  ad_evaluation before, validation;  /* the evaluation before the first step, and the latest one; samples is 0 if
                                      * there is none yet */
  int64_t validation_step;
  int is_compared; /* 1: the latest evaluation is compared with earlier ones */
  ad_validation_change since_first, since_best;
} train_story;

typedef struct train_job {
  const ad_recipe *recipe;
  ad_train_options options; /* the training's options, with `folder` set */
  train_story *story;
} train_job;

static void turn_to(void *context, const char *what, const char *folder, int64_t steps) {
  train_story *story = context;
  *story = (train_story){.all_steps = steps};
  snprintf(story->what, sizeof story->what, "%s", what);
  snprintf(story->folder, sizeof story->folder, "%s", folder);
}

static void counts(void *context, const char *what) {
  train_story *story = context;
  snprintf(story->counted, sizeof story->counted, "%s", what);
}

static void begin_story(train_story *story, const ad_step_report *report) {
  story->first_step = report->step;
  story->first_loss = report->loss;
  if (report->step)
    fprintf(stderr, "addend: the run continues from its checkpoint after %lld step%s\n", (long long)report->step,
            report->step == 1 ? "" : "s");
}

/* Returns a tenth of this training's steps, rounded up. */
static int64_t tenth_of(const train_story *story) { return (story->all_steps - story->first_step + 9) / 10; }

static void add_loss(mean_loss *mean, double loss) {
  mean->sum += loss;
  mean->steps++;
}

/* Adds the step's loss to the means over the first and the last tenth of the steps, and keeps it among the newest
 * losses. The loss of a single step shows little, because losses of consecutive batches differ by chance. */
static void note_loss(train_story *story, const ad_step_report *report) {
  int64_t tenth = tenth_of(story);
  story->last_loss = report->loss;
  story->recent[report->step % RECENT] = report->count ? report->loss : NAN;
  if (report->count && report->step < story->first_step + tenth) add_loss(&story->first_tenth, report->loss);
  if (report->count && report->step >= story->all_steps - tenth) add_loss(&story->last_tenth, report->loss);
}

static mean_loss recent_loss(const train_story *story) {
  mean_loss mean = {0};
  for (int64_t step = story->steps - 1; step >= story->first_step && step >= story->steps - RECENT; step--)
    if (!isnan(story->recent[step % RECENT])) add_loss(&mean, story->recent[step % RECENT]);
  return mean;
}

static double mean_of(mean_loss mean, double otherwise) {
  return mean.steps ? mean.sum / (double)mean.steps : otherwise;
}

static void progress(void *context, const ad_step_report *report, int64_t steps, double counted_per_second,
                     double seconds_left) {
  train_story *story = context;
  char text[160];
  if (!story->steps) begin_story(story, report);
  story->counted_per_second = counted_per_second;
  story->steps = report->step + 1;
  note_loss(story, report);
  mean_loss mean = recent_loss(story);
  int used = snprintf(text, sizeof text, "loss %.4f", mean_of(mean, report->loss));
  if (mean.steps > 1)
    used += snprintf(text + used, sizeof text - (size_t)used, " (mean of %lld)", (long long)mean.steps);
  if (story->validation.samples)
    used += snprintf(text + used, sizeof text - (size_t)used, "  validation %.4f", story->validation.loss);
  snprintf(text + used, sizeof text - (size_t)used, "  %.0f %s/s  %d:%02d left", counted_per_second, story->counted,
           (int)seconds_left / 60, (int)seconds_left % 60);
  ad_cli_progress(story->what, report->step + 1, steps, text);
}

static void evaluated(void *context, int64_t step, const ad_evaluation *evaluation) {
  train_story *story = context;
  if (step < 0) story->before = *evaluation;
  story->validation = *evaluation;
  story->validation_step = step;
  story->is_compared = 0;
}

static void compared(void *context, int64_t step, const ad_validation_change *since_first,
                     const ad_validation_change *since_best) {
  train_story *story = context;
  story->since_first = *since_first;
  story->since_best = *since_best;
  story->is_compared = 1;
}

static void works(void *context, const char *what, int64_t done, int64_t of) { ad_cli_progress(what, done, of, ""); }

static ad_status train_here(ad_comm *comm, const train_job *job) {
  ad_status status = ad_train(comm, job->recipe, &job->options);
  if (status == AD_INTERRUPTED) return job->story->stopped = 1, AD_OK;
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status;
}

static int train_on_rank(ad_comm *comm, void *context) { return train_here(comm, context) != AD_OK; }

/* The handler that stops a training. It is installed before ranks are forked, so that a request before a rank's first
 * step is handled, too. After a second request the launcher ends the ranks. */
static void stop_on_request(int signal_number) { ad_train_interrupt(); }

static void checkpoint_on_request(int signal_number) { ad_train_checkpoint(); }

static void listen_to_requests(void) {
  ad_cli_on_request(stop_on_request);
  ad_cli_on_checkpoint(checkpoint_on_request);
}

/* Returns the steps that this command took, without steps before it resumed. */
static int64_t steps_taken(const train_story *story) { return story->steps - story->first_step; }

static json_t *loss_or_null(const train_story *story, double loss) {
  return steps_taken(story) ? json_real(loss) : json_null();
}

/* Returns the lines in which the program describes what was learned (`summary` in the run's result.json), or NULL if
 * there are none. */
static json_t *summary_of(const train_job *job) {
  char path[1024];
  snprintf(path, sizeof path, "%s/result.json", job->options.folder);
  json_t *result = json_load_file(path, 0, NULL), *summary = json_object_get(result, "summary");
  json_incref(summary);
  json_decref(result);
  return summary;
}

static int print_summary(const train_job *job) {
  char shown[CLI_MESSAGE];
  json_t *summary = summary_of(job), *line;
  size_t i;
  int printed = CLI_HOLDS;
  json_array_foreach(summary, i, line) {
    if (printed || !json_is_string(line)) continue;
    printed = ad_cli_print(ad_printable(json_string_value(line), shown, sizeof shown));
  }
  json_decref(summary);
  return printed;
}

/* Writes "1.6120 +- 0.0131 (standard error)" and returns buffer. */
static const char *validation_words(const ad_evaluation *validation, char *buffer, size_t size) {
  int used = snprintf(buffer, size, "%.4f", validation->loss);
  if (validation->standard_error >= 0)
    snprintf(buffer + used, size - (size_t)used, " +- %.4f (standard error)", validation->standard_error);
  return buffer;
}

static json_t *validation_loss_of(const train_story *story) {
  const ad_evaluation *validation = &story->validation;
  if (!validation->samples) return json_null();
  json_t *error = validation->standard_error >= 0 ? json_real(validation->standard_error) : json_null();
  return json_pack("{s:I, s:f, s:o, s:I}", "step", (json_int_t)story->validation_step, "loss", validation->loss,
                   "standard_error", error, "samples", (json_int_t)validation->samples);
}

static json_t *change_of(const train_story *story, const ad_validation_change *change) {
  static const char *const verdicts[] = {"lower", "noise", "higher"};
  if (!story->is_compared) return json_null();
  return json_pack("{s:I, s:f, s:f, s:s}", "step", (json_int_t)change->since, "change", change->change,
                   "standard_error", change->standard_error, "verdict", verdicts[change->verdict + 1]);
}

/* Describes the loss before the first step and its change since then. Whether the change is more than chance is judged
 * from the losses of single samples. */
static json_t *validation_of(const train_story *story) {
  json_t *before = story->before.samples ? json_real(story->before.loss) : json_null();
  return json_pack("{s:o, s:o, s:o}", "before", before, "since_first", change_of(story, &story->since_first),
                   "since_best", change_of(story, &story->since_best));
}

static json_t *loss_document(const train_story *story) {
  return json_pack("{s:o, s:o, s:o, s:o, s:I}", "first", loss_or_null(story, story->first_loss), "last",
                   loss_or_null(story, story->last_loss), "first_tenth",
                   loss_or_null(story, mean_of(story->first_tenth, story->first_loss)), "last_tenth",
                   loss_or_null(story, mean_of(story->last_tenth, story->last_loss)), "tenth_steps",
                   (json_int_t)(steps_taken(story) ? tenth_of(story) : 0));
}

static int print_document(const train_job *job) {
  const train_story *story = job->story;
  int64_t all = story->steps ? story->steps : job->recipe->train.steps;
  json_t *document =
      json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:f, s:s, s:s, s:o*}", "recipe", job->recipe->name, "steps",
                (json_int_t)all, "first_step", (json_int_t)(all - steps_taken(story)), "steps_taken",
                (json_int_t)steps_taken(story), "loss", loss_document(story), "validation", validation_loss_of(story),
                "validation_change", validation_of(story), "tokens_per_second", story->counted_per_second, "counted",
                story->counted, "folder", job->options.folder, "summary", summary_of(job));
  char *text = ad_cli_json(document, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
  if (!text)
    return fprintf(stderr,
                   "addend: the folder's name is not UTF-8, so the JSON document cannot be printed; choose a name in "
                   "UTF-8\n"),
           CLI_UNFINISHED;
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

/* Returns the folder's path for people, with unprintable characters escaped. JSON does not use this, because it has its
 * own escapes. */
static const char *folder_shown(const train_job *job, char buffer[FOLDER_SHOWN]) {
  return ad_printable(job->options.folder, buffer, FOLDER_SHOWN);
}

static int print_nothing_left(const train_job *job) {
  char text[1024], folder[FOLDER_SHOWN];
  int64_t steps = job->recipe->train.steps;
  snprintf(text, sizeof text, "all %lld step%s taken in an earlier call, so only the results were written; see %s\n",
           (long long)steps, steps == 1 ? " was" : "s were", folder_shown(job, folder));
  return ad_cli_print(text);
}

/* Prints how the validation loss changed since an earlier evaluation. */
static int print_change(const ad_validation_change *change, const char *kind) {
  char text[200], when[48] = "before the first step";
  int64_t taken = change->since + 1;
  if (taken) snprintf(when, sizeof when, "after %lld step%s", (long long)taken, taken == 1 ? "" : "s");
  snprintf(text, sizeof text, "the validation loss is %.4f +- %.4f %s than %s%s (compared sample by sample)\n",
           fabs(change->change), change->standard_error, change->change < 0 ? "lower" : "higher", when,
           change->verdict ? kind : ", which is no change beyond noise");
  return ad_cli_print(text);
}

static int print_changes(const train_story *story) {
  const ad_validation_change *first = &story->since_first, *best = &story->since_best;
  int printed = print_change(first, "");
  return printed || best->since == first->since || best->verdict <= 0 ? printed : print_change(best, ", the best");
}

/* Prints the validation loss before the first step. If the losses of single samples are not known, only this is
 * printed, because no change can be judged. */
static int print_before(const train_story *story) {
  char text[80];
  snprintf(text, sizeof text, "before the first step the validation loss was %.4f\n", story->before.loss);
  return story->before.samples ? ad_cli_print(text) : CLI_HOLDS;
}

static int print_validation(const train_story *story) {
  char text[160], words[64];
  snprintf(text, sizeof text, "validation loss %s over %lld sample%s, after %lld step%s\n",
           validation_words(&story->validation, words, sizeof words), (long long)story->validation.samples,
           story->validation.samples == 1 ? "" : "s", (long long)story->validation_step + 1,
           story->validation_step ? "s" : "");
  int printed = ad_cli_print(text);
  if (printed || !story->is_compared) return printed ? printed : print_before(story);
  return print_changes(story);
}

/* Describes over which steps the two losses of the summary are means; writes "" if the run has one step. */
static const char *tenth_words(const train_story *story, char *buffer, size_t size) {
  int64_t tenth = tenth_of(story);
  *buffer = 0;
  if (tenth > 1)
    snprintf(buffer, size, " (means of the first and the last %lld steps)", (long long)tenth);
  else if (steps_taken(story) > 1)
    snprintf(buffer, size, " (the first and the last step)");
  return buffer;
}

static int print_story(const train_job *job, int json) {
  const train_story *story = job->story;
  if (json) return print_document(job);
  char text[1200], folder[FOLDER_SHOWN], tenth[64], before[48] = "";
  if (!steps_taken(story)) return print_nothing_left(job);
  if (story->first_step) snprintf(before, sizeof before, " (after %lld before)", (long long)story->first_step);
  snprintf(text, sizeof text, "loss %.4f -> %.4f%s in %lld step%s%s, %.0f %s/s; see %s/report.html\n",
           mean_of(story->first_tenth, story->first_loss), mean_of(story->last_tenth, story->last_loss),
           tenth_words(story, tenth, sizeof tenth), (long long)steps_taken(story), steps_taken(story) == 1 ? "" : "s",
           before, story->counted_per_second, story->counted, folder_shown(job, folder));
  int printed = ad_cli_print(text);
  if (!printed && story->validation.samples) printed = print_validation(story);
  return printed ? printed : print_summary(job);
}

static int print_stop(const train_job *job) {
  const train_story *story = job->story;
  char text[2 * FOLDER_SHOWN + 160], folder[FOLDER_SHOWN];
  ad_printable(story->folder, folder, sizeof folder);
  snprintf(text, sizeof text,
           "interrupted: stopped on request after %lld of %lld steps; see %s/report.html\naddend: the checkpoint is in "
           "%s/checkpoints; --resume continues from there",
           (long long)story->steps, (long long)story->all_steps, folder, folder);
  if (!ad_cli_return_text(AD_INTERRUPTED, text)) fprintf(stderr, "addend: %s\n", text);
  return CLI_UNFINISHED;
}

static int launch(train_job *job, int json) {
  int64_t ranks = 0;
  ad_status status = ad_recipe_world(job->recipe, &ranks);
  if (!status) status = ad_plan_fits(job->recipe);
  if (!status) status = ad_train_make_folder(job->recipe, &job->options);
  ad_cli_encoding_end();
  if (status) return ad_cli_failed(status);
  ad_launch_options start = {.size = sizeof start,
                             .ranks = ranks,
                             .function = train_on_rank,
                             .context = job,
                             .patience_seconds = PATIENCE_SECONDS};
  ad_launch_result result = {.size = sizeof result};
  listen_to_requests();
  status = ad_launch(&start, &result);
  ad_cli_progress_end();
  if (job->story->stopped && (!status || status == AD_INTERRUPTED)) return print_stop(job);
  if (!status) return print_story(job, json);
  return ad_cli_failed(result.status == AD_INVALID ? AD_INVALID : status);
}

/* Trains as a rank that mpirun, srun or `addend run` started. Only the first rank prints. */
static int train_as_rank(train_job *job, int json) {
  ad_comm *comm;
  int result = ad_cli_join(job->recipe, &comm);
  if (result) return result;
  listen_to_requests();
  ad_status status = train_here(comm, job);
  ad_cli_progress_end();
  if (status)
    result = ad_cli_failed(status);
  else if (job->story->stopped)
    result = ad_comm_rank(comm) == 0 ? print_stop(job) : CLI_UNFINISHED;
  else if (ad_comm_rank(comm) == 0)
    result = print_story(job, json);
  ad_comm_close(comm);
  return result;
}

static int train(const ad_recipe *recipe, const train_input *input) {
  char folder[512];
  snprintf(folder, sizeof folder, "runs/%s", recipe->name);
  train_story *story = mmap(NULL, sizeof *story, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (story == MAP_FAILED) return fprintf(stderr, "addend: no memory to begin the training\n"), CLI_UNFINISHED;
  train_job job = {.recipe = recipe,
                   .options = {.size = sizeof job.options,
                               .folder = input->folder ? input->folder : folder,
                               .progress = progress,
                               .turns_to = turn_to,
                               .counts = counts,
                               .evaluated = evaluated,
                               .compared = compared,
                               .works = works,
                               .encode = ad_cli_encode,
                               .decode = ad_cli_decode,
                               .context = story,
                               .resume = input->resume,
                               .force = input->force,
                               .overwrite = input->overwrite,
                               .dumps = input->dumps,
                               .dump_step = input->dump_step,
                               .fresh_states = input->fresh_states,
                               .fresh_state_count = input->fresh_state_count},
                   .story = story};
  int result = ad_comm_launched() ? train_as_rank(&job, input->recipe.json) : launch(&job, input->recipe.json);
  munmap(story, sizeof *story);
  return result;
}

static int run_train(int argc, char **argv) {
  train_input input = {0};
  ad_recipe *recipe;
  int result = ad_cli_parse_recipe(&train_argp, argc, argv, &input, &input.recipe, &recipe);
  if (!result) {
    result = train(recipe, &input);
    ad_recipe_destroy(recipe);
  }
  free(input.fresh_states);
  return result;
}

const ad_cli_command ad_cli_train = {"train", run_train, "train a recipe, with a progress bar and a report",
                                     &train_argp, NULL};
