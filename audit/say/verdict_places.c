/* Verdicts from counts that depend on the position of the rank that holds the sum: no sum was formed over some axes, or
 * it was formed over other axes. */
#include <math.h>
#include "base/text.h"
#include "say/declared.h"
#include "say/verdict_case.h"
#include "solve/hypotheses.h"

/* ---- verdicts on sums that have only addends from the holder's own position on some axes ---- */

/* Which microbatches are summed correctly while the others are not: none, the first, the last, or (THOSE_THAT_ARE) each
 * microbatch whose addends all count once in every wrong part. */
typedef enum ad_right { NONE, FIRST, LAST, THOSE_THAT_ARE } ad_right;

/* Returns 1 if every addend of the microbatch counts once in every wrong part of the sum. */
static int counts_once(const ad_case *c, int64_t microbatch) {
  for (size_t p = 0; p < c->count; p++) {
    const ad_judged *judged = &c->list[p];
    const ad_members *members = ad_case_members(c, judged);
    for (size_t i = 0; i < members->count && !judged->holds; i++)
      if (members->columns[i].piece.microbatch == microbatch && isfinite(judged->why.errors[i]) &&
          !ad_counts_close(judged->why.counts[i], 1, judged->why.errors[i]))
        return 0;
  }
  return 1;
}

static int is_right(const ad_case *c, int64_t microbatch, ad_right right) {
  return right == FIRST            ? microbatch == 0
         : right == LAST           ? microbatch == c->dump->microbatches - 1
         : right == THOSE_THAT_ARE ? counts_once(c, microbatch)
                                   : 0;
}

/* Returns 1 if the set of microbatches that are summed correctly is not described by NONE, FIRST or LAST. */
static int are_others(const ad_case *c) {
  int64_t count = 0, last = c->dump->microbatches - 1;
  for (int64_t m = 0; m <= last; m++) count += counts_once(c, m);
  return count > 1 || (count == 1 && !counts_once(c, 0) && !counts_once(c, last));
}

/* Returns the largest count of an addend in the part. Smaller counts are compared with it, since all counts may have
 * one small factor. */
static double largest_count(const ad_case *c, const ad_judged *judged) {
  double largest = 0;
  for (size_t i = 0; i < ad_case_members(c, judged)->count; i++)
    if (isfinite(judged->why.errors[i])) largest = fmax(largest, fabs(judged->why.counts[i]));
  return largest;
}

/* Returns 1 if each holder's replica of the part has exactly the addends of the ranks that have the holder's
 * position on `axes`, each *factor times. In the microbatches that `right` names, all addends must count once. */
static int is_local(const ad_case *c, const ad_judged *judged, uint32_t axes, ad_right right, double *factor) {
  const ad_members *members = ad_case_members(c, judged);
  double largest = largest_count(c, judged);
  for (size_t h = 0; h < judged->part->holder_count; h++)
    for (size_t i = 0; i < members->count; i++) {
      double count = judged->why.counts[i], error = judged->why.errors[i];
      if (isinf(error)) continue;
      if (right != NONE && is_right(c, members->columns[i].piece.microbatch, right)) {
        if (!ad_counts_close(count, 1, error)) return 0;
      } else if (ad_stands_with(c->dump, members->ranks[i], judged->part->holders[h], axes)) {
        if (isnan(*factor)) *factor = count;
        if (count == 0 || !ad_counts_close(count, *factor, error)) return 0;
      } else if (count != 0 && (!ad_counts_close(count, 0, error) || fabs(count) > largest / 2)) {
        return 0;
      }
    }
  return 1;
}

/* Returns 1 if is_local returns 1 for every wrong part of the sum, with the same factor. */
static int all_local(const ad_case *c, uint32_t axes, ad_right right, double *factor) {
  *factor = NAN;
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !is_local(c, &c->list[i], axes, right, factor)) return 0;
  return !isnan(*factor);
}

/* Prints which microbatches are wrong, for example " in microbatches 1 and 3". */
static void print_wrong(const ad_case *c, ad_right right, char *out, size_t size) {
  ad_text text = ad_text_on(out, size);
  int64_t wrong = 0, reported = 0;
  if (right == NONE) return;
  for (int64_t m = 0; m < c->dump->microbatches; m++) wrong += !is_right(c, m, right);
  if (right == LAST)
    ad_text_add(&text, " in the earlier microbatches");
  else if (right == FIRST)
    ad_text_add(&text, " in all microbatches but the first");
  else
    ad_text_add(&text, " in microbatch%s", wrong > 1 ? "es" : "");
  for (int64_t m = 0; m < c->dump->microbatches && right == THOSE_THAT_ARE; m++) {
    if (is_right(c, m, right)) continue;
    reported++;
    ad_text_add(&text, "%s%lld", reported == 1 ? " " : reported == wrong ? " and " : ", ", (long long)m);
  }
}

