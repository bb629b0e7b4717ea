/* model.from: the values in a model's config.json become values of recipe keys, as if the recipe gave them. If the
 * recipe gives such a key, too, both values must be the same. */
#include <stdlib.h>
#include <string.h>
#include "architecture/folder.h"
#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"
#include "recipe/reading.h"

static const char from[] = "model.from";

static ad_recipe_place place_of_config(const ad_reading *r) { return (ad_recipe_place){r->config_path, 0, 0}; }

/* ---- errors about config.json ---- */

static void report_refused(ad_reading *r) {
  for (size_t i = 0; i < r->config.refused_count; i++)
    ad_recipe_errors_add(&r->errors, place_of_config(r), "", "%s", r->config.refused[i]);
}

static ad_status report_unusable(ad_reading *r, ad_status status) {
  if (status == AD_MEMORY) return status;
  ad_recipe_place place = ad_reading_place(r, from);
  if (status == AD_IO)
    ad_recipe_errors_add_io(&r->errors, place, from, "%s", ad_last_error());
  else
    ad_recipe_errors_add(&r->errors, place, from, "%s", ad_last_error());
  return ad_recipe_errors_report(&r->errors);
}

/* ---- putting values into the tree ---- */

/* Makes a node of a value of config.json. The node has no line number, because lines of config.json are not known. */
static ad_status parse_config_value(ad_reading *r, const char *text, ad_node **out) {
  AD_TRY(ad_document_parse(text, strlen(text), place_of_config(r), &r->errors, out));
  if (*out) (*out)->place.line = 0;
  for (ad_node *child = *out ? (*out)->children : NULL; child; child = child->next) child->place.line = 0;
  return AD_OK;
}

static ad_status put_text(ad_reading *r, ad_node *model, const char *name, const char *text) {
  ad_node *node;
  AD_TRY(parse_config_value(r, text, &node));
  ad_status status = node ? ad_node_put(model, name, node) : AD_OK;
  if (status) ad_node_destroy(node);
  return status;
}

/* Returns 1 if both nodes are the same text, the same number, or lists of equal elements. */
static int are_equal(const ad_node *a, const ad_node *b) {
  if (a->kind != b->kind || a->kind == AD_NODE_MAP) return 0;
  if (a->kind == AD_NODE_SCALAR) {
    char *a_end, *b_end;
    double a_value = strtod(a->text, &a_end), b_value = strtod(b->text, &b_end);
    int are_numbers = *a->text && *b->text && !*a_end && !*b_end;
    return are_numbers ? a_value == b_value : !strcmp(a->text, b->text);
  }
  const ad_node *x = a->children, *y = b->children;
  for (; x && y && are_equal(x, y); x = x->next) y = y->next;
  return !x && !y;
}

/* Adds an error if the recipe's value of a key differs from the one in config.json. */
static ad_status compare_value(ad_reading *r, const ad_node *given, const ad_config_value *value) {
  ad_node *node;
  AD_TRY(parse_config_value(r, value->text, &node));
  if (node && !ad_node_is_empty(given) && !are_equal(given, node))
    ad_recipe_errors_add(&r->errors, given->place, value->key,
                         "is %.60s, but %s in %s makes it %s; leave the key out, or choose another model",
                         given->kind == AD_NODE_SCALAR ? given->text : "another list", value->from, r->config_path,
                         value->text);
  ad_node_destroy(node);
  return AD_OK;
}

static const char *name_in_model(const ad_config_value *value) { return strchr(value->key, '.') + 1; }

/* Puts a value of config.json into the tree; if the recipe gives the key, compares the values instead. */
static ad_status take_value(ad_reading *r, ad_node *model, const ad_config_value *value) {
  const ad_node *given = ad_node_find(model, name_in_model(value));
  if (given) return compare_value(r, given, value);
  return put_text(r, model, name_in_model(value), value->text);
}

