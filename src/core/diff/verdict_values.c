/* What the parameters' own values say: replicas that begin a step with other weights stay apart, whatever is summed. */
#include <math.h>
#include <string.h>
#include "diff/cause.h"
#include "diff/verdict.h"

/* A rank's checksum of its values, and the box of them; NULL: it has told none. */
static const char *values_of(const ad_parts *parts, int64_t rank, ad_piece *piece) {
  const ad_dump_file *file = parts->dump->sums[rank];
  const char *values = json_string_value(json_object_get(file->values, parts->param->name));
  int there = 0;
  if (!values || ad_dump_piece(parts->dump, parts->param, file, piece, &there) || !there) return NULL;
  return values;
}

static uint32_t axes_between(const ad_dump *dump, int64_t a, int64_t b) {
  uint32_t axes = 0;
  for (int axis = 0; axis < dump->mesh.count; axis++)
    if (dump->position[a][axis] != dump->position[b][axis]) axes |= 1u << axis;
  return axes;
}

/* Whether there is one checksum for all ranks that told any: then no two of them can differ, whatever they hold. */
static int all_equal(const ad_parts *parts) {
  const char *first = NULL;
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    const char *values = json_string_value(json_object_get(parts->dump->sums[rank]->values, parts->param->name));
    if (!first) first = values;
    if (values && strcmp(values, first) != 0) return 0;
  }
  return 1;
}

/* Marks (unless NULL) the ranks whose values are not those of the first rank with the same elements. The axes: those of
 * ranks that lie beside each other, else of all. */
static uint32_t mark_unequal(const ad_parts *parts, unsigned char *ranks) {
  uint32_t beside = 0, any = 0;
  if (all_equal(parts)) return 0;
  for (int64_t a = 1; a < parts->dump->mesh.world; a++) {
    ad_piece mine, other;
    const char *values = values_of(parts, a, &mine), *first = NULL;
    for (int64_t b = 0; b < a && values; b++) {
      const char *others = values_of(parts, b, &other);
      if (!others || !ad_box_equal(&parts->param->shape, &mine.box, &other.box)) continue;
      if (!first) first = others;
      if (!strcmp(values, others)) continue;
      uint32_t axes = axes_between(parts->dump, a, b);
      any |= axes;
      if (!(axes & (axes - 1))) beside |= axes;
    }
    if (ranks && first) ranks[a] = strcmp(values, first) != 0;
  }
  return beside ? beside : any;
}

static void say(const ad_parts *parts, uint32_t axes, ad_verdict *verdict) {
  char names[AD_DUMP_AXES * AD_DUMP_NAME], ranks[AD_VERDICT_TEXT / 4];
  verdict->kind = AD_VERDICT_REPLICAS_DIFFER;
  verdict->axes = axes;
  verdict->factor = NAN;
  ad_dump_axes_print(&parts->dump->mesh, axes, names, sizeof names);
  ad_dump_ranks_print(&parts->dump->mesh, verdict->ranks, ranks, sizeof ranks);
  snprintf(
      verdict->text, sizeof verdict->text,
      "replicas' values differ before the step along %.150s: %.150s began with other weights than the first that has "
      "it, and gradients that are the same everywhere leave them apart",
      names, ranks);
  json_array_append_new(verdict->causes,
                        ad_cause_document(ad_verdict_name(verdict->kind), names, NAN, verdict->text, ""));
}

uint32_t ad_values_hold(const ad_parts *parts, ad_verdict *verdict) {
  int is_right = verdict->kind == AD_VERDICT_RIGHT;
  uint32_t axes = mark_unequal(parts, is_right ? verdict->ranks : NULL);
  if (axes && is_right) say(parts, axes, verdict);
  return is_right ? 0 : axes;
}
