/* Reads safetensors files. Every number of a header is checked before it is used. */
#include "files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "files/header_text.h"
#include "files/json.h"

struct ad_safetensors {
  /* The fields that a search reads come first: if there are many files, a file's struct is not in the processor's cache
   * when the file is searched, and so fewer lines are fetched. */
  ad_safetensor *tensors; /* in the order of names */
  size_t count;
  /* index of the tensor found last; most searches are for the same tensor again, or for the next one */
  _Atomic size_t last;
  char *path;
  void *mapping; /* NULL: the caller owns the bytes, which are not mapped */
  size_t mapped;
  const char *data; /* the bytes after the header */
  size_t data_bytes;
  json_t *names; /* owns the tensors' names; several files that have the same tensors share it */
  ad_header_text text;
};

enum { LENGTH_BYTES = 8 };

const char *ad_safetensors_dtype_name(ad_dtype dtype) {
  return ad_safetensors_takes(dtype) ? ad_dtype_of(dtype)->safetensors : NULL;
}

int ad_safetensors_takes(ad_dtype dtype) { return ad_dtype_is_of_arrays(dtype) && ad_dtype_of(dtype)->safetensors; }

ad_dtype ad_safetensors_dtype(const char *name) {
  for (ad_dtype dtype = AD_F64; ad_dtype_of(dtype); dtype++)
    if (ad_safetensors_takes(dtype) && !strcmp(ad_dtype_of(dtype)->safetensors, name)) return dtype;
  return 0;
}

/* ---- reading one tensor's entry in the header ---- */

static ad_status wrong(const ad_safetensors *file, const char *name, const char *what) {
  return ad_fail(AD_INVALID, "%s is not a safetensors file, because tensor \"%.80s\" %s; write the file again",
                 file->path, name, what);
}

static ad_status read_dtype(const ad_safetensors *file, const json_t *entry, ad_safetensor *tensor) {
  const char *name = json_string_value(json_object_get(entry, "dtype"));
  if (!name) return wrong(file, tensor->name, "has no `dtype`");
  tensor->dtype = ad_safetensors_dtype(name);
  if (tensor->dtype) return AD_OK;
  char dtypes[AD_DTYPES_TEXT];
  return ad_fail(
      AD_INVALID,
      "%s: tensor \"%.80s\" has dtype %.20s, but only %s can be read; write the tensor in one of these dtypes",
      file->path, tensor->name, name, ad_dtypes_print(ad_safetensors_takes, "safetensors", "and", dtypes));
}

/* Reads a tensor's shape and computes its size in bytes. */
static ad_status read_shape(const ad_safetensors *file, const json_t *entry, ad_safetensor *tensor) {
  const json_t *shape = json_object_get(entry, "shape");
  if (!json_is_array(shape)) return wrong(file, tensor->name, "has no `shape`");
  if (json_array_size(shape) > AD_DIMS_MAX)
    return ad_fail(
        AD_INVALID,
        "%s: tensor \"%.80s\" has %zu dimensions, but at most %d are allowed; write the tensor with fewer dimensions",
        file->path, tensor->name, json_array_size(shape), AD_DIMS_MAX);
  tensor->shape.ndim = (int)json_array_size(shape);
  tensor->bytes = ad_dtype_size(tensor->dtype);
  int overflows = 0;
  for (int dim = 0; dim < tensor->shape.ndim; dim++) {
    const json_t *size = json_array_get(shape, (size_t)dim);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return wrong(file, tensor->name, "has a dimension in its `shape` that is not a whole number of at least 0");
    tensor->shape.dim[dim] = json_integer_value(size);
    overflows |= __builtin_mul_overflow(tensor->bytes, (size_t)tensor->shape.dim[dim], &tensor->bytes);
  }
  return overflows ? wrong(file, tensor->name, "has a `shape` with more elements than any file can hold") : AD_OK;
}

