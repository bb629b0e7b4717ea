/* Finding a model's files in its folder, and saying what to do where they are others. */
#include "architecture/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"

static int has(const char *folder, const char *name) {
  char *path;
  if (ad_path_in(folder, name, &path)) return 0;
  int found = !access(path, F_OK);
  ad_release(path);
  return found;
}

static int begins(const char *name, const char *start) { return !strncmp(name, start, strlen(start)); }

static int ends(const char *name, const char *end) {
  size_t length = strlen(name), tail = strlen(end);
  return length >= tail && !strcmp(name + length - tail, end);
}

static int is_metas(const char *name) { return begins(name, "consolidated.") && ends(name, ".pth"); }

static int is_pickled(const char *name) {
  return ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth") || ends(name, ".bin.index.json");
}

/* The first name in the folder that is one of these, "" where none is. */
static void find_one(const char *path, int (*is_one)(const char *name), char *out, size_t size) {
  DIR *folder = opendir(path);
  *out = 0;
  if (!folder) return;
  for (const struct dirent *entry = readdir(folder); entry && !*out; entry = readdir(folder))
    if (is_one(entry->d_name)) snprintf(out, size, "%s", entry->d_name);
  closedir(folder);
}

static ad_status refuse_config(const char *folder) {
  char name[256];
  find_one(folder, is_metas, name, sizeof name);
  if (*name || has(folder, "params.json"))
    return ad_fail(AD_INVALID,
                   "%s: holds Meta's own files (%s), in which heads lie otherwise: take the model as Transformers "
                   "saves it, with a config.json, or convert these with Transformers' convert_llama_weights_to_hf.py",
                   folder, *name ? name : "params.json");
  if (access(folder, F_OK)) return ad_fail(AD_IO, "%s: %s", folder, strerror(errno));
  return ad_fail(AD_IO, "%s: has no config.json: name the folder of a model as Transformers saves it", folder);
}

ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) {
  AD_TRY(ad_path_in(folder, "config.json", path));
  return access(*path, F_OK) ? refuse_config(folder) : ad_config_read(*path, out);
}

static ad_status refuse_weights(const char *folder) {
  char name[256];
  find_one(folder, is_pickled, name, sizeof name);
  if (*name)
    return ad_fail(AD_INVALID,
                   "%s: holds pickled weights (%s), and reading those runs what is in them: load them once in Python "
                   "and write them with save_pretrained, which makes safetensors",
                   folder, name);
  return ad_fail(AD_IO, "%s: has neither model.safetensors nor model.safetensors.index.json", folder);
}

ad_status ad_pretrained_weights(const char *folder, ad_weights **out) {
  static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
  char *path;
  size_t i = 0;
  while (i < 2 && !has(folder, names[i])) i++;
  if (i == 2) return refuse_weights(folder);
  AD_TRY(ad_path_in(folder, names[i], &path));
  ad_status status = ad_weights_open(path, out);
  ad_release(path);
  return status;
}
