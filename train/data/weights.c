/* Opens weights, which are one file or an index with several files, and finds tensors in them. */
#include "data/weights.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/file.h"
#include "files/safetensors.h"

enum { WORDS = 768 };

struct ad_weights {
  char *path;
  ad_safetensors **files;
  size_t count;
};

/* An index whose files are being opened. */
typedef struct opening {
  const char *path;    /* path of the index */
  json_t *map;         /* the index's map from names of tensors to names of files */
  const char **names;  /* names of the files, sorted; the map owns them */
  ad_weights *weights; /* the opened files, in the order of `names` */
} opening;

/* ---- the files of an index ---- */

static int by_bytes(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Lists the names of the files in the index, sorted and each once. */
static ad_status list_files(opening *o, size_t *out) {
  const char *tensor;
  json_t *file;
  size_t listed = 0, count = 0;
  AD_TRY(ad_new(json_object_size(o->map), &o->names));
  json_object_foreach(o->map, tensor, file) o->names[listed++] = json_string_value(file);
  qsort(o->names, listed, sizeof *o->names, by_bytes);
  for (size_t i = 0; i < listed; i++)
    if (!count || strcmp(o->names[count - 1], o->names[i]) != 0) o->names[count++] = o->names[i];
  if (count > AD_WEIGHTS_FILES_MAX)
    return ad_fail(AD_INVALID,
                   "%s: the index names %zu files, but at most %d are allowed; write the weights to fewer files",
                   o->path, count, AD_WEIGHTS_FILES_MAX);
  *out = count;
  return AD_OK;
}

/* Opens a file that the index names, in the folder of the index. If the index is a symbolic link, this is the folder of
 * the link, not that of its target. */
static ad_status open_beside(const char *index, const char *name, ad_safetensors **out) {
  char *folder, *path;
  AD_TRY(ad_copy_string(index, &folder));
  char *end = strrchr(folder, '/');
  if (end) *end = 0;
  ad_status status = ad_path_in(end ? folder : ".", name, &path);
  ad_release(folder);
  if (status) return status;
  status = ad_safetensors_open(path, out);
  ad_release(path);
  return status;
}

/* Opens all files of the index. The error names every file that cannot be opened. */
static ad_status open_files(opening *o) {
  char words[WORDS] = "";
  ad_text text = ad_text_on(words, sizeof words);
  size_t files = 0, unusable = 0;
  ad_status first = AD_OK;
  AD_TRY(list_files(o, &files));
  AD_TRY(ad_new(files, &o->weights->files));
  for (; o->weights->count < files; o->weights->count++) {
    size_t at = o->weights->count;
    ad_status status = open_beside(o->path, o->names[at], &o->weights->files[at]);
    if (status) ad_text_list(&text, &unusable, "", "%s", ad_last_error());
    if (!first) first = status;
  }
  return first ? ad_fail(first, "%s: %s", o->path, words) : AD_OK;
}

/* ---- comparing the index with its files ---- */

/* Adds to `text` the tensors that the index lists but that their files do not have. */
static void list_missing(const opening *o, ad_text *text) {
  const char *tensor;
  json_t *file;
  size_t count = 0;
  json_object_foreach(o->map, tensor, file) {
    const char *name = json_string_value(file);
    const char **at = bsearch(&name, o->names, o->weights->count, sizeof name, by_bytes);
    if (!ad_safetensors_find(o->weights->files[at - o->names], tensor))
      ad_text_list(text, &count, "; missing in its file: ", "%.80s in %.80s", tensor, name);
  }
}

/* Adds to `text` the tensors that the files have but that the index does not list. */
static void list_unlisted(const opening *o, ad_text *text) {
  size_t count = 0;
  for (size_t i = 0; i < o->weights->count; i++) {
    for (size_t t = 0; t < ad_safetensors_count(o->weights->files[i]); t++) {
      const char *tensor = ad_safetensors_at(o->weights->files[i], t)->name;
      const char *listed = json_string_value(json_object_get(o->map, tensor));
      if (!listed || strcmp(listed, o->names[i]) != 0)
        ad_text_list(text, &count, "; not in the index: ", "%.80s in %.80s", tensor, o->names[i]);
    }
  }
}

static ad_status check_listed(const opening *o) {
  char words[WORDS] = "";
  ad_text text = ad_text_on(words, sizeof words);
  list_missing(o, &text);
  list_unlisted(o, &text);
  return text.used
             ? ad_fail(AD_INVALID,
                       "%s: the index of these weights does not match its files%s; copy all files of the model again",
                       o->path, words)
             : AD_OK;
}

/* ---- opening and closing files of weights ---- */

static ad_status read_map(const char *path, json_t **out) {
  char *text;
  int64_t size;
  AD_TRY(ad_file_read(path, AD_SAFETENSORS_HEADER_MAX, &text, &size));
  ad_status status = ad_weights_map_parse(text, (size_t)size, path, out);
  ad_release(text);
  return status;
}

static ad_status open_shards(const char *path, ad_weights *out) {
  opening o = {.path = path, .weights = out};
  AD_TRY(read_map(path, &o.map));
  ad_status status = open_files(&o);
  if (!status) status = check_listed(&o);
  ad_release(o.names);
  json_decref(o.map);
  return status;
}

static ad_status open_one(const char *path, ad_weights *out) {
  AD_TRY(ad_new(1, &out->files));
  out->count = 1;
  return ad_safetensors_open(path, &out->files[0]);
}

static int is_index(const char *path) {
  size_t length = strlen(path);
  return length >= strlen(".json") && !strcmp(path + length - strlen(".json"), ".json");
}

ad_status ad_weights_open(const char *path, ad_weights **out) {
  AD_NEED(path, out);
  ad_weights *weights;
  AD_TRY(ad_new(1, &weights));
  ad_status status = ad_copy_string(path, &weights->path);
  if (!status) status = is_index(path) ? open_shards(path, weights) : open_one(path, weights);
  if (status)
    ad_weights_close(weights);
  else
    *out = weights;
  return status;
}

void ad_weights_close(ad_weights *weights) {
  if (!weights) return;
  for (size_t i = 0; i < weights->count; i++) ad_safetensors_close(weights->files[i]);
  ad_release(weights->files);
  ad_release(weights->path);
  ad_release(weights);
}

const char *ad_weights_path(const ad_weights *weights) { return weights ? weights->path : ""; }

const ad_safetensors *ad_weights_file(const ad_weights *weights, size_t i) {
  return weights && i < weights->count ? weights->files[i] : NULL;
}

const ad_safetensor *ad_weights_find(const ad_weights *weights, const char *name) {
  const ad_safetensor *found = NULL;
  if (!weights || !name) return NULL;
  for (size_t i = 0; i < weights->count && !found; i++) found = ad_safetensors_find(weights->files[i], name);
  return found;
}