/* Adds the cause that no sum was formed over these axes. */
static void add_local(ad_case *c, uint32_t axes, ad_right right, double factor) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  char names[AD_VERDICT_TEXT / 4], times[64] = "", wrong[AD_VERDICT_TEXT / 4], against[AD_VERDICT_TEXT / 4];
  const char *place = right == NONE ? "" : "microbatches";
  if (factor != 1) snprintf(times, sizeof times, ", %.6g times", factor);
  ad_case_axes(c, axes, names, sizeof names);
  print_wrong(c, right, wrong, sizeof wrong);
  ad_declared_print_against(c->dump, c->parts->param, axes, against, sizeof against);
  if (axes == summed && right == NONE)
    ad_case_add(c, AD_CAUSE_OWN_ONLY, axes, factor, place, "own addend only%s: not summed over %s%s", times, names,
                against);
  else
    ad_case_add(c, AD_CAUSE_PARTIAL, axes, factor, place,
                "partial%s: not summed over %s: each rank's sum has only the addends of its own place there%s%s", wrong,
                names, times, against);
}

/* Adds the cause of add_local for every set of axes for which all_local returns 1, sets of fewer axes first. */
static void add_locals(ad_case *c, ad_right right, double *factor) {
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
    add_locals(c, LAST, &factor);
    add_locals(c, FIRST, &factor);
    if (are_others(c)) add_locals(c, THOSE_THAT_ARE, &factor);
  }
  return ad_case_settle(c, json_array_size(c->out->causes) > 1 ? NAN : factor, "");
}

/* ---- verdicts on sums over another group of ranks ---- */

/* Returns 1 if each wrong part is the sum over `axes` instead of the axes of its types. */
static int is_group(const ad_case *c, uint32_t axes) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !ad_sets_has(&c->list[i].why.groups, axes)) return 0;
  return 1;
}

void ad_case_add_groups(ad_case *c) {
  char is[AD_VERDICT_TEXT / 4], wanted[AD_VERDICT_TEXT / 4], against[AD_VERDICT_TEXT / 4];
  uint32_t large = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  ad_case_axes(c, large, wanted, sizeof wanted);
  for (uint32_t axes = 1; axes < 1u << c->dump->mesh.count; axes++)
    if (is_group(c, axes))
      ad_case_add(c, AD_CAUSE_WRONG_GROUP, axes, NAN, "",
                  "wrong group: summed over %s, and its types want the sum over %s%s",
                  ad_case_axes(c, axes, is, sizeof is), large ? wanted : "no axis",
                  ad_declared_print_against(c->dump, c->parts->param, axes ^ large, against, sizeof against));
}

int ad_case_try_group(ad_case *c) {
  ad_case_add_groups(c);
  if (!ad_case_settle(c, NAN, "")) return 0;
  ad_case_mark_holders(c, 1);
  return 1;
}

/* Returns 1 if some addends are missing from the part, and every addend that is in it is counted *factor times. */
static int has_some(const ad_case *c, const ad_judged *judged, double *factor) {
  const ad_members *members = ad_case_members(c, judged);
  size_t missing = 0;
  *factor = NAN;
  for (size_t i = 0; i < members->count; i++) {
    double count = judged->why.counts[i], error = judged->why.errors[i];
    if (isinf(error)) continue;
    if (ad_counts_close(count, 0, error)) {
      missing++;
      continue;
    }
    if (isnan(*factor)) *factor = count;
    if (!ad_counts_close(count, *factor, error)) return 0;
  }
  return missing && !isnan(*factor);
}

/* Returns 1 if an addend of the rank is, or may be, in the part's sum, or if the rank has no addend at all. */
static int has_any_of(const ad_case *c, const ad_judged *judged, int64_t rank) {
  const ad_members *members = ad_case_members(c, judged);
  int gave = 0;
  for (size_t i = 0; i < members->count; i++) {
    double error = judged->why.errors[i];
    if (members->columns[i].piece.rank != rank) continue;
    gave = 1;
    if (isinf(error) || !ad_counts_close(judged->why.counts[i], 0, error)) return 1;
  }
  return !gave;
}

/* Returns 1 if every holder's own addends are in the part's sum. */
static int has_own(const ad_case *c, const ad_judged *judged) {
  for (size_t h = 0; h < judged->part->holder_count; h++)
    if (!has_any_of(c, judged, judged->part->holders[h])) return 0;
  return 1;
}

