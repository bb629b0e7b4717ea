/* The words for counts. A pattern is looked for in all wrong parts together: what one rank's copy lacks says little,
 * what every copy lacks in the same way says what was left out. */
#include "diff/verdict.h"

#include <math.h>
#include <string.h>
#include "base/text.h"
#include "diff/hypotheses.h"

const char *ad_verdict_name(ad_verdict_kind kind) {
  static const char *const names[] = {
#define AD_VERDICT_TEXT_OF(code, name) name,
      AD_VERDICT_LIST(AD_VERDICT_TEXT_OF)
#undef AD_VERDICT_TEXT_OF
  };
  return names[kind];
}

/* What all functions here look at. */
typedef struct ad_case {
  const ad_parts *parts;
  const ad_dump *dump;
  const ad_judged *list;
  size_t count;
  const ad_judged *first; /* wrong part */
  ad_verdict *out;
} ad_case;

static const ad_members *members_of(const ad_case *c, const ad_judged *judged) {
  return ad_part_members(c->parts, judged->part);
}

static int is_close(double a, double b, double error) {
  return fabs(a - b) <= fmax(ad_count_tolerance(error), 1e-4 * fabs(b));
}

const char *ad_ranks_print(const unsigned char *ranks, int64_t world, char *buffer, size_t size) {
  enum { SHOWN = 8 };
  ad_text text = ad_text_on(buffer, size);
  int64_t count = 0, done = 0;
  for (int64_t rank = 0; rank < world; rank++) count += ranks[rank] != 0;
  ad_text_add(&text, "rank%s ", count == 1 ? "" : "s");
  for (int64_t rank = 0; rank < world; rank++) {
    if (!ranks[rank] || (count > SHOWN && done > SHOWN - 3)) continue;
    ad_text_add(&text, "%s%lld", !done ? "" : done + 1 == count ? " and " : ", ", (long long)rank);
    done++;
  }
  if (done < count) ad_text_add(&text, ", ... (%lld of %lld)", (long long)count, (long long)world);
  return buffer;
}

static const char *axes_words(const ad_case *c, uint32_t axes, char *buffer, size_t size) {
  return ad_dump_axes_print(&c->dump->mesh, axes, buffer, size);
}

/* The fewest axes whose ranks are as many; summed ones first. 0: none. */
static uint32_t axes_of_size(const ad_case *c, double size, int *candidates) {
  const ad_dump_mesh *mesh = &c->dump->mesh;
  uint32_t all = ad_large_axes(mesh, UINT32_MAX), summed = c->parts->param->summed & all, best = 0;
  *candidates = 0;
  for (uint32_t axes = all; axes; axes = (axes - 1) & all) {
    int worse = best && (__builtin_popcount(axes) > __builtin_popcount(best) || (!(best & ~summed) && axes & ~summed));
    if (fabs((double)ad_dump_axes_size(mesh, axes) - size) > 1e-4 * size || worse) continue;
    int equal = best && __builtin_popcount(axes) == __builtin_popcount(best) && !(best & ~summed) == !(axes & ~summed);
    *candidates = equal ? *candidates + 1 : 1;
    best = axes;
  }
  return best;
}

/* ---- one factor on all ---- */

/* The one count of all addends of the part, on the expected ones; NaN if they differ. */
static double uniform(const ad_case *c, const ad_judged *judged) {
  const ad_members *members = members_of(c, judged);
  double value = NAN;
  for (size_t i = 0; i < members->count; i++) {
    if (isinf(judged->why.errors[i])) continue;
    if (isnan(value)) value = judged->why.counts[i];
    if (!is_close(judged->why.counts[i], value, judged->why.errors[i])) return NAN;
  }
  return value;
}

static void say(ad_case *c, ad_verdict_kind kind, uint32_t axes, double factor) {
  c->out->kind = kind;
  c->out->axes = axes;
  c->out->factor = factor;
}

