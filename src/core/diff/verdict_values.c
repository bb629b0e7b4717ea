/* What the parameters' own values say: replicas that begin a step with other weights stay apart, whatever is summed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
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

/* What a rank tells of its values. `line`: the same for all ranks that differ on one axis only. */
typedef struct ad_values {
  ad_box box;
  const char *values;
  int64_t rank, line;
} ad_values;

static size_t list_told(const ad_parts *parts, ad_values *told) {
  size_t count = 0;
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    ad_piece piece;
    const char *values = values_of(parts, rank, &piece);
    if (values) told[count++] = (ad_values){.box = piece.box, .values = values, .rank = rank};
  }
  return count;
}

/* A box is 0 behind its last dimension. */
static int by_box(const void *a, const void *b) {
  const ad_values *one = a, *other = b;
  int order = memcmp(&one->box, &other->box, sizeof one->box);
  return order ? order : (one->rank > other->rank) - (one->rank < other->rank);
}

static int by_line(const void *a, const void *b) {
  const ad_values *one = a, *other = b;
  return (one->line > other->line) - (one->line < other->line);
}

static int same_values(const ad_values *a, const ad_values *b) { return !strcmp(a->values, b->values); }

/* Whether two of the ranks that differ on this axis only have different values. Sorts the ranks. */
static int differ_beside(const ad_dump *dump, int axis, ad_values *told, size_t count) {
  for (size_t i = 0; i < count; i++) told[i].line = ad_dump_key(dump, told[i].rank, 1u << axis);
  qsort(told, count, sizeof *told, by_line);
  for (size_t i = 1; i < count; i++)
    if (told[i].line == told[i - 1].line && !same_values(&told[i], &told[i - 1])) return 1;
  return 0;
}

static int lie_apart(const ad_dump *dump, int axis, const ad_values *told, size_t count) {
  for (size_t i = 1; i < count; i++)
    if (dump->position[told[i].rank][axis] != dump->position[told->rank][axis]) return 1;
  return 0;
}

/* Axes along which values differ: between ranks that lie beside each other, and between any. */
typedef struct ad_unequal {
  uint32_t beside, any;
} ad_unequal;

/* For values that are not all the same. Two ranks whose values differ may lie alike on an axis; a third that lies
 * elsewhere on it has other values than one of them: so they differ along every axis on which the ranks lie apart. */
static void add_axes(const ad_dump *dump, ad_values *told, size_t count, ad_unequal *out) {
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    if (!lie_apart(dump, axis, told, count)) continue;
    out->any |= 1u << axis;
    if (differ_beside(dump, axis, told, count)) out->beside |= 1u << axis;
  }
}

/* The ranks that hold the same elements, by rank: marks (unless NULL) those whose values are not the first one's. */
static void compare(const ad_dump *dump, ad_values *told, size_t count, unsigned char *ranks, ad_unequal *out) {
  int differ = 0;
  for (size_t i = 1; i < count; i++) {
    int is_other = !same_values(&told[i], told);
    if (ranks) ranks[told[i].rank] = (unsigned char)is_other;
    differ |= is_other;
  }
  if (differ) add_axes(dump, told, count, out);
}

static void compare_all(const ad_dump *dump, ad_values *told, size_t count, unsigned char *ranks, ad_unequal *out) {
  qsort(told, count, sizeof *told, by_box);
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && !memcmp(&told[end].box, &told[i].box, sizeof told->box);) end++;
    compare(dump, told + i, end - i, ranks, out);
  }
}

/* Marks (unless NULL) the ranks whose values are not those of the first rank with the same elements. The axes: those of
 * ranks that lie beside each other, else of all. */
static ad_status mark_unequal(const ad_parts *parts, unsigned char *ranks, uint32_t *axes) {
  ad_unequal unequal = {0};
  ad_values *told;
  *axes = 0;
  if (all_equal(parts)) return AD_OK;
  AD_TRY(ad_new((size_t)parts->dump->mesh.world, &told));
  compare_all(parts->dump, told, list_told(parts, told), ranks, &unequal);
  ad_release(told);
  *axes = unequal.beside ? unequal.beside : unequal.any;
  return AD_OK;
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

ad_status ad_values_hold(const ad_parts *parts, ad_verdict *verdict, uint32_t *also) {
  int is_right = verdict->kind == AD_VERDICT_RIGHT;
  uint32_t axes;
  *also = 0;
  AD_TRY(mark_unequal(parts, is_right ? verdict->ranks : NULL, &axes));
  if (axes && is_right) say(parts, axes, verdict);
  if (!is_right) *also = axes;
  return AD_OK;
}
