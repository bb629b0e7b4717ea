/* Finds the architecture and the config.json for a recipe's keys, with the tables by which model.from reads a
 * config.json. */
#include "export/express.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "program/program.h"
#include "recipe/schema.h"

enum { VALUE = 256, WORDS = 1024 };

/* A recipe and the schema of its keys. */
typedef struct asking {
  const ad_recipe *recipe;
  ad_schema schema;
} asking;

/* Prints a key's value as YAML, or "" if the key has no value. */
static ad_status key_as_yaml(const asking *a, const char *key, char value[VALUE]) {
  const ad_schema_entry *entry = ad_schema_find(&a->schema, key);
  char *text;
  *value = 0;
  if (!entry) return AD_OK;
  AD_TRY(ad_recipe_print_key(a->recipe, &a->schema, entry, &text));
  if (strcmp(text, "left out") != 0) snprintf(value, VALUE, "%s", text);
  ad_release(text);
  return AD_OK;
}

/* ---- finding the architecture that the recipe's keys describe ---- */

static int64_t number_of(const asking *a, const char *key) {
  char value[VALUE];
  return key_as_yaml(a, key, value) ? 0 : strtoll(value, NULL, 10);
}

static int bias_is_expressed(const ad_architecture *architecture, const char *bias) {
  for (const ad_architecture_fact *fact = architecture->facts; fact->key; fact++)
    if (!strcmp(fact->key, "model.bias")) return 1; /* find_other compares biases */
  if (!strcmp(bias, "qkv")) return 0;
  int needs_attention = !strcmp(bias, "attention") || !strcmp(bias, "all");
  int needs_mlp = !strcmp(bias, "mlp") || !strcmp(bias, "all");
  return needs_attention <= architecture->has_attention_bias && needs_mlp <= architecture->has_mlp_bias;
}

/* Returns 1 if the number of heads divides d_model. Llama in Transformers requires this even if config.json has a
 * head_dim. */
static int heads_divide(const asking *a) {
  int64_t heads = number_of(a, "model.heads");
  return heads && number_of(a, "model.d_model") % heads == 0;
}

/* Writes to `other` a value in the recipe that the architecture does not compute ("model.qk_norm true"), or "" if there
 * is none. */
static ad_status find_other(const asking *a, const ad_architecture *architecture, char other[2 * VALUE]) {
  char value[VALUE];
  *other = 0;
  for (const ad_architecture_fact *fact = architecture->facts; fact->key && !*other; fact++) {
    AD_TRY(key_as_yaml(a, fact->key, value));
    if (*value && strcmp(value, fact->value) != 0) snprintf(other, 2 * VALUE, "%s %s", fact->key, value);
  }
  if (!*other && architecture == &ad_llama && !heads_divide(a))
    snprintf(other, 2 * VALUE, "a model.d_model that is not a multiple of model.heads");
  AD_TRY(key_as_yaml(a, "model.bias", value));
  if (!*other && !bias_is_expressed(architecture, value)) snprintf(other, 2 * VALUE, "model.bias %s", value);
  return AD_OK;
}

/* Finds the first architecture that computes everything in the recipe. If there is none, returns AD_INVALID with what
 * each architecture does not compute. */
static ad_status find_architecture(const asking *a, const ad_architecture **out) {
  char words[WORDS] = "", other[2 * VALUE];
  ad_text text = ad_text_on(words, sizeof words);
  for (const ad_architecture *const *at = ad_architectures(); *at; at++) {
    if (!ad_program_kind_computes(a->recipe->program, (*at)->name)) continue;
    AD_TRY(find_other(a, *at, other));
    if (!*other) return *out = *at, AD_OK;
    ad_text_add(&text, "%s%s cannot have %s", text.used ? ", " : ": ", (*at)->name, other);
  }
  return ad_fail(
      AD_INVALID,
      "no architecture of Transformers that addend knows computes this model%s; change the recipe, and train again",
      text.used ? words : ", since none has this model.kind");
}

ad_status ad_express_find(const ad_recipe *recipe, const ad_architecture **out) {
  asking a = {.recipe = recipe};
  AD_TRY(ad_schema_create(recipe->program, &a.schema));
  ad_status status = find_architecture(&a, out);
  ad_schema_release(&a.schema);
  return status;
}

/* ---- filling config.json ---- */

const char *ad_express_dtype(ad_dtype dtype) { return ad_dtype_name_in(dtype, "torch"); }

