/* Writes one file of a dump: this rank's part of each parameter, and metadata that describe the part. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "base/text.h"
#include "files/file.h"
#include "layout/type.h"
#include "reduce/dump.h"
#include "mesh/mesh.h"

/* ---- boxes: which part of a parameter this rank holds ---- */

/* A parameter's full shape, and the box (a rectangular block of elements) that a rank holds: in dimension d,
 * held.dim[d] indices from first[d] on. A value that varies between ranks (V) is described as one value with an
 * additional dimension, of which each rank holds one index. */
typedef struct box {
  ad_shape full, held;
  int64_t first[AD_DIMS_MAX];
  int is_sharded;
} box;

static void add_dim(box *b, int64_t full, ad_span held) {
  int dim = b->full.ndim++;
  b->full.dim[dim] = full;
  b->held.ndim = b->full.ndim;
  b->held.dim[dim] = held.count;
  b->first[dim] = held.first;
  b->is_sharded |= held.count != full;
}

static ad_axes own_axes(const ad_layout *layout) {
  return ad_layout_axes_of(layout, AD_V) & ad_mesh_large(layout->mesh);
}

static ad_status find_box(const ad_reducer *reducer, const ad_reduced_param *param, const ad_layout *layout, box *out) {
  int64_t rank = ad_comm_rank(reducer->comm);
  ad_group own = ad_mesh_group(layout->mesh, own_axes(layout), rank);
  *out = (box){0};
  if (own.axes && param->shape.ndim == AD_DIMS_MAX)
    return ad_fail(AD_INVALID,
                   "the V parameter `%s` cannot be dumped, because a dump of V needs one more dimension, and this "
                   "parameter has %d dimensions, the most that a dump can hold",
                   param->name, AD_DIMS_MAX);
  if (own.axes) add_dim(out, ad_group_size(&own), (ad_span){ad_group_index(&own, rank), 1});
  for (int dim = 0; dim < param->shape.ndim; dim++) {
    ad_span held = {0};
    ad_layout_spans(layout, dim, param->shape.dim[dim], rank, &held, 1);
    add_dim(out, param->shape.dim[dim], held);
  }
  return AD_OK;
}

static ad_status check_types(const ad_reduced_param *param) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_is_zigzag(param->gradient.type[axis]) || ad_type_is_zigzag(param->update.type[axis]))
      return ad_fail(AD_INVALID,
                     "the parameter `%s` cannot be dumped, because its layout or storage is sharded zigzag and a dump "
                     "holds only contiguous parts",
                     param->name);
  }
  return AD_OK;
}

static ad_status check_boxes(const ad_reducer *reducer) {
  box ignored;
  for (size_t i = 0; i < reducer->param_count; i++) {
    AD_TRY(check_types(&reducer->params[i]));
    AD_TRY(find_box(reducer, &reducer->params[i], &reducer->params[i].gradient, &ignored));
    AD_TRY(find_box(reducer, &reducer->params[i], &reducer->params[i].update, &ignored));
  }
  return AD_OK;
}

/* ---- a dump file's metadata ---- */

static json_t *numbers(const int64_t *values, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, json_integer(values[i]));
  return list;
}

/* Writes the gradient's type on an axis, from which `addend diff` derives the sum that it expects: "R" means the sum
 * over the axis, "I" the same value on every rank, "S0" or another S each rank's own values. */
static void add_type(ad_text *text, const ad_reduced_param *param, const ad_dump_factor *factor) {
  ad_type type = ad_dump_type(&param->gradient, factor);
  ad_text_add(text, "%s%s=", text->used ? " " : "", factor->name);
  if (type == AD_V || ad_type_is_sharded(type))
    ad_text_add(text, "S%d", type == AD_V ? 0 : ad_type_dim(type) + (own_axes(&param->gradient) != 0));
  else
    ad_text_add(text, type == AD_P ? "R" : "I");
}

static json_t *types_of(const ad_dump *dump, const ad_reduced_param *param) {
  char buffer[512];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  for (int i = 0; i < dump->mesh.count; i++) add_type(&text, param, &dump->mesh.factor[i]);
  return json_string(buffer);
}

/* Returns the narrowest dtype to which an addend of the parameter is rounded before it is summed. Sums never have a
 * narrower dtype than the communication dtype. */
static ad_dtype reduced_in(const ad_reducer *reducer, const ad_reduced_param *param) {
  ad_dtype comm_dtype = reducer->buckets[param->bucket].key.comm_dtype;
  if (param->policy.raw) return comm_dtype;
  return ad_unit_roundoff(comm_dtype) < ad_unit_roundoff(param->policy.grad) ? param->policy.grad : comm_dtype;
}

