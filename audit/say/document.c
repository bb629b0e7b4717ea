/* Makes the JSON document of a diff from the judged parts and verdicts. */
#include "say/document.h"

#include <math.h>
#include "base/text.h"
#include "files/json.h"
#include "layout/type.h"

json_t *ad_diff_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *integer_or_null(int64_t value) { return value >= 0 ? json_integer((json_int_t)value) : json_null(); }

/* Returns how many files of a kind have a tensor. A rank that ran fewer backwards has files without tensors. */
static json_int_t count_files(const ad_dump *dump, ad_dump_kind kind) {
  json_int_t count = 0;
  for (size_t i = 0; i < dump->count; i++)
    count += dump->files[i].kind == kind && ad_safetensors_count(dump->files[i].tensors) > 0;
  return count;
}

json_t *ad_diff_head(const ad_dump *dump, int has_reference) {
  char mesh[AD_DUMP_AXES * (AD_DUMP_NAME + 16)];
  ad_text text = ad_text_on(mesh, sizeof mesh);
  for (int axis = 0; axis < dump->mesh.count; axis++)
    ad_text_add(&text, "%s%s=%lld", axis ? " " : "", dump->mesh.name[axis], (long long)dump->mesh.size[axis]);
  return json_pack("{s:i, s:b, s:n, s:I, s:s, s:o, s:I, s:{s:I, s:I, s:b}}", "format", 1, "pass", 0, "verdict", "world",
                   (json_int_t)dump->mesh.world, "mesh", mesh, "step", integer_or_null(dump->step), "microbatches",
                   (json_int_t)dump->microbatches, "dumped", "addends", count_files(dump, AD_DUMP_ADDEND), "sums",
                   count_files(dump, AD_DUMP_SUM), "reference", has_reference);
}

static const char *print_types(const ad_dump *dump, const ad_dump_param *param, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    ad_type type = param->types[axis];
    ad_text_add(&text, "%s%s=%s", axis ? " " : "", dump->mesh.name[axis],
                type == AD_R   ? "R"
                : type == AD_I ? "I"
                               : "S");
    if (ad_type_is_sharded(type)) ad_text_add(&text, "%d", ad_type_dim(type));
  }
  return buffer;
}

/* Makes a JSON array of all ranks r for which ranks[r] is set. */
static json_t *list_of_ranks(const unsigned char *ranks, int64_t world) {
  json_t *list = json_array();
  for (int64_t rank = 0; rank < world; rank++)
    if (ranks[rank]) json_array_append_new(list, json_integer((json_int_t)rank));
  return list;
}

/* Makes a JSON array [rank][microbatch] in which every element is null. */
static json_t *rows_of_null(const ad_dump *dump) {
  json_t *rows = json_array();
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    json_t *row = json_array();
    for (int64_t m = 0; m < dump->microbatches; m++) json_array_append_new(row, json_null());
    json_array_append_new(rows, row);
  }
  return rows;
}

static void set_cell(json_t *rows, const ad_piece *piece, json_t *value) {
  json_array_set_new(json_array_get(rows, (size_t)piece->rank), (size_t)piece->microbatch, value);
}

/* Makes a JSON array [rank][microbatch] of `values`, one for each addend. An element is null if its addend is
 * absent, belongs to other members, or has an unknown count. */
static json_t *matrix(const ad_parts *parts, const ad_judged *shown, const double *values) {
  const ad_members *members = ad_part_members(parts, shown->part);
  json_t *rows = rows_of_null(parts->dump);
  for (size_t i = 0; i < members->count; i++)
    if (isfinite(shown->why.errors[i])) set_cell(rows, &members->columns[i].piece, ad_diff_number(values[i]));
  return rows;
}

/* Makes a JSON array [rank][microbatch] of the counts in a right sum with equal addends: null for each addend that
 * equals another addend, 1 for every other addend. */
static json_t *matrix_of_identical(const ad_parts *parts, const ad_identical *identical) {
  json_t *rows = rows_of_null(parts->dump);
  for (size_t m = 0; m < parts->member_count; m++)
    for (size_t i = 0; i < parts->members[m].count; i++) {
      const ad_piece *piece = &parts->members[m].columns[i].piece;
      if (!identical->cells[piece->rank * parts->dump->microbatches + piece->microbatch])
        set_cell(rows, piece, json_integer(1));
    }
  return rows;
}

/* Returns the part whose residual is largest relative to its bound. */
static const ad_judged *worst_of(const ad_judged *list, size_t count) {
  const ad_judged *worst = NULL;
  for (size_t i = 0; i < count; i++)
    if (!worst || list[i].fitness.residual * worst->fitness.bound > worst->fitness.residual * list[i].fitness.bound)
      worst = &list[i];
  return worst;
}

/* Makes the first keys of a parameter's document. */
static json_t *param_head(const ad_dump *dump, const ad_dump_param *param, ad_answer answer, ad_cause_kind kind) {
  char types[AD_DUMP_AXES * (AD_DUMP_NAME + 8)];
  return json_pack("{s:o, s:I, s:I, s:s, s:f, s:b, s:s, s:s}", "name", ad_json_text(param->name), "numel",
                   (json_int_t)param->numel, "sampled", (json_int_t)param->sample, "types",
                   print_types(dump, param, types, sizeof types), "expect", param->expect, "pass",
                   answer == AD_ANSWER_RIGHT, "verdict", ad_answer_name(answer), "kind", ad_cause_name(kind));
}

