/* Reads and checks the metadata of one file of a dump. */
#include "read/metadata.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtypes.h"
#include "base/error.h"

static const char *text_of(const ad_dump_file *file, const char *key) {
  return ad_safetensors_metadata(file->tensors, key);
}

static ad_status wrong(const ad_dump_file *file, const char *key, const char *text, const char *right) {
  return ad_fail(AD_INVALID, "%s: %s is '%.60s', but must be %s", file->path, key, text, right);
}

static ad_status need(const ad_dump_file *file, const char *key) {
  return text_of(file, key)
             ? AD_OK
             : ad_fail(AD_INVALID, "%s has no %s in its metadata; write this key when the file is dumped", file->path,
                       key);
}

/* Reads an integer that is at least `least`; leaves *out unchanged if the file does not have the key. */
static ad_status read_integer(const ad_dump_file *file, const char *key, int64_t least, int64_t *out) {
  const char *text = text_of(file, key);
  char *end;
  if (!text) return AD_OK;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (errno || end == text || *end || value < least || value > INT64_C(1) << 53)
    return wrong(file, key, text, least ? "a whole number, 1 or more" : "a whole number, 0 or more");
  *out = value;
  return AD_OK;
}

/* Reads a number above 0; if `may_be_zero`, 0 is allowed too. Sets *out to NaN if the file does not have the key. */
static ad_status read_positive(const ad_dump_file *file, const char *key, int may_be_zero, double *out) {
  const char *text = text_of(file, key);
  char *end;
  *out = NAN;
  if (!text) return AD_OK;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < 0 || (value == 0 && !may_be_zero))
    return wrong(file, key, text, may_be_zero ? "a number, 0 or more" : "a number above 0");
  *out = value;
  return AD_OK;
}

/* A file whose metadata is read, and an earlier file that may share parsed metadata with it. */
typedef struct ad_saying {
  ad_dump_file *file;       /* the file that is read */
  const ad_dump_file *like; /* the earlier file; NULL: there is none */
} ad_saying;

/* Returns the JSON value of `key` that was already parsed for the file `like`, if both files share the header with
 * this text; else NULL: the text must be parsed. `place` is the address of the field of `file` for this JSON; the same
 * field of `like` is read. */
static json_t *shared(const ad_saying *saying, const char *key, json_t *const *place) {
  const char *base = (const char *)saying->file;
  if (!saying->like || text_of(saying->like, key) != text_of(saying->file, key)) return NULL;
  return *(json_t *const *)(const void *)((const char *)saying->like + ((const char *)place - base));
}

/* Parses a key's JSON text; *out stays NULL if the file does not have the key. */
static ad_status read_json(const ad_saying *saying, const char *key, json_t **out) {
  const ad_dump_file *file = saying->file;
  const char *text = text_of(file, key);
  json_error_t error;
  if (!text) return AD_OK;
  *out = json_incref(shared(saying, key, out));
  if (*out) return AD_OK;
  *out = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
  return *out ? AD_OK
              : ad_fail(AD_INVALID, "%s: the value of %s is not valid JSON (%s); write JSON", file->path, key,
                        error.text);
}

/* Parses a key that must be a JSON object. */
static ad_status read_map(const ad_saying *saying, const char *key, json_t **out) {
  const ad_dump_file *file = saying->file;
  AD_TRY(read_json(saying, key, out));
  if (*out && !json_is_object(*out)) return wrong(file, key, text_of(file, key), "a JSON object with names");
  return AD_OK;
}

/* A test of a map's values, and what right ones are: "a text". */
typedef struct ad_form {
  int (*is_right)(json_t *value);
  const char *right;
} ad_form;

static int is_text(json_t *value) { return json_is_string(value); }

static int is_shard(json_t *value) {
  const char *text;
  int is;
  return !json_unpack(value, "{s:s, s?b, s?b}", "values", &text, "constant", &is, "stepped", &is);
}

static int is_inside(json_t *value) {
  double terms, size;
  return !json_unpack(value, "[F, F!]", &terms, &size);
}

static const ad_form texts = {is_text, "a text"},
                     shards = {is_shard,
                               "{\"values\": a text, \"constant\": true or false, \"stepped\": true or false}"},
                     insides = {is_inside, "[terms, size], two numbers"};

/* Parses a key that must be a JSON object whose values have this form. */
static ad_status read_map_of(const ad_saying *saying, const char *key, const ad_form *form, json_t **out) {
  const char *name;
  json_t *value;
  AD_TRY(read_map(saying, key, out));
  json_object_foreach(*out, name, value) if (!form->is_right(value)) return ad_fail(
      AD_INVALID, "%s: %s of \"%.80s\" must be %s", saying->file->path, key, name, form->right);
  return AD_OK;
}

