/* Whether tensors are the parameters of a model. A tensor that no parameter takes is refused too: it is a sign of
 * another model, or of a name that was written wrongly. */
#include "program/weights.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "program/program.h"

enum { NAME_SIZE = 2 * AD_PARAM_NAME_SIZE, WORDS = 1024 };

/* Which tensors there should be, and how far the lists of the message are. */
typedef struct judging {
  const ad_param_spec *params;
  size_t param_count;
  const ad_weights *weights;
  ad_text text;
  size_t missing, other_dtypes, other_shapes, extra;
} judging;

typedef void judge(judging *j, const ad_param_spec *param);

static void for_each_param(judging *j, judge *function) {
  for (size_t p = 0; p < j->param_count; p++) function(j, &j->params[p]);
}

static void list_missing(judging *j, const ad_param_spec *param) {
  if (!ad_weights_find(j->weights, param->name)) ad_text_list(&j->text, &j->missing, "; it lacks ", "%s", param->name);
}

static void list_other_dtype(judging *j, const ad_param_spec *param) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, param->name);
  if (tensor && !ad_dtype_is_float(tensor->dtype))
    ad_text_list(&j->text, &j->other_dtypes, "; no floats are ", "%s (%s)", param->name, ad_dtype_name(tensor->dtype));
}

static void list_other_shape(judging *j, const ad_param_spec *param) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, param->name);
  char there[160], here[160];
  if (tensor && !ad_shape_equal(&tensor->shape, &param->shape))
    ad_text_list(&j->text, &j->other_shapes, "; they differ in ", "%s (%s there, %s here)", param->name,
                 ad_shape_print(&tensor->shape, there, sizeof there), ad_shape_print(&param->shape, here, sizeof here));
}

static int is_param(const judging *j, const char *tensor) {
  for (size_t p = 0; p < j->param_count; p++)
    if (!strcmp(j->params[p].name, tensor)) return 1;
  return 0;
}

/* Only as many as the message names: each is held against all parameters. */
static void list_extra(judging *j, const ad_safetensors *file) {
  for (size_t i = 0; i < ad_safetensors_count(file) && j->extra <= AD_LISTED; i++) {
    const char *tensor = ad_safetensors_at(file, i)->name;
    if (!is_param(j, tensor)) ad_text_list(&j->text, &j->extra, "; the model has no ", "%.80s", tensor);
  }
}

static ad_status check(const ad_param_spec *params, size_t count, const ad_weights *weights) {
  const ad_safetensors *file;
  char words[WORDS] = "";
  judging j = {.params = params, .param_count = count, .weights = weights, .text = ad_text_on(words, sizeof words)};
  for_each_param(&j, list_missing);
  for (size_t i = 0; (file = ad_weights_file(weights, i)); i++) list_extra(&j, file);
  for_each_param(&j, list_other_dtype);
  for_each_param(&j, list_other_shape);
  if (!j.text.used) return AD_OK;
  return ad_fail(AD_INVALID, "%s: these are not the weights of this model%s", ad_weights_path(weights), words);
}

static ad_status check_named(const ad_param_spec *params, size_t count, const ad_weights *weights) {
  for (size_t i = 0; i < count; i++) AD_NEED_IN("ad_params_check_weights", "params[i].name", params[i].name);
  return check(params, count, weights);
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

/* ---- of a program ---- */

static size_t count_params(const ad_program *program) {
  size_t count = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++) count += ad_program_module(program, m)->param_count;
  return count;
}

/* Those of all modules, by the names that the program gives them. */
static void list_params(const ad_program *program, char (*names)[NAME_SIZE], ad_param_spec *params) {
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *module = ad_program_module(program, m);
    for (size_t p = 0; p < module->param_count; p++, params++, names++) {
      *params = module->params[p];
      params->name = ad_program_param_name(program, m, p, *names, NAME_SIZE);
    }
  }
}

ad_status ad_program_check_weights(const ad_program *program, const ad_weights *weights) {
  size_t count = count_params(program);
  char(*names)[NAME_SIZE];
  ad_param_spec *params;
  AD_TRY(ad_new(count, &names));
  ad_status status = ad_new(count, &params);
  if (!status) {
    list_params(program, names, params);
    status = check(params, count, weights);
    ad_release(params);
  }
  ad_release(names);
  return status;
}