static void say_averaged(ad_case *c, uint32_t axes, double factor, int candidates) {
  char names[AD_VERDICT_TEXT / 4];
  say(c, AD_VERDICT_AVERAGED, axes, factor);
  snprintf(
      c->out->text, sizeof c->out->text,
      "averaged over %s%s: every addend counts 1/%.0f of what is expected; divide once only, or expect what is done",
      axes_words(c, axes, names, sizeof names), candidates > 1 ? ", or over another axis of its size" : "", 1 / factor);
}

static void say_doubled(ad_case *c, uint32_t axes, double factor, int candidates) {
  char names[AD_VERDICT_TEXT / 4];
  int undivided = fabs(factor * c->parts->param->expect - 1) < 1e-4;
  say(c, AD_VERDICT_DOUBLED, axes, factor);
  if (axes)
    snprintf(c->out->text, sizeof c->out->text, "%s over %s%s: every addend counts %.0f times what is expected",
             undivided ? "not divided" : "summed twice, or not divided,", axes_words(c, axes, names, sizeof names),
             candidates > 1 ? ", or over another axis of its size" : "", factor);
  else
    snprintf(c->out->text, sizeof c->out->text, "doubled: every addend counts %.0f times what is expected", factor);
}

static void say_factor(ad_case *c, double factor) {
  int candidates = 0;
  uint32_t axes = factor > 0 ? axes_of_size(c, 1 / factor, &candidates) : 0;
  if (axes) {
    say_averaged(c, axes, factor, candidates);
    return;
  }
  axes = factor > 0 ? axes_of_size(c, factor, &candidates) : 0;
  if (axes || fabs(factor - 2) < 1e-4) {
    say_doubled(c, axes, factor, candidates);
    return;
  }
  say(c, factor == 0 ? AD_VERDICT_MISSING : AD_VERDICT_FACTOR, 0, factor);
  if (factor == 0)
    snprintf(c->out->text, sizeof c->out->text, "missing: the sum is zero, and no rank's addend is in it");
  else
    snprintf(c->out->text, sizeof c->out->text, "%.6g times what is expected: a factor that is no group's size",
             factor);
}

/* ---- relative to who holds it ---- */

/* Whether each holder's copy has the addends of those in its own place on `axes`, and only those, each *factor times.
 * `late`: the last microbatch is right, and this is so in the earlier ones. */
static int is_local(const ad_case *c, const ad_judged *judged, uint32_t axes, int late, double *factor) {
  const ad_members *members = members_of(c, judged);
  size_t own = 0;
  for (size_t h = 0; h < judged->part->holder_count; h++)
    for (size_t i = 0; i < members->count; i++) {
      double count = judged->why.counts[i], error = judged->why.errors[i];
      if (isinf(error)) continue;
      if (late && members->columns[i].piece.microbatch == c->dump->microbatches - 1) {
        if (!is_close(count, 1, error)) return 0;
      } else if (ad_stands_with(c->dump, members->columns[i].piece.rank, judged->part->holders[h], axes)) {
        own++;
        if (isnan(*factor)) *factor = count;
        if (count == 0 || !is_close(count, *factor, error)) return 0;
      } else if (!is_close(count, 0, error)) {
        return 0;
      }
    }
  return own > 0;
}

static int all_local(const ad_case *c, uint32_t axes, int late, double *factor) {
  *factor = NAN;
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !is_local(c, &c->list[i], axes, late, factor)) return 0;
  return 1;
}

static void say_local(ad_case *c, uint32_t axes, int late, double factor) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  char names[AD_VERDICT_TEXT / 4], times[64] = "";
  int own = axes == summed && !late;
  say(c, own ? AD_VERDICT_OWN_ONLY : AD_VERDICT_PARTIAL, axes, factor);
  if (factor != 1) snprintf(times, sizeof times, ", %.6g times", factor);
  axes_words(c, axes, names, sizeof names);
  if (own)
    snprintf(c->out->text, sizeof c->out->text, "own addend only%s: not summed over %s", times, names);
  else
    snprintf(c->out->text, sizeof c->out->text,
             "partial%s: not summed over %s: each rank's sum has only the addends of its own place there%s",
             late ? " in the earlier microbatches" : "", names, times);
}

