/* Interprets a sum once more, with other types on axes whose types are uncertain. The dump does not say whether ranks along
 * such an axis have different parts of the gradient or all have the same gradient, but their addends show it. */
#include "solve/assumed.h"

#include <math.h>
#include "base/memory.h"
#include "solve/explain.h"

/* ---- how far the addends of ranks along an axis differ ---- */

/* Two thresholds. Ranks that did the same work may have addends that differ by ROUNDINGS times the rounding of a
 * sum, since each rank may add in its own order throughout the model. Addends count as different parts of a gradient
 * only if they also differ by 1/CLEARLY of the largest element; the same work in bf16 (2^-8) differs by less. */
enum { ROUNDINGS = 64, CLEARLY = 16 };

/* Reads elements [begin, end) of an addend: of a part of the sum or, if `local`, of the addend's own box. */
static void read_addend(const ad_parts *parts, const ad_part *part, const ad_piece *piece, int local, size_t begin,
                        size_t end, double *out) {
  ad_part own = {.box = piece->box, .sampled = piece->sampled};
  ad_part_read(parts, local ? &own : part, piece, begin, end, out);
}

ad_distance ad_addends_distance(const ad_parts *parts, const ad_part *part, const ad_piece *a, const ad_piece *b,
                                int local, double *values) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  double share = ROUNDINGS * ad_rounding_share(&rounding, 1), worst = 0, largest = 0;
  size_t count = local ? a->tensor->bytes / ad_dtype_size(a->tensor->dtype) : part->count;
  for (size_t begin = 0; begin < count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < count ? begin + AD_ROWS : count;
    read_addend(parts, part, a, local, begin, end, values);
    read_addend(parts, part, b, local, begin, end, values + AD_ROWS);
    for (size_t i = 0; i < end - begin; i++) {
      worst = fmax(worst, fabs(values[i] - values[AD_ROWS + i]));
      largest = fmax(largest, fmax(fabs(values[i]), fabs(values[AD_ROWS + i])));
    }
  }
  if (worst <= fmin(share, 1.0 / CLEARLY) * largest) return AD_DISTANCE_ALIKE;
  if (worst <= share * largest) return AD_DISTANCE_SAME;
  return worst > fmax(share, 1.0 / CLEARLY) * largest ? AD_DISTANCE_APART : AD_DISTANCE_NEAR;
}

/* Finds the largest distance between addends of neighbouring ranks along the axis, in one part of the sum. Leaves *most
 * unchanged if it is larger; *some is set to 1 if there are such addends. */
static void compare_along(const ad_parts *parts, const ad_part *part, int axis, double *values, ad_distance *most,
                          int *some) {
  const ad_members *members = ad_part_members(parts, part);
  for (size_t i = 0; i < members->count && *most != AD_DISTANCE_APART; i++)
    for (size_t j = 0; j < members->count && *most != AD_DISTANCE_APART; j++) {
      const ad_piece *own = &members->columns[i].piece, *next = &members->columns[j].piece;
      if (own->microbatch != next->microbatch || !ad_dump_is_next(parts->dump, own->rank, next->rank, axis)) continue;
      ad_distance found = ad_addends_distance(parts, part, own, next, 0, values);
      if (found > *most) *most = found;
      *some = 1;
    }
}

/* Compares addends along those of `axes` that are R. */
static ad_status compare_addends(const ad_parts *parts, uint32_t axes, ad_likeness *out) {
  double *values;
  AD_TRY(ad_new(2 * AD_ROWS, &values));
  for (int axis = 0; axis < parts->dump->mesh.count; axis++) {
    ad_distance most = AD_DISTANCE_ALIKE;
    int some = 0;
    for (size_t i = 0; i < parts->count && axes >> axis & 1; i++)
      compare_along(parts, &parts->parts[i], axis, values, &most, &some);
    if (some && most == AD_DISTANCE_ALIKE) out->alike |= 1u << axis;
    if (most == AD_DISTANCE_NEAR) out->near |= 1u << axis;
    if (most == AD_DISTANCE_APART) out->apart |= 1u << axis;
  }
  ad_release(values);
  return AD_OK;
}

ad_status ad_likeness_find(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, ad_likeness *out) {
  ad_dump_param summed = ad_assumed_as_summed(param, axes);
  ad_parts parts;
  *out = (ad_likeness){0};
  if (!axes || !dump->microbatches) return AD_OK;
  AD_TRY(ad_parts_create(dump, &summed, &parts));
  ad_status status = compare_addends(&parts, axes, out);
  ad_parts_destroy(&parts);
  return status;
}

/* ---- whether the part is the sum, or the mean, over some of the axes ---- */

