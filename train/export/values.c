/* Opens the values of a run's parameters. Files of weights are mapped into memory, and read only when they are written.
 * Checkpoints are loaded into memory. */
#include "export/values.h"

#include <stdio.h>
#include <unistd.h>
#include "addend/checkpoint.h"
#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_folder.h"
#include "files/file.h"

enum { NAME_SIZE = AD_PROGRAM_NAME_SIZE + sizeof "value." };

/* ---- loading a checkpoint's values ---- */

static ad_status make_array(const ad_mesh *mesh, const ad_param_spec *param, ad_array *out) {
  *out = (ad_array){
      .dtype = param->policy.param, .shape = param->shape, .local = param->shape, .layout = ad_layout_all(mesh, AD_R)};
  return ad_new_bytes((size_t)ad_shape_numel(&param->shape), ad_dtype_size(out->dtype), &out->data);
}

static ad_status make_arrays(const ad_param_spec *params, size_t count, ad_export_values *out) {
  AD_TRY(ad_mesh_create("", &out->mesh));
  AD_TRY(ad_new(count, &out->arrays));
  for (; out->count < count; out->count++) AD_TRY(make_array(out->mesh, &params[out->count], &out->arrays[out->count]));
  return AD_OK;
}

static ad_status load_listed(const char *folder, const ad_export_values *values, const ad_checkpoint_value *list) {
  ad_comm *alone;
  ad_checkpoint_state state = {.size = sizeof state, .values = list, .value_count = values->count, .some = 1};
  AD_TRY(ad_comm_open_alone(&alone));
  ad_status status = ad_checkpoint_load(alone, values->mesh, folder, &state);
  ad_comm_close(alone);
  return status;
}

static ad_status load_into(const char *folder, const ad_param_spec *params, const ad_export_values *values,
                           char (*names)[NAME_SIZE], ad_checkpoint_value *list) {
  for (size_t i = 0; i < values->count; i++) {
    snprintf(names[i], NAME_SIZE, "value.%s", params[i].name);
    list[i] = (ad_checkpoint_value){names[i], &values->arrays[i]};
  }
  return load_listed(folder, values, list);
}

/* Makes arrays for all parameters, and loads them from the newest checkpoint. */
static ad_status load(const char *folder, const ad_param_spec *params, size_t count, ad_export_values *out) {
  char(*names)[NAME_SIZE] = NULL;
  ad_checkpoint_value *list = NULL;
  AD_TRY(make_arrays(params, count, out));
  ad_status status = ad_new(count, &names);
  if (!status) status = ad_new(count, &list);
  if (!status) status = load_into(folder, params, out, names, list);
  ad_release(names);
  ad_release(list);
  return status;
}

/* ---- opening weights or a checkpoint ---- */

static ad_status open_weights(const char *path, const ad_param_spec *params, size_t count, ad_export_values *out) {
  AD_TRY(ad_weights_open(path, &out->weights));
  return ad_params_check_weights(params, count, out->weights);
}

/* Opens the weights if the run is finished or has no checkpoint, otherwise the checkpoint. If a run was resumed and
 * then killed, its weights are those of the earlier training, which are older than its checkpoint. */
static ad_status open_either(const char *run, const char *weights, const char *checkpoints, int is_finished,
                             const ad_param_spec *params, size_t count, ad_export_values *out) {
  int has_weights = !access(weights, F_OK), has_checkpoint = ad_checkpoint_newest(checkpoints) >= 0;
  if (has_weights && (is_finished || !has_checkpoint)) return open_weights(weights, params, count, out);
  if (has_checkpoint) return load(checkpoints, params, count, out);
  return ad_fail(AD_IO,
                 "%s: this run has neither weights.safetensors nor a checkpoint, since it ended before it wrote one; "
                 "finish it with `addend train --resume`",
                 run);
}

static ad_status open_in(const char *run, const char *weights, int is_finished, const ad_param_spec *params,
                         size_t count, ad_export_values *out) {
  char *checkpoints;
  AD_TRY(ad_path_in(run, "checkpoints", &checkpoints));
  ad_status status = open_either(run, weights, checkpoints, is_finished, params, count, out);
  ad_release(checkpoints);
  return status;
}

ad_status ad_export_values_open(const char *run, int is_finished, const ad_param_spec *params, size_t count,
                                ad_export_values *out) {
  char *weights;
  *out = (ad_export_values){0};
  AD_TRY(ad_path_in(run, "weights.safetensors", &weights));
  ad_status status = open_in(run, weights, is_finished, params, count, out);
  ad_release(weights);
  if (status) ad_export_values_close(out);
  return status;
}

void ad_export_values_close(ad_export_values *values) {
  ad_weights_close(values->weights);
  for (size_t i = 0; i < values->count; i++) ad_release(values->arrays[i].data);
  ad_release(values->arrays);
  ad_mesh_destroy(values->mesh);
  *values = (ad_export_values){0};
}

const void *ad_export_value(const ad_export_values *values, const ad_param_spec *params, size_t i, ad_dtype *dtype) {
  const ad_safetensor *tensor = ad_weights_find(values->weights, params[i].name);
  *dtype = tensor ? tensor->dtype : values->arrays[i].dtype;
  return tensor ? tensor->data : values->arrays[i].data;
}
