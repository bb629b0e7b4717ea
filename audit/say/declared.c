/* Judges what sources declare of a parameter by its addends, one axis at a time: are the ranks' addends the same, and
 * does the sum have one rank's or those of all? */
#include "say/declared.h"

#include <math.h>
#include <string.h>
#include "addend/dtype.h"
#include "base/text.h"
#include "files/json.h"
#include "layout/type.h"
#include "read/identical.h"
#include "say/cause.h"

/* ---- the facts ---- */

/* Returns the axes over which a wrong sum does not go, in any microbatch; 0: this is not what is wrong with it. */
static uint32_t unsummed_axes(const ad_verdict *verdict) {
  const char *place = ad_text_of(json_array_get(verdict->causes, 0), "place");
  if (verdict->kind != AD_CAUSE_OWN_ONLY && verdict->kind != AD_CAUSE_PARTIAL) return 0;
  return *place ? 0 : verdict->axes;
}

void ad_facts_of_sum(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict, ad_facts *facts) {
  const ad_dump_param *param = parts->param;
  int hold = parts->count > 0 && parts->dump->microbatches > 0;
  for (size_t i = 0; i < parts->count; i++) hold = hold && list[i].holds;
  uint32_t unsummed = hold ? 0 : unsummed_axes(verdict);
  facts->held = verdict->kind == AD_CAUSE_RIGHT;
  facts->observed = parts->dump->microbatches > 0;
  facts->known = hold || unsummed ? UINT32_MAX : 0;
  facts->all = param->summed & ~unsummed;
  facts->identical = ad_identical_along(parts, param->declared_r & param->summed);
}

/* Returns 1 if the row is to be judged: a wrapper that sums is a fact, and what the dump's writer says is believed. */
static int is_open(const ad_declared *row) { return !row->sums && !row->by_types; }

/* Returns 1 if the sum is known to be what the type says: over the axis (R), or each rank's own along it (I). */
static int agrees(const ad_facts *facts, ad_type type, int axis) {
  return facts->known >> axis & 1 && (facts->all >> axis & 1) == (type == AD_R);
}

ad_status ad_facts_compare(const ad_dump *dump, const ad_dump_param *param, ad_facts *facts) {
  for (size_t i = 0; i < param->declared_count && facts->observed; i++) {
    const ad_declared *row = &param->declared[i];
    for (int axis = 0; axis < dump->mesh.count && is_open(row); axis++)
      if (row->axes >> axis & 1 && !ad_type_is_sharded(row->types[axis]) && !ad_type_is_sharded(param->types[axis]) &&
          !(facts->held && agrees(facts, row->types[axis], axis)))
        facts->contested |= 1u << axis;
  }
  facts->contested = ad_large_axes(&dump->mesh, facts->contested);
  return ad_likeness_find(dump, param, facts->contested, &facts->likeness);
}

/* ---- words ---- */

/* Prints a type as files write it: "R", "I" or "S0". */
static const char *print_type(ad_type type, char buffer[8]) {
  if (ad_type_is_sharded(type))
    snprintf(buffer, 8, "S%d", ad_type_dim(type));
  else
    snprintf(buffer, 8, "%s", type == AD_R ? "R" : "I");
  return buffer;
}

/* Prints what a row says of an axis: "says I on tp (spmd_types, model.py:40)". */
static const char *print_source(const ad_dump *dump, const ad_declared *row, int axis, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  char type[8];
  if (strstr(row->words, dump->mesh.name[axis])) /* the words may be about another axis of the row */
    ad_text_add(&text, "says %.120s", row->words);
  else
    ad_text_add(&text, "says %s on %s", print_type(row->types[axis], type), dump->mesh.name[axis]);
  ad_text_add(&text, " (%.120s%s%.120s)", row->by, *row->where ? ", " : "", row->where);
  return buffer;
}

const char *ad_declared_print(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, const char *otherwise,
                              char *buffer, size_t size) {
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    const ad_declared *row = axes >> axis & 1 ? ad_declared_of(param, axis) : NULL;
    if (row) return print_source(dump, row, axis, buffer, size);
  }
  snprintf(buffer, size, "%s", otherwise);
  return buffer;
}

/* Returns the last row that declares a type of the axis: the parameter's type, or if `other` is 1 another one; else
 * NULL. */