static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }

const char *ad_answer_name(ad_answer answer) {
  static const char *const names[] = {"right", "cannot_tell", "wrong"};
  return names[answer];
}

ad_answer ad_diff_answer(const ad_verdict *verdict, const ad_compared *compared) {
  if (compared->there && !compared->holds) return AD_ANSWER_WRONG;
  return ad_cause_row_of(verdict->kind)->answer;
}

static json_t *reference_document(const ad_compared *compared, json_t *causes) {
  if (!compared->there) return json_null();
  json_t *document =
      json_pack("{s:o, s:o, s:n, s:f, s:b}", "ratio", ad_diff_number(compared->ratio), "max_rel_err",
                ad_diff_number(compared->max_rel_err), "cause", "bound", compared->bound, "pass", compared->holds);
  ad_cause_set(document, json_incref(causes));
  return document;
}

/* Returns 1 if the sum is right by its addends but the reference contradicts it: then the addends themselves are
 * wrong. */
static int is_wrong_before(const ad_verdict *verdict, const ad_compared *compared) {
  return verdict->kind == AD_CAUSE_RIGHT && compared->there && !compared->holds;
}

static json_t *param_text(const ad_dump *dump, const ad_verdict *verdict, const ad_compared *compared,
                          const json_t *causes) {
  char text[AD_VERDICT_TEXT];
  if (!is_wrong_before(verdict, compared)) return json_string(verdict->text);
  return json_sprintf("%s the reference: %s",
                      dump->microbatches ? "its addends are summed as they should be, but not to" : "is not",
                      ad_causes_print(causes, text, sizeof text));
}

json_t *ad_diff_param(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict,
                      const ad_compared *compared, const ad_identical *identical) {
  const ad_dump *dump = parts->dump;
  const ad_judged *shown = verdict->shown, *worst = worst_of(list, parts->count);
  char axes[AD_DUMP_AXES * AD_DUMP_NAME];
  json_t *referred = ad_reference_causes(parts, compared);
  json_t *document = param_head(dump, parts->param, ad_diff_answer(verdict, compared), verdict->kind);
  json_object_set_new(document, "axis",
                      text_or_null(ad_dump_axes_print(&dump->mesh, verdict->axes, axes, sizeof axes)));
  json_object_set_new(document, "ranks", list_of_ranks(verdict->ranks, dump->mesh.world));
  json_object_set_new(document, "factor", ad_diff_number(verdict->factor));
  json_object_set_new(document, "residual", ad_diff_number(worst ? worst->fitness.residual : 0));
  json_object_set_new(document, "bound", ad_diff_number(worst ? worst->fitness.bound : 0));
  json_object_set_new(document, "text", param_text(dump, verdict, compared, referred));
  json_object_set_new(document, "counts",
                      shown                                 ? matrix(parts, shown, shown->why.counts)
                      : verdict->kind == AD_CAUSE_IDENTICAL ? matrix_of_identical(parts, identical)
                                                            : json_null());
  json_object_set_new(document, "errors", shown ? matrix(parts, shown, shown->why.errors) : json_null());
  json_object_set_new(document, "reference", reference_document(compared, referred));
  ad_cause_set(document, json_incref(is_wrong_before(verdict, compared) ? referred : verdict->causes));
  json_decref(referred);
  return document;
}

/* Sets the keys of a parameter's document that follow the head, for a parameter whose parts were not judged. */
static void set_rest(json_t *document, const char *text, json_t *causes) {
  json_t *rest = json_pack("{s:n, s:[], s:n, s:n, s:n, s:o, s:n, s:n, s:n}", "axis", "ranks", "factor", "residual",
                           "bound", "text", ad_json_text(text), "counts", "errors", "reference");
  json_object_update(document, rest);
  json_decref(rest);
  ad_cause_set(document, causes);
}

json_t *ad_diff_unjudged(const ad_dump *dump, const ad_dump_param *param) {
  char text[AD_VERDICT_TEXT];
  json_t *document = param_head(dump, param, AD_ANSWER_CANNOT_TELL, AD_CAUSE_NOT_JUDGED);
  snprintf(text, sizeof text, "cannot tell: %.600s", param->unjudged);
  set_rest(document, text, json_array());
  return document;
}

json_t *ad_diff_without_sum(const ad_dump *dump, const ad_dump_param *param, int64_t missing) {
  char text[120] = "has no sum: no rank's optimizer gets it";
  json_t *document = param_head(dump, param, AD_ANSWER_WRONG, AD_CAUSE_NO_SUM);
  if (missing < param->sample)
    snprintf(text, sizeof text, "%lld of %lld elements are in no rank's sum: no optimizer gets them",
             (long long)missing, (long long)param->sample);
  json_t *causes = json_array();
  json_array_append_new(causes, ad_cause_document(ad_cause_name(AD_CAUSE_NO_SUM), "", NAN, text, ""));
  set_rest(document, text, causes);
  return document;
}