/* Warns if samples are longer than the sequences on which the model was trained. This is allowed, because a recipe may
 * extend a model's length. */
static void warn_of_length(const ad_reading *r) {
  const ad_node *seq = ad_node_find(ad_node_find(r->root, "data"), "seq");
  if (!r->config.positions || !seq || seq->kind != AD_NODE_SCALAR) return;
  long long length = strtoll(seq->text, NULL, 10);
  if (length <= r->config.positions) return;
  ad_log(AD_LOG_WARNING,
         "%s: data.seq is %lld, but max_position_embeddings in %s is %lld, the most positions that the model was "
         "trained on; set a smaller data.seq",
         seq->place.origin, length, r->config_path, (long long)r->config.positions);
}

/* Returns data.seq of the recipe, or its default; 0 if it is no number, for which another error is added. */
static long long length_of_samples(const ad_reading *r) {
  const ad_node *seq = ad_node_find(ad_node_find(r->root, "data"), "seq");
  const ad_schema_entry *entry = ad_schema_find(&r->schema, "data.seq");
  if (seq) return seq->kind == AD_NODE_SCALAR ? strtoll(seq->text, NULL, 10) : 0;
  return entry && entry->key.fallback ? strtoll(entry->key.fallback, NULL, 10) : 0;
}

/* Refuses a sliding window that is shorter than a sample. A longer window changes nothing. */
static void judge_window(ad_reading *r) {
  long long window = r->config.window, length = length_of_samples(r);
  if (!window) return;
  if (length > window)
    ad_recipe_errors_add(
        &r->errors, place_of_config(r), "",
        "sliding_window is %lld, but data.seq is %lld; addend computes attention to all earlier tokens, which is the "
        "same only for samples of at most %lld tokens, so set data.seq to at most the window",
        window, length, window);
  else
    ad_log(AD_LOG_INFO, "%s: sliding_window is %lld, which makes no difference in samples of %lld tokens (data.seq)",
           r->config_path, window, length);
}

/* ---- reading model.from ---- */

/* Returns the program that computes the model in config.json: the one that model.kind names, if it can, else the first
 * that can. */
static const ad_program_kind *kind_of(const ad_node *model, const ad_architecture *architecture) {
  const ad_node *node = ad_node_find(model, "kind");
  const ad_program_kind *given = node && node->kind == AD_NODE_SCALAR ? ad_program_kind_find(node->text) : NULL;
  return given && ad_program_kind_computes(given, architecture->name) ? given
                                                                      : ad_program_kind_computing(architecture->name);
}

ad_status ad_reading_open_pretrained(ad_reading *r) {
  ad_node *model = ad_node_find(r->root, "model"), *node = ad_node_find(model, "from");
  if (!node || node->kind != AD_NODE_SCALAR || !*node->text) return AD_OK;
  ad_status status = ad_pretrained_config(node->text, &r->config_path, &r->config);
  if (status) return report_unusable(r, status);
  report_refused(r);
  const char *name = kind_of(model, r->config.architecture)->name;
  ad_config_value kind = {.key = "model.kind", .from = "architectures", .text = (char *)name};
  return take_value(r, model, &kind);
}

ad_status ad_reading_fill_pretrained(ad_reading *r) {
  ad_node *model = ad_node_find(r->root, "model");
  const ad_architecture *architecture = r->config.architecture;
  const ad_program_kind *program = r->schema.program;
  if (!architecture || !program || !ad_program_kind_computes(program, architecture->name)) return AD_OK;
  // --set may have given another kind.
  if (!ad_node_find(model, "kind")) AD_TRY(put_text(r, model, "kind", program->name));
  for (size_t i = 0; i < r->config.count; i++) AD_TRY(take_value(r, model, &r->config.values[i]));
  warn_of_length(r);
  judge_window(r);
  ad_config_report_unread(&r->config, r->config_path);
  r->recipe->window = r->config.window;
  return AD_OK;
}