/* Sets *holds to 1 if every part is `factor` times the expected sum of its members, else to 0. */
static ad_status test(const ad_parts *parts, double factor, int *holds) {
  *holds = parts->count > 0;
  for (size_t i = 0; i < parts->count && *holds; i++) {
    const ad_part *part = &parts->parts[i];
    const ad_members *members = ad_part_members(parts, part);
    ad_rounding rounding = ad_rounding_of(parts, part);
    ad_fitness fitness;
    double *counts;
    if (!members->count || ad_rounding_hides_addends(&rounding, members->count)) return *holds = 0, AD_OK;
    AD_TRY(ad_new(members->count, &counts));
    ad_expected_counts(parts, members, counts);
    ad_status status = ad_part_test(parts, part, counts, factor * parts->param->expect, &rounding, &fitness);
    ad_release(counts);
    if (status) return status;
    *holds = fitness.holds;
  }
  return AD_OK;
}

ad_dump_param ad_assumed_as_summed(const ad_dump_param *param, uint32_t axes) {
  ad_dump_param other = *param;
  other.summed |= axes;
  for (int axis = 0; axis < AD_DUMP_AXES; axis++)
    if (axes >> axis & 1) other.types[axis] = AD_R;
  return other;
}

/* Returns a copy of the parameter with type I on `axes`. */
static ad_dump_param as_replicated(const ad_dump_param *param, uint32_t axes) {
  ad_dump_param other = *param;
  other.summed &= ~axes;
  for (int axis = 0; axis < AD_DUMP_AXES; axis++)
    if (axes >> axis & 1) other.types[axis] = AD_I;
  return other;
}

/* Returns 1 if two parts have the same elements but different bits. */
static int replicas_differ(const ad_parts *parts) {
  for (size_t i = 0; i < parts->count; i++)
    for (size_t j = 0; j < i; j++)
      if (parts->parts[i].bits != parts->parts[j].bits &&
          ad_box_equal(&parts->param->shape, &parts->parts[i].box, &parts->parts[j].box))
        return 1;
  return 0;
}

/* The result of trying one set of axes. */
typedef struct ad_tried {
  int sum, mean; /* 1: the sum, or the mean, over the axes gives every part */
} ad_tried;

static ad_status try_axes(const ad_parts *parts, uint32_t axes, ad_tried *out) {
  ad_dump_param param = ad_assumed_as_summed(parts->param, axes);
  ad_parts summed;
  AD_TRY(ad_parts_create(parts->dump, &param, &summed));
  ad_status status = test(&summed, 1, &out->sum);
  if (!status) status = test(&summed, 1 / (double)ad_dump_axes_size(&parts->dump->mesh, axes), &out->mean);
  ad_parts_destroy(&summed);
  return status;
}

static ad_assumed_kind kind_of(const ad_tried *tried, uint32_t axes, const ad_likeness *likeness) {
  if (tried->sum) return axes == likeness->apart && !likeness->near ? AD_ASSUMED_SUM : AD_ASSUMED_EITHER;
  if (!tried->mean) return AD_ASSUMED_NONE;
  return axes & (likeness->apart | likeness->near) ? AD_ASSUMED_ESTIMATES : AD_ASSUMED_MEAN;
}

/* Tries all sets of the axes whose type I is uncertain, and keeps the least doubtful interpretation: the one with the
 * smallest ad_assumed_kind. */
static ad_status try_as_summed(const ad_parts *parts, uint32_t assumed, const ad_likeness *likeness, ad_assumed *out) {
  for (uint32_t axes = assumed; axes; axes = (axes - 1) & assumed) {
    ad_tried tried;
    AD_TRY(try_axes(parts, axes, &tried));
    ad_assumed_kind kind = kind_of(&tried, axes, likeness);
    if (kind && (!out->kind || kind < out->kind)) *out = (ad_assumed){kind, axes};
  }
  return AD_OK;
}

/* Tries all sets of the axes whose declared type R is uncertain, since all ranks have the same addends: is the sum each
 * rank's own along them, and the same bits everywhere? */
static ad_status try_as_replicated(const ad_parts *parts, uint32_t same, ad_assumed *out) {
  for (uint32_t axes = same; axes && !out->kind; axes = (axes - 1) & same) {
    ad_dump_param param = as_replicated(parts->param, axes);
    ad_parts own;
    int holds;
    AD_TRY(ad_parts_create(parts->dump, &param, &own));
    ad_status status = test(&own, 1, &holds);
    if (!status && holds && !replicas_differ(&own)) *out = (ad_assumed){AD_ASSUMED_UNSUMMED, axes};
    ad_parts_destroy(&own);
    if (status) return status;
  }
  return AD_OK;
}

ad_status ad_assumed_find(const ad_parts *parts, ad_assumed *out) {
  const ad_dump_param *param = parts->param;
  uint32_t assumed = ad_large_axes(&parts->dump->mesh, param->assumed & ~param->summed), declared = param->declared_r;
  ad_likeness likeness = {0}, same = {0};
  *out = (ad_assumed){0};
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (param->types[axis] != AD_I) assumed &= ~(1u << axis);
  if (!parts->dump->microbatches) return AD_OK;
  AD_TRY(ad_likeness_find(parts->dump, param, assumed, &likeness));
  AD_TRY(try_as_summed(parts, assumed, &likeness, out));
  if (out->kind) return AD_OK;
  AD_TRY(ad_likeness_find(parts->dump, param, declared, &same));
  return try_as_replicated(parts, same.alike & declared, out);
}