static const ad_declared *row_on(const ad_dump_param *param, int axis, int other) {
  const ad_declared *found = NULL;
  for (size_t i = 0; i < param->declared_count; i++) {
    const ad_declared *row = &param->declared[i];
    if (row->axes >> axis & 1 && !row->sums && (row->types[axis] != param->types[axis]) == other) found = row;
  }
  return found;
}

const char *ad_declared_print_against(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, char *buffer,
                                      size_t size) {
  ad_text text = ad_text_on(buffer, size);
  char is[8], against[8];
  for (int axis = 0; axis < dump->mesh.count && !text.used; axis++) {
    const ad_declared *row = axes >> axis & 1 ? row_on(param, axis, 0) : NULL;
    const ad_declared *other = row ? row_on(param, axis, 1) : NULL;
    if (other)
      ad_text_add(&text, "; %.80s says %s on %s, and %.80s says %s", row->by, print_type(row->types[axis], is),
                  dump->mesh.name[axis], other->by, print_type(other->types[axis], against));
  }
  return buffer;
}

/* ---- what the addends say of one declared type ---- */

/* A judgement on a declaration; `holds` -1: the addends do not tell. `text` continues what the source says; "": there is
 * nothing to say. */
typedef struct judgement {
  int holds;
  const char *why, *text;
} judgement;

static const judgement HOLDS = {1, "", ""}, OPEN = {-1, "", ""},
                       SAME_IS_SUMMED = {-1, "same",
                                         "; all ranks there have the same addends, and the sum counts this work"};

/* Judges type I on an axis: all ranks are declared to do the same work. */
static judgement judge_same_work(const ad_declared *row, const ad_facts *facts, uint32_t axis) {
  static const judgement
      differ = {0, "differ",
                "; the ranks' addends differ there, and if they had one batch, their sum is wanted: R is needed"},
      apart = {0, "values",
               "; the ranks have other values and other addends there: these are shards (S), or replicas that have "
               "drifted apart for want of a sum (R)"},
      summed = {0, "summed", "; the ranks' addends differ there, and the sum has each once: that is R"},
      near = {-1, "near", "; the ranks' addends differ there a little: if their work is not the same, R is needed"};
  if (!(facts->known & axis)) return OPEN;
  if (facts->all & axis && row->placed) return OPEN;
  if (facts->all & axis)
    return facts->likeness.apart & axis ? summed : facts->likeness.alike & axis ? SAME_IS_SUMMED : OPEN;
  if (!(facts->contested & axis) || facts->likeness.alike & axis) return HOLDS;
  if (!(facts->likeness.apart & axis)) return near;
  return facts->values & axis ? apart : differ;
}

/* Judges type R on an axis: each rank is declared to have another part of the gradient. */
static judgement judge_summed(const ad_dump_param *param, const ad_declared *row, const ad_facts *facts,
                              uint32_t axis) {
  static const judgement
      partial = {-1, "partial",
                 "; the gradient is still Partial there when the step ends: DTensor's optimizer reduces it when it is "
                 "first used"},
      same =
          {0, "same",
           "; all ranks there have the same addends, and the gradient is that of one rank: that is I, a mean, or the "
           "ranks got one batch"},
      mean =
          {-1, "same",
           "; all ranks there have the same addends, and the gradient is that of one rank: the hook takes their mean"},
      shards = {-1, "values",
                "; the ranks have other values and other addends there, and nobody sums these: these are shards (S), "
                "or replicas that have drifted apart for want of the sum"},
      unsummed = {1, "unsummed", ", and nobody sums it there"};
  int apart = facts->likeness.apart & axis ? 1 : 0;
  if (param->partial & axis) return (facts->identical | facts->likeness.alike) & axis ? SAME_IS_SUMMED : partial;
  if (!(facts->known & axis)) return apart ? HOLDS : OPEN;
  if (facts->all & axis) return facts->identical & axis || facts->likeness.alike & axis ? SAME_IS_SUMMED : HOLDS;
  if (apart) return facts->values & axis ? shards : unsummed;
  if (!facts->held || !(facts->likeness.alike & axis)) return OPEN;
  return row->by_hook ? mean : same;
}

/* Judges type S(d) on an axis: each rank is declared to have another part of the parameter. */
static judgement judge_sharded(const ad_facts *facts, uint32_t axis) {
  static const judgement
      replicas = {0, "same", "; the ranks there have the same values and the same addends: that is a replica, I"},
      copies =
          {0, "copies",
           "; the ranks there have the same values, and optimizer steps have kept them the same, but other addends: "
           "that is R, and their sum is wanted"},
      seed = {-1, "seed",
              "; its shards begin with the same values on all ranks there: was each drawn with the same seed?"};
  const ad_shards *shards = &facts->shards;
  if (!(shards->equal & axis)) return facts->held ? HOLDS : OPEN;
  if (shards->alike & axis) return replicas;
  return shards->apart & axis && shards->stepped ? copies : seed;
}