static int try_local_in(ad_case *c, int late) {
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed), best = 0;
  double factor = NAN, best_factor = NAN;
  for (uint32_t axes = summed; axes; axes = (axes - 1) & summed)
    if (all_local(c, axes, late, &factor) && (!best || __builtin_popcount(axes) < __builtin_popcount(best))) {
      best = axes;
      best_factor = factor;
    }
  if (best) say_local(c, best, late, best_factor);
  return best != 0;
}

static int try_local(ad_case *c) { return try_local_in(c, 0) || (c->dump->microbatches > 1 && try_local_in(c, 1)); }

/* ---- by microbatch, by rank ---- */

/* The one count of the addends of a microbatch (rank -1) or of a rank (microbatch -1); NaN: they differ, or are none.
 */
static double count_of(const ad_case *c, int64_t rank, int64_t microbatch) {
  const ad_members *members = members_of(c, c->first);
  double value = NAN;
  for (size_t i = 0; i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    double error = c->first->why.errors[i], count = c->first->why.counts[i];
    if (isinf(error) || (rank >= 0 && piece->rank != rank) || (microbatch >= 0 && piece->microbatch != microbatch))
      continue;
    if (isnan(value)) value = count;
    if (!is_close(count, value, error)) return NAN;
  }
  return value;
}

/* 1 if there is a last microbatch with one count and earlier ones with another. */
static int split_microbatches(const ad_case *c, double *earlier, double *last) {
  int64_t count = c->dump->microbatches;
  *last = count_of(c, -1, count - 1);
  *earlier = count_of(c, -1, 0);
  for (int64_t m = 1; m < count - 1; m++)
    if (!is_close(count_of(c, -1, m), *earlier, 0)) return 0;
  return count > 1 && !isnan(*last) && !isnan(*earlier);
}

static int try_microbatches(ad_case *c) {
  char names[AD_VERDICT_TEXT / 4];
  double earlier, last;
  int candidates;
  if (!split_microbatches(c, &earlier, &last)) return 0;
  if (is_close(earlier, 0, 0)) {
    say(c, AD_VERDICT_LAST_MICROBATCH, 0, last);
    snprintf(c->out->text, sizeof c->out->text,
             "only the last microbatch: the addends of earlier ones are not in the sum (overwritten, or not reduced)");
    return 1;
  }
  uint32_t axes = is_close(last, 1, 0) && earlier > 0 ? axes_of_size(c, 1 / earlier, &candidates) : 0;
  if (!axes) return 0;
  say(c, AD_VERDICT_EARLIER_DIVIDED, axes, earlier);
  snprintf(c->out->text, sizeof c->out->text,
           "earlier microbatches count 1/%.0f: what was accumulated was divided by the ranks of %s again", 1 / earlier,
           axes_words(c, axes, names, sizeof names));
  return 1;
}

/* Marks the ranks whose addends all have this count; the others' must be all `other`. */
static int mark_ranks(ad_case *c, double value, double other) {
  const ad_members *members = members_of(c, c->first);
  int marked = 0;
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < members->count; i++) {
    int64_t rank = members->columns[i].piece.rank;
    double count = count_of(c, rank, -1);
    if (isinf(c->first->why.errors[i])) continue;
    if (is_close(count, value, c->first->why.errors[i]))
      c->out->ranks[rank] = 1, marked = 1;
    else if (!is_close(count, other, c->first->why.errors[i]))
      return 0;
  }
  return marked;
}