/* Returns 1 if an addend of the microbatch is in some wrong part. */
static int is_in_some(const ad_case *c, int64_t microbatch) {
  for (size_t p = 0; p < c->count; p++) {
    const ad_judged *judged = &c->list[p];
    const ad_members *members = ad_case_members(c, judged);
    for (size_t i = 0; i < members->count && !judged->holds; i++)
      if (members->columns[i].piece.microbatch == microbatch && !isinf(judged->why.errors[i]) &&
          !ad_counts_close(judged->why.counts[i], 0, judged->why.errors[i]))
        return 1;
  }
  return 0;
}

/* Prints ", in microbatch 2 alone" if all addends in the wrong parts are of one microbatch, else "". */
static void print_only_microbatch(const ad_case *c, char *out, size_t size) {
  int64_t count = 0, only = 0;
  *out = 0;
  for (int64_t m = 0; m < c->dump->microbatches; m++) {
    if (!is_in_some(c, m)) continue;
    count++;
    only = m;
  }
  if (count == 1 && c->dump->microbatches > 1) snprintf(out, size, ", in microbatch %lld alone", (long long)only);
}

/* Sets *has to the number of ranks whose addends are in the part, and *all to the number of ranks whose addends
 * should be in it. */
static void count_ranks(const ad_case *c, const ad_judged *judged, size_t *has, size_t *all) {
  const ad_members *members = ad_case_members(c, judged);
  int64_t last = -1, last_had = -1;
  *has = *all = 0;
  for (size_t i = 0; i < members->count; i++) {
    int64_t rank = members->columns[i].piece.rank;
    double error = judged->why.errors[i];
    *all += rank != last;
    last = rank;
    if (isinf(error) || ad_counts_close(judged->why.counts[i], 0, error)) continue;
    *has += rank != last_had;
    last_had = rank;
  }
}

/* Returns the number of ranks whose addends are in a wrong part, if it is the same for all wrong parts, else 0. Sets
 * *all to the number that should be in it. */
static size_t ranks_in_each(const ad_case *c, size_t *all) {
  size_t has, other, unused;
  count_ranks(c, c->first, &has, all);
  for (size_t i = 0; i < c->count; i++) {
    count_ranks(c, &c->list[i], &other, &unused);
    if (!c->list[i].holds && other != has) return 0;
  }
  return has;
}

static void report_own_alone(ad_case *c, const char *only, double factor) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  char axes[AD_VERDICT_TEXT / 4], against[AD_VERDICT_TEXT / 4];
  ad_case_report(c, AD_CAUSE_OWN_ONLY, summed, factor);
  snprintf(c->out->text, sizeof c->out->text, "own addend only%s: not summed over %s%s", only,
           ad_case_axes(c, summed, axes, sizeof axes),
           ad_declared_print_against(c->dump, c->parts->param, summed, against, sizeof against));
}

/* Reports that sums were formed over groups that are too small. */
static void report_smaller_group(ad_case *c, double factor) {
  size_t all, has = ranks_in_each(c, &all);
  char ranks[64] = "", only[64];
  print_only_microbatch(c, only, sizeof only);
  if (has == 1) {
    report_own_alone(c, only, factor);
    return;
  }
  if (has && has < all) snprintf(ranks, sizeof ranks, "%zu of %zu ranks are summed: ", has, all);
  ad_case_report(c, AD_CAUSE_PARTIAL, 0, factor);
  snprintf(c->out->text, sizeof c->out->text,
           "partial: %seach rank's replica has the addends of some ranks only%s, its own among them, and they are not "
           "the same everywhere",
           ranks, only);
}

/* Tries the verdict that groups were formed wrongly: each part has the addends of some ranks only, and different parts
 * have those of different ranks. */
int ad_case_try_some(ad_case *c) {
  int own = 1;
  double factor, first;
  if (!has_some(c, c->first, &first)) return 0;
  for (size_t i = 0; i < c->count; i++) {
    if (c->list[i].holds || !has_some(c, &c->list[i], &factor) || !ad_counts_close(factor, first, 0)) return 0;
    own &= has_own(c, &c->list[i]);
  }
  ad_case_mark_holders(c, 1);
  if (own) {
    report_smaller_group(c, first);
    return 1;
  }
  ad_case_report(c, AD_CAUSE_WRONG_GROUP, 0, first);
  snprintf(c->out->text, sizeof c->out->text,
           "wrong group: ranks have the addends of other ranks than their own group's");
  return 1;
}
