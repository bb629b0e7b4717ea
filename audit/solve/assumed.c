/* Interprets a sum once more, with type R on axes whose type I was only assumed. The dump does not say whether ranks
 * along such an axis have different parts of the gradient or all have the same gradient, but their addends show it. */
#include "solve/assumed.h"

#include <math.h>
#include "base/memory.h"
#include "solve/explain.h"

/* ---- how far the addends of ranks along an axis differ ---- */

/* Two thresholds. Ranks that did the same work may have addends that differ by ROUNDINGS times the rounding of a
 * sum, since each rank may add in its own order throughout the model. Addends count as different parts of a gradient
 * only if they also differ by 1/CLEARLY of the largest element; the same work in bf16 (2^-8) differs by less. */
enum { ROUNDINGS = 64, CLEARLY = 16 };

typedef enum ad_distance { SAME, NEAR, APART } ad_distance;

/* Returns how much two addends differ in the part's elements. `values` is scratch memory for 2 * AD_ROWS numbers. */
static ad_distance distance(const ad_parts *parts, const ad_part *part, const ad_piece *a, const ad_piece *b,
                            double *values) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  double share = ROUNDINGS * ad_rounding_share(&rounding, 1), worst = 0, largest = 0;
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    ad_part_read(parts, part, a, begin, end, values);
    ad_part_read(parts, part, b, begin, end, values + AD_ROWS);
    for (size_t i = 0; i < end - begin; i++) {
      worst = fmax(worst, fabs(values[i] - values[AD_ROWS + i]));
      largest = fmax(largest, fmax(fabs(values[i]), fabs(values[AD_ROWS + i])));
    }
  }
  if (worst <= share * largest) return SAME;
  return worst > fmax(share, 1.0 / CLEARLY) * largest ? APART : NEAR;
}

/* Returns 1 if `other` is of the same microbatch as `own`, and of the next rank along the axis. */
static int is_beside(const ad_dump *dump, const ad_piece *own, const ad_piece *other, int axis) {
  return own->microbatch == other->microbatch &&
         dump->position[other->rank][axis] == dump->position[own->rank][axis] + 1 &&
         ad_stands_with(dump, own->rank, other->rank, ~(1u << axis));
}

/* Returns the largest distance between addends of neighbouring ranks along the axis, in one part of the sum. */
static ad_distance distance_along(const ad_parts *parts, const ad_part *part, int axis, double *values) {
  const ad_members *members = ad_part_members(parts, part);
  ad_distance most = SAME;
  for (size_t i = 0; i < members->count && most != APART; i++)
    for (size_t j = 0; j < members->count && most != APART; j++) {
      const ad_piece *own = &members->columns[i].piece, *other = &members->columns[j].piece;
      if (!is_beside(parts->dump, own, other, axis)) continue;
      ad_distance found = distance(parts, part, own, other, values);
      if (found > most) most = found;
    }
  return most;
}

/* Sets *apart to those of `axes` along which addends clearly differ, and *near to those along which they differ only
 * a little. */
static ad_status compare_addends(const ad_parts *parts, uint32_t axes, uint32_t *apart, uint32_t *near) {
  double *values;
  AD_TRY(ad_new(2 * AD_ROWS, &values));
  *apart = *near = 0;
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    for (size_t i = 0; i < parts->count && axes >> axis & 1; i++) {
      ad_distance found = distance_along(parts, &parts->parts[i], axis, values);
      if (found == APART) *apart |= 1u << axis;
      if (found == NEAR) *near |= 1u << axis;
    }
  *near &= ~*apart;
  ad_release(values);
  return AD_OK;
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

static ad_assumed_kind kind_of(const ad_tried *tried, uint32_t axes, uint32_t apart, uint32_t near) {
  if (tried->sum) return axes == apart && !near ? AD_ASSUMED_SUM : AD_ASSUMED_EITHER;
  if (!tried->mean) return AD_ASSUMED_NONE;
  return axes & (apart | near) ? AD_ASSUMED_ESTIMATES : AD_ASSUMED_MEAN;
}

/* Tries all sets of the assumed axes, and keeps the least doubtful interpretation: the one with the smallest
 * ad_assumed_kind. */
static ad_status try_sets(const ad_parts *parts, uint32_t assumed, uint32_t near, ad_assumed *out) {
  for (uint32_t axes = assumed; axes; axes = (axes - 1) & assumed) {
    ad_tried tried;
    AD_TRY(try_axes(parts, axes, &tried));
    ad_assumed_kind kind = kind_of(&tried, axes, out->apart, near);
    if (kind && (!out->kind || kind < out->kind)) {
      out->kind = kind;
      out->axes = axes;
    }
  }
  return AD_OK;
}

ad_status ad_assumed_find(const ad_parts *parts, ad_assumed *out) {
  uint32_t assumed = ad_large_axes(&parts->dump->mesh, parts->param->assumed & ~parts->param->summed), near;
  *out = (ad_assumed){0};
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (parts->param->types[axis] != AD_I) assumed &= ~(1u << axis);
  if (!assumed || !parts->dump->microbatches) return AD_OK;
  ad_dump_param param = ad_assumed_as_summed(parts->param, assumed);
  ad_parts summed;
  AD_TRY(ad_parts_create(parts->dump, &param, &summed));
  ad_status status = compare_addends(&summed, assumed, &out->apart, &near);
  ad_parts_destroy(&summed);
  return status ? status : try_sets(parts, assumed, near, out);
}
