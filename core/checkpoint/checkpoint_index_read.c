/* Reads a checkpoint's index. Even if the checksum is right, every number in the index is checked as if it came from a
 * stranger. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/safetensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint_format.h"
#include "checkpoint/checkpoint_index.h"
#include "files/file.h"
#include "files/json.h"

enum { INDEX_BYTES_MAX = 1 << 30 };

/* ---- reading index.json ---- */

// Checks the text against the checksum in its first bytes.
static ad_status check_text(const char *path, const char *text, int64_t size) {
  char first[AD_CHECKPOINT_FIRST_BYTES + 1];
  size_t head = AD_CHECKPOINT_FIRST_BYTES;
  if (size < AD_CHECKPOINT_FIRST_BYTES)
    return ad_fail(
        AD_IO, "%s: the index of the checkpoint is cut short, because it has only %lld bytes; use another checkpoint",
        path, (long long)size);
  snprintf(first, sizeof first, AD_CHECKPOINT_FIRST,
           (unsigned long long)ad_checksum(text + head, (size_t)size - head, 0));
  if (!memcmp(first, text, head)) return AD_OK;
  return ad_fail(AD_IO,
                 "%s: the checksum in the file does not match its content, so the file is cut short or bytes have "
                 "changed; use another checkpoint",
                 path);
}

/* Checks the checksum and parses the text. Returns AD_IO if it is not an index of this version's format. */
static ad_status parse_text(const char *path, const char *text, int64_t size, json_t **out) {
  json_error_t error;
  json_t *file;
  AD_TRY(check_text(path, text, size));
  AD_TRY(ad_json_parse(text, (size_t)size, JSON_REJECT_DUPLICATES, &file, &error));
  json_t *index = json_incref(json_object_get(file, "index"));
  json_decref(file);
  const char *format = json_string_value(json_object_get(index, "format"));
  if (format && !strcmp(format, AD_CHECKPOINT_FORMAT)) {
    *out = index;
    return AD_OK;
  }
  ad_status status = index
                         ? ad_fail(AD_IO,
                                   "%s: this file has the format \"%.40s\", but this version of addend reads only "
                                   "\"%s\"; use the version of addend that wrote the file",
                                   path, format ? format : "", AD_CHECKPOINT_FORMAT)
                         : ad_fail(AD_IO, "%s: this file is not the index of a checkpoint (%s); use another checkpoint",
                                   path, error.text);
  json_decref(index);
  return status;
}

ad_status ad_index_read(const char *path, json_t **out) {
  char *text;
  int64_t size;
  AD_TRY(ad_file_read(path, INDEX_BYTES_MAX, &text, &size));
  ad_status status = parse_text(path, text, size, out);
  ad_release(text);
  return status;
}

/* ---- the checkpoint's files, by number ---- */

size_t ad_index_file_count(const json_t *index) { return json_array_size(json_object_get(index, "files")); }

ad_status ad_index_file(const json_t *index, size_t i, const char **name, ad_file_sum *out) {
  const json_t *file = json_array_get(json_object_get(index, "files"), i);
  const char *its_name = json_string_value(json_object_get(file, "name"));
  const char *checksum = json_string_value(json_object_get(file, "xxh64"));
  if (!its_name || !checksum || !ad_name_is_plain(its_name))
    return ad_fail(AD_IO,
                   "index.json: entry %zu (from 0) of `files` has no usable name or checksum, so this checkpoint "
                   "cannot be read; use another checkpoint",
                   i);
  *name = its_name;
  *out = (ad_file_sum){json_integer_value(json_object_get(file, "bytes")), strtoull(checksum, NULL, 16)};
  return AD_OK;
}

/* ---- comparing the checkpoint's values with those of the state ---- */

static const json_t *index_value(const json_t *index, const char *name) {
  return json_object_get(json_object_get(index, "values"), name);
}