/* The axis of which these are all the members' ranks in some places; 0: none. */
static uint32_t axis_of_marked(const ad_case *c) {
  const ad_members *members = members_of(c, c->first);
  for (int axis = 0; axis < c->dump->mesh.count; axis++) {
    int differs = 0;
    if (!(ad_large_axes(&c->dump->mesh, c->parts->param->summed) >> axis & 1)) continue;
    for (size_t i = 0; i < members->count; i++)
      for (size_t j = 0; j < i; j++) {
        int64_t a = members->columns[i].piece.rank, b = members->columns[j].piece.rank;
        differs |= c->dump->position[a][axis] == c->dump->position[b][axis] && c->out->ranks[a] != c->out->ranks[b];
      }
    if (!differs) return 1u << axis;
  }
  return 0;
}

static void say_missing(ad_case *c, double others) {
  char ranks[AD_VERDICT_TEXT / 4], times[80] = "";
  say(c, AD_VERDICT_MISSING, axis_of_marked(c), others == 1 ? 0 : others);
  if (others != 1) snprintf(times, sizeof times, "; the others count %.6g times", others);
  snprintf(c->out->text, sizeof c->out->text, "missing: the addends of %s are not in the sum%s",
           ad_ranks_print(c->out->ranks, c->dump->mesh.world, ranks, sizeof ranks), times);
}

static void say_counted(ad_case *c, double value) {
  char ranks[AD_VERDICT_TEXT / 4];
  say(c, is_close(value, 2, 0) ? AD_VERDICT_DOUBLED : AD_VERDICT_FACTOR, axis_of_marked(c), value);
  snprintf(c->out->text, sizeof c->out->text, "the addends of %s count %.6g times, the others once",
           ad_ranks_print(c->out->ranks, c->dump->mesh.world, ranks, sizeof ranks), value);
}

/* Two values: nothing and another, or one that is right and another. */
static int try_ranks(ad_case *c) {
  const ad_members *members = members_of(c, c->first);
  for (size_t i = 0; i < members->count; i++) {
    double value = count_of(c, members->columns[i].piece.rank, -1);
    if (isnan(value) || is_close(value, 0, 0)) continue;
    if (mark_ranks(c, 0, value)) return say_missing(c, value), 1;
    if (!is_close(value, 1, 0) && mark_ranks(c, value, 1)) return say_counted(c, value), 1;
  }
  return 0;
}

/* Any other counts: which are missing, else between which they are. */
static void say_counts(ad_case *c) {
  const ad_members *members = members_of(c, c->first);
  double least = INFINITY, most = -INFINITY;
  size_t missing = 0, microbatches = 0;
  int64_t microbatch = -1;
  char ranks[AD_VERDICT_TEXT / 4], of[64] = "";
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    double count = c->first->why.counts[i], error = c->first->why.errors[i];
    if (isinf(error)) continue;
    least = fmin(least, count);
    most = fmax(most, count);
    if (!is_close(count, 0, error)) continue;
    missing++;
    microbatches += piece->microbatch != microbatch;
    microbatch = piece->microbatch;
    c->out->ranks[piece->rank] = 1;
  }
  if (missing && microbatches == 1) snprintf(of, sizeof of, " in microbatch %lld", (long long)microbatch);
  say(c, missing ? AD_VERDICT_MISSING : AD_VERDICT_FACTOR, 0, NAN);
  if (missing)
    snprintf(c->out->text, sizeof c->out->text, "missing: %zu addends of %s%s are not in the sum", missing,
             ad_ranks_print(c->out->ranks, c->dump->mesh.world, ranks, sizeof ranks), of);
  else
    snprintf(c->out->text, sizeof c->out->text, "addends count differently: from %.6g to %.6g times", least, most);
}

/* ---- the divisor ---- */

