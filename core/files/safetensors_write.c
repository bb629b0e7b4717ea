/* Writes safetensors files: the header from the tensors' descriptions, then their data one after another. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "files/output.h"
#include "files/safetensors.h"
#include "layout/type.h"

enum { ALIGNMENT = 8, LENGTH_BYTES = 8 };
static const char metadata_name[] = "__metadata__";

struct ad_safetensors_writer {
  ad_output *output;
  size_t *sizes; /* size of each tensor in bytes */
  size_t count, next;
};

static json_t *describe_tensor(const ad_safetensor *tensor, size_t begin, size_t end) {
  json_t *shape = json_array();
  for (int dim = 0; dim < tensor->shape.ndim; dim++) json_array_append_new(shape, json_integer(tensor->shape.dim[dim]));
  return json_pack("{s:s, s:o, s:[I,I]}", "dtype", ad_safetensors_dtype_name(tensor->dtype), "shape", shape,
                   "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static ad_status add_metadata(json_t *header, const char *const *pairs, const char *path) {
  if (!pairs || !pairs[0]) return AD_OK;
  json_t *metadata = json_object();
  json_object_set_new(header, metadata_name, metadata);
  for (size_t i = 0; pairs[i]; i += 2) {
    if (!pairs[i + 1])
      return ad_fail(
          AD_INVALID,
          "%s cannot be written, because the key \"%s\" of the metadata has no value; give every key a value", path,
          pairs[i]);
    if (json_object_set_new(metadata, pairs[i], json_string(pairs[i + 1])))
      return ad_fail(AD_INVALID,
                     "%s cannot be written, because the key or the value of \"%s\" in the metadata is not UTF-8; write "
                     "both in UTF-8",
                     path, pairs[i]);
  }
  return AD_OK;
}

static ad_status check_tensor(const ad_safetensor *tensor, const char *path) {
  char text[AD_SHAPE_FAULT_MAX];
  const char *fault = ad_shape_fault(&tensor->shape, text, sizeof text);
  if (fault)
    return ad_fail(AD_INVALID,
                   "%s cannot be written, because the shape of the tensor \"%s\" is not possible (%s); give the tensor "
                   "another shape",
                   path, tensor->name, fault);
  if (!ad_dtype_size(tensor->dtype))
    return ad_fail(
        AD_INVALID,
        "%s cannot be written, because the tensor \"%s\" has dtype %d, which does not exist; use a dtype of ad_dtype",
        path, tensor->name, (int)tensor->dtype);
  char dtypes[AD_DTYPES_TEXT];
  if (!ad_safetensors_takes(tensor->dtype))
    return ad_fail(AD_INVALID,
                   "%s cannot be written, because the tensor \"%s\" has dtype %s, but only %s are allowed; convert the "
                   "tensor first",
                   path, tensor->name, ad_dtype_name(tensor->dtype),
                   ad_dtypes_print(ad_safetensors_takes, "safetensors", "and", dtypes));
  if (strcmp(tensor->name, metadata_name) != 0) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s cannot be written, because a tensor has the reserved name \"%s\"; give the tensor another name",
                 path, metadata_name);
}

/* Adds each tensor's description to the header, and fills `sizes`. */
static ad_status add_tensors(json_t *header, const ad_safetensor *tensors, size_t count, size_t *sizes,
                             const char *path) {
  size_t end = 0;
  for (size_t i = 0; i < count; i++) {
    const ad_safetensor *tensor = &tensors[i];
    AD_TRY(check_tensor(tensor, path));
    sizes[i] = (size_t)ad_shape_numel(&tensor->shape) * ad_dtype_size(tensor->dtype);
    if (json_object_get(header, tensor->name))
      return ad_fail(
          AD_INVALID,
          "%s cannot be written, because two tensors have the name \"%s\"; give each tensor a name of its own", path,
          tensor->name);
    if (json_object_set_new(header, tensor->name, describe_tensor(tensor, end, end + sizes[i])))
      return ad_fail(
          AD_INVALID,
          "%s cannot be written, because the name of the tensor \"%s\" is not UTF-8; write the name in UTF-8", path,
          tensor->name);
    if (sizes[i] > SIZE_MAX / 2 - end)
      return ad_fail(
          AD_INVALID,
          "%s cannot be written, because its tensors are larger than a file can be; write several smaller files", path);
    end += sizes[i];
  }
  return AD_OK;
}

