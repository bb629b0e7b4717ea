/* Writes the account of a step: a dump of every rank's addends and sums, with one folder for each module. Reads the
 * causes of wrong gradients from the account, and removes it again. */
#include "check/account.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "addend/diff.h"
#include "addend/safetensors.h"
#include "base/memory.h"
#include "check/computed.h"
#include "check/mutants.h"
#include "comm/agree.h"
#include "files/file.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/run.h"

static size_t modules(const ad_checker *checker) { return ad_program_module_count(ad_run_program(checker->run)); }

static void name_folder(const ad_checker *checker, size_t module, char *out, size_t size) {
  snprintf(out, size, "%s-%zu", checker->account, module);
}

/* ---- before the step: making the folders ---- */

static const char memory[] = "/dev/shm";
enum { STALE_SECONDS = 600 };

/* Returns the id of the process that started the ranks whose account is at `path`; -1 if `path` is no account of this
 * user. */
static int owner_of(const char *path, const char *name, struct stat *status) {
  int pid;
  if (sscanf(name, "account-%d-", &pid) != 1 || lstat(path, status) || status->st_uid != geteuid()) return -1;
  return pid;
}

static int is_stale(int pid, const struct stat *status) {
  return kill(pid, 0) && errno == ESRCH && time(NULL) - status->st_mtime > STALE_SECONDS;
}

/* Removes accounts that killed processes left, and all accounts of process `pid`. */
static void remove_accounts(int pid) {
  DIR *folder = opendir(memory);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    char path[AD_ACCOUNT_PATH + 256];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", memory, entry->d_name);
    int owner = owner_of(path, entry->d_name, &status);
    if (owner < 0 || (owner != pid && !is_stale(owner, &status))) continue;
    if (ad_folder_remove(path)) continue; /* a folder that cannot be removed stays, and does no harm */
  }
  if (folder) closedir(folder);
}

void ad_account_remove_left(void) { remove_accounts((int)getpid()); }

/* Returns 1 if the dump fits into half of the free memory: every rank's gradients of every microbatch, their sums, and
 * the reference's gradients, each counted as f64, which is at least their size. */
static int has_room(const ad_checker *checker) {
  struct statvfs room;
  double bytes = 0;
  for (size_t i = 0; i < checker->param_count; i++)
    bytes += (double)ad_shape_numel(&ad_run_param_at(checker->run, i).spec->shape) * sizeof(double);
  bytes *= (double)(ad_recipe_rounds(checker->job->recipe) + 1) * (double)ad_comm_size(checker->comm) + 1;
  return !statvfs(memory, &room) && bytes < (double)room.f_bavail * (double)room.f_frsize / 2;
}

/* Makes the account's folders in memory (/dev/shm), because the files are read once, soon after they are written, and
 * then removed. If there is too little memory, there is no account. */
static ad_status make_folders(ad_checker *checker) {
  remove_accounts(-1);
  snprintf(checker->account, sizeof checker->account, "%s/account-%d-XXXXXX", memory, (int)getppid());
  if (!has_room(checker) || !mkdtemp(checker->account)) {
    *checker->account = 0;
    return AD_OK;
  }
  for (size_t m = 0; m < modules(checker); m++) {
    char folder[AD_ACCOUNT_PATH + 24];
    name_folder(checker, m, folder, sizeof folder);
    AD_TRY(ad_folder_make(folder));
  }
  return AD_OK;
}

/* Sends all ranks the path of the account. If a rank cannot open the folder, for instance on another machine, no rank
 * has an account. */
static ad_status share_folder(ad_checker *checker) {
  int64_t words[AD_ACCOUNT_PATH / sizeof(int64_t)];
  memcpy(words, checker->account, sizeof words);
  AD_TRY(ad_share_first(checker->comm, &checker->everyone, words, sizeof words / sizeof *words, AD_HERE));
  memcpy(checker->account, words, sizeof words);
  int32_t cannot_write = !*checker->account || access(checker->account, R_OK | W_OK | X_OK) != 0;
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = checker->everyone,
                        .in = &cannot_write,
                        .out = &cannot_write,
                        .count = 1};
  call.dtype = AD_I32;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  AD_TRY(ad_comm_run(checker->comm, &call));
  checker->has_account = !cannot_write;
  return AD_OK;
}

/* Asks module m's reducer to dump the step. The reducer refuses with AD_INVALID if no mesh has the axes of all its
 * parameters, or if it has leaves; then the module has no account. */
static ad_status ask(ad_checker *checker, size_t m, int64_t step) {
  ad_module *module = ad_run_module(checker->run, m);
  char folder[AD_ACCOUNT_PATH + 24];
  if (!module) return AD_OK;
  name_folder(checker, m, folder, sizeof folder);
  ad_status status = ad_reducer_dump(ad_module_reducer(module), folder, 0, step);
  return status == AD_INVALID ? AD_OK : status;
}