static int has_shape(const json_t *value, const ad_shape *shape) {
  const json_t *dims = json_object_get(value, "shape");
  if (json_array_size(dims) != (size_t)shape->ndim) return 0;
  for (int dim = 0; dim < shape->ndim; dim++)
    if (json_integer_value(json_array_get(dims, (size_t)dim)) != shape->dim[dim]) return 0;
  return 1;
}

static void name_missing(const json_t *index, const ad_checkpoint_state *state, ad_text *text) {
  size_t count = 0;
  for (size_t i = 0; i < state->value_count; i++)
    if (!index_value(index, state->values[i].name))
      ad_text_list(text, &count, "; missing: ", "%s", state->values[i].name);
}

/* Returns 1 if the state lists the value, or does not want it and says so. */
static int is_expected(const ad_checkpoint_state *state, const char *name) {
  for (size_t i = 0; i < state->value_count; i++)
    if (!strcmp(state->values[i].name, name)) return 1;
  return state->unwanted && state->unwanted(state->context, name);
}

static void name_extra(const json_t *index, const ad_checkpoint_state *state, ad_text *text) {
  const char *name;
  json_t *value;
  size_t count = 0;
  json_object_foreach(json_object_get(index, "values"), name, value) {
    if (!is_expected(state, name)) ad_text_list(text, &count, "; only the checkpoint has ", "%s", name);
  }
}

static void name_other_shapes(const json_t *index, const ad_checkpoint_state *state, ad_text *text) {
  size_t count = 0;
  for (size_t i = 0; i < state->value_count; i++) {
    const json_t *value = index_value(index, state->values[i].name);
    char shape[96];
    if (!value || has_shape(value, &state->values[i].array->shape)) continue;
    ad_text_list(text, &count, "; the checkpoint has in another shape ", "%s (in this run %s)", state->values[i].name,
                 ad_shape_print(&state->values[i].array->shape, shape, sizeof shape));
  }
}

ad_status ad_index_match(const json_t *index, const ad_checkpoint_state *state) {
  char words[AD_MESSAGE_MAX / 2] = "";
  ad_text text = ad_text_on(words, sizeof words);
  name_missing(index, state, &text);
  if (!state->some) name_extra(index, state, &text);
  name_other_shapes(index, state, &text);
  if (!text.used) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the checkpoint is of another model than this run%s; continue with the recipe of the checkpoint, or "
                 "begin a new run",
                 words);
}

static size_t list_facts(const json_t *object, ad_checkpoint_fact *facts) {
  const char *key;
  json_t *value;
  size_t count = 0;
  json_object_foreach((json_t *)object, key, value) {
    if (json_is_string(value)) facts[count++] = (ad_checkpoint_fact){key, json_string_value(value)};
  }
  return count;
}

ad_status ad_index_judge(const json_t *index, const ad_checkpoint_state *state) {
  const json_t *object = json_object_get(index, "facts");
  ad_checkpoint_fact *facts;
  if (!state->judge) return AD_OK;
  AD_TRY(ad_new(json_object_size(object), &facts));
  ad_status status = state->judge(state->context, facts, list_facts(object, facts));
  ad_release(facts);
  return status;
}

ad_status ad_index_numbers(const json_t *index, ad_checkpoint_state *state) {
  const json_t *numbers = json_object_get(index, "numbers");
  for (size_t i = 0; i < state->number_count; i++) {
    const json_t *number = json_object_get(numbers, state->numbers[i].name);
    if (!json_is_integer(number))
      return ad_fail(AD_INVALID,
                     "index.json of the checkpoint has no number `%s`; use a checkpoint that this program wrote",
                     state->numbers[i].name);
    state->numbers[i].value = json_integer_value(number);
  }
  state->step = json_integer_value(json_object_get(index, "step"));
  return AD_OK;
}

