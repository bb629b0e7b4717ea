/* Finds a model's files in its folder. If the files have other formats, the error explains how to convert them. */
#include "architecture/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "files/output.h"

static int has_file(const char *folder, const char *name) {
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

/* Returns 1 if the file has weights in Meta's own format. */
static int is_metas(const char *name) { return begins(name, "consolidated.") && ends(name, ".pth"); }

/* Returns 1 if the file has weights in Python's pickle format. */
static int is_pickled(const char *name) {
  return ends(name, ".bin") || ends(name, ".pt") || ends(name, ".pth") || ends(name, ".bin.index.json");
}

/* Writes to `out` the first name in the folder for which `is_one` returns 1, or "" if there is none. */
static void find_one(const char *path, int (*is_one)(const char *name), char *out, size_t size) {
  DIR *folder = opendir(path);
  *out = 0;
  if (!folder) return;
  for (const struct dirent *entry = readdir(folder); entry && !*out; entry = readdir(folder))
    if (is_one(entry->d_name)) snprintf(out, size, "%s", entry->d_name);
  closedir(folder);
}

/* Returns an error that explains why a folder without a config.json cannot be read. */
static ad_status refuse_config(const char *folder) {
  char name[256];
  find_one(folder, is_metas, name, sizeof name);
  if (*name || has_file(folder, "params.json"))
    return ad_fail(AD_INVALID,
                   "%s: this folder has Meta's own files (%s), which store attention heads in another order than "
                   "Transformers. Name the folder of the model as Transformers saves it, with a config.json, or "
                   "convert the files with Transformers' convert_llama_weights_to_hf.py",
                   folder, *name ? name : "params.json");
  if (access(folder, F_OK)) return ad_fail(AD_IO, "%s: %s", folder, strerror(errno));
  return ad_fail(AD_IO, "%s: this folder has no config.json; name the folder of a model as Transformers saves it",
                 folder);
}

ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) {
  AD_TRY(ad_path_in(folder, "config.json", path));
  if (!access(*path, F_OK)) return ad_config_read(*path, out);
  return errno == EACCES ? ad_fail(AD_IO, "%s: %s", folder, strerror(EACCES)) : refuse_config(folder);
}

/* Returns an error that explains why a folder without safetensors files cannot be read. */
static ad_status refuse_weights(const char *folder) {
  char name[256];
  find_one(folder, is_pickled, name, sizeof name);
  if (*name)
    return ad_fail(AD_INVALID,
                   "%s: this folder has pickled weights (%s), which addend does not read, because a pickle can run any "
                   "code. Load the model once in Python and write it with save_pretrained, which makes safetensors",
                   folder, name);
  return ad_fail(AD_IO,
                 "%s: this folder has neither model.safetensors nor model.safetensors.index.json; name the folder of a "
                 "model as Transformers saves it",
                 folder);
}

ad_status ad_pretrained_weights(const char *folder, ad_weights **out) {
  static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
  char *path;
  size_t i = 0;
  while (i < 2 && !has_file(folder, names[i])) i++;
  if (i == 2) return refuse_weights(folder);
  AD_TRY(ad_path_in(folder, names[i], &path));
  ad_status status = ad_weights_open(path, out);
  ad_release(path);
  return status;
}

/* ---- copying the files beside the weights ---- */

const char *const ad_pretrained_files[AD_PRETRAINED_FILES] = {"config.json",
                                                              "generation_config.json",
                                                              "tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "special_tokens_map.json",
                                                              "tokenizer.model",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "added_tokens.json",
                                                              "chat_template.jinja"};

static ad_status write_bytes(const char *path, const char *bytes, int64_t size) {
  ad_output *output;
  AD_TRY(ad_output_open(path, &output));
  ad_status status = ad_output_write(output, bytes, (size_t)size);
  if (!status) status = ad_output_sync(output, NULL);
  ad_output_close(output);
  return status;
}

static ad_status copy_bytes(const char *path, const char *to) {
  enum { BYTES_MAX = 1 << 30 };
  char *bytes;
  int64_t size;
  AD_TRY(ad_file_read(path, BYTES_MAX, &bytes, &size));
  ad_status status = write_bytes(to, bytes, size);
  ad_release(bytes);
  return status;
}

/* Copies a file into the folder `to`; does nothing if the file does not exist. */
static ad_status copy_file(const char *folder, const char *name, const char *to) {
  char *from_path, *to_path;
  if (!has_file(folder, name)) return AD_OK;
  AD_TRY(ad_path_in(folder, name, &from_path));
  ad_status status = ad_path_in(to, name, &to_path);
  if (!status) {
    status = copy_bytes(from_path, to_path);
    ad_release(to_path);
  }
  ad_release(from_path);
  return status;
}

ad_status ad_pretrained_copy(const char *folder, const char *to) {
  for (int i = 0; i < AD_PRETRAINED_FILES; i++) AD_TRY(copy_file(folder, ad_pretrained_files[i], to));
  return AD_OK;
}
