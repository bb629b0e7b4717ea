/* What counts say relative to who holds the sum: it was not summed over some axes, or over others. */
#include <math.h>
#include "diff/verdict_case.h"

/* ---- the own place only ---- */

enum { NONE = -1 };

/* Whether each holder's copy has the addends of those in its own place on `axes`, and only those, each *factor times.
 * `right`: a microbatch that is right, and this is so in the others; or NONE. */
static int is_local(const ad_case *c, const ad_judged *judged, uint32_t axes, int64_t right, double *factor) {
  const ad_members *members = ad_case_members(c, judged);
  for (size_t h = 0; h < judged->part->holder_count; h++)
    for (size_t i = 0; i < members->count; i++) {
      double count = judged->why.counts[i], error = judged->why.errors[i];
      if (isinf(error)) continue;
      if (members->columns[i].piece.microbatch == right && right != NONE) {
        if (!ad_counts_close(count, 1, error)) return 0;
      } else if (ad_stands_with(c->dump, members->columns[i].piece.rank, judged->part->holders[h], axes)) {
        if (isnan(*factor)) *factor = count;
        if (count == 0 || !ad_counts_close(count, *factor, error)) return 0;
      } else if (!ad_counts_close(count, 0, error)) {
        return 0;
      }
    }
  return 1;
}

static int all_local(const ad_case *c, uint32_t axes, int64_t right, double *factor) {
  *factor = NAN;
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !is_local(c, &c->list[i], axes, right, factor)) return 0;
  return !isnan(*factor);
}

static void add_local(ad_case *c, uint32_t axes, int64_t right, double factor) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  char names[AD_VERDICT_TEXT / 4], times[64] = "";
  const char *place = right == NONE ? "" : "microbatches";
  if (factor != 1) snprintf(times, sizeof times, ", %.6g times", factor);
  ad_case_axes(c, axes, names, sizeof names);
  if (axes == summed && right == NONE)
    ad_case_add(c, AD_VERDICT_OWN_ONLY, axes, factor, place, "own addend only%s: not summed over %s", times, names);
  else
    ad_case_add(c, AD_VERDICT_PARTIAL, axes, factor, place,
                "partial%s: not summed over %s: each rank's sum has only the addends of its own place there%s",
                right == NONE ? ""
                : right       ? " in the earlier microbatches"
                              : " in all microbatches but the first",
                names, times);
}

/* Every set of axes that fits, the fewest axes first. */
static void add_locals(ad_case *c, int64_t right, double *factor) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  for (int count = 1; count <= __builtin_popcount(summed); count++)
    for (uint32_t axes = 1; axes <= summed; axes++) {
      double own;
      if (axes & ~summed || __builtin_popcount(axes) != count || !all_local(c, axes, right, &own)) continue;
      add_local(c, axes, right, own);
      if (isnan(*factor)) *factor = own;
    }
}

int ad_case_try_local(ad_case *c) {
  double factor = NAN;
  add_locals(c, NONE, &factor);
  if (c->dump->microbatches > 1) {
    add_locals(c, c->dump->microbatches - 1, &factor);
    add_locals(c, 0, &factor);
  }
  return ad_case_settle(c, json_array_size(c->out->causes) > 1 ? NAN : factor, "");
}

/* ---- another group ---- */

/* All wrong parts are sums over the same other axes. */
static int is_group(const ad_case *c, uint32_t axes) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !ad_sets_has(&c->list[i].why.groups, axes)) return 0;
  return 1;
}

void ad_case_add_groups(ad_case *c) {
  char is[AD_VERDICT_TEXT / 4], wanted[AD_VERDICT_TEXT / 4];
  uint32_t large = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  ad_case_axes(c, large, wanted, sizeof wanted);
  for (uint32_t axes = 1; axes < 1u << c->dump->mesh.count; axes++)
    if (is_group(c, axes))
      ad_case_add(c, AD_VERDICT_WRONG_GROUP, axes, NAN, "",
                  "wrong group: summed over %s, and its types want the sum over %s",
                  ad_case_axes(c, axes, is, sizeof is), large ? wanted : "no axis");
}

int ad_case_try_group(ad_case *c) {
  ad_case_add_groups(c);
  if (!ad_case_settle(c, NAN, "")) return 0;
  ad_case_mark_holders(c, 1);
  return 1;
}

/* The addends that a part has, each *factor times; 0: it has all of them, or counts that differ. */
static int has_some(const ad_case *c, const ad_judged *judged, double *factor) {
  const ad_members *members = ad_case_members(c, judged);
  size_t lacking = 0;
  *factor = NAN;
  for (size_t i = 0; i < members->count; i++) {
    double count = judged->why.counts[i], error = judged->why.errors[i];
    if (isinf(error)) continue;
    if (ad_counts_close(count, 0, error)) {
      lacking++;
      continue;
    }
    if (isnan(*factor)) *factor = count;
    if (!ad_counts_close(count, *factor, error)) return 0;
  }
  return lacking && !isnan(*factor);
}

/* Whether each holder's own addends are in its sum. */
static int has_own(const ad_case *c, const ad_judged *judged) {
  const ad_members *members = ad_case_members(c, judged);
  for (size_t i = 0; i < members->count; i++)
    for (size_t h = 0; h < judged->part->holder_count; h++)
      if (members->columns[i].piece.rank == judged->part->holders[h] &&
          ad_counts_close(judged->why.counts[i], 0, judged->why.errors[i]))
        return 0;
  return 1;
}

/* Each part has the addends of some ranks, and others have those of others: the groups were cut otherwise. */
int ad_case_try_some(ad_case *c) {
  int own = 1;
  double factor, first;
  if (!has_some(c, c->first, &first)) return 0;
  for (size_t i = 0; i < c->count; i++) {
    if (c->list[i].holds || !has_some(c, &c->list[i], &factor) || !ad_counts_close(factor, first, 0)) return 0;
    own &= has_own(c, &c->list[i]);
  }
  ad_case_mark_holders(c, 1);
  ad_case_say(c, own ? AD_VERDICT_PARTIAL : AD_VERDICT_WRONG_GROUP, 0, first);
  snprintf(c->out->text, sizeof c->out->text,
           own ? "partial: each rank's copy has the addends of some ranks only, and they are not the same everywhere"
               : "wrong group: ranks have the addends of other ranks than their own group's");
  return 1;
}
