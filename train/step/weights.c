/* Writes all full parameters as one safetensors file, and reads them from one or several files. */
#include <stdio.h>
#include "addend/safetensors.h"
#include "architecture/folder.h"
#include "architecture/tensors.h"
#include "array/part.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "module/module.h"
#include "program/program.h"
#include "program/weights.h"
#include "step/run.h"

/* ---- writing all parameters ---- */

enum { NAME_SIZE = AD_PROGRAM_NAME_SIZE };

typedef struct described {
  ad_safetensor *tensors;
  char (*names)[NAME_SIZE];
} described;

static void release_described(described *all) {
  ad_release(all->tensors);
  ad_release(all->names);
}

static ad_status describe_params(const ad_run *run, described *all) {
  AD_TRY(ad_new(ad_run_param_count(run), &all->tensors));
  AD_TRY(ad_new(ad_run_param_count(run), &all->names));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    all->tensors[i] =
        (ad_safetensor){.name = ad_program_param_name(run->program, at.module, at.param, all->names[i], NAME_SIZE),
                        .dtype = at.spec->policy.param,
                        .shape = at.spec->shape};
  }
  return AD_OK;
}

// Opens the file on the first rank. Other ranks write nothing.
static ad_status open_writer(const ad_run *run, const char *path, ad_safetensors_writer **out) {
  static const char *const metadata[] = {"format", "pt", "written_by", "addend", NULL};
  described all = {0};
  if (!ad_run_is_first(run)) return AD_OK;
  ad_status status = describe_params(run, &all);
  if (!status) status = ad_safetensors_create(path, all.tensors, ad_run_param_count(run), metadata, out);
  release_described(&all);
  return status;
}

static ad_status new_full(const ad_run *run, void **out) {
  size_t most = 0;
  char *memory;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_param_spec *spec = ad_run_param_at(run, i).spec;
    size_t bytes = (size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(spec->policy.param);
    if (bytes > most) most = bytes;
  }
  AD_TRY(ad_new(most, &memory));
  *out = memory;
  return AD_OK;
}

static ad_status visit_full(ad_run *run, void *memory, ad_full_visitor visit, void *context) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array full = {.data = memory};
    AD_TRY(ad_run_full(run, ad_run_part(run, i, AD_PART_VALUE), &full));
    if (visit) visit(context, i, &full);
  }
  return AD_OK;
}

ad_status ad_run_visit_full(ad_run *run, ad_full_visitor visit, void *context) {
  void *memory = NULL;
  ad_status status = ad_agree(run->comm, &run->everyone, new_full(run, &memory), AD_HERE);
  if (!status) status = visit_full(run, memory, visit, context);
  ad_release(memory);
  return status;
}

typedef struct writing {
  ad_safetensors_writer *writer;
  ad_status status;
} writing;

// If a write failed, the rank still gathers the other parameters, because the other ranks wait for it in the next
// gather.
static void write_param(void *context, size_t index, const ad_array *full) {
  writing *w = context;
  if (!w->status) w->status = ad_safetensors_add(w->writer, full->data);
}

static ad_status write_weights(ad_run *run, const char *path) {
  writing w = {0};
  AD_TRY(ad_agree(run->comm, &run->everyone, open_writer(run, path, &w.writer), AD_HERE));
  ad_status status = ad_run_visit_full(run, w.writer ? write_param : NULL, &w);
  if (!status && w.writer && !w.status) w.status = ad_safetensors_finish(w.writer, NULL, NULL);
  ad_safetensors_writer_destroy(w.writer);
  return status ? status : w.status;
}

ad_status ad_run_write_weights(ad_run *run, const char *path) {
  AD_NEED(run, path);
  return ad_agree(run->comm, &run->everyone, write_weights(run, path), AD_HERE);
}

/* ---- reading all parameters ---- */

static const char *name_of(const ad_run *run, size_t index, char *buffer) {
  ad_run_param at = ad_run_param_at(run, index);
  return ad_program_param_name(run->program, at.module, at.param, buffer, NAME_SIZE);
}

/* Reads this rank's part of a parameter, cast to the dtype of `value`. If the rank has no part, there is no memory to
 * read into. */
static ad_status read_param(const ad_run *run, const ad_tensor_source *source, const ad_weights *weights,
                            ad_array *value) {
  ad_part mine;
  if (!value || !value->data) return AD_OK;
  ad_part_of(&value->layout, &value->shape, ad_comm_rank(run->comm), &mine);
  return ad_tensor_source_read(source, weights, &mine, value->dtype, value->data);
}

static ad_status read_params(ad_run *run, const ad_architecture *architecture, const ad_weights *weights) {
  AD_TRY(ad_program_check_weights(run->program, architecture, weights));
  char own[NAME_SIZE];
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_tensor_source source;
    if (ad_tensor_source_find(architecture, name_of(run, i, own), &ad_run_param_at(run, i).spec->shape, &source))
      AD_TRY(read_param(run, &source, weights, ad_run_part(run, i, AD_PART_MASTER)));
  }
  return AD_OK;
}

ad_status ad_run_read_weights(ad_run *run, const char *path) {
  AD_NEED(run, path);
  ad_weights *weights;
  AD_TRY(ad_weights_open(path, &weights));
  ad_status status = read_params(run, NULL, weights);
  ad_weights_close(weights);
  return status ? status : ad_run_refresh(run, AD_MASTERS_WRITTEN);
}

static ad_status read_folder(ad_run *run, const ad_architecture *architecture, const char *folder) {
  ad_weights *weights;
  AD_TRY(ad_pretrained_weights(folder, &weights));
  ad_status status = read_params(run, architecture, weights);
  ad_weights_close(weights);
  return status;
}

ad_status ad_run_read_pretrained(ad_run *run, const char *folder) {
  ad_config config = {0};
  char *path = NULL;
  ad_status status = ad_pretrained_config(folder, &path, &config);
  if (!status) status = read_folder(run, config.architecture, folder);
  ad_config_release(&config);
  ad_release(path);
  return status ? status : ad_run_refresh(run, AD_MASTERS_WRITTEN);
}
