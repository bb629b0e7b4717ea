/* The rotary frequencies of positions. Older versions of Transformers wrote rope_theta and rope_scaling; since
 * version 5 rope_parameters has the values of both. */
#include <stdio.h>
#include <string.h>
#include "architecture/config_build.h"
#include "base/text.h"

enum { LIST = 4 * (AD_CONFIG_NUMBER + 2) + 2, SHOWN = 120 };

/* The parameters of Llama 3's rope scaling, in the order of model.rotary_scaling. */
static const char *const llama3[] = {"factor", "low_freq_factor", "high_freq_factor",
                                     "original_max_position_embeddings", NULL};

/* Returns the rope_type of an object, which older files call "type"; "default" if the object has neither. */
static const char *type_of(const json_t *object) {
  const json_t *type = json_object_get(object, "rope_type");
  if (!type) type = json_object_get(object, "type");
  if (!type || json_is_null(type)) return "default";
  return json_is_string(type) ? json_string_value(type) : "a value that is not a text";
}

static int is_in(const char *const *names, const char *name) {
  while (*names && strcmp(*names, name) != 0) names++;
  return *names != NULL;
}

/* Refuses keys that do not belong to the object's rope_type, because some programs ignore such keys and others do
 * not. */
static ad_status refuse_others(const char *where, const json_t *object, int stretches, ad_config *to) {
  static const char *const always[] = {"rope_type", "type", "rope_theta", NULL};
  const char *key;
  json_t *value;
  char path[SHOWN], shown[SHOWN];
  json_object_foreach((json_t *)object, key, value) {
    if (is_in(always, key) || (stretches && is_in(llama3, key)) || json_is_null(value)) continue;
    if (!strcmp(key, "partial_rotary_factor") && json_number_value(value) == 1) continue;
    snprintf(path, sizeof path, "%s.%.60s", where, key);
    AD_TRY(ad_config_refuse(
        to, path, "is %s, but addend does not compute this key with rope_type \"%.40s\"; choose another model",
        ad_config_print(value, shown, sizeof shown), type_of(object)));
  }
  return AD_OK;
}

/* Sets model.rotary_scaling to the four parameters of Llama 3's rope scaling. */
static ad_status take_scaling(const char *where, const json_t *object, ad_config *to) {
  char list[LIST];
  ad_text text = ad_text_on(list, sizeof list);
  for (int i = 0; llama3[i]; i++) {
    char path[SHOWN], number[AD_CONFIG_NUMBER];
    const json_t *value = json_object_get(object, llama3[i]);
    snprintf(path, sizeof path, "%s.%s", where, llama3[i]);
    if (!json_is_number(value)) return ad_config_refuse(to, path, "must be a number");
    ad_text_add(&text, "%s%s", i ? ", " : "[", ad_config_number(json_number_value(value), number));
  }
  ad_text_add(&text, "]");
  return ad_config_give(to, "model.rotary_scaling", where, list);
}

/* Sets model.rotary_scaling from a rope object; to an empty list if the rotations are not scaled. */
static ad_status take_object(const char *where, const json_t *object, ad_config *to) {
  const char *type = type_of(object);
  int stretches = !strcmp(type, "llama3");
  if (!json_is_object(object)) return ad_config_refuse(to, where, "must be a JSON object {...}");
  if (!stretches && strcmp(type, "default") != 0)
    return ad_config_refuse(to, where,
                            "rope_type must be \"default\" or \"llama3\", but is \"%.40s\", which addend does not "
                            "compute; choose another model",
                            type);
  AD_TRY(refuse_others(where, object, stretches, to));
  return stretches ? take_scaling(where, object, to) : ad_config_give(to, "model.rotary_scaling", where, "[]");
}

static int is_given(const json_t *value) { return value && !json_is_null(value); }

static ad_status take_base(const char *from, const json_t *base, ad_config *to) {
  char text[AD_CONFIG_NUMBER];
  if (!is_given(base)) return ad_config_give(to, "model.rotary_base", from, to->architecture->rotary_base);
  if (!json_is_number(base)) return ad_config_refuse(to, from, "must be a number");
  return ad_config_give(to, "model.rotary_base", from, ad_config_number(json_number_value(base), text));
}

static ad_status take_both(const json_t *parameters, ad_config *to) {
  const json_t *base = json_object_get(parameters, "rope_theta");
  AD_TRY(take_object("rope_parameters", parameters, to));
  return take_base("rope_parameters.rope_theta", base, to);
}

ad_status ad_config_take_rotary(const json_t *config, ad_config *to) {
  const json_t *parameters = json_object_get(config, "rope_parameters"), *base = json_object_get(config, "rope_theta"),
               *scaling = json_object_get(config, "rope_scaling");
  if (is_given(parameters) && (is_given(base) || is_given(scaling)))
    return ad_config_refuse(to, "rope_parameters", "is given together with %s; keep one of the two keys",
                            is_given(base) ? "rope_theta" : "rope_scaling");
  if (is_given(parameters)) return take_both(parameters, to);
  AD_TRY(take_base("rope_theta", base, to));
  return is_given(scaling) ? take_object("rope_scaling", scaling, to)
                           : ad_config_give(to, "model.rotary_scaling", "rope_scaling", "[]");
}
