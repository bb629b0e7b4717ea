/* Reads a config.json, with the architecture's tables. A key in no table is refused, so that no key is ignored by
 * accident. */
#include "architecture/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "architecture/config_build.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/file.h"
#include "files/json.h"

enum { WORDS = 512, SHOWN = 120, KEY_SIZE = 128 };

/* ---- setting a recipe key from a key of config.json, or refusing that key ---- */

ad_status ad_config_give(ad_config *to, const char *key, const char *from, const char *text) {
  if (to->count == AD_CONFIG_VALUES_MAX)
    return ad_fail(AD_INVALID, "config.json has more than %d keys that addend uses; addend cannot use this model",
                   AD_CONFIG_VALUES_MAX);
  ad_config_value *value = &to->values[to->count];
  AD_TRY(ad_copy_string(text, &value->text));
  value->key = key;
  value->from = from;
  to->count++;
  return AD_OK;
}

ad_status ad_config_refuse(ad_config *to, const char *key, const char *format, ...) {
  char words[WORDS], sentence[WORDS + KEY_SIZE + 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(words, sizeof words, format, arguments);
  va_end(arguments);
  size_t length = strcspn(key, "|");
  snprintf(sentence, sizeof sentence, "%.*s: %s", (int)(length < KEY_SIZE ? length : KEY_SIZE), key, words);
  AD_TRY(ad_grow(&to->refused, to->refused_count, to->refused_count + 1));
  return ad_copy_string(sentence, &to->refused[to->refused_count++]);
}

const char *ad_config_print(const json_t *value, char *buffer, size_t size) {
  char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
  snprintf(buffer, size, "%s", text ? text : "nothing");
  free(text);
  return buffer;
}

ad_status ad_config_refuse_value(ad_config *to, const char *key, const char *must, const json_t *is) {
  char shown[SHOWN];
  return ad_config_refuse(to, key, "must be %s, but is %s, which addend does not compute; choose another model", must,
                          ad_config_print(is, shown, sizeof shown));
}

int ad_config_equal(const json_t *a, const json_t *b) {
  if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
  return json_equal(a, b);
}

/* ---- reading the keys that the tables have ---- */

static json_t *parse_own(const char *json) { return json_loads(json, JSON_DECODE_ANY, NULL); }

/* Returns the first of the row's names that config.json has, and sets *value. If config.json has none of the names,
 * sets *value to NULL and returns the row's names as they are. */
static const char *find_key(const json_t *config, const ad_config_row *row, const json_t **value) {
  for (const char *at = row->key; *at; at += strcspn(at, "|"), at += *at == '|') {
    char name[KEY_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "|"), at);
    *value = json_object_get(config, name);
    if (*value) return at;
  }
  *value = NULL;
  return row->key;
}

/* Returns 1 if `key` is one of the row's names. */
static int row_has(const ad_config_row *row, const char *key) {
  size_t length = strlen(key);
  for (const char *at = row->key; *at; at += strcspn(at, "|"), at += *at == '|')
    if (strcspn(at, "|") == length && !strncmp(at, key, length)) return 1;
  return 0;
}

const char *ad_config_number(double value, char buffer[AD_CONFIG_NUMBER]) {
  snprintf(buffer, AD_CONFIG_NUMBER, "%.15g", value);
  if (strtod(buffer, NULL) != value) snprintf(buffer, AD_CONFIG_NUMBER, "%.17g", value);
  return buffer;
}

/* Prints a number or a boolean as YAML writes it; returns buffer. */
static const char *print_value(const json_t *value, char *buffer, size_t size) {
  char number[AD_CONFIG_NUMBER];
  if (!json_is_real(value)) return ad_config_print(value, buffer, size);
  snprintf(buffer, size, "%s", ad_config_number(json_real_value(value), number));
  return buffer;
}

/* Sets a recipe key to the value in config.json or, if config.json has none, to the value that Transformers uses in
 * that case. */
