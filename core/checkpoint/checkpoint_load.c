/* Loads checkpoints: finds the newest one that is complete and undamaged, and reads the elements that this rank
 * needs. */
#include <stdio.h>
#include "addend/checkpoint.h"
#include "addend/safetensors.h"
#include "array/array.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/agree.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/checkpoint_snapshot.h"
#include "files/file.h"

typedef struct loading {
  ad_comm *comm;
  ad_group group;
  ad_checkpoint_state *state;
  char *folder; /* folder of the checkpoint that is being tried */
  int64_t step; /* the step in the folder's name */
  json_t *index;
  ad_safetensors **files; /* the open files, by their number in the index; NULL for a file that is not open yet */
} loading;

/* ---- whether one checkpoint is complete and undamaged ---- */

static ad_status read_index(loading *l) {
  char *path;
  AD_TRY(ad_path_in(l->folder, "index.json", &path));
  ad_status status = ad_index_read(path, &l->index);
  ad_release(path);
  return status;
}

static ad_status verify_file(const loading *l, size_t i) {
  const char *name;
  ad_file_sum sum;
  char *path;
  AD_TRY(ad_index_file(l->index, i, &name, &sum));
  AD_TRY(ad_path_in(l->folder, name, &path));
  ad_status status = ad_file_verify(path, &sum);
  ad_release(path);
  return status;
}

// Checks the index, and the checksums of this rank's share of the files. Each file is read by one rank.
static ad_status verify_share(loading *l) {
  AD_TRY(read_index(l));
  AD_TRY(ad_index_check_step(l->index, l->step));
  AD_TRY(ad_index_check_ranks(l->index));
  size_t ranks = (size_t)ad_group_size(&l->group), own = (size_t)ad_group_index(&l->group, ad_comm_rank(l->comm));
  for (size_t i = own; i < ad_index_file_count(l->index); i += ranks) AD_TRY(verify_file(l, i));
  return AD_OK;
}

/* ---- reading this rank's elements from the checkpoint's pieces ---- */

// Finds file number i of the index, and opens it if it is not open.
static ad_status open_file(loading *l, size_t i, const ad_safetensors **out) {
  const char *name;
  ad_file_sum sum;
  char *path;
  if (!l->files[i]) {
    AD_TRY(ad_index_file(l->index, i, &name, &sum));
    AD_TRY(ad_path_in(l->folder, name, &path));
    ad_status status = ad_safetensors_open(path, &l->files[i]);
    ad_release(path);
    if (status) return status;
  }
  *out = l->files[i];
  return AD_OK;
}

// Copies a region out of the file, converts it to the array's dtype, and copies it into the array.
static ad_status convert_region(ad_array *array, const ad_part *mine, const ad_safetensor *tensor, const ad_part *piece,
                                const ad_part *region) {
  size_t numel = ad_part_numel(region), element = ad_dtype_size(tensor->dtype);
  double *read, *converted;
  AD_TRY(ad_new(numel, &read));
  ad_status status = ad_new(numel, &converted);
  if (!status) {
    ad_part_copy(read, region, tensor->data, piece, region, element);
    ad_cast(converted, array->dtype, read, tensor->dtype, numel);
    ad_part_copy(array->data, mine, converted, region, region, ad_dtype_size(array->dtype));
    ad_release(converted);
  }
  ad_release(read);
  return status;
}

// Checks that the file has the piece that the index lists, in a dtype that can be converted to that of the array.
static ad_status check_tensor(const loading *l, const char *name, const ad_safetensor *tensor, const ad_part *piece,
                              const ad_array *array) {
  if (!tensor || (size_t)ad_shape_numel(&tensor->shape) != ad_part_numel(piece))
    return ad_fail(
        AD_IO,
        "%s: a file of the checkpoint does not have the %zu elements of `%s` that index.json says it has, so "
        "the file or index.json was changed; use another checkpoint",
        l->folder, ad_part_numel(piece), name);
  if (tensor->dtype == array->dtype || (ad_dtype_is_float(tensor->dtype) && ad_dtype_is_float(array->dtype)))
    return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `%s` is %s in the checkpoint, but %s in this run, and only floats can be converted to other "
                 "floats; make the two dtypes equal",
                 l->folder, name, ad_dtype_name(tensor->dtype), ad_dtype_name(array->dtype));
}

