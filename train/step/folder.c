/* Finds out what a run's folder has, and clears it. train.c decides what a run writes there. */
#include "step/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unfinished.h"
#include "checkpoint/checkpoint_folder.h"
#include "files/file.h"
#include "step/fingerprint.h"
#include "step/metrics.h"
#include "step/provenance.h"

static const char *const results[] = {"weights.safetensors", "report.html",   "trace.json",    "run.json",
                                      "result.json",         "metrics.jsonl", "samples.jsonl", "validation.jsonl"};
enum { RESULTS = sizeof results / sizeof *results };

/* What the files in the folder say about an earlier run. */
typedef struct earlier {
  int64_t steps;      /* number of lines in its metrics.jsonl */
  int64_t total;      /* number of steps that the run was to take */
  int64_t checkpoint; /* step of its newest checkpoint; -1 if it has none */
  int has_weights;
  int takes_weights; /* 1: a recipe can name weights as model.weights, because it has no model.from */
  int is_finished;   /* 1: run.json says that the run is finished */
  int is_same;       /* 1: the run was made from this recipe, or from one that gives the same numbers */
} earlier;

/* Sets *out to 1 if the recipe in run.json gives the same numbers as `recipe`; to 0 if it does not, or if it cannot be
 * read any more. */
static ad_status compare_recipe(const ad_recipe *recipe, const char *text, int *out) {
  ad_recipe *its_own;
  *out = 0;
  if (!text || ad_recipe_parse(text, "run.json", NULL, 0, &its_own)) return AD_OK;
  ad_status status = ad_fingerprint_same_recipe(recipe, its_own, out);
  ad_recipe_destroy(its_own);
  return status;
}

/* Reads run.json. If it is missing or damaged, the number of steps is taken from `recipe`. */
static ad_status look_at_provenance(const ad_recipe *recipe, const char *folder, earlier *out) {
  json_t *document;
  if (ad_provenance_read(folder, &document)) document = NULL;
  const json_t *total = json_object_get(document, "steps");
  out->total = total ? json_integer_value(total) : recipe->train.steps;
  out->is_finished = json_object_get(document, "finished") != NULL;
  ad_status status = compare_recipe(recipe, json_string_value(json_object_get(document, "recipe")), &out->is_same);
  json_decref(document);
  return status;
}

static ad_status look_at(const ad_recipe *recipe, const char *folder, earlier *out) {
  char *checkpoints, *weights;
  out->takes_weights = !recipe->from;
  AD_TRY(ad_metrics_count(folder, &out->steps));
  AD_TRY(look_at_provenance(recipe, folder, out));
  AD_TRY(ad_path_in(folder, "checkpoints", &checkpoints));
  out->checkpoint = ad_checkpoint_newest(checkpoints);
  ad_release(checkpoints);
  AD_TRY(ad_path_in(folder, "weights.safetensors", &weights));
  out->has_weights = !access(weights, F_OK);
  ad_release(weights);
  return AD_OK;
}

/* Returns 1 if the folder has the weights of a run that took all steps of this recipe. If there is a checkpoint,
 * weights and metrics may be from two trainings, of which the second was killed, so run.json must say that the run
 * finished. If the checkpoint is of the last step, returns 0, because resuming from it also compares the contents of
 * files. */
static int is_over(const earlier *found, int64_t steps) {
  int is_finished = found->is_finished || found->checkpoint < 0;
  return found->has_weights && is_finished && found->is_same && found->steps == steps && found->checkpoint < steps;
}

/* Returns 1 if resuming with this recipe would end before the step at which the finished run in the folder ended. */
static int would_shrink(const earlier *found, int64_t steps) {
  return found->has_weights && found->is_finished && found->checkpoint >= 0 && found->checkpoint <= steps &&
         found->steps > steps;
}

/* Writes "a finished run of 300 steps" or "a run that took 120 of 300 steps". */
static void describe_earlier(const earlier *found, char *words, size_t size) {
  int64_t taken = found->steps > found->checkpoint ? found->steps : found->checkpoint;
  if (found->has_weights && taken >= found->total)
    snprintf(words, size, "a finished run of %lld step%s", (long long)taken, ad_plural(taken));
  else
    snprintf(words, size, "a run that took %lld of %lld step%s", (long long)taken, (long long)found->total,
             ad_plural(found->total));
}

/* Describes what --resume would do with the earlier run in the folder. train.c decides by the same conditions. */
static void describe_resume(const earlier *found, int64_t steps, char *words, size_t size) {
  if (found->checkpoint >= 0)
    snprintf(words, size, "--resume continues the run from its checkpoint after %lld step%s%s",
             (long long)found->checkpoint, ad_plural(found->checkpoint),
             found->checkpoint >= steps || is_over(found, steps) ? " if train.steps is larger" : "");
  else
    snprintf(words, size, "the run has no checkpoint%s",
             found->has_weights ? "" : ", so --resume begins again with the first step");
}