/* Returns the size that a recipe key with the value 0 means. */
static int64_t usual_size(const asking *a, const char *key) {
  const ad_program_kind *program = a->recipe->program;
  if (!program->rules.usual) return 0;
  return AD_GUEST(program, "rules.usual", program->rules.usual(a->recipe->options, key));
}

static ad_status add_given(const asking *a, const ad_config_row *row, json_t *config) {
  char value[VALUE], name[VALUE];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(row->key, "|"), row->key);
  AD_TRY(key_as_yaml(a, row->gives, value));
  json_t *number =
      strcmp(value, "0") ? json_loads(value, JSON_DECODE_ANY, NULL) : json_integer(usual_size(a, row->gives));
  if (number && !json_object_set_new(config, name, number)) return AD_OK;
  return ad_fail(AD_INVALID, "%s is \"%s\", which cannot be written to config.json as a JSON value; change this key",
                 row->gives, value);
}

static double element(const json_t *list, size_t i) { return json_number_value(json_array_get(list, i)); }

/* Writes the rotary keys of older versions of Transformers, because newer versions read them, too. */
static ad_status add_rotary(const asking *a, json_t *config) {
  char base[VALUE], scaling[VALUE];
  AD_TRY(key_as_yaml(a, "model.rotary_base", base));
  AD_TRY(key_as_yaml(a, "model.rotary_scaling", scaling));
  json_object_set_new(config, "rope_theta", json_real(strtod(base, NULL)));
  json_t *list = *scaling ? json_loads(scaling, 0, NULL) : NULL;
  if (json_array_size(list) == 4)
    json_object_set_new(config, "rope_scaling",
                        json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", element(list, 0),
                                  "low_freq_factor", element(list, 1), "high_freq_factor", element(list, 2),
                                  "original_max_position_embeddings", (json_int_t)element(list, 3)));
  else
    json_object_set_new(config, "rope_scaling", json_null());
  json_decref(list);
  return AD_OK;
}

static ad_status add_bias(const asking *a, const ad_architecture *architecture, json_t *config) {
  char bias[VALUE];
  AD_TRY(key_as_yaml(a, "model.bias", bias));
  int all = !strcmp(bias, "all");
  if (architecture->has_attention_bias)
    json_object_set_new(config, "attention_bias", json_boolean(all || !strcmp(bias, "attention")));
  if (architecture->has_mlp_bias) json_object_set_new(config, "mlp_bias", json_boolean(all || !strcmp(bias, "mlp")));
  return AD_OK;
}

static ad_status add_row(const asking *a, const ad_config_row *row, json_t *config) {
  if (row->use == AD_CONFIG_GIVES) return add_given(a, row, config);
  if (row->must) json_object_set_new(config, row->key, json_loads(row->must, JSON_DECODE_ANY, NULL));
  return AD_OK;
}

/* Writes the keys that name the model. A model of bytes has no tokens that begin or end a text. */
static void add_head(const asking *a, const ad_architecture *architecture, ad_dtype dtype, json_t *config) {
  json_object_set_new(config, "architectures", json_pack("[s]", architecture->name));
  json_object_set_new(config, "model_type", json_string(architecture->model_type));
  json_object_set_new(config, "torch_dtype", json_string(ad_express_dtype(dtype)));
  json_object_set_new(config, "max_position_embeddings", json_integer(number_of(a, "data.seq")));
  json_object_set_new(config, "bos_token_id", json_null());
  json_object_set_new(config, "eos_token_id", json_null());
}

static ad_status write_config(const asking *a, const ad_architecture *architecture, ad_dtype dtype, json_t *config) {
  add_head(a, architecture, dtype, config);
  for (int part = 0; part < AD_ARCHITECTURE_PARTS && architecture->config[part]; part++)
    for (const ad_config_row *row = architecture->config[part]; row->key; row++) AD_TRY(add_row(a, row, config));
  AD_TRY(add_rotary(a, config));
  return add_bias(a, architecture, config);
}

ad_status ad_express_config(const ad_recipe *recipe, const ad_architecture *architecture, ad_dtype dtype,
                            json_t **out) {
  asking a = {.recipe = recipe};
  json_t *config = json_object();
  if (!config) return ad_fail(AD_MEMORY, "no memory for config.json");
  ad_status status = ad_schema_create(recipe->program, &a.schema);
  if (!status) {
    status = write_config(&a, architecture, dtype, config);
    ad_schema_release(&a.schema);
  }
  if (status)
    json_decref(config);
  else
    *out = config;
  return status;
}