/* How much of this rank's part of a value has been read. */
typedef struct filling {
  ad_part mine;
  ad_part *taken; /* the regions that were read; they do not overlap */
  size_t count, numel;
} filling;

// Notes that a region is read. Returns AD_IO if some of its elements were read before.
static ad_status take_region(const loading *l, const char *name, filling *f, const ad_part *region) {
  for (size_t i = 0; i < f->count; i++) {
    ad_part common;
    ad_part_intersect(&f->taken[i], region, &common);
    if (ad_part_numel(&common))
      return ad_fail(AD_IO,
                     "%s: the checkpoint has elements of `%s` twice, among the elements that rank %lld reads; use "
                     "another checkpoint",
                     l->folder, name, (long long)ad_comm_rank(l->comm));
  }
  f->taken[f->count++] = *region;
  f->numel += ad_part_numel(region);
  return AD_OK;
}

// Reads the elements that one piece of the value and this rank's part have in common.
static ad_status read_piece(loading *l, const ad_checkpoint_value *value, const json_t *entry, filling *f) {
  ad_array *array = value->array;
  ad_part piece, region;
  const ad_safetensors *file;
  size_t number;
  AD_TRY(ad_index_piece(l->index, entry, &array->shape, &piece, &number));
  ad_part_intersect(&f->mine, &piece, &region);
  if (!ad_part_numel(&region)) return AD_OK;
  AD_TRY(take_region(l, value->name, f, &region));
  AD_TRY(open_file(l, number, &file));
  const ad_safetensor *tensor = ad_safetensors_find(file, value->name);
  AD_TRY(check_tensor(l, value->name, tensor, &piece, array));
  AD_TRY(ad_index_check_dtype(l->index, value->name, tensor->dtype));
  if (tensor->dtype != array->dtype) return convert_region(array, &f->mine, tensor, &piece, &region);
  ad_part_copy(array->data, &f->mine, tensor->data, &piece, &region, ad_dtype_size(array->dtype));
  return AD_OK;
}

// Reads this rank's part from all pieces. Returns AD_IO if some elements of the part are in no piece.
static ad_status read_pieces(loading *l, const ad_checkpoint_value *value, const json_t *pieces, filling *f) {
  for (size_t i = 0; i < json_array_size(pieces); i++) AD_TRY(read_piece(l, value, json_array_get(pieces, i), f));
  if (f->numel == ad_part_numel(&f->mine)) return AD_OK;
  return ad_fail(AD_IO,
                 "%s: `%s` is incomplete in the checkpoint, which has only %zu of the %zu elements that rank %lld "
                 "reads; use another checkpoint",
                 l->folder, value->name, f->numel, ad_part_numel(&f->mine), (long long)ad_comm_rank(l->comm));
}

// Reads this rank's part of a value; reads nothing if the rank has no part.
static ad_status read_value(loading *l, const ad_checkpoint_value *value) {
  const json_t *pieces = ad_index_pieces(l->index, value->name);
  filling f = {0};
  if (!ad_mesh_has_rank(value->array->layout.mesh, ad_comm_rank(l->comm))) return AD_OK;
  AD_TRY(ad_array_check(l->comm, value->array, "checkpoint", value->name));
  ad_part_of(&value->array->layout, &value->array->shape, ad_comm_rank(l->comm), &f.mine);
  AD_TRY(ad_new(json_array_size(pieces), &f.taken));
  ad_status status = read_pieces(l, value, pieces, &f);
  ad_release(f.taken);
  return status;
}

static ad_status read_values(loading *l) {
  AD_TRY(ad_new(ad_index_file_count(l->index), &l->files));
  for (size_t i = 0; i < l->state->value_count; i++) AD_TRY(read_value(l, &l->state->values[i]));
  return AD_OK;
}

static void close_files(loading *l) {
  for (size_t i = 0; l->files && i < ad_index_file_count(l->index); i++) ad_safetensors_close(l->files[i]);
  ad_release(l->files);
  l->files = NULL;
}