/* Judges a row whose source is believed: says only whether the sum agrees. */
static judgement judge_fact(const ad_facts *facts, ad_type type, int axis) {
  return !ad_type_is_sharded(type) && agrees(facts, type, axis) ? HOLDS : OPEN;
}

static judgement judge_axis(const ad_dump *dump, const ad_dump_param *param, const ad_declared *row, int axis,
                            const ad_facts *facts) {
  ad_type type = row->types[axis];
  uint32_t bit = 1u << axis;
  if (!facts->observed || dump->mesh.size[axis] == 1) return OPEN;
  if (ad_type_is_sharded(type)) return type == param->types[axis] ? judge_sharded(facts, bit) : OPEN;
  if (!is_open(row)) return judge_fact(facts, type, axis);
  if (ad_type_is_sharded(param->types[axis])) return OPEN;
  return type == AD_R ? judge_summed(param, row, facts, bit) : judge_same_work(row, facts, bit);
}

/* Prints what the row says of the axis, and what is to be said of that. Returns buffer. */
static const char *print_judgement(const ad_dump *dump, const ad_declared *row, int axis, const judgement *found,
                                   char *buffer, size_t size) {
  char source[AD_VERDICT_TEXT];
  long long ranks = dump->mesh.size[axis];
  ad_text text = ad_text_on(buffer, size);
  ad_text_add(&text, "%s%s", print_source(dump, row, axis, source, sizeof source), found->text);
  if (found->text == SAME_IS_SUMMED.text)
    ad_text_add(&text, " %lld times, unless the loss was divided by %lld on each rank; addend.torch.check decides it",
                ranks, ranks);
  return buffer;
}

/* ---- verdicts that declarations make doubtful ---- */

/* Returns the last row that declares a sharded axis of this set, and sets *axis; NULL: there is none. */
static const ad_declared *row_of_shards(const ad_dump_param *param, uint32_t axes, int *axis) {
  const ad_declared *found = NULL;
  for (size_t i = 0; i < param->declared_count; i++)
    for (int a = 0; a < AD_DUMP_AXES; a++)
      if (axes >> a & 1 && param->declared[i].axes >> a & 1 && ad_type_is_sharded(param->declared[i].types[a])) {
        found = &param->declared[i];
        *axis = a;
      }
  return found;
}

void ad_declared_doubt(const ad_parts *parts, const ad_facts *facts, ad_verdict *verdict) {
  const ad_shards *shards = &facts->shards;
  char text[AD_VERDICT_TEXT - 80], names[AD_DUMP_NAME];
  int axis = 0;
  uint32_t used = shards->stepped ? shards->apart : 0;
  const ad_declared *row = row_of_shards(parts->param, shards->alike ? shards->alike : used, &axis);
  if (!row || verdict->kind != AD_CAUSE_RIGHT) return;
  judgement found = judge_sharded(facts, 1u << axis);
  print_judgement(parts->dump, row, axis, &found, text, sizeof text);
  verdict->axes = 1u << axis;
  verdict->factor = NAN;
  if (shards->alike) {
    verdict->kind = AD_CAUSE_NOT_JUDGED;
    snprintf(verdict->text, sizeof verdict->text, "cannot tell: %s", text);
    return;
  }
  ad_dump_axes_print(&parts->dump->mesh, verdict->axes, names, sizeof names);
  verdict->kind = AD_CAUSE_OWN_ONLY;
  snprintf(verdict->text, sizeof verdict->text, "own addend only along %s: %s", names, text);
  json_array_append_new(verdict->causes,
                        ad_cause_document(ad_cause_name(verdict->kind), names, NAN, verdict->text, ""));
}

void ad_declared_doubt_identical(const ad_parts *parts, const ad_facts *facts, ad_verdict *verdict) {
  char text[AD_VERDICT_TEXT - 80];
  for (int axis = 0; axis < parts->dump->mesh.count; axis++) {
    const ad_declared *row = facts->identical >> axis & 1 ? ad_declared_of(parts->param, axis) : NULL;
    if (!row) continue;
    print_judgement(parts->dump, row, axis, &SAME_IS_SUMMED, text, sizeof text);
    snprintf(verdict->text, sizeof verdict->text, "cannot tell: %s", text);
    return;
  }
}

