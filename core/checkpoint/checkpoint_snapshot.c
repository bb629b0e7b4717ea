/* Copies the pieces that a rank writes, and later writes the copies to the rank's file. */
#include "checkpoint/checkpoint_snapshot.h"

#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_index.h"

ad_status ad_checkpoint_check_state(const char *call, const ad_checkpoint_state *state) {
  if (state->value_count) AD_NEED_OF(call, state->values);
  if (state->number_count) AD_NEED_OF(call, state->numbers);
  for (size_t i = 0; i < state->value_count; i++) {
    const ad_checkpoint_value *value = &state->values[i];
    if (!value->name || !value->array || !value->array->layout.mesh)
      return ad_fail(
          AD_INVALID,
          "checkpoint: value %zu (from 0) of the state has no %s; set all three of `name`, `array` and its mesh", i,
          !value->name    ? "name"
          : !value->array ? "array"
                          : "mesh");
  }
  for (size_t i = 0; i < state->number_count; i++)
    if (!state->numbers[i].name)
      return ad_fail(AD_INVALID, "checkpoint: number %zu (from 0) of the state has no name; set its `name`", i);
  return AD_OK;
}

// Returns AD_TYPE if the value has a scale, or is P or V on an axis, so that no rank has the full value.
static ad_status check_value(const ad_comm *comm, const ad_checkpoint_value *value) {
  const ad_layout *layout = &value->array->layout;
  ad_axes partial = ad_layout_axes_of(layout, AD_P), varying = ad_layout_axes_of(layout, AD_V);
  char axes[96];
  if (ad_mesh_has_rank(layout->mesh, ad_comm_rank(comm)))
    AD_TRY(ad_array_check(comm, value->array, "checkpoint", value->name));
  if (value->array->scale)
    return ad_fail(
        AD_TYPE,
        "the checkpoint cannot be written, because the value `%s` is stored multiplied by 2^-%d; undo its scale first",
        value->name, value->array->scale);
  if (!(partial | varying)) return AD_OK;
  return ad_fail(AD_TYPE,
                 "the checkpoint cannot be written, because the value `%s` is %s on %s, so that no rank has all of it; "
                 "reduce or declare `%s` first",
                 value->name, partial ? "P" : "V", ad_axes_print(partial ? partial : varying, axes, sizeof axes),
                 value->name);
}

static void drop_pieces(ad_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->count; i++) {
    char *name = (char *)snapshot->pieces[i].name;
    ad_release(name);
  }
  ad_release(snapshot->pieces);
  snapshot->pieces = NULL;
  snapshot->count = 0;
}

static ad_status add_piece(ad_snapshot *snapshot, const ad_checkpoint_value *value) {
  const ad_array *array = value->array;
  ad_safetensor *piece = &snapshot->pieces[snapshot->count];
  char *name;
  AD_TRY(ad_copy_string(value->name, &name));
  *piece = (ad_safetensor){name, array->dtype, array->local, array->data, ad_array_bytes(array)};
  snapshot->count++;
  return AD_OK;
}

static ad_status add_pieces_of_size(ad_snapshot *snapshot, const ad_comm *comm, const ad_checkpoint_state *state,
                                    size_t element_bytes) {
  for (size_t i = 0; i < state->value_count; i++) {
    const ad_array *array = state->values[i].array;
    if (ad_dtype_size(array->dtype) != element_bytes || !ad_piece_is_written(array, ad_comm_rank(comm))) continue;
    AD_TRY(add_piece(snapshot, &state->values[i]));
  }
  return AD_OK;
}

// Lists this rank's pieces, those of wider dtypes first, so that every tensor in the file is aligned.
static ad_status list_pieces(ad_snapshot *snapshot, const ad_comm *comm, const ad_checkpoint_state *state) {
  AD_TRY(ad_new(state->value_count, &snapshot->pieces));
  for (size_t bytes = sizeof(double); bytes; bytes /= 2) AD_TRY(add_pieces_of_size(snapshot, comm, state, bytes));
  return AD_OK;
}

static ad_status make_room(ad_snapshot *snapshot) {
  size_t bytes = 0;
  for (size_t i = 0; i < snapshot->count; i++) bytes += snapshot->pieces[i].bytes;
  return ad_make_room(&snapshot->memory, &snapshot->bytes, bytes);
}

static void copy_pieces(ad_snapshot *snapshot) {
  char *at = snapshot->memory;
  for (size_t i = 0; i < snapshot->count; i++) {
    ad_safetensor *piece = &snapshot->pieces[i];
    ad_copy(at, piece->data, piece->bytes);
    piece->data = at;
    at += piece->bytes;
  }
}

ad_status ad_snapshot_take(ad_snapshot *snapshot, const ad_comm *comm, const ad_checkpoint_state *state) {
  for (size_t i = 0; i < state->value_count; i++) AD_TRY(check_value(comm, &state->values[i]));
  drop_pieces(snapshot);
  ad_status status = list_pieces(snapshot, comm, state);
  if (!status) status = make_room(snapshot);
  if (status) {
    drop_pieces(snapshot);
    return status;
  }
  copy_pieces(snapshot);
  return AD_OK;
}

size_t ad_snapshot_bytes(const ad_comm *comm, const ad_checkpoint_state *state) {
  size_t bytes = 0;
  for (size_t i = 0; i < state->value_count; i++) {
    const ad_array *array = state->values[i].array;
    if (ad_piece_is_written(array, ad_comm_rank(comm))) bytes += ad_array_bytes(array);
  }
  return bytes;
}

void ad_snapshot_clear(ad_snapshot *snapshot) {
  drop_pieces(snapshot);
  ad_release(snapshot->memory);
  *snapshot = (ad_snapshot){0};
}

static ad_status write_pieces(const ad_snapshot *snapshot, ad_safetensors_writer *writer, int64_t *bytes,
                              uint64_t *checksum) {
  for (size_t i = 0; i < snapshot->count; i++) AD_TRY(ad_safetensors_add(writer, snapshot->pieces[i].data));
  return ad_safetensors_finish(writer, bytes, checksum);
}

ad_status ad_snapshot_write(const ad_snapshot *snapshot, const char *path, int64_t step, int64_t *bytes,
                            uint64_t *checksum) {
  char number[32];
  snprintf(number, sizeof number, "%lld", (long long)step);
  const char *metadata[] = {"format", "addend", "step", number, NULL};
  ad_safetensors_writer *writer;
  AD_TRY(ad_safetensors_create(path, snapshot->pieces, snapshot->count, metadata, &writer));
  ad_status status = write_pieces(snapshot, writer, bytes, checksum);
  ad_safetensors_writer_destroy(writer);
  return status;
}
