/* Names of checkpoints, and an order of renames and removals such that a folder with the name of a complete checkpoint
 * is always complete, even if the machine stops at any moment. Other files decide what is in a checkpoint. */
#include "checkpoint/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/checkpoint.h"
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "base/unfinished.h"

enum { NAME_SIZE = 48 };
static const char prefix[] = "step-";

// Returns the step in the name of a complete checkpoint, or -1 if `name` is not such a name.
static int64_t step_of(const char *name) {
  char again[NAME_SIZE];
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
  long long step = strtoll(name + sizeof prefix - 1, NULL, 10);
  snprintf(again, sizeof again, "%s%lld", prefix, step);
  return step >= 0 && !strcmp(name, again) ? step : -1;
}

// Inserts a step into the list, newest first, and returns the new count. If the list is full, the oldest step is
// dropped.
static int insert(int64_t steps[AD_CHECKPOINTS_LISTED], int count, int64_t step) {
  int at = count;
  while (at > 0 && steps[at - 1] < step) at--;
  if (at == AD_CHECKPOINTS_LISTED) return count;
  int kept = count < AD_CHECKPOINTS_LISTED ? count : AD_CHECKPOINTS_LISTED - 1;
  memmove(&steps[at + 1], &steps[at], (size_t)(kept - at) * sizeof *steps);
  steps[at] = step;
  return kept + 1;
}

int ad_checkpoint_steps(const char *path, int64_t steps[AD_CHECKPOINTS_LISTED]) {
  int count = 0;
  DIR *folder = opendir(path);
  if (!folder) return 0;
  for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    int64_t step = step_of(entry->d_name);
    if (step >= 0) count = insert(steps, count, step);
  }
  closedir(folder);
  return count;
}

int64_t ad_checkpoint_newest(const char *folder) {
  int64_t steps[AD_CHECKPOINTS_LISTED];
  return ad_checkpoint_steps(folder, steps) ? steps[0] : -1;
}

ad_status ad_checkpoint_path(const char *folder, int64_t step, const char *token, char **out) {
  char name[NAME_SIZE];
  snprintf(name, sizeof name, "%s%lld%s%s%s", prefix, (long long)step, token ? "." : "", token ? token : "",
           token ? ".tmp" : "");
  return ad_path_in(folder, name, out);
}

/* ---- removing checkpoints ---- */

/* Returns 1 if `name` is that of a rank's file, complete or unfinished. */
static int is_shard(const char *name) {
  static const char before[] = "rank-";
  if (strncmp(name, before, sizeof before - 1) != 0) return 0;
  const char *rank = name + sizeof before - 1;
  const char *rest = rank + strspn(rank, "0123456789");
  return rest > rank && (!strcmp(rest, ".safetensors") || ad_is_unfinished(rest, ".safetensors"));
}

/* Returns 1 if `name` is that of any file of a checkpoint, complete or unfinished. */
static int is_own_file(const char *name) {
  static const char index[] = "index.json";
  return is_shard(name) || !strcmp(name, index) || ad_is_unfinished(name, index);
}

/* Keeps a folder with files that addend did not write: renames it to a name that no checkpoint gets. */
static ad_status keep_others(const char *path) {
  char token[AD_TOKEN_SIZE], *name;
  size_t size = strlen(path) + sizeof token + sizeof "..others";
  AD_TRY(ad_new(size, &name));
  ad_token_print(ad_token_bits(), token);
  snprintf(name, size, "%s.%s.others", path, token);
  ad_status status = AD_OK;
  if (rename(path, name))
    status = ad_fail(AD_IO, "%s: the path cannot be renamed to %s (%s); check the permissions of the folder", path,
                     name, strerror(errno));
  if (!status)
    ad_log(AD_LOG_INFO,
           "%s: a checkpoint was to be removed, but its folder was kept under this name, because it has files that "
           "addend did not write",
           name);
  ad_release(name);
  return status;
}

static ad_status remove_checkpoint(const char *path) {
  int left;
  AD_TRY(ad_folder_remove_known(path, is_own_file, &left));
  return left ? keep_others(path) : AD_OK;
}

static ad_status remove_named(const char *folder, const char *name) {
  char *path;
  AD_TRY(ad_path_in(folder, name, &path));
  ad_status status = remove_checkpoint(path);
  ad_release(path);
  return status;
}

