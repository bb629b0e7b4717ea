/* Compares the shards of a parameter with each other, which have different elements, so that no sum shows whether they
 * are copies. */
#include "solve/shards.h"

#include <string.h>
#include "base/memory.h"
#include "layout/type.h"

/* Values of fewer elements may be equal by chance, or by how they are initialised. */
enum { FEWEST = 16 };

static const json_t *shard_of(const ad_parts *parts, int64_t rank) {
  return json_object_get(parts->dump->sums[rank]->shards, parts->param->name);
}

static const char *values_of(const json_t *shard) { return json_string_value(json_object_get(shard, "values")); }

static int is_one_number(const json_t *shard) { return json_is_true(json_object_get(shard, "constant")); }

/* Finds whether all ranks along an axis have equal values. Ranks at the same place on the other axes have one key. */
static ad_status compare_values(const ad_parts *parts, int axis, ad_shards *out) {
  const ad_dump *dump = parts->dump;
  const char **first;
  int equal = 1;
  AD_TRY(ad_new((size_t)dump->mesh.world, &first));
  for (int64_t rank = 0; rank < dump->mesh.world && equal; rank++) {
    const json_t *shard = shard_of(parts, rank);
    const char *values = values_of(shard), **own = &first[ad_dump_key(dump, rank, 1u << axis)];
    if (values && !*own) *own = values;
    equal = values && !is_one_number(shard) && !strcmp(values, *own);
  }
  ad_release(first);
  if (equal) out->equal |= 1u << axis;
  return AD_OK;
}

/* Returns 1 if every rank that tells of its values says that an optimizer step has changed them. */
static int all_stepped(const ad_parts *parts) {
  for (int64_t rank = 0; rank < parts->dump->mesh.world; rank++) {
    const json_t *shard = shard_of(parts, rank);
    if (shard && !json_is_true(json_object_get(shard, "stepped"))) return 0;
  }
  return 1;
}

/* Finds the largest distance between addends of two ranks, over all microbatches. Returns 0 if they cannot be compared: a
 * rank has none, or they are not of one size. */
static int compare_ranks(const ad_parts *parts, int64_t rank, int64_t next, double *values, ad_distance *most) {
  const ad_dump *dump = parts->dump;
  for (int64_t m = 0; m < dump->microbatches; m++) {
    ad_piece own, other;
    int there, too;
    if (ad_dump_piece(dump, parts->param, dump->addends[rank * dump->microbatches + m], &own, &there) ||
        ad_dump_piece(dump, parts->param, dump->addends[next * dump->microbatches + m], &other, &too))
      return 0;
    if (!there || !too || own.tensor->bytes != other.tensor->bytes || own.tensor->dtype != other.tensor->dtype)
      return 0;
    if (own.tensor->bytes / ad_dtype_size(own.tensor->dtype) < FEWEST) return 0;
    ad_distance found = ad_addends_distance(parts, &parts->parts[0], &own, &other, 1, values);
    if (found > *most) *most = found;
  }
  return 1;
}

static void compare_addends(const ad_parts *parts, int axis, double *values, ad_shards *out) {
  int64_t world = parts->dump->mesh.world;
  ad_distance most = AD_DISTANCE_ALIKE;
  for (int64_t rank = 0; rank < world; rank++)
    for (int64_t next = 0; next < world; next++)
      if (ad_dump_is_next(parts->dump, rank, next, axis) && !compare_ranks(parts, rank, next, values, &most)) return;
  if (most == AD_DISTANCE_ALIKE) out->alike |= 1u << axis;
  if (most == AD_DISTANCE_APART) out->apart |= 1u << axis;
}

ad_status ad_shards_compare(const ad_parts *parts, uint32_t axes, ad_shards *out) {
  double *values;
  *out = (ad_shards){0};
  axes = ad_large_axes(&parts->dump->mesh, axes);
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (axes >> axis & 1 && ad_type_is_sharded(parts->param->types[axis])) AD_TRY(compare_values(parts, axis, out));
  /* the samples of two shards are other elements of them */
  if (!out->equal || parts->param->is_sampled || !parts->count || !parts->dump->microbatches) return AD_OK;
  out->stepped = all_stepped(parts);
  AD_TRY(ad_new(2 * AD_ROWS, &values));
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (out->equal >> axis & 1) compare_addends(parts, axis, values, out);
  ad_release(values);
  return AD_OK;
}