static json_t *held_of(const box *b) {
  return json_pack("[o, o]", numbers(b->first, b->full.ndim), numbers(b->held.dim, b->full.ndim));
}

/* JSON objects of the metadata. Each of them has one entry for each parameter, under the parameter's name. */
typedef struct described {
  json_t *types, *shapes, *held, *reduce;
} described;

static void describe_param(const ad_reducer *reducer, const ad_reduced_param *param, const box *b, described *out) {
  const char *dtype = ad_dtype_name(reduced_in(reducer, param));
  json_object_set_new(out->types, param->name, types_of(reducer->dump, param));
  json_object_set_new(out->shapes, param->name, numbers(b->full.dim, b->full.ndim));
  json_object_set_new(out->reduce, param->name, json_string(dtype));
  if (b->is_sharded) json_object_set_new(out->held, param->name, held_of(b));
}

/* ---- writing a dump file ---- */

enum { SUMS = -1, PAIRS = 12, SHORT = 40, MESH_TEXT = AD_DUMP_FACTORS * (AD_DUMP_NAME + 24) };

typedef struct dump_file {
  const ad_reducer *reducer;
  int microbatch; /* the microbatch whose addends the file has; SUMS: the file has the sums */
  ad_safetensor *tensors;
  size_t count;
  described reported;
  const char *metadata[2 * PAIRS + 1];
  int pairs;
  char mesh[MESH_TEXT], rank[SHORT], step[SHORT], number[SHORT], divisor[SHORT], norm[SHORT];
  char *texts[4]; /* the JSON texts that `metadata` points to, which are freed at the end */
  int text_count;
} dump_file;

static void add_metadata(dump_file *file, const char *key, const char *text) {
  file->metadata[2 * file->pairs] = key;
  file->metadata[2 * file->pairs++ + 1] = text;
}

static ad_status put_json(dump_file *file, const char *key, const json_t *value) {
  if (!json_object_size(value)) return AD_OK;
  char *text = json_dumps(value, JSON_COMPACT);
  if (!text)
    return ad_fail(
        AD_INVALID,
        "the names of parameters cannot be written to the dump, because a name is not UTF-8 or no memory is left");
  file->texts[file->text_count++] = text;
  add_metadata(file, key, text);
  return AD_OK;
}

static void print_mesh(const ad_dump_mesh *mesh, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int i = 0; i < mesh->count; i++)
    ad_text_add(&text, "%s%s=%lld", i ? " " : "", mesh->factor[i].name, (long long)mesh->factor[i].size);
  if (!mesh->count) ad_text_add(&text, "world=1");
}

static int64_t first_rank(const ad_reducer *reducer) { return ad_mesh_first_rank(reducer->params[0].layout.mesh); }
int64_t ad_dump_rank(const ad_reducer *reducer) { return ad_comm_rank(reducer->comm) - first_rank(reducer); }

static ad_status write_param(dump_file *file) {
  const ad_dump *dump = file->reducer->dump;
  int is_sum = file->microbatch == SUMS;
  print_mesh(&dump->mesh, file->mesh, sizeof file->mesh);
  snprintf(file->rank, SHORT, "%lld", (long long)ad_dump_rank(file->reducer));
  snprintf(file->step, SHORT, "%lld", (long long)dump->step);
  snprintf(file->number, SHORT, "%d", file->microbatch);
  snprintf(file->divisor, SHORT, "%.17g", dump->divisor);
  snprintf(file->norm, SHORT, "%.17g", dump->norm);
  add_metadata(file, "addend.version", "1");
  add_metadata(file, "addend.kind", is_sum ? "sum" : "addend");
  add_metadata(file, "addend.mesh", file->mesh);
  add_metadata(file, "addend.rank", file->rank);
  add_metadata(file, "addend.step", file->step);
  if (!is_sum) add_metadata(file, "addend.microbatch", file->number);
  if (!is_sum && dump->divisor != 0) add_metadata(file, "addend.divisor", file->divisor);
  if (is_sum && !isnan(dump->norm)) add_metadata(file, "addend.norm", file->norm);
  AD_TRY(put_json(file, "addend.types", file->reported.types));
  AD_TRY(put_json(file, "addend.shapes", file->reported.shapes));
  AD_TRY(put_json(file, "addend.held", file->reported.held));
  return is_sum ? put_json(file, "addend.reduce", file->reported.reduce) : AD_OK;
}