/* Reads a tensor's offsets, which must lie in the file and fit the tensor's size. */
static ad_status read_offsets(const ad_safetensors *file, const json_t *entry, ad_safetensor *tensor) {
  const json_t *offsets = json_object_get(entry, "data_offsets");
  const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
    return wrong(file, tensor->name, "has no `data_offsets`");
  json_int_t begin = json_integer_value(first), end = json_integer_value(last);
  if (begin < 0 || end < begin || (uint64_t)end > file->data_bytes)
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file, because tensor \"%.80s\" has the bytes %lld to %lld of %zu bytes of "
                   "data, but %s; write the file again",
                   file->path, tensor->name, (long long)begin, (long long)end, file->data_bytes,
                   (uint64_t)end > file->data_bytes ? "the file is cut short" : "the end is before the start");
  if ((size_t)(end - begin) != tensor->bytes)
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file, because tensor \"%.80s\" has %lld bytes, but needs %zu bytes by its "
                   "shape and dtype; write the file again",
                   file->path, tensor->name, (long long)(end - begin), tensor->bytes);
  tensor->data = file->data + begin;
  return AD_OK;
}

static ad_status read_tensor(const ad_safetensors *file, const char *name, const json_t *entry, ad_safetensor *tensor) {
  tensor->name = name;
  AD_TRY(read_dtype(file, entry, tensor));
  AD_TRY(read_shape(file, entry, tensor));
  return read_offsets(file, entry, tensor);
}

/* ---- reading and checking a whole header ---- */

static int by_name(const void *a, const void *b) {
  return strcmp(((const ad_safetensor *)a)->name, ((const ad_safetensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
  const ad_safetensor *one = a, *other = b;
  if (one->data != other->data) return (const char *)one->data < (const char *)other->data ? -1 : 1;
  return (one->bytes > other->bytes) - (one->bytes < other->bytes);  // empty tensors come first
}

// Checks that the tensors, sorted by their offsets, follow each other without gaps from the first to the last byte of
// the data.
static ad_status check_places(const ad_safetensors *file) {
  const char *next = file->data;
  for (size_t i = 0; i < file->count; i++) {
    const ad_safetensor *tensor = &file->tensors[i];
    const char *begin = tensor->data;
    if (begin < next) return wrong(file, tensor->name, "overlaps another tensor in `data_offsets`");
    if (begin > next) return wrong(file, tensor->name, "has a gap before its `data_offsets`");
    next = begin + tensor->bytes;
  }
  if (next == file->data + file->data_bytes) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s is not a safetensors file, because %zu bytes follow the last tensor; write the file again",
                 file->path, (size_t)(file->data + file->data_bytes - next));
}

static ad_status check_metadata(const ad_safetensors *file, const json_t *metadata) {
  const char *key;
  json_t *value;
  if (!json_is_object(metadata))
    return ad_fail(
        AD_INVALID,
        "%s is not a safetensors file, because __metadata__ in its header is not a JSON object; write the file again",
        file->path);
  json_object_foreach((json_t *)metadata, key, value) {
    if (!json_is_string(value))
      return ad_fail(AD_INVALID,
                     "%s is not a safetensors file, because the value of \"%.80s\" in its __metadata__ is not a "
                     "string; write only strings there",
                     file->path, key);
  }
  return AD_OK;
}

/* Reads all entries of the header, checks that the tensors fill the file, and sorts them by name. */
static ad_status read_tensors(ad_safetensors *file) {
  const char *name;
  json_t *entry;
  AD_TRY(ad_new(json_object_size(file->names), &file->tensors));
  json_object_foreach(file->names, name, entry) {
    if (!strcmp(name, "__metadata__")) {
      AD_TRY(check_metadata(file, entry));
      file->text.metadata = json_incref(entry);
    } else {
      AD_TRY(read_tensor(file, name, entry, &file->tensors[file->count]));
      file->count++;
    }
    /* the entry is not needed any more, only its name */
    json_object_iter_set_new(file->names, json_object_key_to_iter(name), json_null());
  }
  qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
  AD_TRY(check_places(file));
  qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
  return AD_OK;
}

/* Reads the first 8 bytes, which are the header's length, and checks the length against the file's size. */
static ad_status header_length(const unsigned char *bytes, size_t size, const char *path, size_t *out) {
  uint64_t length = 0;
  if (size < LENGTH_BYTES)
    return ad_fail(
        AD_INVALID,
        "%s is not a safetensors file, because it has only %zu bytes, too few for a header; write the file again", path,
        size);
  for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | bytes[i];
  if (length > AD_SAFETENSORS_HEADER_MAX)
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file, because its first 8 bytes announce a header of %llu bytes, but at "
                   "most %d bytes are allowed; name another file",
                   path, (unsigned long long)length, AD_SAFETENSORS_HEADER_MAX);
  if (length > size - LENGTH_BYTES)
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file or is incomplete, because its header needs %llu bytes, but the whole "
                   "file has %zu bytes; copy the file again",
                   path, (unsigned long long)length, size);
  *out = (size_t)length;
  return AD_OK;
}