static ad_status refuse_earlier(const earlier *found, int64_t steps, const char *folder) {
  char words[96], resume[160], weights[512] = "";
  describe_earlier(found, words, sizeof words);
  describe_resume(found, steps, resume, sizeof resume);
  if (found->has_weights && found->checkpoint < 0 && found->takes_weights)
    snprintf(weights, sizeof weights,
             ". There, --set model.weights=%s/weights.safetensors begins with the weights of this run; set "
             "checkpoint.every, so that the new run writes checkpoints",
             folder);
  return ad_fail(AD_INVALID,
                 "the folder %s already has the files of %s; %s. --overwrite replaces the run, and --out FOLDER writes "
                 "to another folder%s",
                 folder, words, resume, weights);
}

/* Refuses to resume if training would end before the step at which the finished run ended. */
static ad_status refuse_fewer(const earlier *found, int64_t steps, const char *folder) {
  return ad_fail(
      AD_INVALID,
      "the folder %s already has the files of a finished run of %lld step%s, but the recipe asks for %lld; set "
      "train.steps to at least %lld. --overwrite replaces the run, and --out FOLDER writes to another folder",
      folder, (long long)found->steps, ad_plural(found->steps), (long long)steps, (long long)found->steps);
}

ad_status ad_run_folder_resumption(const ad_recipe *recipe, const char *folder, ad_resumption *out) {
  earlier found = {0};
  AD_TRY(look_at(recipe, folder, &found));
  *out = (ad_resumption){.newest = found.checkpoint,
                         .is_over = is_over(&found, recipe->train.steps),
                         .finished = found.has_weights && found.is_finished ? found.steps : 0};
  return AD_OK;
}

ad_status ad_run_dump_folder(const ad_train_options *options, char **out) {
  char name[40];
  snprintf(name, sizeof name, "dump-%lld", (long long)options->dump_step);
  return ad_path_in(options->folder, name, out);
}

static int is_folder(const char *path) {
  struct stat found;
  return !lstat(path, &found) && S_ISDIR(found.st_mode);
}

static const char digits[] = "0123456789";

/* Returns 1 if `rest` may follow "rank" in the name of a file of a dump, finished or unfinished. */
static int ends_as_dumped(const char *rest) {
  static const char sum[] = ".sum", addend[] = ".addend.m", file[] = ".safetensors";
  size_t rank = strspn(rest, digits);
  rest += rank;
  if (!strncmp(rest, sum, sizeof sum - 1))
    rest += sizeof sum - 1;
  else if (!strncmp(rest, addend, sizeof addend - 1))
    rest += sizeof addend - 1 + strspn(rest + sizeof addend - 1, digits);
  return rank >= 5 && (!strcmp(rest, file) || ad_is_unfinished(rest, file));
}

/* Returns 1 if the name is one that the reducer gives to a file of a dump: "rank00003.sum.safetensors", or the same
 * after a module's name and a dot. */
static int is_dumped(const char *name) {
  static const char before[] = "rank";
  for (const char *at = strstr(name, before); at; at = strstr(at + 1, before))
    if ((at == name || at[-1] == '.') && ends_as_dumped(at + sizeof before - 1)) return 1;
  return 0;
}

static ad_status check_dumped(const char *folder, const char *name) {
  char *path;
  AD_TRY(ad_path_in(folder, name, &path));
  ad_status status = AD_OK;
  if (is_folder(path))
    status = ad_fail(AD_INVALID, "%s is a folder, but a file of this name must be written; move the folder away", path);
  ad_release(path);
  return status;
}

/* Refuses a folder that has the name of a file of a dump: it is not removed, so the file could not be written. */
static ad_status check_all_dumped(const char *path) {
  ad_status status = AD_OK;
  DIR *folder = opendir(path);
  if (!folder)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry && !status; entry = readdir(folder))
    if (is_dumped(entry->d_name)) status = check_dumped(path, entry->d_name);
  closedir(folder);
  return status;
}

static ad_status check_earlier_dump(const ad_train_options *options, const char *path) {
  struct stat found;
  if (lstat(path, &found)) return AD_OK;
  if (options->overwrite && S_ISDIR(found.st_mode)) return check_all_dumped(path);
  return ad_fail(AD_INVALID, "%s, the folder for the dump, exists already; move it away%s", path,
                 options->overwrite ? "" : ", or replace the run and its dumps with --overwrite");
}

/* Refuses a dump whose folder --overwrite does not clear. */
static ad_status check_dump(const ad_train_options *options) {
  char *path;
  if (!options->dumps) return AD_OK;
  AD_TRY(ad_run_dump_folder(options, &path));
  ad_status status = check_earlier_dump(options, path);
  ad_release(path);
  return status;
}

