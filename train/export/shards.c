/* Divides a list of tensors into files (shards), and writes the files and their index. */
#include "export/shards.h"

#include <jansson.h>
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/unfinished.h"
#include "files/file.h"

enum { NAME_SIZE = 64 };

typedef struct sharding {
  const char *folder;
  const ad_export_tensor *tensors;
  size_t count;
  int64_t shard_bytes;
  ad_export_fill *fill;
  void *context;
  int64_t files, bytes;
  void *memory; /* large enough for the largest tensor */
  json_t *map;  /* the map of the index from names of tensors to names of files */
} sharding;

static int64_t tensor_bytes(const ad_export_tensor *tensor) {
  return ad_shape_numel(&tensor->shape) * (int64_t)ad_dtype_size(tensor->dtype);
}

/* Returns the index of the first tensor that is not in the shard that begins with tensor `first`. */
static size_t end_of(const sharding *s, size_t first) {
  int64_t bytes = tensor_bytes(&s->tensors[first]);
  size_t end = first + 1;
  while (end < s->count && bytes + tensor_bytes(&s->tensors[end]) <= s->shard_bytes)
    bytes += tensor_bytes(&s->tensors[end++]);
  return end;
}

static void count_files(sharding *s) {
  for (size_t at = 0; at < s->count; at = end_of(s, at)) s->files++;
  for (size_t i = 0; i < s->count; i++) s->bytes += tensor_bytes(&s->tensors[i]);
}

static ad_status make_memory(sharding *s) {
  int64_t most = 1;
  char *memory;
  for (size_t i = 0; i < s->count; i++)
    most = tensor_bytes(&s->tensors[i]) > most ? tensor_bytes(&s->tensors[i]) : most;
  AD_TRY(ad_new((size_t)most, &memory));
  s->memory = memory;
  return AD_OK;
}

/* ---- writing one file ---- */

/* Creates the file for tensors [first, end), with the metadata that Transformers expects in its header. */
static ad_status create_writer(const sharding *s, const char *path, size_t first, size_t end,
                               ad_safetensors_writer **out) {
  static const char *const metadata[] = {"format", "pt", NULL};
  ad_safetensor *list;
  AD_TRY(ad_new(end - first, &list));
  for (size_t i = first; i < end; i++)
    list[i - first] =
        (ad_safetensor){.name = s->tensors[i].name, .dtype = s->tensors[i].dtype, .shape = s->tensors[i].shape};
  ad_status status = ad_safetensors_create(path, list, end - first, metadata, out);
  ad_release(list);
  return status;
}

static ad_status write_tensors(const sharding *s, size_t first, size_t end, ad_safetensors_writer *writer) {
  for (size_t i = first; i < end; i++) {
    AD_TRY(s->fill(s->context, &s->tensors[i], s->memory));
    AD_TRY(ad_safetensors_add(writer, s->memory));
  }
  return ad_safetensors_finish(writer, NULL, NULL);
}

static ad_status write_file(const sharding *s, const char *name, size_t first, size_t end) {
  ad_safetensors_writer *writer = NULL;
  char *path;
  AD_TRY(ad_path_in(s->folder, name, &path));
  ad_status status = create_writer(s, path, first, end, &writer);
  if (!status) status = write_tensors(s, first, end, writer);
  ad_safetensors_writer_destroy(writer);
  ad_release(path);
  return status;
}

/* ---- writing all files ---- */

static ad_status write_files(sharding *s) {
  char name[NAME_SIZE] = "model.safetensors";
  int64_t number = 1;
  for (size_t first = 0, end; first < s->count; first = end, number++) {
    end = end_of(s, first);
    if (s->files > 1)
      snprintf(name, sizeof name, "model-%05lld-of-%05lld.safetensors", (long long)number, (long long)s->files);
    AD_TRY(write_file(s, name, first, end));
    for (size_t i = first; i < end; i++) json_object_set_new(s->map, s->tensors[i].name, json_string(name));
  }
  return AD_OK;
}

static ad_status print_index(FILE *file, void *context) {
  const sharding *s = context;
  json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)s->bytes, "weight_map", s->map);
  int failed = !index || json_dumpf(index, file, JSON_INDENT(2) | JSON_SORT_KEYS);
  json_decref(index);
  fputs("\n", file);
  return failed && !ferror(file) ? ad_fail(AD_MEMORY, "no memory to write an index") : AD_OK;
}

static ad_status write_index(sharding *s) {
  char *path;
  if (s->files < 2) return AD_OK;
  AD_TRY(ad_path_in(s->folder, "model.safetensors.index.json", &path));
  ad_status status = ad_unfinished_write(path, print_index, s, NULL);
  ad_release(path);
  return status;
}

ad_status ad_export_shards(const char *folder, const ad_export_tensor *tensors, size_t count, int64_t shard_bytes,
                           ad_export_fill *fill, void *context, int64_t *files, int64_t *bytes) {
  sharding s = {folder, tensors, count, shard_bytes, fill, context, .map = json_object()};
  count_files(&s);
  ad_status status = make_memory(&s);
  if (!status) status = write_files(&s);
  if (!status) status = write_index(&s);
  ad_release(s.memory);
  json_decref(s.map);
  *files = s.files;
  *bytes = s.bytes;
  return status;
}