static ad_status give(const json_t *config, const ad_config_row *row, ad_config *to) {
  char text[SHOWN];
  const json_t *value;
  find_key(config, row, &value);
  if (!value || json_is_null(value)) {
    if (!row->absent) return ad_config_refuse(to, row->key, "is missing; add this key");
    return ad_config_give(to, row->gives, row->key, row->absent);
  }
  if (!json_is_number(value) && !json_is_boolean(value))
    return ad_config_refuse(to, row->key, "must be a number, true or false, but is %s",
                            ad_config_print(value, text, sizeof text));
  return ad_config_give(to, row->gives, row->key, print_value(value, text, sizeof text));
}

/* Refuses a value that differs from the only one that addend computes. A missing key or null is accepted. */
static ad_status refuse_other_value(const json_t *config, const ad_config_row *row, ad_config *to) {
  const json_t *value;
  json_t *must = parse_own(row->must);
  find_key(config, row, &value);
  int is_other = value && !json_is_null(value) && !ad_config_equal(value, must);
  json_decref(must);
  return is_other ? ad_config_refuse_value(to, row->key, row->must, value) : AD_OK;
}

static ad_status take_row(const json_t *config, const ad_config_row *row, ad_config *to) {
  switch (row->use) {
    case AD_CONFIG_GIVES:
      return give(config, row, to);
    case AD_CONFIG_MUST:
      return refuse_other_value(config, row, to);
    default:
      return AD_OK;
  }
}

static ad_status take_rows(const json_t *config, ad_config *to) {
  for (int part = 0; part < AD_ARCHITECTURE_PARTS && to->architecture->config[part]; part++)
    for (const ad_config_row *row = to->architecture->config[part]; row->key; row++) AD_TRY(take_row(config, row, to));
  return AD_OK;
}

/* ---- reading keys that belong together; refusing unknown keys ---- */

static ad_status take_facts(ad_config *to) {
  for (const ad_architecture_fact *fact = to->architecture->facts; fact->key; fact++)
    AD_TRY(ad_config_give(to, fact->key, to->architecture->name, fact->value));
  return AD_OK;
}

/* Sets *out to a boolean of config.json, 0 if the key is missing. If the architecture has the key (is_known), refuses a
 * value that is no boolean. */
static ad_status take_flag(const json_t *config, const char *key, int is_known, int *out, ad_config *to) {
  const json_t *value = json_object_get(config, key);
  *out = json_is_true(value);
  if (!is_known || !value || json_is_boolean(value) || json_is_null(value)) return AD_OK;
  return ad_config_refuse_value(to, key, "true or false", value);
}

static ad_status take_bias(const json_t *config, ad_config *to) {
  const ad_architecture *a = to->architecture;
  int attention, mlp;
  if (!a->has_attention_bias && !a->has_mlp_bias) return AD_OK;
  AD_TRY(take_flag(config, "attention_bias", a->has_attention_bias, &attention, to));
  AD_TRY(take_flag(config, "mlp_bias", a->has_mlp_bias, &mlp, to));
  mlp = mlp && a->has_mlp_bias;
  const char *bias = attention && mlp ? "all" : attention ? "attention" : mlp ? "mlp" : "none";
  return ad_config_give(to, "model.bias", mlp && !attention ? "mlp_bias" : "attention_bias", bias);
}

static int is_known(const ad_architecture *a, const char *key) {
  for (int part = 0; part < AD_ARCHITECTURE_PARTS && a->config[part]; part++)
    for (const ad_config_row *row = a->config[part]; row->key; row++)
      if (row_has(row, key)) return 1;
  return 0;
}

/* Returns 1 if the value switches its key off: null, false, or an empty list or object. */
static int is_off(const json_t *value) {
  int is_empty =
      (json_is_array(value) && !json_array_size(value)) || (json_is_object(value) && !json_object_size(value));
  return json_is_null(value) || json_is_false(value) || is_empty;
}

static ad_status note_unread(ad_config *to, const char *key) {
  AD_TRY(ad_grow(&to->unread, to->unread_count, to->unread_count + 1));
  return ad_copy_string(key, &to->unread[to->unread_count++]);
}

