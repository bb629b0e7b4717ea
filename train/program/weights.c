/* Checks that the tensors in files are the parameters of a model. A tensor that belongs to no parameter is refused,
 * too, because it indicates another model or a wrong name. */
#include "program/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "architecture/tensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "program/program.h"
#include "data/weights.h"

enum { NAME_SIZE = AD_PROGRAM_NAME_SIZE, WORDS = 1024 };

/* A tensor that the files must have: a full parameter, or one expert's part of a parameter. */
typedef struct wanted {
  char name[NAME_SIZE];
  ad_shape shape;
} wanted;

/* The tensors that the files must have, and the lengths of the lists in the message. */
typedef struct judging {
  const ad_architecture *architecture; /* the architecture whose names the tensors have; NULL if they have addend's
                                        * own names */
  wanted *wanted;                      /* the tensors that must exist, in the order of the parameters */
  wanted *sorted;                      /* the same tensors, sorted by name */
  size_t count;
  const ad_weights *weights;
  ad_text text;
  size_t foreign, missing, other_dtypes, other_shapes, extra;
} judging;

/* ---- listing the tensors that a model needs ---- */

static size_t count_tensors(const ad_architecture *architecture, const ad_param_spec *params, size_t count) {
  ad_tensor_source source;
  size_t tensors = 0;
  for (size_t p = 0; p < count; p++)
    if (ad_tensor_source_find(architecture, params[p].name, &params[p].shape, &source)) tensors += (size_t)source.count;
  return tensors;
}

static void want(judging *j, const ad_param_spec *param) {
  ad_tensor_source source;
  if (!ad_tensor_source_find(j->architecture, param->name, &param->shape, &source)) {
    ad_text_list(&j->text, &j->foreign, "; without a tensor in the architecture of the files: ", "%s", param->name);
    return;
  }
  for (int64_t i = 0; i < source.count; i++) {
    wanted *one = &j->wanted[j->count++];
    ad_tensor_source_name(&source, i, one->name);
    one->shape = source.shape;
  }
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const wanted *)a)->name, ((const wanted *)b)->name);
}

static ad_status want_all(judging *j, const ad_param_spec *params, size_t count) {
  size_t tensors = count_tensors(j->architecture, params, count);
  AD_TRY(ad_new(tensors, &j->wanted));
  AD_TRY(ad_new(tensors, &j->sorted));
  for (size_t p = 0; p < count; p++) want(j, &params[p]);
  memcpy(j->sorted, j->wanted, j->count * sizeof *j->wanted);
  qsort(j->sorted, j->count, sizeof *j->sorted, by_name);
  return AD_OK;
}

/* ---- comparing the needed tensors with those of the files ---- */

typedef void judge(judging *j, const wanted *one);

static void for_each(judging *j, judge *function) {
  for (size_t i = 0; i < j->count; i++) function(j, &j->wanted[i]);
}

static void list_missing(judging *j, const wanted *one) {
  if (!ad_weights_find(j->weights, one->name)) ad_text_list(&j->text, &j->missing, "; missing: ", "%s", one->name);
}

static void list_other_dtype(judging *j, const wanted *one) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, one->name);
  if (tensor && !ad_dtype_is_float(tensor->dtype))
    ad_text_list(&j->text, &j->other_dtypes, "; not of a float dtype: ", "%s (%s)", one->name,
                 ad_dtype_name(tensor->dtype));
}

static void list_other_shape(judging *j, const wanted *one) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, one->name);
  char there[160], here[160];
  if (tensor && !ad_shape_equal(&tensor->shape, &one->shape))
    ad_text_list(&j->text, &j->other_shapes, "; of another shape: ", "%s (%s in the files, %s in the model)", one->name,
                 ad_shape_print(&tensor->shape, there, sizeof there), ad_shape_print(&one->shape, here, sizeof here));
}

static int is_wanted(const judging *j, const char *tensor) {
  wanted key = {0};
  if (snprintf(key.name, sizeof key.name, "%s", tensor) >= (int)sizeof key.name) return 0;
  return bsearch(&key, j->sorted, j->count, sizeof key, by_name) != NULL;
}

static void list_extra(judging *j, const ad_safetensors *file) {
  for (size_t i = 0; i < ad_safetensors_count(file) && j->extra <= AD_LISTED; i++) {
    const ad_safetensor *tensor = ad_safetensors_at(file, i);
    if (!is_wanted(j, tensor->name) && !ad_tensor_is_idle(j->architecture, j->weights, tensor))
      ad_text_list(&j->text, &j->extra, "; not in the model: ", "%.80s", tensor->name);
  }
}

static ad_status judge_all(judging *j, const ad_param_spec *params, size_t count) {
  const ad_safetensors *file;
  AD_TRY(want_all(j, params, count));
  for_each(j, list_missing);
  for (size_t i = 0; (file = ad_weights_file(j->weights, i)); i++) list_extra(j, file);
  for_each(j, list_other_dtype);
  for_each(j, list_other_shape);
  return AD_OK;
}

static ad_status check_weights(const ad_param_spec *params, size_t count, const ad_architecture *architecture,
                               const ad_weights *weights) {
  char words[WORDS] = "";
  judging j = {.architecture = architecture, .weights = weights, .text = ad_text_on(words, sizeof words)};
  ad_status status = judge_all(&j, params, count);
  ad_release(j.wanted);
  ad_release(j.sorted);
  if (status || !j.text.used) return status;
  return ad_fail(AD_INVALID, "%s: these weights do not fit the model of the recipe, which needs other tensors%s",
                 ad_weights_path(weights), words);
}

static ad_status check_named(const ad_param_spec *params, size_t count, const ad_weights *weights) {
  for (size_t i = 0; i < count; i++) AD_NEED_IN("ad_params_check_weights", "params[i].name", params[i].name);
  return check_weights(params, count, NULL, weights);
}

ad_status ad_params_check_weights(const ad_param_spec *params, size_t count, const ad_weights *weights) {
  AD_NEED(weights);
  if (count) AD_NEED(params);
  void *own;
  AD_TRY(ad_options_take_all(&own, sizeof *params, params, count, "ad_param_spec"));
  ad_status status = check_named(own, count, weights);
  ad_release(own);
  return status;
}

/* ---- checking all parameters of a program ---- */

static size_t count_params(const ad_program *program) {
  size_t count = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++) count += ad_program_module(program, m)->param_count;
  return count;
}

static void list_params(const ad_program *program, ad_program_params *out) {
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *module = ad_program_module(program, m);
    for (size_t p = 0; p < module->param_count; p++, out->count++) {
      out->list[out->count] = module->params[p];
      out->list[out->count].name = ad_program_param_name(program, m, p, out->names[out->count], NAME_SIZE);
    }
  }
}

ad_status ad_program_params_list(const ad_program *program, ad_program_params *out) {
  ad_program_params made = {0};
  ad_status status = ad_new(count_params(program), &made.names);
  if (!status) status = ad_new(count_params(program), &made.list);
  if (status)
    ad_program_params_release(&made);
  else
    list_params(program, &made), *out = made;
  return status;
}

void ad_program_params_release(ad_program_params *params) {
  ad_release(params->names);
  ad_release(params->list);
  *params = (ad_program_params){0};
}

ad_status ad_program_check_weights(const ad_program *program, const ad_architecture *architecture,
                                   const ad_weights *weights) {
  ad_program_params params;
  AD_TRY(ad_program_params_list(program, &params));
  ad_status status = check_weights(params.list, params.count, architecture, weights);
  ad_program_params_release(&params);
  return status;
}