/* Writes the header, padded with spaces so that the data begin at a multiple of 8 bytes. */
static ad_status write_header(ad_output *output, const char *text) {
  static const char spaces[ALIGNMENT + 1] = "        ";
  size_t used = strlen(text), padding = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT;
  unsigned char length[LENGTH_BYTES];
  for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)((uint64_t)(used + padding) >> 8 * i);
  AD_TRY(ad_output_write(output, length, sizeof length));
  AD_TRY(ad_output_write(output, text, used));
  return ad_output_write(output, spaces, padding);
}

static ad_status write_json(ad_output *output, const json_t *header) {
  char *text = json_dumps(header, JSON_COMPACT);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the header of a safetensors file");
  ad_status status = write_header(output, text);
  free(text);
  return status;
}

static ad_status begin_file(ad_safetensors_writer *writer, json_t *header, const char *path,
                            const ad_safetensor *tensors, const char *const *metadata) {
  if (!header) return ad_fail(AD_MEMORY, "no memory for the header of %s", path);
  AD_TRY(add_metadata(header, metadata, path));
  AD_TRY(ad_new(writer->count, &writer->sizes));
  AD_TRY(add_tensors(header, tensors, writer->count, writer->sizes, path));
  AD_TRY(ad_output_open(path, &writer->output));
  return write_json(writer->output, header);
}

ad_status ad_safetensors_create(const char *path, const ad_safetensor *tensors, size_t count,
                                const char *const *metadata, ad_safetensors_writer **out) {
  AD_NEED(path, out);
  if (count) AD_NEED(tensors);
  for (size_t i = 0; i < count; i++) AD_NEED(tensors[i].name);
  ad_safetensors_writer *writer;
  AD_TRY(ad_new(1, &writer));
  writer->count = count;
  json_t *header = json_object();
  ad_status status = begin_file(writer, header, path, tensors, metadata);
  json_decref(header);
  if (status) {
    ad_safetensors_writer_destroy(writer);
    return status;
  }
  *out = writer;
  return AD_OK;
}

ad_status ad_safetensors_add(ad_safetensors_writer *writer, const void *data) {
  AD_NEED(writer);
  if (writer->next == writer->count)
    return ad_fail(AD_INVALID,
                   "all %zu tensors of the safetensors file are already written, but another tensor was added; add "
                   "only the tensors that the writer was created for",
                   writer->count);
  if (writer->sizes[writer->next]) AD_NEED(data);
  AD_TRY(ad_output_write(writer->output, data, writer->sizes[writer->next]));
  writer->next++;
  return AD_OK;
}

ad_status ad_safetensors_finish(ad_safetensors_writer *writer, int64_t *bytes, uint64_t *checksum) {
  AD_NEED(writer);
  ad_file_sum sum;
  if (writer->next != writer->count)
    return ad_fail(AD_INVALID,
                   "only %zu of the safetensors file's %zu tensors were added; add the other tensors before "
                   "ad_safetensors_finish",
                   writer->next, writer->count);
  AD_TRY(ad_output_sync(writer->output, &sum));
  if (bytes) *bytes = sum.bytes;
  if (checksum) *checksum = sum.checksum;
  return AD_OK;
}

void ad_safetensors_writer_destroy(ad_safetensors_writer *writer) {
  if (!writer) return;
  ad_output_close(writer->output);
  ad_release(writer->sizes);
  ad_release(writer);
}