static int is_factor(const json_t *value) {
  return json_is_number(value) && isfinite(json_number_value(value)) && json_number_value(value) != 0;
}

/* Reads addend.expect: a factor, or a JSON object whose keys are patterns and whose values are factors. */
static ad_status read_expect(const ad_saying *saying) {
  ad_dump_file *file = saying->file;
  static const char key[] = "addend.expect", right[] = "a number that is not 0, or a JSON object of them by pattern";
  const char *pattern;
  json_t *value;
  AD_TRY(read_json(saying, key, &file->expect));
  if (!file->expect || is_factor(file->expect)) return AD_OK;
  if (!json_is_object(file->expect)) return wrong(file, key, text_of(file, key), right);
  json_object_foreach(file->expect, pattern, value) if (!is_factor(value)) return wrong(file, key, pattern, right);
  return AD_OK;
}

/* Checks that `name` is a dtype in which gradients can be summed. */
static ad_status check_comm_dtype(const char *name) {
  ad_dtype dtype = 0;
  char floats[AD_DTYPES_TEXT];
  AD_TRY(ad_dtype_parse(name, &dtype));
  if (ad_dtype_is_float(dtype)) return AD_OK;
  return ad_fail(AD_INVALID, "gradients cannot be summed in %s; use %s", name,
                 ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
}

static ad_status check_dtypes(const json_t *dtypes) {
  const char *pattern;
  json_t *value;
  if (json_is_string(dtypes)) return check_comm_dtype(json_string_value(dtypes));
  json_object_foreach((json_t *)dtypes, pattern, value) {
    if (!json_is_string(value))
      return ad_fail(AD_INVALID, "the dtype for the pattern '%.60s' is not a string; write a dtype such as \"f32\"",
                     pattern);
    AD_TRY(check_comm_dtype(json_string_value(value)));
  }
  return AD_OK;
}

/* Reads addend.reduce or addend.promised: the name of a dtype, or a JSON object whose keys are patterns and whose values
 * are such names. */
static ad_status read_dtypes(const ad_saying *saying, const char *key, json_t **out) {
  const ad_dump_file *file = saying->file;
  const char *text = text_of(file, key);
  if (!text) return AD_OK;
  if (text[strspn(text, " ")] == '{')
    AD_TRY(read_map(saying, key, out));
  else
    *out = json_string(text);
  ad_status status = check_dtypes(*out);
  return status ? ad_fail_in(status, "%s: %s", file->path, key) : AD_OK;
}

/* Returns 1 if a list is left out, or is a list of values of this type. */
static int is_list_of(const json_t *list, json_type type) {
  const json_t *value;
  size_t i;
  json_array_foreach(list, i, value) if (json_typeof(value) != type) return 0;
  return !list || json_is_array(list);
}

/* Returns 1 if an entry of addend.calls is a call, or says why there may be calls that nobody noted. */
static int is_call(json_t *entry) {
  static const char call[] = "{s:s, s?s, s?o, s?s, s:I, s:I, s?s, s?s, s?o, s?o}";
  const char *text;
  const json_t *ranks = NULL, *params = NULL, *backwards = NULL, *unseen = json_object_get(entry, "unseen");
  json_int_t bytes, count;
  if (unseen) return json_is_string(unseen);
  if (json_unpack(entry, call, "operation", &text, "axes", &text, "ranks", &ranks, "dtype", &text, "bytes", &bytes,
                  "count", &count, "phase", &text, "line", &text, "params", &params, "backwards", &backwards))
    return 0;
  return bytes >= 0 && count >= 0 && is_list_of(ranks, JSON_INTEGER) && is_list_of(backwards, JSON_INTEGER) &&
         is_list_of(params, JSON_STRING);
}

static ad_status read_calls(const ad_saying *saying) {
  static const char key[] = "addend.calls";
  ad_dump_file *file = saying->file;
  json_t *entry;
  size_t i;
  AD_TRY(read_json(saying, key, &file->calls));
  if (file->calls && !json_is_array(file->calls)) return wrong(file, key, text_of(file, key), "a JSON list of calls");
  json_array_foreach(file->calls, i, entry) if (!is_call(entry)) return ad_fail(
      AD_INVALID, "%s: entry %zu of %s is no call; write at least its operation, bytes and count", file->path, i, key);
  return AD_OK;
}

static ad_status read_kind(ad_dump_file *file, int plain) {
  static const char *const kinds[] = {"addend", "sum", "reference"};
  const char *kind = text_of(file, "addend.kind");
  if (!kind) {
    file->kind = AD_DUMP_REFERENCE;
    return plain ? AD_OK
                 : ad_fail(AD_INVALID, "%s has no addend.kind in its metadata; write addend, sum or reference",
                           file->path);
  }
  for (int i = 0; i < 3; i++)
    if (!strcmp(kind, kinds[i])) return file->kind = (ad_dump_kind)i, AD_OK;
  return wrong(file, "addend.kind", kind, "addend, sum or reference");
}

static ad_status read_version(const ad_dump_file *file) {
  const char *version = text_of(file, "addend.version");
  return version && strcmp(version, "1") != 0 ? wrong(file, "addend.version", version, "1") : AD_OK;
}

/* Reads which rank and microbatch a file belongs to, and its mesh and position. A reference has none of these. */
static ad_status read_place(ad_dump_file *file) {
  if (file->kind == AD_DUMP_REFERENCE) return AD_OK;
  AD_TRY(need(file, "addend.version"));
  AD_TRY(need(file, "addend.rank"));
  AD_TRY(need(file, "addend.mesh"));
  AD_TRY(read_integer(file, "addend.rank", 0, &file->rank));
  file->mesh = text_of(file, "addend.mesh");
  file->coord = text_of(file, "addend.coord");
  return read_integer(file, "addend.microbatch", 0, &file->microbatch);
}

static ad_status read_numbers(ad_dump_file *file) {
  const char *norm_type = text_of(file, "addend.norm_type");
  AD_TRY(read_integer(file, "addend.step", 0, &file->step));
  AD_TRY(read_integer(file, "addend.sample", 1, &file->sample));
  AD_TRY(read_positive(file, "addend.divisor", 0, &file->divisor));
  AD_TRY(read_positive(file, "addend.norm", 1, &file->norm));
  if (norm_type && strtod(norm_type, NULL) != 2) file->norm = NAN; /* only the 2-norm is judged */
  return AD_OK;
}

static ad_status read_maps(const ad_saying *saying) {
  ad_dump_file *file = saying->file;
  AD_TRY(read_map(saying, "addend.types", &file->types));
  AD_TRY(read_map(saying, "addend.shapes", &file->shapes));
  AD_TRY(read_map(saying, "addend.held", &file->held));
  AD_TRY(read_map(saying, "DCP_SHARDING_INFO", &file->sharding));
  AD_TRY(read_map(saying, "addend.partial", &file->partial));
  AD_TRY(read_map(saying, "addend.assumed", &file->assumed));
  AD_TRY(read_map_of(saying, "addend.inside", &insides, &file->inside));
  AD_TRY(read_map_of(saying, "addend.unjudged", &texts, &file->unjudged));
  AD_TRY(read_map_of(saying, "addend.values", &texts, &file->values));
  AD_TRY(read_map(saying, "addend.declared", &file->declared));
  AD_TRY(read_map_of(saying, "addend.shards", &shards, &file->shards));
  AD_TRY(read_expect(saying));
  AD_TRY(read_dtypes(saying, "addend.reduce", &file->reduce));
  AD_TRY(read_dtypes(saying, "addend.promised", &file->promised));
  return read_calls(saying);
}

static ad_status read_all(ad_dump_file *file, int plain, const ad_dump_file *like) {
  AD_TRY(read_version(file));
  AD_TRY(read_kind(file, plain));
  AD_TRY(read_place(file));
  AD_TRY(read_numbers(file));
  return read_maps(&(ad_saying){file, like});
}

ad_status ad_dump_file_read(ad_safetensors *tensors, int plain, const ad_dump_file *like, ad_dump_file *out) {
  ad_dump_file file = {.tensors = tensors, .path = ad_safetensors_path(tensors), .microbatch = -1, .step = -1};
  ad_status status = read_all(&file, plain, like);
  if (status) {
    ad_dump_file_close(&file);
    return status;
  }
  *out = file;
  return AD_OK;
}

void ad_dump_file_close(ad_dump_file *file) {
  json_t *const maps[] = {file->types,   file->assumed,  file->shapes, file->held,     file->sharding,
                          file->partial, file->expect,   file->reduce, file->unjudged, file->values,
                          file->inside,  file->promised, file->calls,  file->declared, file->shards};
  for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) json_decref(maps[i]);
  ad_safetensors_close(file->tensors);
}

const json_t *ad_dump_choose(const json_t *value, const char *name) {
  const char *pattern;
  const json_t *chosen = NULL;
  json_t *candidate;
  if (!json_is_object(value)) return value;
  json_object_foreach((json_t *)value, pattern, candidate) if (!fnmatch(pattern, name, 0)) chosen = candidate;
  return chosen;
}