/* Each addend was counted alike although each had been divided by a number of its rank's own. */
static int try_own_count(ad_case *c) {
  const ad_members *members = members_of(c, c->first);
  double least = INFINITY, most = 0, value = uniform(c, c->first);
  for (size_t i = 0; i < members->count; i++) {
    least = fmin(least, members->columns[i].divisor);
    most = fmax(most, members->columns[i].divisor);
  }
  if (!(least < most) || isnan(value)) return 0;
  say(c, AD_VERDICT_OWN_COUNT, 0, value);
  snprintf(
      c->out->text, sizeof c->out->text,
      "each rank divided its loss by its own count (%.6g to %.6g), and the quotients were added alike: divide by the "
      "count of all ranks",
      least, most);
  return 1;
}

/* ---- which of them ---- */

static int same_counts(const ad_case *c, const ad_judged *a, const ad_judged *b) {
  if (members_of(c, a)->count != members_of(c, b)->count) return 0;
  for (size_t i = 0; i < members_of(c, a)->count; i++) {
    double error = fmax(a->why.errors[i], b->why.errors[i]);
    if (isfinite(error) && !is_close(a->why.counts[i], b->why.counts[i], error)) return 0;
  }
  return 1;
}

static int wrong_ones_agree(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !same_counts(c, c->first, &c->list[i])) return 0;
  return 1;
}

static void mark_holders(const ad_case *c, int wrong) {
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < c->count; i++)
    for (size_t h = 0; h < c->list[i].part->holder_count && (!wrong || !c->list[i].holds); h++)
      c->out->ranks[c->list[i].part->holders[h]] = 1;
}

/* Parts of the same elements with other bits. */
static int copies_differ(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    for (size_t j = 0; j < i; j++)
      if (c->list[i].part->bits != c->list[j].part->bits &&
          ad_box_equal(&c->parts->param->shape, &c->list[i].part->box, &c->list[j].part->box))
        return 1;
  return 0;
}

static int some_hold(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (c->list[i].holds) return 1;
  return 0;
}

/* The axes along which copies are not alike. */
static uint32_t differing_axes(const ad_case *c) {
  uint32_t axes = 0;
  for (size_t i = 0; i < c->count; i++)
    for (size_t j = 0; j < i; j++) {
      const ad_part *a = c->list[i].part, *b = c->list[j].part;
      if (a->bits == b->bits || !ad_box_equal(&c->parts->param->shape, &a->box, &b->box)) continue;
      for (int axis = 0; axis < c->dump->mesh.count; axis++)
        if (c->dump->position[a->holders[0]][axis] != c->dump->position[b->holders[0]][axis]) axes |= 1u << axis;
    }
  return axes;
}

static int some_apart(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (c->list[i].apart) return 1;
  return 0;
}

static void say_replicas(ad_case *c) {
  char ranks[AD_VERDICT_TEXT / 4], names[AD_VERDICT_TEXT / 4];
  uint32_t axes = differing_axes(c);
  say(c, AD_VERDICT_REPLICAS_DIFFER, axes, NAN);
  axes_words(c, axes, names, sizeof names);
  if (!c->first && some_apart(c)) {
    say(c, AD_VERDICT_OWN_ONLY, axes, 1);
    snprintf(
        c->out->text, sizeof c->out->text,
        "own addend only along %s: by its types all ranks there do the same, and each has another gradient: sum it, "
        "or give its type as R",
        names);
    return;
  }
  if (!c->first) {
    mark_holders(c, 0);
    snprintf(c->out->text, sizeof c->out->text,
             "replicas differ along %s by rounding only: each is right, but they are not the same bits and will drift "
             "apart",
             names);
    return;
  }
  mark_holders(c, 1);
  ad_ranks_print(c->out->ranks, c->dump->mesh.world, ranks, sizeof ranks);
  if (some_hold(c))
    snprintf(c->out->text, sizeof c->out->text, "replicas differ along %s: the sum is wrong on %s and right elsewhere",
             names, ranks);
  else
    snprintf(c->out->text, sizeof c->out->text, "replicas differ along %s, and none is right", names);
}

