/* Compares replicas: the checksums of their values of a parameter, and which ranks have no sum although they should
 * have one. */
#include "solve/replicas.h"

#include <stdlib.h>
#include <string.h>
#include "base/memory.h"

/* ---- values before the step ---- */

/* Returns 1 if all ranks that give a checksum give the same one. Then no values differ, whichever boxes the ranks
 * have. */
static int all_equal(const ad_parts *parts) {
  const char *first = NULL;
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    const char *values = json_string_value(json_object_get(parts->dump->sums[rank]->values, parts->param->name));
    if (!first) first = values;
    if (values && strcmp(values, first) != 0) return 0;
  }
  return 1;
}

/* The checksum that one rank gives. `line` is the same number for all ranks whose positions differ on one given axis
 * only. */
typedef struct ad_values {
  ad_box box;
  const char *values;
  int64_t rank, line;
} ad_values;

/* Lists the checksums of all ranks; returns how many there are. */
static size_t list_reported(const ad_parts *parts, ad_values *reported) {
  size_t count = 0;
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    const ad_dump_file *file = parts->dump->sums[rank];
    const char *values = json_string_value(json_object_get(file->values, parts->param->name));
    ad_piece piece;
    int there = 0;
    if (!values || ad_dump_piece(parts->dump, parts->param, file, &piece, &there) || !there) continue;
    reported[count++] = (ad_values){.box = piece.box, .values = values, .rank = rank};
  }
  return count;
}

/* Compares two entries, to sort them by box, then by rank. Unused dimensions of a box are 0, so that boxes can be
 * compared as bytes. */
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

/* Returns 1 if two ranks whose positions differ on this axis only have different values. Reorders `reported`. */
static int differ_beside(const ad_dump *dump, int axis, ad_values *reported, size_t count) {
  for (size_t i = 0; i < count; i++) reported[i].line = ad_dump_key(dump, reported[i].rank, 1u << axis);
  qsort(reported, count, sizeof *reported, by_line);
  for (size_t i = 1; i < count; i++)
    if (reported[i].line == reported[i - 1].line && !same_values(&reported[i], &reported[i - 1])) return 1;
  return 0;
}

/* Returns 1 if the ranks are not all at the same position on the axis. */
static int lie_apart(const ad_dump *dump, int axis, const ad_values *reported, size_t count) {
  for (size_t i = 1; i < count; i++)
    if (dump->position[reported[i].rank][axis] != dump->position[reported->rank][axis]) return 1;
  return 0;
}

/* Axes along which values differ: between ranks whose positions differ on that axis only; and between any two ranks. */
typedef struct ad_unequal {
  uint32_t beside, any;
} ad_unequal;

/* Adds to *out the axes along which the values of these ranks, which are not all equal, differ: every axis on which
 * the ranks have different positions. (If two unequal ranks have the same position on the axis, a third rank with
 * another position differs from one of the two.) */
static void add_axes(const ad_dump *dump, ad_values *reported, size_t count, ad_unequal *out) {
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    if (!lie_apart(dump, axis, reported, count)) continue;
    out->any |= 1u << axis;
    if (differ_beside(dump, axis, reported, count)) out->beside |= 1u << axis;
  }
}

/* Compares ranks that hold the same elements, sorted by rank. If `ranks` is not NULL, marks in it the ranks whose
 * values differ from the first rank's. */
static void compare_values(const ad_dump *dump, ad_values *reported, size_t count, unsigned char *ranks,
                           ad_unequal *out) {
  int differ = 0;
  for (size_t i = 1; i < count; i++) {
    int is_other = !same_values(&reported[i], reported);
    if (ranks) ranks[reported[i].rank] = (unsigned char)is_other;
    differ |= is_other;
  }
  if (differ) add_axes(dump, reported, count, out);
}

/* Compares the ranks that hold the same box, for each box. */
static void compare_all(const ad_dump *dump, ad_values *reported, size_t count, unsigned char *ranks, ad_unequal *out) {
  qsort(reported, count, sizeof *reported, by_box);
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && !memcmp(&reported[end].box, &reported[i].box, sizeof reported->box);) end++;
    compare_values(dump, reported + i, end - i, ranks, out);
  }
}

ad_status ad_values_compare(const ad_parts *parts, unsigned char *ranks, uint32_t *axes) {
  ad_unequal unequal = {0};
  ad_values *reported;
  *axes = 0;
  if (all_equal(parts)) return AD_OK;
  AD_TRY(ad_new((size_t)parts->dump->mesh.world, &reported));
  compare_all(parts->dump, reported, list_reported(parts, reported), ranks, &unequal);
  ad_release(reported);
  *axes = unequal.beside ? unequal.beside : unequal.any;
  return AD_OK;
}

/* ---- ranks without a sum ---- */

/* Returns 1 if every part is the full parameter. */
static int is_full_everywhere(const ad_parts *parts) {
  ad_box full = ad_box_full(&parts->param->shape);
  for (size_t i = 0; i < parts->count; i++)
    if (!ad_box_equal(&parts->param->shape, &parts->parts[i].box, &full)) return 0;
  return !parts->param->partial;
}

/* Returns 1 if some rank that is summed with this rank (has the same members) has a sum. */
static int has_members_with_sum(const ad_parts *parts, int64_t rank) {
  for (size_t i = 0; i < parts->count; i++)
    if (ad_part_members(parts, &parts->parts[i])->key == ad_parts_key(parts, rank)) return 1;
  return 0;
}

/* Returns 1 if the dump's files say that the rank has the parameter: by a tensor; or, if any file gives types of this
 * parameter, by its types. A rank without the parameter is no replica. */
static int has_parameter(const ad_parts *parts, int64_t rank) {
  const ad_dump *dump = parts->dump;
  const char *name = parts->param->name;
  int is_typed = 0;
  for (size_t i = 0; i < dump->count; i++) {
    const ad_dump_file *file = &dump->files[i];
    int own = json_object_get(file->types, name) != NULL;
    if (file->rank == rank && (own || ad_safetensors_find(file->tensors, name))) return 1;
    is_typed |= own;
  }
  return !is_typed;
}

size_t ad_replicas_missing(const ad_parts *parts, unsigned char *ranks) {
  size_t missing = 0;
  memset(ranks, 0, (size_t)parts->dump->mesh.world);
  if (!is_full_everywhere(parts)) return 0;
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    int there = ad_safetensors_find(parts->dump->sums[rank]->tensors, parts->param->name) != NULL;
    ranks[rank] = !there && has_members_with_sum(parts, rank) && has_parameter(parts, rank);
    missing += ranks[rank];
  }
  return missing;
}