/* Refuses every key that is in no table, unless its value switches it off or changes no number. */
static ad_status refuse_unknown(const json_t *config, ad_config *to) {
  const char *key;
  json_t *value;
  char shown[SHOWN];
  json_object_foreach((json_t *)config, key, value) {
    if (is_known(to->architecture, key) || is_off(value)) continue;
    if (ad_config_is_harmless(key, value)) {
      AD_TRY(note_unread(to, key));
      continue;
    }
    AD_TRY(ad_config_refuse(
        to, key, "is %s, but addend does not know this key; remove the key if it changes no number of the model",
        ad_config_print(value, shown, sizeof shown)));
  }
  return AD_OK;
}

/* ---- reading a whole config.json ---- */

/* Finds the architecture that config.json names, and checks that model_type is that architecture's. */
static ad_status find_architecture(const json_t *config, const char *path, const ad_architecture **out) {
  char known[256], shown[SHOWN];
  const json_t *list = json_object_get(config, "architectures");
  const char *name = json_string_value(json_array_get(list, 0));
  *out = name && json_array_size(list) == 1 ? ad_architecture_find(name) : NULL;
  if (!*out)
    return ad_fail(AD_INVALID, "%s: `architectures` must be a list of one name, %s, but is %s", path,
                   ad_architectures_known(known, sizeof known), ad_config_print(list, shown, sizeof shown));
  const json_t *type = json_object_get(config, "model_type");
  if (!type || (json_is_string(type) && !strcmp(json_string_value(type), (*out)->model_type))) return AD_OK;
  return ad_fail(AD_INVALID, "%s: `model_type` must be \"%s\", because `architectures` is [\"%s\"], but is %s", path,
                 (*out)->model_type, name, ad_config_print(type, shown, sizeof shown));
}

static ad_status take_all(const json_t *config, ad_config *to) {
  AD_TRY(take_rows(config, to));
  AD_TRY(take_facts(to));
  AD_TRY(take_bias(config, to));
  AD_TRY(ad_config_take_rotary(config, to));
  AD_TRY(ad_config_take_window(config, to));
  to->positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
  return refuse_unknown(config, to);
}

static ad_status take_document(const json_t *config, const char *path, ad_config *out) {
  ad_config made = {0};
  if (!json_is_object(config))
    return ad_fail(AD_INVALID, "%s: the file is not a JSON object {...}; name the config.json of a model", path);
  AD_TRY(find_architecture(config, path, &made.architecture));
  ad_status status = take_all(config, &made);
  if (status)
    ad_config_release(&made);
  else
    *out = made;
  return status;
}

ad_status ad_config_parse(const char *text, size_t size, const char *path, ad_config *out) {
  json_error_t error;
  json_t *config;
  AD_TRY(ad_json_parse(text, size, JSON_REJECT_DUPLICATES, &config, &error));
  if (!config)
    return ad_fail(AD_INVALID, "%s:%d: this is not valid JSON (%s); name the config.json of a model", path, error.line,
                   error.text);
  ad_status status = take_document(config, path, out);
  json_decref(config);
  return status;
}

ad_status ad_config_read(const char *path, ad_config *out) {
  char *text;
  int64_t size;
  AD_TRY(ad_file_read(path, AD_CONFIG_BYTES_MAX, &text, &size));
  ad_status status = ad_config_parse(text, (size_t)size, path, out);
  ad_release(text);
  return status;
}

void ad_config_report_unread(const ad_config *config, const char *path) {
  char names[WORDS];
  ad_text text = ad_text_on(names, sizeof names);
  for (size_t i = 0; i < config->unread_count; i++) ad_text_add(&text, "%s%s", i ? ", " : "", config->unread[i]);
  if (config->unread_count)
    ad_log(AD_LOG_INFO, "%s: these keys were not read, because no number of the model depends on them: %s", path,
           names);
}

void ad_config_release(ad_config *config) {
  for (size_t i = 0; i < config->count; i++) ad_release(config->values[i].text);
  for (size_t i = 0; i < config->refused_count; i++) ad_release(config->refused[i]);
  for (size_t i = 0; i < config->unread_count; i++) ad_release(config->unread[i]);
  ad_release(config->refused);
  ad_release(config->unread);
  *config = (ad_config){0};
}