ad_status ad_index_check_step(const json_t *index, int64_t step) {
  const json_t *stated = json_object_get(index, "step");
  if (json_is_integer(stated) && json_integer_value(stated) == step) return AD_OK;
  char *words = stated ? json_dumps(stated, JSON_ENCODE_ANY) : NULL;
  ad_status status = ad_fail(AD_IO,
                             "index.json: this is the index of step %.40s, but the folder is named after step %lld; "
                             "give the folder its first name again",
                             words ? words : "nothing", (long long)step);
  free(words);
  return status;
}

ad_status ad_index_check_ranks(const json_t *index) {
  const char *text = json_string_value(json_object_get(index, "mesh"));
  const json_t *stated = json_object_get(index, "ranks");
  ad_mesh *mesh;
  if (!text || !json_is_integer(stated))
    return ad_fail(AD_IO,
                   "index.json: `mesh` or `ranks`, the number of ranks, is missing, so this checkpoint cannot be read; "
                   "use another checkpoint");
  ad_status status = ad_mesh_create(text, &mesh);
  /* Out of memory does not mean that the file is damaged. */
  if (status) return ad_fail_in(status == AD_MEMORY ? AD_MEMORY : AD_IO, "index.json");
  int64_t ranks = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  if (json_integer_value(stated) == ranks) return AD_OK;
  return ad_fail(AD_IO,
                 "index.json: `ranks` is %lld rank%s, but `mesh`, \"%.80s\", has %lld rank%s, so the file was changed; "
                 "use another checkpoint",
                 (long long)json_integer_value(stated), ad_plural(json_integer_value(stated)), text, (long long)ranks,
                 ad_plural(ranks));
}

ad_status ad_index_check_dtype(const json_t *index, const char *name, ad_dtype dtype) {
  const char *stated = json_string_value(json_object_get(index_value(index, name), "dtype"));
  if (stated && !strcmp(stated, ad_dtype_name(dtype))) return AD_OK;
  return ad_fail(AD_IO,
                 "index.json: the dtype of `%s` is %.40s here, but %s in the file that has the value, so the "
                 "checkpoint was changed; use another checkpoint",
                 name, stated ? stated : "missing", ad_dtype_name(dtype));
}

/* ---- pieces: which region of a value a file holds ---- */

const json_t *ad_index_pieces(const json_t *index, const char *name) {
  return json_object_get(index_value(index, name), "pieces");
}

// Reads the spans of one dimension. Returns 1 if the spans ascend, without overlap and inside the dimension, else 0.
static int read_spans(const json_t *list, int64_t size, ad_part *part, int dim) {
  int64_t end = 0;
  size_t count = json_array_size(list);
  if (!json_is_array(list) || count > AD_PART_SPANS) return 0;
  for (size_t i = 0; i < count; i++) {
    const json_t *pair = json_array_get(list, i);
    ad_span span = {json_integer_value(json_array_get(pair, 0)), json_integer_value(json_array_get(pair, 1))};
    if (span.first < end || span.count < 1 || span.count > size || span.first > size - span.count) return 0;
    part->span[dim][i] = span;
    end = span.first + span.count;
  }
  part->count[dim] = (int)count;
  return 1;
}

ad_status ad_index_piece(const json_t *index, const json_t *piece, const ad_shape *shape, ad_part *part, size_t *file) {
  const json_t *dims = json_object_get(piece, "spans"), *number = json_object_get(piece, "file");
  int good = json_array_size(dims) == (size_t)shape->ndim && json_is_integer(number) && json_integer_value(number) >= 0;
  part->ndim = shape->ndim;
  for (int dim = 0; good && dim < shape->ndim; dim++)
    good = read_spans(json_array_get(dims, (size_t)dim), shape->dim[dim], part, dim);
  *file = (size_t)json_integer_value(number);
  if (good && *file < ad_index_file_count(index)) return AD_OK;
  return ad_fail(AD_IO,
                 "index.json: an entry of `pieces` has `spans` outside its value, or a `file` that is not in `files`, "
                 "so the checkpoint was changed; use another checkpoint");
}