/* Adds the values of parameter i to the file. `layout` says which part of the full parameter `values` is. */
static ad_status list(dump_file *file, size_t i, const void *values, ad_dtype dtype, const ad_layout *layout) {
  const ad_reduced_param *param = &file->reducer->params[i];
  box b;
  AD_TRY(find_box(file->reducer, param, layout, &b));
  describe_param(file->reducer, param, &b, &file->reported);
  file->tensors[file->count++] = (ad_safetensor){.name = param->name, .dtype = dtype, .shape = b.held, .data = values};
  return AD_OK;
}

static ad_status list_all(dump_file *file) {
  for (size_t i = 0; i < file->reducer->param_count; i++) {
    const ad_reduced_param *param = &file->reducer->params[i];
    const ad_dumped_param *addend = &file->reducer->dump->params[i];
    if (param->frozen) continue;
    if (file->microbatch == SUMS)
      AD_TRY(list(file, i, param->result.data, param->result.dtype, &param->update));
    else if (addend->values)
      AD_TRY(list(file, i, addend->values, addend->dtype, &param->gradient));
  }
  return AD_OK;
}

static ad_status write_values(const dump_file *file, ad_safetensors_writer *writer) {
  for (size_t i = 0; i < file->count; i++) AD_TRY(ad_safetensors_add(writer, file->tensors[i].data));
  return ad_safetensors_finish(writer, NULL, NULL);
}

static ad_status write_to(const dump_file *file, const char *path) {
  ad_safetensors_writer *writer;
  AD_TRY(ad_safetensors_create(path, file->tensors, file->count, file->metadata, &writer));
  ad_status status = write_values(file, writer);
  ad_safetensors_writer_destroy(writer);
  return status;
}

/* Finds the file's path: "FOLDER/FILESrank00003.addend.m0.safetensors". In a pool that begins at rank 4 the file's name
 * begins with "FILESat00004.rank", because ranks of two pools may have the same number. */
static ad_status path_of(const ad_reducer *reducer, int microbatch, char **out) {
  char kind[SHORT] = "sum", at[SHORT] = "", *name;
  size_t size = strlen(reducer->files) + 3 * SHORT;
  if (microbatch != SUMS) snprintf(kind, sizeof kind, "addend.m%d", microbatch);
  if (first_rank(reducer)) snprintf(at, sizeof at, "at%05lld.", (long long)first_rank(reducer));
  AD_TRY(ad_new(size, &name));
  snprintf(name, size, "%s%srank%05lld.%s.safetensors", reducer->files, at, (long long)ad_dump_rank(reducer), kind);
  ad_status status = ad_path_in(reducer->dump->folder, name, out);
  ad_release(name);
  return status;
}

static ad_status check_new(const char *path, ad_status refusal) {
  if (access(path, F_OK)) return AD_OK;
  return ad_fail(refusal,
                 "%s already exists, and a dump replaces no file. Dump to a folder without this file; if a program has "
                 "two reducers, set a different `prefix` or `files` in the ad_reducer_options of the second",
                 path);
}

static ad_status check_file(const ad_reducer *reducer, int microbatch) {
  char *path;
  AD_TRY(path_of(reducer, microbatch, &path));
  ad_status status = check_new(path, AD_INVALID);
  ad_release(path);
  return status;
}

ad_status ad_dump_check_files(const ad_reducer *reducer) {
  AD_TRY(check_boxes(reducer));
  AD_TRY(check_file(reducer, 0));
  return check_file(reducer, SUMS);
}

static ad_status write_new(const dump_file *file, const char *path) {
  if (!file->reducer->dump->has_sums) AD_TRY(check_new(path, AD_IO));
  return write_to(file, path);
}

static ad_status write_named(const dump_file *file) {
  char *path;
  AD_TRY(path_of(file->reducer, file->microbatch, &path));
  ad_status status = write_new(file, path);
  ad_release(path);
  return status;
}

static ad_status fill_and_write(dump_file *file) {
  AD_TRY(ad_new(file->reducer->param_count, &file->tensors));
  AD_TRY(list_all(file));
  AD_TRY(write_param(file));
  return write_named(file);
}

static ad_status write_file(const ad_reducer *reducer, int microbatch) {
  dump_file file = {.reducer = reducer, .microbatch = microbatch};
  file.reported = (described){json_object(), json_object(), json_object(), json_object()};
  ad_status status = fill_and_write(&file);
  for (int i = 0; i < file.text_count; i++) free(file.texts[i]);
  json_decref(file.reported.types);
  json_decref(file.reported.shapes);
  json_decref(file.reported.held);
  json_decref(file.reported.reduce);
  ad_release(file.tensors);
  return status;
}

ad_status ad_dump_write_addends(const ad_reducer *reducer) { return write_file(reducer, reducer->dump->microbatch); }
ad_status ad_dump_write_sums(const ad_reducer *reducer) { return write_file(reducer, SUMS); }