ad_status ad_checkpoint_clean(const char *path) {
  ad_status status = AD_OK;
  DIR *folder = opendir(path);
  if (!folder)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry && !status; entry = readdir(folder)) {
    if (!fnmatch("step-*.tmp", entry->d_name, 0)) status = remove_named(path, entry->d_name);
  }
  closedir(folder);
  return status;
}

static ad_status move_folder(const char *from, const char *to) {
  if (!rename(from, to)) return AD_OK;
  return ad_fail(AD_IO, "%s: the path cannot be renamed to %s (%s); check the permissions of the folder", from, to,
                 strerror(errno));
}

/* Makes the path "FOLDER/step-N.old.tmp", to which a checkpoint is renamed before it is removed. */
static ad_status leaving_path(const char *folder, int64_t step, char **out) {
  char name[NAME_SIZE];
  snprintf(name, sizeof name, "%s%lld.old.tmp", prefix, (long long)step);
  return ad_path_in(folder, name, out);
}

static ad_status remove_leaving(const char *folder, int64_t step) {
  char *leaving;
  AD_TRY(leaving_path(folder, step, &leaving));
  ad_status status = remove_checkpoint(leaving);
  ad_release(leaving);
  return status;
}

/* Renames a checkpoint so that its name is free; its files are removed later. A missing checkpoint is no error. */
static ad_status set_aside(const char *folder, int64_t step) {
  char *complete = NULL, *leaving = NULL;
  ad_status status = remove_leaving(folder, step);
  if (!status) status = ad_checkpoint_path(folder, step, NULL, &complete);
  if (!status) status = leaving_path(folder, step, &leaving);
  if (!status && rename(complete, leaving) && errno != ENOENT)
    status = ad_fail(AD_IO, "%s: the path cannot be removed (%s); check the permissions of the folder", complete,
                     strerror(errno));
  ad_release(complete);
  ad_release(leaving);
  return status;
}

/* Undoes set_aside if that renamed a checkpoint. */
static void put_back(const char *folder, int64_t step) {
  char *complete = NULL, *leaving = NULL;
  if (!ad_checkpoint_path(folder, step, NULL, &complete) && !leaving_path(folder, step, &leaving) &&
      rename(leaving, complete) && errno != ENOENT)
    ad_log(AD_LOG_WARNING,
           "%s: this is the earlier checkpoint, which could not be renamed back to %s (%s); rename the folder yourself",
           leaving, complete, strerror(errno));
  ad_release(complete);
  ad_release(leaving);
}

/* Renames the new checkpoint to its final name, and returns when the rename is on disk. */
static ad_status move_in(const char *folder, const char *written, const char *complete) {
  AD_TRY(move_folder(written, complete));
  ad_status status = ad_folder_sync(folder);
  if (status && rename(complete, written))
    return ad_fail_in(status,
                      "the checkpoint %s is written, but its name may be lost if the machine stops now; check the disk",
                      complete);
  return status;
}

/* Gives the new checkpoint its final name. If that fails, an earlier checkpoint of the same step gets its name back. */
static ad_status exchange(const char *folder, int64_t step, const char *written, const char *complete) {
  char message[AD_MESSAGE_MAX];
  AD_TRY(set_aside(folder, step));
  ad_status status = move_in(folder, written, complete);
  if (!status) return AD_OK;
  snprintf(message, sizeof message, "%s", ad_last_error());
  put_back(folder, step);
  return ad_fail(status, "%s", message);
}

ad_status ad_checkpoint_place(const char *folder, int64_t step, const char *token) {
  char *written = NULL, *complete = NULL;
  ad_status status = ad_checkpoint_path(folder, step, token, &written);
  if (!status) status = ad_checkpoint_path(folder, step, NULL, &complete);
  if (!status) status = exchange(folder, step, written, complete);
  ad_release(written);
  ad_release(complete);
  return status;
}

ad_status ad_checkpoint_remove_older(const char *folder, int64_t step, int64_t keep) {
  int64_t steps[AD_CHECKPOINTS_LISTED], kept = 0;
  int count = ad_checkpoint_steps(folder, steps);
  ad_status status = remove_leaving(folder, step);
  for (int i = 0; i < count && !status; i++) {
    if (steps[i] > step || ++kept <= keep) continue;
    status = set_aside(folder, steps[i]);
    if (!status) status = remove_leaving(folder, steps[i]);
  }
  return status;
}
