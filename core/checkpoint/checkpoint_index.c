/* Makes and writes a checkpoint's index. checkpoint_index_read.c reads it. */
#include "checkpoint/checkpoint_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/safetensors.h"
#include "base/error.h"
#include "checkpoint/checkpoint_format.h"
#include "layout/type.h"

int ad_piece_is_written(const ad_array *array, int64_t rank) {
  const ad_layout *layout = &array->layout;
  if (!ad_mesh_has_rank(layout->mesh, rank)) return 0;
  ad_group replicas = ad_mesh_group(layout->mesh, ad_layout_same_axes(layout), rank);
  if (ad_group_index(&replicas, rank) != 0) return 0;
  ad_shape part = ad_layout_local_shape(layout, &array->shape, rank);
  return ad_shape_numel(&part) > 0;
}

void ad_shard_name(int64_t rank, char *buffer, size_t size) {
  snprintf(buffer, size, "rank-%lld.safetensors", (long long)rank);
}

/* Returns the spans of a part as a list of [first, count] for each dimension. */
static json_t *describe_spans(const ad_part *part) {
  json_t *dims = json_array();
  for (int dim = 0; dim < part->ndim; dim++) {
    json_t *spans = json_array();
    for (int i = 0; i < part->count[dim]; i++) {
      const ad_span *span = &part->span[dim][i];
      json_array_append_new(spans, json_pack("[I,I]", (json_int_t)span->first, (json_int_t)span->count));
    }
    json_array_append_new(dims, spans);
  }
  return dims;
}

static json_t *describe_shape(const ad_shape *shape) {
  json_t *dims = json_array();
  for (int dim = 0; dim < shape->ndim; dim++) json_array_append_new(dims, json_integer(shape->dim[dim]));
  return dims;
}

/* Describes the pieces of a value. files[i] is the number of the file of the group's member i, or -1 if that member
 * writes no file. */
static json_t *describe_pieces(const ad_group *group, const ad_array *array, const int64_t *files) {
  json_t *pieces = json_array();
  for (int64_t i = 0; i < ad_group_size(group); i++) {
    int64_t rank = ad_group_rank(group, i);
    ad_part part;
    if (!ad_piece_is_written(array, rank)) continue;
    ad_part_of(&array->layout, &array->shape, rank, &part);
    json_array_append_new(pieces,
                          json_pack("{s:I, s:o}", "file", (json_int_t)files[i], "spans", describe_spans(&part)));
  }
  return pieces;
}

static int writes_any(const ad_checkpoint_state *state, int64_t rank) {
  for (size_t i = 0; i < state->value_count; i++)
    if (ad_piece_is_written(state->values[i].array, rank)) return 1;
  return 0;
}

/* Describes the files. Sets files[i] to the number of the file of the group's member i, or to -1 if that member writes
 * no file. */
static json_t *describe_files(const ad_group *group, const ad_checkpoint_state *state, int64_t *files) {
  json_t *list = json_array();
  for (int64_t i = 0; i < ad_group_size(group); i++) {
    char name[AD_SHARD_NAME_SIZE];
    files[i] = -1;
    if (!writes_any(state, ad_group_rank(group, i))) continue;
    files[i] = (int64_t)json_array_size(list);
    ad_shard_name(ad_group_rank(group, i), name, sizeof name);
    json_array_append_new(list, json_pack("{s:s, s:I}", "name", name, "member", (json_int_t)i));
  }
  return list;
}

/* Describes each value: its dtype, shape and layout, and which file has which of its pieces. */
static json_t *describe_values(const ad_group *group, const ad_checkpoint_state *state, const int64_t *files) {
  json_t *values = json_object();
  for (size_t i = 0; i < state->value_count; i++) {
    const ad_array *array = state->values[i].array;
    char layout[160];
    ad_layout_print(&array->layout, layout, sizeof layout);
    json_object_set_new(
        values, state->values[i].name,
        json_pack("{s:s, s:o, s:s, s:o}", "dtype", ad_dtype_name(array->dtype), "shape", describe_shape(&array->shape),
                  "layout", layout, "pieces", describe_pieces(group, array, files)));
  }
  return values;
}

static json_t *describe_numbers(const ad_checkpoint_state *state) {
  json_t *numbers = json_object();
  for (size_t i = 0; i < state->number_count; i++)
    json_object_set_new(numbers, state->numbers[i].name, json_integer(state->numbers[i].value));
  return numbers;
}

static json_t *describe_facts(const ad_checkpoint_state *state) {
  json_t *facts = json_object();
  for (size_t i = 0; i < state->fact_count; i++)
    json_object_set_new(facts, state->facts[i].key, json_string_nocheck(state->facts[i].value));
  return facts;
}

ad_status ad_index_describe(const ad_group *group, const ad_checkpoint_state *state, json_t **out) {
  int64_t *files = calloc((size_t)ad_group_size(group), sizeof *files);
  if (!files) return ad_fail(AD_MEMORY, "no memory for a checkpoint's index");
  json_t *list = describe_files(group, state, files);
  json_t *index = json_pack("{s:s, s:I, s:s, s:I, s:o, s:o, s:o, s:o}", "format", AD_CHECKPOINT_FORMAT, "step",
                            (json_int_t)state->step, "mesh", ad_mesh_text(group->mesh), "ranks",
                            (json_int_t)ad_group_size(group), "facts", describe_facts(state), "numbers",
                            describe_numbers(state), "files", list, "values", describe_values(group, state, files));
  free(files);
  if (!index) return ad_fail(AD_MEMORY, "no memory for a checkpoint's index");
  if (state->text) json_object_set_new(index, "text", json_string_nocheck(state->text));
  *out = index;
  return AD_OK;
}

ad_status ad_index_add_sums(json_t *index, const ad_file_sum *sums) {
  size_t i;
  json_t *file;
  int failed = 0;
  json_array_foreach(json_object_get(index, "files"), i, file) {
    const ad_file_sum *sum = &sums[json_integer_value(json_object_get(file, "member"))];
    char checksum[AD_CHECKSUM_DIGITS + 1];
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)sum->checksum);
    failed |= json_object_set_new(file, "bytes", json_integer(sum->bytes));
    failed |= json_object_set_new(file, "xxh64", json_string(checksum));
  }
  return failed ? ad_fail(AD_MEMORY, "no memory for a checkpoint's index") : AD_OK;
}

/* Writes the checksum of the index, and then the index. */
static ad_status write_text(ad_output *output, const char *text) {
  char first[AD_CHECKPOINT_FIRST_BYTES + 1];
  snprintf(first, sizeof first, AD_CHECKPOINT_FIRST, (unsigned long long)ad_checksum(text, strlen(text), 0));
  AD_TRY(ad_output_write(output, first, AD_CHECKPOINT_FIRST_BYTES));
  AD_TRY(ad_output_write(output, text, strlen(text)));
  return ad_output_sync(output, NULL);
}

ad_status ad_index_write(const json_t *index, const char *path) {
  ad_output *output;
  char *body = json_dumps(index, JSON_COMPACT), *text = NULL;
  if (!body || asprintf(&text, "%s}\n", body) < 0) {
    free(body);
    return ad_fail(AD_MEMORY, "not enough memory to write %s", path);
  }
  ad_status status = ad_output_open(path, &output);
  if (!status) {
    status = write_text(output, text);
    ad_output_close(output);
  }
  free(body);
  free(text);
  return status;
}