// Calls state->judge with the facts in the index, compares the lists of values, then reads the numbers and the values.
static ad_status read_state(loading *l) {
  ad_status status = ad_index_judge(l->index, l->state);
  if (!status) status = ad_index_match(l->index, l->state);
  if (!status) status = ad_index_numbers(l->index, l->state);
  if (status) return ad_fail_in(status, "%s", l->folder);
  status = read_values(l);
  close_files(l);
  return status;
}

/* ---- finding and loading the newest usable checkpoint ---- */

// Checks one checkpoint and reads it. Returns AD_IO if it is damaged. All ranks call this.
static ad_status try_checkpoint(loading *l) {
  ad_status status = ad_agree(l->comm, &l->group, verify_share(l), AD_HERE);
  if (!status) status = ad_agree(l->comm, &l->group, read_state(l), AD_HERE);
  json_decref(l->index);
  l->index = NULL;
  return status;
}

static int is_first(const loading *l) { return ad_group_index(&l->group, ad_comm_rank(l->comm)) == 0; }

// Adds to `reasons` why a checkpoint is not usable.
static void pass_over(const loading *l, int is_last, ad_text *reasons) {
  ad_text_add(reasons, "; step %lld: %s", (long long)l->step, ad_last_error());
  if (is_first(l))
    ad_log(AD_LOG_WARNING, "the checkpoint of step %lld is not usable%s (%s)", (long long)l->step,
           is_last ? "" : ", so the checkpoint before it is tried", ad_last_error());
}

// Tries the checkpoints in order until one can be read, or until one fails for a reason other than damage.
static ad_status try_steps(loading *l, const char *folder, const int64_t *steps, int64_t count) {
  char reasons[AD_MESSAGE_MAX - 256] = "";
  ad_text text = ad_text_on(reasons, sizeof reasons);
  for (int64_t i = 0; i < count; i++) {
    l->step = steps[i];
    AD_TRY(ad_checkpoint_path(folder, steps[i], NULL, &l->folder));
    ad_status status = try_checkpoint(l);
    ad_release(l->folder);
    if (status != AD_IO) return status;
    pass_over(l, i + 1 == count, &text);
  }
  return ad_fail_on_all_ranks(AD_IO, "%s has no usable checkpoint%s; name a folder that has a complete checkpoint",
                              folder, count ? reasons : ", as it has no checkpoint at all");
}

// Lists the checkpoints of the folder on the first rank, and sends the list to the other ranks.
static ad_status find_steps(loading *l, const char *folder, int64_t *steps, int64_t *count) {
  int64_t found[AD_CHECKPOINTS_LISTED + 1] = {0};
  if (is_first(l)) found[AD_CHECKPOINTS_LISTED] = ad_checkpoint_steps(folder, found);
  AD_TRY(ad_share_first(l->comm, &l->group, found, AD_CHECKPOINTS_LISTED + 1, AD_HERE));
  for (int i = 0; i < AD_CHECKPOINTS_LISTED; i++) steps[i] = found[i];
  *count = found[AD_CHECKPOINTS_LISTED];
  return AD_OK;
}

ad_status ad_checkpoint_load(ad_comm *comm, const ad_mesh *mesh, const char *folder, ad_checkpoint_state *out) {
  ad_checkpoint_state own, *state = &own;
  AD_NEED_AS("comm, mesh, folder, state", comm, mesh, folder, out);
  AD_TRY(ad_options_take(&own, sizeof own, out, "ad_checkpoint_state"));
  AD_TRY(ad_checkpoint_check_state(__func__, state));
  int64_t steps[AD_CHECKPOINTS_LISTED], count = 0;
  loading l = {.comm = comm, .group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm)), .state = state};
  if (ad_comm_is_dry(comm))
    return ad_fail(AD_INVALID,
                   "a checkpoint cannot be loaded with the backend dry, in which arrays have no values; use the "
                   "backend shm or mpi");
  AD_TRY(find_steps(&l, folder, steps, &count));
  AD_TRY(try_steps(&l, folder, steps, count));
  out->step = own.step;
  return AD_OK;
}