/* ---- ranks without a sum ---- */

static int is_whole_everywhere(const ad_case *c) {
  ad_box whole = ad_box_whole(&c->parts->param->shape);
  for (size_t i = 0; i < c->count; i++)
    if (!ad_box_equal(&c->parts->param->shape, &c->list[i].part->box, &whole)) return 0;
  return !c->parts->param->partial;
}

/* Whether ranks whose addends are to be in this rank's sum have one. */
static int has_members_with_sum(const ad_case *c, int64_t rank) {
  for (size_t i = 0; i < c->count; i++)
    if (members_of(c, &c->list[i])->key == ad_parts_key(c->parts, rank)) return 1;
  return 0;
}

/* Of a sum of which each rank has a copy some ranks have none. */
static int try_lacking(ad_case *c) {
  char names[AD_VERDICT_TEXT / 4];
  int lacking = 0;
  if (!is_whole_everywhere(c)) return 0;
  for (int64_t rank = 0; rank < c->dump->mesh.world; rank++) {
    int there = ad_safetensors_find(c->dump->sums[rank]->tensors, c->parts->param->name) != NULL;
    c->out->ranks[rank] = !there && has_members_with_sum(c, rank);
    lacking |= c->out->ranks[rank];
  }
  if (!lacking) return 0;
  uint32_t summed = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  say(c, AD_VERDICT_REPLICAS_DIFFER, summed, NAN);
  ad_ranks_print(c->out->ranks, c->dump->mesh.world, names, sizeof names);
  snprintf(c->out->text, sizeof c->out->text,
           "replicas differ: %s have no sum, and the others do: their optimizers part", names);
  return 1;
}

/* ---- another group ---- */

/* All wrong parts are sums over the same other axes. */
static int try_group(ad_case *c) {
  char is[AD_VERDICT_TEXT / 4], wanted[AD_VERDICT_TEXT / 4];
  uint32_t axes = c->first->why.group, large = ad_large_axes(&c->dump->mesh, c->parts->param->summed);
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && c->list[i].why.group != axes) return 0;
  if (!axes) return 0;
  mark_holders(c, 1);
  say(c, AD_VERDICT_WRONG_GROUP, axes, NAN);
  snprintf(c->out->text, sizeof c->out->text, "wrong group: summed over %s, and its types want the sum over %s",
           axes_words(c, axes, is, sizeof is), large ? axes_words(c, large, wanted, sizeof wanted) : "no axis");
  return 1;
}

/* The addends that a part has, each *factor times; 0: it has all of them, or counts that differ. */
static int has_some(const ad_case *c, const ad_judged *judged, double *factor) {
  const ad_members *members = members_of(c, judged);
  size_t lacking = 0;
  *factor = NAN;
  for (size_t i = 0; i < members->count; i++) {
    double count = judged->why.counts[i], error = judged->why.errors[i];
    if (isinf(error)) continue;
    if (is_close(count, 0, error)) {
      lacking++;
      continue;
    }
    if (isnan(*factor)) *factor = count;
    if (!is_close(count, *factor, error)) return 0;
  }
  return lacking && !isnan(*factor);
}

/* Whether each holder's own addends are in its sum. */
static int has_own(const ad_case *c, const ad_judged *judged) {
  const ad_members *members = members_of(c, judged);
  for (size_t i = 0; i < members->count; i++)
    for (size_t h = 0; h < judged->part->holder_count; h++)
      if (members->columns[i].piece.rank == judged->part->holders[h] &&
          is_close(judged->why.counts[i], 0, judged->why.errors[i]))
        return 0;
  return 1;
}