/* Copies the list of tensors from `like`, whose header lists the same tensors and whose file has as many bytes of
 * data. */
static ad_status take_tensors(const ad_safetensors *like, ad_safetensors *file) {
  AD_TRY(ad_new(like->count, &file->tensors));
  file->count = like->count;
  file->names = json_incref(like->names);
  for (size_t i = 0; i < file->count; i++) {
    file->tensors[i] = like->tensors[i];
    file->tensors[i].data = file->data + ((const char *)like->tensors[i].data - like->data);
  }
  return AD_OK;
}

/* Reads the header, or reuses parts of the header of `like` if both headers list the same tensors. */
static ad_status read_header(ad_safetensors *file, const ad_safetensors *like, const char *bytes, size_t size) {
  size_t length = 0;
  json_error_t error;
  AD_TRY(header_length((const unsigned char *)bytes, size, file->path, &length));
  file->data = bytes + LENGTH_BYTES + length;
  file->data_bytes = size - LENGTH_BYTES - length;
  if (like && like->data_bytes == file->data_bytes &&
      ad_header_text_like(&like->text, bytes + LENGTH_BYTES, length, &file->text))
    return take_tensors(like, file);
  AD_TRY(ad_json_parse(bytes + LENGTH_BYTES, length, JSON_REJECT_DUPLICATES, &file->names, &error));
  if (!file->names)
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file, because its header is not JSON (%s at byte %d); write the file again",
                   file->path, error.text, error.position);
  if (!json_is_object(file->names))
    return ad_fail(AD_INVALID,
                   "%s is not a safetensors file, because its header is not a JSON object; write the file again",
                   file->path);
  AD_TRY(read_tensors(file));
  ad_header_text_split(bytes + LENGTH_BYTES, length, &file->text);
  return AD_OK;
}

/* ---- opening and closing files ---- */

static ad_status new_file(const char *path, ad_safetensors **out) {
  ad_safetensors *file;
  AD_TRY(ad_new(1, &file));
  ad_status status = ad_copy_string(path, &file->path);
  if (status) {
    ad_release(file);
    return status;
  }
  *out = file;
  return AD_OK;
}

ad_status ad_safetensors_parse(const void *bytes, size_t size, const char *path, ad_safetensors **out) {
  AD_NEED(bytes, path, out);
  ad_safetensors *file;
  AD_TRY(new_file(path, &file));
  ad_status status = read_header(file, NULL, bytes, size);
  if (status) {
    ad_safetensors_close(file);
    return status;
  }
  *out = file;
  return AD_OK;
}

static ad_status cannot_read(const char *path) {
  return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path, strerror(errno));
}

