/* Whether tensors are the parameters of a program. A tensor that no parameter takes is refused too: it is a sign of
 * another model, or of a name that was written wrongly. */
#include "program/weights.h"

#include <string.h>
#include "base/error.h"
#include "base/text.h"

enum { NAME_SIZE = 2 * AD_PARAM_NAME_SIZE, WORDS = 1024 };

/* How far the lists of the message are. */
typedef struct judging {
  const ad_program *program;
  const ad_weights *weights;
  ad_text text;
  size_t missing, other_dtypes, other_shapes, extra;
} judging;

typedef void judge(judging *j, const char *name, const ad_shape *shape);

static void for_each_param(judging *j, judge *function) {
  char name[NAME_SIZE];
  for (size_t m = 0; m < ad_program_module_count(j->program); m++) {
    const ad_module_spec *module = ad_program_module(j->program, m);
    for (size_t p = 0; p < module->param_count; p++)
      function(j, ad_program_param_name(j->program, m, p, name, sizeof name), &module->params[p].shape);
  }
}

static void list_missing(judging *j, const char *name, const ad_shape *shape) {
  if (!ad_weights_find(j->weights, name)) ad_text_list(&j->text, &j->missing, "; it lacks ", "%s", name);
}

static void list_other_dtype(judging *j, const char *name, const ad_shape *shape) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, name);
  if (tensor && !ad_dtype_is_float(tensor->dtype))
    ad_text_list(&j->text, &j->other_dtypes, "; no floats are ", "%s (%s)", name, ad_dtype_name(tensor->dtype));
}

static void list_other_shape(judging *j, const char *name, const ad_shape *shape) {
  const ad_safetensor *tensor = ad_weights_find(j->weights, name);
  char there[160], here[160];
  if (tensor && !ad_shape_equal(&tensor->shape, shape))
    ad_text_list(&j->text, &j->other_shapes, "; they differ in ", "%s (%s there, %s here)", name,
                 ad_shape_print(&tensor->shape, there, sizeof there), ad_shape_print(shape, here, sizeof here));
}

static int is_param(const ad_program *program, const char *tensor) {
  char name[NAME_SIZE];
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t p = 0; p < ad_program_module(program, m)->param_count; p++)
      if (!strcmp(ad_program_param_name(program, m, p, name, sizeof name), tensor)) return 1;
  return 0;
}

/* Only as many as the message names: each is held against all parameters. */
static void list_extra(judging *j, const ad_safetensors *file) {
  for (size_t i = 0; i < ad_safetensors_count(file) && j->extra <= AD_LISTED; i++) {
    const char *tensor = ad_safetensors_at(file, i)->name;
    if (!is_param(j->program, tensor)) ad_text_list(&j->text, &j->extra, "; the model has no ", "%.80s", tensor);
  }
}

ad_status ad_program_check_weights(const ad_program *program, const ad_weights *weights, const char *path) {
  char words[WORDS] = "";
  judging j = {.program = program, .weights = weights, .text = ad_text_on(words, sizeof words)};
  for_each_param(&j, list_missing);
  for (size_t i = 0; i < weights->count; i++) list_extra(&j, weights->files[i]);
  for_each_param(&j, list_other_dtype);
  for_each_param(&j, list_other_shape);
  if (!j.text.used) return AD_OK;
  return ad_fail(AD_INVALID, "%s: these are not the weights of this model%s", path, words);
}