ad_status ad_account_begin(ad_checker *checker, int64_t step) {
  ad_status status = checker->reference ? make_folders(checker) : AD_OK;
  AD_TRY(ad_agree(checker->comm, &checker->everyone, status, AD_HERE));
  AD_TRY(share_folder(checker));
  for (size_t m = 0; m < modules(checker) && checker->has_account; m++) AD_TRY(ask(checker, m, step));
  return AD_OK;
}

/* ---- after the step: reading and removing the account ---- */

/* Lists the gradients of module m's parameters for the file of reference gradients. Returns the number of gradients. */
static size_t list_full(const ad_checker *checker, size_t m, ad_safetensor *list) {
  size_t count = 0;
  for (size_t i = 0; i < checker->param_count; i++) {
    ad_run_param at = ad_run_param_at(checker->run, i);
    const ad_array *full = ad_reference_gradient(checker->reference, i);
    if (at.module != m || !full) continue;
    list[count++] =
        (ad_safetensor){.name = at.spec->name, .dtype = full->dtype, .shape = at.spec->shape, .data = full->data};
  }
  return count;
}

static ad_status write_list(const char *path, const ad_safetensor *list, size_t count) {
  static const char *const kind[] = {"addend.version", "1", "addend.kind", "reference", NULL};
  ad_safetensors_writer *writer;
  AD_TRY(ad_safetensors_create(path, list, count, kind, &writer));
  ad_status status = AD_OK;
  for (size_t i = 0; i < count && !status; i++) status = ad_safetensors_add(writer, list[i].data);
  if (!status) status = ad_safetensors_finish(writer, NULL, NULL);
  ad_safetensors_writer_destroy(writer);
  return status;
}

/* Writes one process's gradients beside those of the ranks. From them `addend diff` finds out whether the addends with
 * other weights would give the reference's gradient. */
static ad_status write_reference(const ad_checker *checker, size_t m) {
  char path[AD_ACCOUNT_PATH + 48];
  ad_safetensor *list;
  name_folder(checker, m, path, sizeof path);
  snprintf(path + strlen(path), 24, "/reference.safetensors");
  AD_TRY(ad_new(checker->param_count, &list));
  ad_status status = write_list(path, list, list_full(checker, m, list));
  ad_release(list);
  return status;
}

/* Runs `addend diff` on module m's dump, and sets the causes of the module's parameters that are wrong in this step. */
static ad_status read_module(ad_checker *checker, size_t m, int64_t step) {
  char folder[AD_ACCOUNT_PATH + 24], *json = NULL;
  const char *const files[] = {folder};
  ad_diff_options options = {.size = sizeof options, .allow_identical = 1};
  ad_check_result *result = checker->job->result;
  int holds;
  name_folder(checker, m, folder, sizeof folder);
  if (checker->job->recipe->train.microbatches > 1) AD_TRY(write_reference(checker, m));
  if (ad_diff(files, 1, &options, &holds, &json)) json = NULL; /* there is no dump of this module */
  json_t *document = json ? json_loads(json, 0, NULL) : NULL;
  free(json);
  for (size_t i = 0; i < result->param_count; i++) {
    if (ad_run_param_at(checker->run, i).module == m && result->params[i].step == step && !result->params[i].frozen)
      ad_account_judge(checker, document, i, &result->params[i]);
  }
  json_decref(document);
  return AD_OK;
}

static ad_status read_modules(ad_checker *checker, int64_t step) {
  if (!checker->places.count) AD_TRY(ad_derived_places(checker->job->recipe, &checker->places));
  for (size_t m = 0; m < modules(checker); m++) AD_TRY(read_module(checker, m, step));
  ad_computed_explain(&checker->places, checker->job->result);
  return AD_OK;
}

static ad_status remove_folders(ad_checker *checker) {
  for (size_t m = 0; m < modules(checker); m++) {
    char folder[AD_ACCOUNT_PATH + 24];
    name_folder(checker, m, folder, sizeof folder);
    AD_TRY(ad_folder_remove(folder));
  }
  return ad_folder_remove(checker->account);
}

ad_status ad_account_end(ad_checker *checker, int64_t step, int reads) {
  ad_status status = checker->has_account ? ad_account_compare_counts(checker) : AD_OK;
  if (checker->reference && *checker->account) {
    if (reads && checker->has_account && !status) status = read_modules(checker, step);
    ad_status removed = remove_folders(checker);
    if (!status) status = removed;
  }
  checker->has_account = 0;
  return ad_agree(checker->comm, &checker->everyone, status, AD_HERE);
}