static ad_status map_open_file(ad_safetensors *file, const ad_safetensors *like, int opened) {
  struct stat found;
  if (fstat(opened, &found)) return cannot_read(file->path);
  if (!S_ISREG(found.st_mode))
    return ad_fail(AD_IO, "%s: the path is not a regular file; name a safetensors file", file->path);
  if (!found.st_size)
    return ad_fail(AD_INVALID, "%s is not a safetensors file, because it is empty; write the file again", file->path);
  file->mapped = (size_t)found.st_size;
  void *mapping = mmap(NULL, file->mapped, PROT_READ, MAP_PRIVATE, opened, 0);
  if (mapping == MAP_FAILED) return cannot_read(file->path);
  file->mapping = mapping;
  return read_header(file, like, mapping, file->mapped);
}

static ad_status map_file(ad_safetensors *file, const ad_safetensors *like) {
  int opened = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return cannot_read(file->path);
  ad_status status = map_open_file(file, like, opened);
  close(opened);
  return status;
}

ad_status ad_safetensors_open(const char *path, ad_safetensors **out) {
  AD_NEED(path, out);
  return ad_safetensors_open_like(path, NULL, out);
}

ad_status ad_safetensors_open_like(const char *path, const ad_safetensors *like, ad_safetensors **out) {
  AD_NEED(path, out);
  ad_safetensors *file;
  AD_TRY(new_file(path, &file));
  ad_status status = map_file(file, like);
  if (status) {
    ad_safetensors_close(file);
    return status;
  }
  *out = file;
  return AD_OK;
}

void ad_safetensors_close(ad_safetensors *file) {
  if (!file) return;
  json_decref(file->names);
  ad_header_text_clear(&file->text);
  if (file->mapping) munmap(file->mapping, file->mapped);
  ad_release(file->tensors);
  ad_release(file->path);
  ad_release(file);
}

void ad_safetensors_forget(const ad_safetensors *file) {
  if (file->mapping) madvise(file->mapping, file->mapped, MADV_DONTNEED);
}

int ad_safetensors_share(const ad_safetensors *a, const ad_safetensors *b) { return a->names == b->names; }

const char *ad_safetensors_path(const ad_safetensors *file) { return file->path; }
size_t ad_safetensors_count(const ad_safetensors *file) { return file->count; }
const ad_safetensor *ad_safetensors_at(const ad_safetensors *file, size_t index) {
  return ad_has(index, file->count, __func__, "tensor") ? &file->tensors[index] : NULL;
}

void ad_safetensors_expect(const ad_safetensors *file) { __builtin_prefetch(file, 0, 2); }

void ad_safetensors_expect_tensors(const ad_safetensors *file) {
  const ad_safetensor *last = file->tensors + atomic_load_explicit(&file->last, memory_order_relaxed);
  for (size_t at = 0; at < 2 * sizeof *last; at += sizeof *last / 2) __builtin_prefetch((const char *)last + at, 0, 2);
}

const ad_safetensor *ad_safetensors_find(const ad_safetensors *file, const char *name) {
  ad_safetensor key = {.name = name};
  size_t last = atomic_load_explicit(&file->last, memory_order_relaxed);
  const ad_safetensor *found = NULL;
  size_t end = last + 2 < file->count ? last + 2 : file->count;
  /* files with the same tensors share their names, so comparing pointers is often enough */
  for (size_t i = last; i < end && !found; i++)
    if (file->tensors[i].name == name) found = &file->tensors[i];
  for (size_t i = last; i < end && !found; i++)
    if (!strcmp(file->tensors[i].name, name)) found = &file->tensors[i];
  if (!found) found = bsearch(&key, file->tensors, file->count, sizeof key, by_name);
  if (found)
    atomic_store_explicit(&((ad_safetensors *)(uintptr_t)file)->last, (size_t)(found - file->tensors),
                          memory_order_relaxed);
  return found;
}

const char *ad_safetensors_metadata(const ad_safetensors *file, const char *key) {
  return json_string_value(json_object_get(file->text.metadata, key));
}