/* Each part has the addends of some ranks, and others have those of others: the groups were cut otherwise. */
static int try_some(ad_case *c) {
  int own = 1;
  double factor, first;
  if (!has_some(c, c->first, &first)) return 0;
  for (size_t i = 0; i < c->count; i++) {
    if (c->list[i].holds || !has_some(c, &c->list[i], &factor) || !is_close(factor, first, 0)) return 0;
    own &= has_own(c, &c->list[i]);
  }
  mark_holders(c, 1);
  say(c, own ? AD_VERDICT_PARTIAL : AD_VERDICT_WRONG_GROUP, 0, first);
  snprintf(c->out->text, sizeof c->out->text,
           own ? "partial: each rank's copy has the addends of some ranks only, and they are not the same everywhere"
               : "wrong group: ranks have the addends of other ranks than their own group's");
  return 1;
}

static void say_unexplained(ad_case *c) {
  mark_holders(c, 1);
  say(c, AD_VERDICT_UNEXPLAINED, 0, NAN);
  snprintf(
      c->out->text, sizeof c->out->text,
      "unexplained: no counts of the addends give the sum (%.2g of it is left): it holds other data or another term",
      c->first->why.fitness.residual);
}

static void say_rounding(ad_case *c) {
  say(c, AD_VERDICT_ROUNDING, 0, 1);
  snprintf(c->out->text, sizeof c->out->text,
           "differs by rounding only: as if it was summed in %s, and the dump does not say so (addend.reduce)",
           ad_dtype_name(c->first->why.rounded));
}

static void find_pattern(ad_case *c) {
  double factor = uniform(c, c->first);
  if (c->first->why.rounded && is_close(factor, 1, 0)) {
    say_rounding(c);
    return;
  }
  if (try_own_count(c)) return;
  if (!isnan(factor)) {
    say_factor(c, factor);
    return;
  }
  if (try_microbatches(c) || try_ranks(c)) return;
  say_counts(c);
}

/* Both readings of a sum that has two, in short. */
static void say_ambiguous(ad_case *c) {
  char one[AD_VERDICT_TEXT], other[AD_VERDICT_TEXT];
  ad_judged second = *c->first;
  const ad_judged *first = c->first;
  second.why.counts = second.why.others;
  snprintf(one, sizeof one, "%s", c->out->text);
  ad_case again = *c;
  again.list = again.first = &second;
  again.count = 1;
  if (!try_local(&again)) find_pattern(&again);
  snprintf(other, sizeof other, "%s", c->out->text);
  if (!strcmp(one, other)) return;
  say(c, AD_VERDICT_NOT_DISTINGUISHABLE, 0, NAN);
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  c->out->shown = first;
  snprintf(c->out->text, sizeof c->out->text, "wrong, and these cannot be told apart: %.200s; or: %.200s", one, other);
}

static int all_explained(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && !c->list[i].why.explains) return 0;
  return 1;
}

static void say_wrong(ad_case *c) {
  c->out->shown = c->first;
  if (!all_explained(c)) {
    say_unexplained(c);
    return;
  }
  if (try_group(c)) return;
  if (!try_local(c)) {
    if (!wrong_ones_agree(c) && try_some(c)) return;
    if (copies_differ(c) && (some_hold(c) || !wrong_ones_agree(c))) {
      say_replicas(c);
      return;
    }
    find_pattern(c);
  }
  if (c->first->why.ambiguous) say_ambiguous(c);
}

void ad_verdict_find(const ad_parts *parts, const ad_judged *list, unsigned char *ranks, ad_verdict *out) {
  ad_case c = {.parts = parts, .dump = parts->dump, .list = list, .count = parts->count, .out = out};
  *out = (ad_verdict){.kind = AD_VERDICT_RIGHT, .factor = 1, .ranks = ranks};
  memset(ranks, 0, (size_t)parts->dump->mesh.world);
  for (size_t i = 0; i < parts->count && !c.first; i++)
    if (!list[i].holds) c.first = &list[i];
  if (c.first)
    say_wrong(&c);
  else if (!try_lacking(&c) && copies_differ(&c))
    say_replicas(&c);
}
