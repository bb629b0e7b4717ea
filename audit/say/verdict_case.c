/* Helpers that all the files that find a verdict (verdict_*.c) share. */
#include "say/verdict_case.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "say/cause.h"
#include "solve/hypotheses.h"

const ad_members *ad_case_members(const ad_case *c, const ad_judged *judged) {
  return ad_part_members(c->parts, judged->part);
}

const char *ad_case_axes(const ad_case *c, uint32_t axes, char *buffer, size_t size) {
  return ad_dump_axes_print(&c->dump->mesh, axes, buffer, size);
}

const char *ad_case_ranks(const ad_case *c, char *buffer, size_t size) {
  return ad_dump_ranks_print(&c->dump->mesh, c->out->ranks, buffer, size);
}

void ad_case_report(ad_case *c, ad_cause_kind kind, uint32_t axes, double factor) {
  c->out->kind = kind;
  c->out->axes = axes;
  c->out->factor = factor;
}

void ad_case_add_document(ad_case *c, json_t *cause) {
  const json_t *other;
  size_t i;
  json_array_foreach(c->out->causes, i, other) if (json_equal(other, cause)) return;
  json_array_append(c->out->causes, cause);
}

void ad_case_add(ad_case *c, ad_cause_kind kind, uint32_t axes, double factor, const char *place, const char *format,
                 ...) {
  char text[AD_VERDICT_TEXT], names[AD_DUMP_AXES * AD_DUMP_NAME];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  json_t *cause = ad_cause_document(ad_cause_name(kind), ad_dump_axes_print(&c->dump->mesh, axes, names, sizeof names),
                                    factor, text, place);
  ad_case_add_document(c, cause);
  json_decref(cause);
}

void ad_case_add_all(ad_case *c, const json_t *causes) {
  json_t *cause;
  size_t i;
  json_array_foreach(causes, i, cause) ad_case_add_document(c, cause);
}

/* Returns the value that all causes have under this key, or NULL if the values differ. */
static const char *common(const json_t *causes, const char *key) {
  const json_t *cause, *first = json_object_get(json_array_get(causes, 0), key);
  size_t i;
  json_array_foreach(causes, i, cause) if (!json_equal(json_object_get(cause, key), first)) return NULL;
  return json_string_value(first);
}

/* Returns the bit set of axes that is printed as `names`, or 0 if there is none. */
static uint32_t axes_of(const ad_dump_mesh *mesh, const char *names) {
  char buffer[AD_DUMP_AXES * AD_DUMP_NAME];
  for (uint32_t axes = 1; axes < 1u << mesh->count && names; axes++)
    if (!strcmp(ad_dump_axes_print(mesh, axes, buffer, sizeof buffer), names)) return axes;
  return 0;
}

int ad_case_settle(ad_case *c, double factor, const char *fact) {
  const json_t *causes = c->out->causes;
  char reported[AD_VERDICT_TEXT / 2 + 160];
  size_t count = json_array_size(causes);
  if (!count) return 0;
  const char *kind = common(causes, "kind");
  ad_case_report(c, kind ? ad_cause_named(kind) : AD_CAUSE_NOT_DISTINGUISHABLE,
                 axes_of(&c->dump->mesh, common(causes, "axes")), factor);
  ad_causes_print(causes, reported, sizeof reported);
  if (!*fact)
    snprintf(c->out->text, sizeof c->out->text, "%s", reported);
  else if (count == 1)
    snprintf(c->out->text, sizeof c->out->text, "%s: %s", reported, fact);
  else
    snprintf(c->out->text, sizeof c->out->text, "%s; %s", fact, reported);
  return 1;
}

void ad_case_mark_holders(const ad_case *c, int wrong) {
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < c->count; i++)
    for (size_t h = 0; h < c->list[i].part->holder_count && (!wrong || !c->list[i].holds); h++)
      c->out->ranks[c->list[i].part->holders[h]] = 1;
}

int ad_case_some_hold(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (c->list[i].holds) return 1;
  return 0;
}
