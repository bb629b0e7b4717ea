/* Writes what a step starts from, and its gradients, as safetensors. All ranks gather one array after another; the
 * first rank writes it. */
#include "check/dump.h"

#include <stdio.h>
#include <string.h>

#include "addend/safetensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "files/file.h"
#include "module/module.h"
#include "program/program.h"
#include "step/run.h"

enum { NAME_SIZE = AD_PROGRAM_NAME_SIZE, TEXT_SIZE = 40 };
enum { REPORTED_MAX = 5 + AD_LOSSES_MAX + AD_NORM_GROUPS_MAX };

/* A list of arrays that are to be written; each rank has its part of each array. */
typedef struct dumped {
  const ad_array **parts;
  ad_safetensor *tensors;
  char (*names)[NAME_SIZE];
  size_t count, capacity, largest; /* largest: bytes of the largest full array */
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

static void release_dumped(dumped *list) {
  ad_release(list->parts);
  ad_release(list->tensors);
  ad_release(list->names);
}

static ad_status list_params(const ad_run *run, ad_param_part part, dumped *list) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    char name[NAME_SIZE];
    if (part == AD_PART_GRADIENT && !ad_run_trains(run, i)) continue;
    ad_program_param_name(run->program, at.module, at.param, name, sizeof name);
    AD_TRY(append(list, name, ad_run_part(run, i, part)));
  }
  return AD_OK;
}

static ad_status list_states_of(const ad_run *run, size_t m, dumped *list) {
  const ad_module_spec *module = ad_program_module(run->program, m);
  int is_alone = !ad_program_names_modules(run->program);
  char name[NAME_SIZE];
  for (size_t i = 0; i < module->state_count; i++) {
    const char *own = module->states[i].name;
    snprintf(name, sizeof name, "%s%s%s", is_alone ? "" : module->name, is_alone ? "" : ".", own);
    AD_TRY(append(list, name, ad_run_state(run, m, i)));
  }
  return AD_OK;
}

static ad_status list_states(const ad_run *run, dumped *list) {
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) AD_TRY(list_states_of(run, m, list));
  return AD_OK;
}

static int is_listed(const dumped *list, const char *name) {
  for (size_t i = 0; i < list->count; i++)
    if (!strcmp(list->names[i], name)) return 1;
  return 0;
}

typedef const ad_array *(*array_of)(const ad_program *program, size_t index, char *name, size_t size);

/* Lists the program's arrays. If several modules have slices of one array, it is listed once, since it is written in
 * full. */
static ad_status list_arrays(const ad_run *run, array_of array_at, dumped *list) {
  const ad_array *array;
  char name[NAME_SIZE];
  for (size_t i = 0; (array = array_at(run->program, i, name, sizeof name)); i++)
    if (!is_listed(list, name)) AD_TRY(append(list, name, array));
  return AD_OK;
}

/* ---- writing one safetensors file ---- */

static ad_status open_file(const ad_checker *checker, const char *name, dumped *list, const char *const *metadata,
                           ad_safetensors_writer **out) {
  char *path;
  if (!ad_run_is_first(checker->run)) return AD_OK;
  for (size_t i = 0; i < list->count; i++) list->tensors[i].name = list->names[i];
  AD_TRY(ad_path_in(checker->job->options->dump, name, &path));
  ad_status status = ad_safetensors_create(path, list->tensors, list->count, metadata, out);
  ad_release(path);
  return status;
}

/* Gathers and writes the list's arrays. The first rank continues gathering if writing fails, because the other ranks
 * wait for it. */
static ad_status write_arrays(ad_checker *checker, const dumped *list, void *memory, ad_safetensors_writer *writer) {
  ad_status written = AD_OK;
  for (size_t i = 0; i < list->count; i++) {
    ad_array full = {.data = memory};
    AD_TRY(ad_run_full(checker->run, list->parts[i], &full));
    if (writer && !written) written = ad_safetensors_add(writer, memory);
  }
  if (writer && !written) written = ad_safetensors_finish(writer, NULL, NULL);
  return ad_agree(checker->comm, &checker->everyone, written, AD_HERE);
}

static ad_status write_list(ad_checker *checker, const char *name, dumped *list, const char *const *metadata) {
  ad_safetensors_writer *writer = NULL;
  char *memory = NULL;
  ad_status opened = ad_new(list->largest, &memory);
  if (!opened) opened = open_file(checker, name, list, metadata, &writer);
  ad_status status = ad_agree(checker->comm, &checker->everyone, opened, AD_HERE);
  if (!status) status = write_arrays(checker, list, memory, writer);
  ad_safetensors_writer_destroy(writer);
  ad_release(memory);
  return status;
}

/* Writes the list to the file and releases the list. `listed` is the status of making the list; if it is an error,
 * nothing is written. */
