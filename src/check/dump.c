/* Writing a step's weights, inputs and gradients as safetensors. The arrays are brought together on all ranks, one
 * after another; the first rank writes them. */
#include "check/dump.h"

#include <stdio.h>

#include "addend/safetensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "io/file.h"
#include "train/run.h"

enum { NAME_SIZE = 2 * AD_PARAM_NAME_SIZE, TEXT_SIZE = 40 };

/* A list of arrays to write; each rank has its part. */
typedef struct dumped {
  const ad_array **parts;
  ad_safetensor *tensors;
  char (*names)[NAME_SIZE];
  size_t count, capacity, largest; /* bytes of the largest, whole */
} dumped;

static ad_status append(dumped *list, const char *name, const ad_array *part) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 32;
    AD_TRY(ad_grow(&list->parts, list->capacity, capacity));
    AD_TRY(ad_grow(&list->tensors, list->capacity, capacity));
    AD_TRY(ad_grow(&list->names, list->capacity, capacity));
    list->capacity = capacity;
  }
  size_t at = list->count++, bytes = (size_t)ad_shape_numel(&part->shape) * ad_dtype_size(part->dtype);
  snprintf(list->names[at], NAME_SIZE, "%s", name);
  list->parts[at] = part;
  list->tensors[at] = (ad_safetensor){.dtype = part->dtype, .shape = part->shape};
  if (bytes > list->largest) list->largest = bytes;
  return AD_OK;
}

static void release(dumped *list) {
  ad_release(list->parts);
  ad_release(list->tensors);
  ad_release(list->names);
}

static ad_status list_params(const ad_run *run, ad_param_part part, dumped *list) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    char name[NAME_SIZE];
    ad_program_param_name(run->program, at.module, at.param, name, sizeof name);
    AD_TRY(append(list, name, ad_run_part(run, i, part)));
  }
  return AD_OK;
}

static ad_status list_inputs(const ad_run *run, dumped *list) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  const ad_array *array;
  char name[NAME_SIZE];
  for (size_t i = 0; kind->batch_array; i++) {
    array = kind->batch_array(ad_program_own(run->program), i, name, sizeof name);
    if (!array) return AD_OK;
    AD_TRY(append(list, name, array));
  }
  return AD_OK;
}

/* ---- writing ---- */

static ad_status open_file(const ad_prover *prover, const char *name, dumped *list, const char *const *metadata,
                           ad_safetensors_writer **out) {
  char *path;
  if (!ad_run_is_first(prover->run)) return AD_OK;
  for (size_t i = 0; i < list->count; i++) list->tensors[i].name = list->names[i];
  AD_TRY(ad_path_in(prover->job->options->dump, name, &path));
  ad_status status = ad_safetensors_create(path, list->tensors, list->count, metadata, out);
  ad_release(path);
  return status;
}

/* A rank that could not write still takes part: the others wait for it. */
static ad_status write_arrays(ad_prover *prover, const dumped *list, void *memory, ad_safetensors_writer *writer) {
  ad_status written = AD_OK;
  for (size_t i = 0; i < list->count; i++) {
    ad_array whole = {.data = memory};
    AD_TRY(ad_run_whole(prover->run, list->parts[i], AD_HERE, &whole));
    if (writer && !written) written = ad_safetensors_add(writer, memory);
  }
  if (writer && !written) written = ad_safetensors_finish(writer, NULL, NULL);
  return ad_agree(prover->comm, &prover->everyone, written, AD_HERE);
}

static ad_status write_list(ad_prover *prover, const char *name, dumped *list, const char *const *metadata) {
  ad_safetensors_writer *writer = NULL;
  char *memory = NULL;
  ad_status opened = ad_new(list->largest, &memory);
  if (!opened) opened = open_file(prover, name, list, metadata, &writer);
  ad_status status = ad_agree(prover->comm, &prover->everyone, opened, AD_HERE);
  if (!status) status = write_arrays(prover, list, memory, writer);
  ad_safetensors_writer_destroy(writer);
  ad_release(memory);
  return status;
}

/* Takes the list. */
static ad_status dump(ad_prover *prover, int64_t step, const char *what, ad_status listed, dumped *list,
                      const char *const *metadata) {
  char name[64];
  snprintf(name, sizeof name, "step-%lld.%s.safetensors", (long long)step, what);
  ad_status status = listed ? listed : write_list(prover, name, list, metadata);
  release(list);
  return status;
}

ad_status ad_dump_weights(ad_prover *prover, int64_t step) {
  dumped list = {0};
  ad_status status = list_params(prover->run, AD_PART_VALUE, &list);
  return dump(prover, step, "weights", status, &list, NULL);
}

ad_status ad_dump_inputs(ad_prover *prover, int64_t step) {
  dumped list = {0};
  ad_status status = list_inputs(prover->run, &list);
  return dump(prover, step, "inputs", status, &list, NULL);
}

ad_status ad_dump_gradients(ad_prover *prover, const ad_step_report *report) {
  dumped list = {0};
  char loss[TEXT_SIZE], norm[TEXT_SIZE], count[TEXT_SIZE], lr[TEXT_SIZE], scale[TEXT_SIZE];
  snprintf(loss, sizeof loss, "%.17g", report->loss);
  snprintf(norm, sizeof norm, "%.17g", report->norm);
  snprintf(count, sizeof count, "%lld", (long long)report->count);
  snprintf(lr, sizeof lr, "%.17g", report->lr);
  snprintf(scale, sizeof scale, "%d", report->loss_scale);
  const char *const metadata[] = {"loss", loss, "norm", norm, "count", count, "lr", lr, "loss_scale", scale, NULL};
  ad_status status = list_params(prover->run, AD_PART_GRADIENT, &list);
  return dump(prover, report->step, "gradients", status, &list, metadata);
}