static ad_status check_is_folder(const char *path) {
  struct stat found;
  if (lstat(path, &found) || S_ISDIR(found.st_mode)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s is not a folder, but checkpoints are written to a folder of this name; move the file away", path);
}

/* Refuses symbolic links as the run's folder and as "checkpoints". Files in these folders are removed, so the folders
 * must be the run's own. */
static ad_status check_folders(const ad_train_options *options) {
  char *checkpoints;
  if (options->overwrite) AD_TRY(ad_folder_check_no_link(options->folder));
  AD_TRY(ad_path_in(options->folder, "checkpoints", &checkpoints));
  ad_status status = ad_folder_check_no_link(checkpoints);
  if (!status) status = check_is_folder(checkpoints);
  ad_release(checkpoints);
  return status;
}

/* Refuses folders that have the names of result files, because --overwrite does not remove them. Called before anything
 * is trained or removed. */
static ad_status check_results(const ad_train_options *options) {
  ad_status status = AD_OK;
  for (size_t i = 0; i < RESULTS && !status; i++) {
    char *path;
    AD_TRY(ad_path_in(options->folder, results[i], &path));
    if (!options->overwrite || is_folder(path)) status = ad_unfinished_check(path);
    ad_release(path);
  }
  return status;
}

/* With `resume`, a run that was killed before its first checkpoint begins again. But a run that has written its weights
 * is refused, so that they are not lost. */
ad_status ad_run_folder_check(const ad_recipe *recipe, const ad_train_options *options) {
  earlier found = {0};
  int64_t steps = recipe->train.steps;
  AD_TRY(check_folders(options));
  AD_TRY(check_dump(options));
  if (options->overwrite) return check_results(options);
  AD_TRY(look_at(recipe, options->folder, &found));
  if (options->resume && would_shrink(&found, steps)) return refuse_fewer(&found, steps, options->folder);
  int is_kept = options->resume ? found.has_weights && found.checkpoint < 0 && !is_over(&found, steps)
                                : found.steps || found.has_weights || found.checkpoint >= 0;
  if (is_kept) return refuse_earlier(&found, steps, options->folder);
  return is_over(&found, steps) || found.checkpoint >= steps ? AD_OK : check_results(options);
}

static ad_status remove_file(const char *folder, const char *name) {
  char *path;
  AD_TRY(ad_path_in(folder, name, &path));
  ad_status status = AD_OK;
  if (unlink(path) && errno != ENOENT)
    status = ad_fail(AD_IO, "%s: the path cannot be removed (%s); check the permissions of the folder", path,
                     strerror(errno));
  ad_release(path);
  return status;
}

static ad_status remove_checkpoints(const char *folder) {
  char *path;
  AD_TRY(ad_path_in(folder, "checkpoints", &path));
  ad_status status = AD_OK;
  while (!status && ad_checkpoint_newest(path) >= 0) status = ad_checkpoint_remove_older(path, INT64_MAX, 0);
  rmdir(path);  // fails if the folder has other files, which stay
  ad_release(path);
  return status;
}

static int is_dump(const char *name) {
  return !strncmp(name, "dump-", 5) && name[5] && !name[5 + strspn(name + 5, digits)];
}

/* Removes the files of a dump. A symbolic link of that name, or another file, is not addend's and stays. */
static ad_status remove_dump(const char *folder, const char *name) {
  char *path;
  int left = 0;
  AD_TRY(ad_path_in(folder, name, &path));
  ad_status status = is_folder(path) ? ad_folder_remove_known(path, is_dumped, &left) : AD_OK;
  if (left) ad_log(AD_LOG_INFO, "%s: files in this folder that addend did not write were not removed", path);
  ad_release(path);
  return status;
}

static ad_status remove_dumps(const char *path) {
  ad_status status = AD_OK;
  DIR *folder = opendir(path);
  if (!folder)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry && !status; entry = readdir(folder))
    if (is_dump(entry->d_name)) status = remove_dump(path, entry->d_name);
  closedir(folder);
  return status;
}

ad_status ad_run_folder_tidy(const char *folder) { return ad_unfinished_remove(folder, results, RESULTS); }

/* Removes the copies of files of model and data that the run.json of the earlier run lists. */
static ad_status remove_copied(const char *folder) {
  json_t *document, *name;
  size_t i;
  ad_status status = AD_OK;
  if (ad_provenance_read(folder, &document)) return AD_OK; /* run.json is damaged, so it is not known what was copied */
  json_array_foreach(json_object_get(document, "copied"), i, name) {
    const char *text = json_string_value(name);
    if (!status && text && ad_name_is_plain(text)) status = remove_file(folder, text);
  }
  json_decref(document);
  return status;
}

ad_status ad_run_folder_clear(const char *folder) {
  AD_TRY(remove_checkpoints(folder));
  AD_TRY(remove_dumps(folder));
  AD_TRY(remove_copied(folder));
  for (size_t i = 0; i < RESULTS; i++) AD_TRY(remove_file(folder, results[i]));
  return AD_OK;
}