/* ---- the document ---- */

/* Returns 1 if the job says this itself: it is no wrapper's, placement's or default, nor what the dump's writer says. */
static int is_stated(const ad_declared *row) {
  size_t length = strlen(row->by);
  if (row->sums || row->placed || (row->dtype && !row->given)) return 0;
  return row->by[length - 1] != '='; /* "types=" and "reduce=" are options of the writer */
}

/* Makes an entry with all keys, about which nothing is known yet. `axis`: NULL for a dtype. */
static json_t *new_entry(const ad_dump_param *param, const ad_declared *row, const char *axis, const char *type) {
  return json_pack("{s:o, s:o, s:s?, s:s, s:s, s:o, s:o, s:b, s:b, s:n, s:s, s:s}", "name", ad_json_text(param->name),
                   "by", ad_json_text(row->by), "axis", axis, "type", type, "dtype",
                   row->dtype ? ad_dtype_name(row->dtype) : "", "where", ad_json_text(row->where), "words",
                   ad_json_text(row->words), "stated", is_stated(row), "counts", row->counts, "holds", "why", "",
                   "text", "");
}

static json_t *judged_entry(const ad_dump *dump, const ad_dump_param *param, const ad_declared *row, int axis,
                            const ad_facts *facts) {
  char type[8], text[AD_VERDICT_TEXT];
  json_t *entry = new_entry(param, row, dump->mesh.name[axis], print_type(row->types[axis], type));
  judgement found = judge_axis(dump, param, row, axis, facts);
  if (found.holds >= 0) json_object_set_new(entry, "holds", json_boolean(found.holds));
  json_object_set_new(entry, "why", json_string(found.why));
  if (!*found.text) return entry;
  print_judgement(dump, row, axis, &found, text, sizeof text);
  json_object_set_new(entry, "text", ad_json_text(text));
  return entry;
}

json_t *ad_declared_rows(const ad_dump *dump, const ad_dump_param *param, const ad_facts *facts) {
  if (!param->declared_count) return NULL;
  json_t *rows = json_array();
  for (size_t i = 0; i < param->declared_count; i++) {
    const ad_declared *row = &param->declared[i];
    for (int axis = 0; axis < dump->mesh.count; axis++)
      if (row->axes >> axis & 1) json_array_append_new(rows, judged_entry(dump, param, row, axis, facts));
    if (row->dtype) json_array_append_new(rows, new_entry(param, row, NULL, ""));
  }
  return rows;
}

/* ---- messages ---- */

/* Returns 1 if people should hear of the entry: it does not hold, or nobody does what it says. */
static int is_news(const json_t *entry) {
  const char *why = ad_text_of(entry, "why");
  return *ad_text_of(entry, "text") && (json_is_false(json_object_get(entry, "holds")) || !strcmp(why, "unsummed") ||
                                        !strcmp(why, "seed") || !strcmp(why, "values") || !strcmp(why, "stored"));
}

/* Adds the entry to those of which the same is to be said. */
static void add_news(json_t *groups, json_t *entry) {
  char key[AD_VERDICT_TEXT];
  snprintf(key, sizeof key, "%s %s %s %.200s %.200s", ad_text_of(entry, "why"), ad_text_of(entry, "axis"),
           ad_text_of(entry, "type"), ad_text_of(entry, "by"), ad_text_of(entry, "words"));
  if (!json_object_get(groups, key)) json_object_set_new(groups, key, json_array());
  json_array_append(json_object_get(groups, key), entry);
}

void ad_declared_report(const json_t *rows, json_t *messages) {
  json_t *groups = json_object(), *entries, *entry;
  const char *key;
  size_t i;
  json_array_foreach(rows, i, entry) if (is_news(entry)) add_news(groups, entry);
  json_object_foreach(groups, key, entries) {
    const json_t *first = json_array_get(entries, 0);
    const char *name = ad_text_of(first, "name"), *text = ad_text_of(first, "text");
    size_t others = json_array_size(entries) - 1;
    if (others && !strncmp(text, "says ", 5))
      json_array_append_new(messages, json_sprintf("`%s` and %zu other parameter%s say %s", name, others,
                                                   ad_plural((long long)others), text + 5));
    else
      json_array_append_new(messages, json_sprintf("`%s` %s", name, text));
  }
  json_decref(groups);
}