static ad_status dump(ad_checker *checker, const char *name, ad_status listed, dumped *list,
                      const char *const *metadata) {
  ad_status status = listed ? listed : write_list(checker, name, list, metadata);
  release_dumped(list);
  return status;
}

static ad_status dump_of_step(ad_checker *checker, int64_t step, const char *what, ad_status listed, dumped *list,
                              const char *const *metadata) {
  char name[64];
  snprintf(name, sizeof name, "step-%lld.%s.safetensors", (long long)step, what);
  return dump(checker, name, listed, list, metadata);
}

/* ---- a gradients file's metadata: losses, norms, counts ---- */

typedef struct reported {
  char *names[REPORTED_MAX], texts[REPORTED_MAX][TEXT_SIZE];
  const char *pairs[2 * REPORTED_MAX + 1]; /* a name and its text, the next name and its text, ...; NULL at the end */
  size_t count;
} reported;

static void release_names(reported *of) {
  for (size_t i = 0; i < of->count; i++) ad_release(of->names[i]);
}

static ad_status report_value(reported *to, const char *what, const char *of, double value) {
  size_t at = to->count, size = strlen(what) + 1 + strlen(of) + 1;
  AD_TRY(ad_new(size, &to->names[at]));
  to->count++;
  snprintf(to->names[at], size, "%s%s%s", what, *of ? "." : "", of);
  snprintf(to->texts[at], TEXT_SIZE, "%.17g", value);
  to->pairs[2 * at] = to->names[at];
  to->pairs[2 * at + 1] = to->texts[at];
  return AD_OK;
}

/* Adds all numbers of a step's report. Single losses and norms are added only if there are several. */
static ad_status report_all(const ad_run *run, const ad_step_report *report, reported *to) {
  size_t losses = ad_program_loss_count(run->program);
  AD_TRY(report_value(to, "loss", "", report->loss));
  AD_TRY(report_value(to, "norm", "", report->norm));
  AD_TRY(report_value(to, "count", "", (double)report->count));
  AD_TRY(report_value(to, "lr", "", report->lr));
  AD_TRY(report_value(to, "loss_scale", "", report->loss_scale));
  for (size_t i = 0; i < losses && losses > 1; i++)
    AD_TRY(report_value(to, "loss", ad_program_loss(run->program, i)->name, report->losses[i]));
  for (size_t i = 0; i < ad_run_norm_group_count(run) && ad_run_norm_group_count(run) > 1; i++)
    AD_TRY(report_value(to, "norm", ad_run_norm_group_name(run, i), report->norms[i]));
  return AD_OK;
}

/* ---- the files of a dump: weights, states, constants, inputs, gradients ---- */

static ad_status dump_weights(ad_checker *checker, int64_t step) {
  dumped list = {0};
  ad_status status = list_params(checker->run, AD_PART_VALUE, &list);
  return dump_of_step(checker, step, "weights", status, &list, NULL);
}

static ad_status dump_states(ad_checker *checker, int64_t step) {
  dumped list = {0};
  ad_status status = list_states(checker->run, &list);
  return status || list.count ? dump_of_step(checker, step, "states", status, &list, NULL) : AD_OK;
}

/* Writes the arrays that are the same in every step. */
static ad_status dump_constants(ad_checker *checker) {
  dumped list = {0};
  ad_status status = list_arrays(checker->run, ad_program_constant_array, &list);
  return status || list.count ? dump(checker, "constants.safetensors", status, &list, NULL) : AD_OK;
}

/* Writes nothing in a run with leaves: a rank reads only the inputs of its own leaves. */
static ad_status dump_inputs(ad_checker *checker, int64_t step) {
  dumped list = {0};
  if (checker->run->leaves) return AD_OK;
  ad_status status = list_arrays(checker->run, ad_program_batch_array, &list);
  return dump_of_step(checker, step, "inputs", status, &list, NULL);
}

static ad_status dump_gradients(ad_checker *checker, const ad_step_report *report) {
  dumped list = {0};
  reported words = {.count = 0};
  ad_status status = report_all(checker->run, report, &words);
  if (!status) status = list_params(checker->run, AD_PART_GRADIENT, &list);
  status = dump_of_step(checker, report->step, "gradients", status, &list, words.pairs);
  release_names(&words);
  return status;
}

ad_status ad_dump_before(ad_checker *checker, int64_t step) {
  if (step == 0) AD_TRY(dump_constants(checker));
  AD_TRY(dump_weights(checker, step));
  return dump_states(checker, step);
}

ad_status ad_dump_after(ad_checker *checker, const ad_step_report *report) {
  AD_TRY(dump_inputs(checker, report->step));
  return dump_gradients(checker, report);
}
