/* Verdicts from counts that are the same in all replicas: one factor on all addends, or on the addends of some
 * microbatches or ranks. */
#include <math.h>
#include <string.h>
#include "base/roundoff.h"
#include "base/text.h"
#include "say/cause.h"
#include "solve/hypotheses.h"
#include "say/microbatches.h"
#include "say/verdict_case.h"

/* Lists the sets of axes with `size` ranks. Sets that contain only axes over which the parameter should be summed come
 * first. */
static size_t axes_of_size(const ad_case *c, double size, uint32_t sets[AD_DUMP_SETS]) {
  return ad_dump_axes_of_size(&c->dump->mesh, size, c->parts->param->summed, sets);
}

/* ---- verdicts on one factor on all addends ---- */

/* Returns the count, relative to the expected count, that all addends of the part have, or NaN if the counts differ. */
static double uniform(const ad_case *c, const ad_judged *judged) {
  const ad_members *members = ad_case_members(c, judged);
  double value = NAN;
  for (size_t i = 0; i < members->count; i++) {
    if (isinf(judged->why.errors[i])) continue;
    if (isnan(value)) value = judged->why.counts[i];
    if (!ad_counts_close(judged->why.counts[i], value, judged->why.errors[i])) return NAN;
  }
  return value;
}

/* Returns 1 if `size` is the number of microbatches: a factor may come from this number as well as from the size of
 * a group. */
static int is_microbatches(const ad_case *c, double size) {
  return c->dump->microbatches > 1 && fabs((double)c->dump->microbatches - size) <= 1e-4 * size;
}

/* Tries the verdict that the sum was divided by a group of 1 / factor ranks, or by the number of microbatches. */
static int try_averaged(ad_case *c, double factor) {
  char names[AD_VERDICT_TEXT / 4], fact[160];
  uint32_t sets[AD_DUMP_SETS];
  size_t count = axes_of_size(c, 1 / factor, sets);
  for (size_t i = 0; i < count; i++)
    ad_case_add(c, AD_CAUSE_AVERAGED, sets[i], factor, "", "averaged over %s",
                ad_case_axes(c, sets[i], names, sizeof names));
  if (is_microbatches(c, 1 / factor))
    ad_case_add(c, AD_CAUSE_AVERAGED, 0, factor, AD_MICROBATCHES, "divided by the number of microbatches");
  snprintf(fact, sizeof fact,
           "every addend counts 1/%.0f of what is expected; divide only once, or set addend.expect (`expect` in "
           "addend.torch) to this factor",
           1 / factor);
  return ad_case_settle(c, factor, fact);
}

/* Tries the verdict that the sum was formed twice, or not divided, over `factor` ranks or over the microbatches. */
static int try_doubled(ad_case *c, double factor) {
  char names[AD_VERDICT_TEXT / 4], fact[80];
  uint32_t sets[AD_DUMP_SETS];
  int undivided = fabs(factor * c->parts->param->expect - 1) < 1e-4, twice = undivided;
  size_t count = axes_of_size(c, factor, sets);
  for (size_t i = 0; i < count; i++) {
    twice |= !(sets[i] & ~c->parts->param->summed);
    ad_case_add(c, AD_CAUSE_DOUBLED, sets[i], factor, "", "%s over %s",
                undivided                            ? "not divided"
                : sets[i] & ~c->parts->param->summed ? "summed, or not divided,"
                                                     : "summed twice, or not divided,",
                ad_case_axes(c, sets[i], names, sizeof names));
  }
  if (is_microbatches(c, factor))
    ad_case_add(c, AD_CAUSE_DOUBLED, 0, factor, AD_MICROBATCHES, "not divided by the number of microbatches");
  if ((!count || !twice) && fabs(factor - 2) < 1e-4) ad_case_add(c, AD_CAUSE_DOUBLED, 0, factor, "", "doubled");
  snprintf(fact, sizeof fact, "every addend counts %.0f times what is expected", factor);
  return ad_case_settle(c, factor, fact);
}

/* Returns 1 if the factor is a power of two, as loss scales are, and at least 2^4 or at most 2^-4. Smaller powers of
 * two may also be sizes of groups. */
static int is_power_of_two(double factor) {
  enum { LEAST = 4 }; /* an exponent of 2 */
  double power = log2(factor);
  return factor > 0 && fabs(power) >= LEAST && fabs(power - round(power)) < 1e-4;
}

/* Reports that all addends of the sum have the count `factor`, relative to the expected count. */
static void report_factor(ad_case *c, double factor) {
  if (factor > 0 && (try_averaged(c, factor) || try_doubled(c, factor))) return;
  ad_case_report(c, factor == 0 ? AD_CAUSE_MISSING : AD_CAUSE_FACTOR, 0, factor);
  if (factor == 0)
    snprintf(c->out->text, sizeof c->out->text, "missing: the sum is zero, and no rank's addend is in it");
  else if (is_power_of_two(factor))
    snprintf(c->out->text, sizeof c->out->text,
             "%s%.6g times what is expected, a power of two: a loss scale that was %s", factor < 1 ? "1/" : "",
             factor < 1 ? 1 / factor : factor,
             factor < 1 ? "divided out twice, or is expected once too often"
                        : "not divided out, or applied twice, or is missing in addend.expect");
  else
    snprintf(c->out->text, sizeof c->out->text, "%.6g times what is expected: a factor that is no group's size",
             factor);
}

/* ---- verdicts on counts that depend on the microbatch ---- */

/* Returns the index of the first addend of this rank or of a later rank; addends are sorted by rank. */
static size_t first_from(const ad_members *members, int64_t rank) {
  size_t low = 0, high = members->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (members->columns[middle].piece.rank < rank)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Returns the count that all addends of a microbatch (if rank is -1) or of a rank (if microbatch is -1) have, or NaN if
 * the counts differ or there are no addends. */
static double count_of(const ad_case *c, int64_t rank, int64_t microbatch) {
  const ad_members *members = ad_case_members(c, c->first);
  double value = NAN;
  for (size_t i = first_from(members, rank); i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    if (rank >= 0 && piece->rank > rank) break;
    double error = c->first->why.errors[i], count = c->first->why.counts[i];
    if (isinf(error) || (rank >= 0 && piece->rank != rank) || (microbatch >= 0 && piece->microbatch != microbatch))
      continue;
    if (isnan(value)) value = count;
    if (!ad_counts_close(count, value, error)) return NAN;
  }
  return value;
}

/* Returns 1 if all addends of the last microbatch have one count, and all addends of earlier microbatches have one
 * count. */
static int split_microbatches(const ad_case *c, double *earlier, double *last) {
  int64_t count = c->dump->microbatches;
  *last = count_of(c, -1, count - 1);
  *earlier = count_of(c, -1, 0);
  for (int64_t m = 1; m < count - 1; m++)
    if (!ad_counts_close(count_of(c, -1, m), *earlier, 0)) return 0;
  return count > 1 && !isnan(*last) && !isnan(*earlier);
}

/* Tries the verdict that only the last microbatch was summed over ranks, or that earlier microbatches were divided
 * once too often. */
static int try_microbatches(ad_case *c) {
  char names[AD_VERDICT_TEXT / 4], fact[80];
  double earlier, last;
  uint32_t sets[AD_DUMP_SETS];
  if (!split_microbatches(c, &earlier, &last)) return 0;
  if (ad_counts_close(earlier, 0, 0)) {
    ad_case_report(c, AD_CAUSE_LAST_MICROBATCH, 0, last);
    snprintf(c->out->text, sizeof c->out->text,
             "only the last microbatch: the addends of earlier ones are not in the sum (overwritten, or not reduced)");
    return 1;
  }
  size_t count = ad_counts_close(last, 1, 0) && earlier > 0 ? axes_of_size(c, 1 / earlier, sets) : 0;
  for (size_t i = 0; i < count; i++)
    ad_case_add(c, AD_CAUSE_EARLIER_DIVIDED, sets[i], earlier, AD_MICROBATCHES,
                "what was accumulated was divided by the ranks of %s again",
                ad_case_axes(c, sets[i], names, sizeof names));
  snprintf(fact, sizeof fact, "earlier microbatches count 1/%.0f", 1 / earlier);
  return ad_case_settle(c, earlier, fact);
}

/* Tries the verdict that all addends of each microbatch have the same count, which may differ between microbatches. */
static int try_each_microbatch(ad_case *c) {
  char words[AD_VERDICT_TEXT / 2];
  double counts[AD_MICROBATCHES_REPORTED];
  int64_t microbatches = c->dump->microbatches;
  if (microbatches < 2 || microbatches > AD_MICROBATCHES_REPORTED) return 0;
  for (int64_t m = 0; m < microbatches; m++) {
    counts[m] = count_of(c, -1, m);
    if (isnan(counts[m])) return 0;
  }
  ad_microbatches_print(counts, microbatches, words, sizeof words);
  ad_case_add(c, AD_CAUSE_FACTOR, 0, NAN, AD_MICROBATCHES, "%s times what is expected", words);
  return ad_case_settle(c, NAN, "");
}

/* ---- verdicts on counts that depend on the rank ---- */

/* Marks the ranks whose addends have the count `value`. Returns 0 unless there are such ranks and the addends of all
 * other ranks have the count `other`. */
static int mark_ranks(ad_case *c, double value, double other) {
  const ad_members *members = ad_case_members(c, c->first);
  int marked = 0;
  int64_t before = -1;
  double count = NAN;
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < members->count; i++) {
    int64_t rank = members->columns[i].piece.rank;
    if (rank != before) count = count_of(c, rank, -1);
    before = rank;
    if (isinf(c->first->why.errors[i])) continue;
    if (ad_counts_close(count, value, c->first->why.errors[i]))
      c->out->ranks[rank] = 1, marked = 1;
    else if (!ad_counts_close(count, other, c->first->why.errors[i]))
      return 0;
  }
  return marked;
}

/* Returns the single axis on which a rank's position alone decides whether the rank is marked, as a bit set; 0 if
 * there is no such axis, or more than one. */
static uint32_t axis_of_marked(const ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  uint32_t axes = 0;
  for (int axis = 0; axis < c->dump->mesh.count; axis++) {
    int differs = 0;
    if (!(ad_large_axes(&c->dump->mesh, c->parts->param->summed) >> axis & 1)) continue;
    for (size_t i = 0; i < members->count && !differs; i++)
      for (size_t j = 0; j < i && !differs; j++) {
        int64_t a = members->columns[i].piece.rank, b = members->columns[j].piece.rank;
        differs = c->dump->position[a][axis] == c->dump->position[b][axis] && c->out->ranks[a] != c->out->ranks[b];
      }
    if (!differs) axes |= 1u << axis;
  }
  return axes & (axes - 1) ? 0 : axes;
}

static void report_missing(ad_case *c, double others) {
  char ranks[AD_VERDICT_TEXT / 4], times[80] = "";
  ad_case_report(c, AD_CAUSE_MISSING, axis_of_marked(c), others == 1 ? 0 : others);
  if (others != 1) snprintf(times, sizeof times, "; the others count %.6g times", others);
  snprintf(c->out->text, sizeof c->out->text, "missing: the addends of %s are not in the sum%s",
           ad_case_ranks(c, ranks, sizeof ranks), times);
}

static void report_counted(ad_case *c, double value) {
  char ranks[AD_VERDICT_TEXT / 4];
  ad_case_report(c, ad_counts_close(value, 2, 0) ? AD_CAUSE_DOUBLED : AD_CAUSE_FACTOR, axis_of_marked(c), value);
  snprintf(c->out->text, sizeof c->out->text, "the addends of %s count %.6g times, the others once",
           ad_case_ranks(c, ranks, sizeof ranks), value);
}

/* Tries the verdict that ranks have two different counts: 0 and another count, or 1 and another count. */
static int try_ranks(ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  int64_t before = -1;
  double tried = NAN;
  for (size_t i = 0; i < members->count; i++) {
    int64_t rank = members->columns[i].piece.rank;
    double value = rank != before ? count_of(c, rank, -1) : tried;
    before = rank;
    if (isnan(value) || ad_counts_close(value, 0, 0) || value == tried) continue;
    tried = value;
    if (mark_ranks(c, 0, value)) return report_missing(c, value), 1;
    if (!ad_counts_close(value, 1, 0) && mark_ranks(c, value, 1)) return report_counted(c, value), 1;
  }
  return 0;
}

/* Returns 1 if all addends of each rank have the same count, which may differ between ranks. */
static int each_rank_has_one(const ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  for (size_t i = 0; i < members->count; i++)
    if (isfinite(c->first->why.errors[i]) && isnan(count_of(c, members->columns[i].piece.rank, -1))) return 0;
  return 1;
}

/* A summary of the counts that explain the first wrong part. */
typedef struct count_summary {
  double least, most;
  size_t missing; /* addends whose count is 0 */
  /* in how many runs of one microbatch the missing addends lie; 1: all are of one microbatch */
  size_t microbatches;
  int64_t microbatch; /* the last microbatch with a missing addend; -1: none */
} count_summary;

/* Summarises the counts, and marks the ranks of missing addends in the verdict. */
static count_summary summarise_counts(ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  count_summary all = {.least = INFINITY, .most = -INFINITY, .microbatch = -1};
  memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
  for (size_t i = 0; i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    double count = c->first->why.counts[i], error = c->first->why.errors[i];
    if (isinf(error)) continue;
    all.least = fmin(all.least, count);
    all.most = fmax(all.most, count);
    if (!ad_counts_close(count, 0, error)) continue;
    all.missing++;
    all.microbatches += piece->microbatch != all.microbatch;
    all.microbatch = piece->microbatch;
    c->out->ranks[piece->rank] = 1;
  }
  return all;
}

static void report_missing_addends(ad_case *c, const count_summary *all) {
  char ranks[AD_VERDICT_TEXT / 4], of[64] = "";
  if (all->microbatches == 1) snprintf(of, sizeof of, " in microbatch %lld", (long long)all->microbatch);
  snprintf(c->out->text, sizeof c->out->text, "missing: %zu addend%s of %s%s %s not in the sum", all->missing,
           ad_plural((long long)all->missing), ad_case_ranks(c, ranks, sizeof ranks), of,
           all->missing == 1 ? "is" : "are");
}

/* Returns 1 if each rank's addends count less the earlier their microbatch was, and none counts more than once. The
 * reason may be that the accumulated gradient is clipped, or scaled, after every microbatch. */
static int count_less_earlier(const ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  const double *counts = c->first->why.counts, *errors = c->first->why.errors;
  int risen = 0;
  for (size_t i = 0; i < members->count; i++) {
    if (isinf(errors[i]) || counts[i] <= 0 || counts[i] > 1 + ad_count_tolerance(errors[i])) return 0;
    if (!i || members->columns[i].piece.rank != members->columns[i - 1].piece.rank) continue;
    if (counts[i] <= counts[i - 1] && !ad_counts_close(counts[i], counts[i - 1], errors[i])) return 0;
    risen |= !ad_counts_close(counts[i], counts[i - 1], errors[i]);
  }
  return risen;
}

/* Tries the verdict on counts that are smaller in earlier microbatches. */
static int try_each_clipped(ad_case *c) {
  char fact[AD_VERDICT_TEXT / 2];
  if (!count_less_earlier(c)) return 0;
  count_summary all = summarise_counts(c);
  ad_case_add(c, AD_CAUSE_FACTOR, 0, NAN, AD_MICROBATCHES, "clipped after every microbatch");
  ad_case_add(c, AD_CAUSE_FACTOR, 0, NAN, AD_MICROBATCHES, "scaled after every microbatch");
  snprintf(fact, sizeof fact, "addends count less the earlier their microbatch, from %.6g to %.6g times", all.least,
           all.most);
  return ad_case_settle(c, NAN, fact);
}

static void report_counts(ad_case *c) {
  if (try_each_clipped(c)) return;
  count_summary all = summarise_counts(c);
  ad_case_report(c, all.missing ? AD_CAUSE_MISSING : AD_CAUSE_FACTOR, 0, NAN);
  if (all.missing)
    report_missing_addends(c, &all);
  else if (each_rank_has_one(c))
    snprintf(c->out->text, sizeof c->out->text,
             "the addends of each rank have their own factor, from %.6g to %.6g: were they clipped or scaled before "
             "the sum?",
             all.least, all.most);
  else
    snprintf(c->out->text, sizeof c->out->text, "addends count differently: from %.6g to %.6g times", all.least,
             all.most);
}

/* ---- verdicts on divisors: the numbers by which losses were divided ---- */

static void widen(double divisor, double *least, double *most) {
  *least = fmin(*least, divisor);
  *most = fmax(*most, divisor);
}

/* Returns 1 if ranks `a` and `b` divided the loss of some microbatch by different numbers. A divisor that the dump
 * does not give counts as equal to any other. */
static int divisors_differ(const ad_dump *dump, int64_t a, int64_t b) {
  for (int64_t m = 0; m < dump->microbatches; m++) {
    double one = dump->addends[a * dump->microbatches + m]->divisor;
    double other = dump->addends[b * dump->microbatches + m]->divisor;
    if (one < other || one > other) return 1;
  }
  return 0;
}

static void report_own_count(ad_case *c, double least, double most, double factor) {
  int by_rank = 0, by_microbatch = c->dump->microbatches > 1;
  for (int64_t rank = 1; rank < c->dump->mesh.world && !by_rank; rank++) by_rank = divisors_differ(c->dump, rank, 0);
  ad_case_report(c, AD_CAUSE_OWN_COUNT, 0, factor);
  snprintf(c->out->text, sizeof c->out->text,
           by_rank ? "each rank divided its loss by its own count (%.6g to %.6g), and the quotients were added "
                     "unweighted: divide by the count of all ranks%s"
                   : "each microbatch's loss was divided by its own count (%.6g to %.6g), and the quotients were added "
                     "unweighted: divide each by the mean count of all microbatches%s",
           least, most, by_rank && by_microbatch ? " and microbatches" : "");
}

/* Returns the axes along which ranks divided their losses by different numbers, although no parameter is summed over
 * these axes. */
static uint32_t axes_of_batches(const ad_dump *dump) {
  uint32_t axes = 0, unsummed = ad_large_axes(&dump->mesh, UINT32_MAX);
  for (size_t p = 0; p < dump->param_count; p++) unsummed &= ~dump->params[p].summed;
  for (int axis = 0; axis < dump->mesh.count; axis++)
    for (int64_t a = 0; a < dump->mesh.world && unsummed >> axis & 1; a++)
      for (int64_t b = 0; b < a && !(axes >> axis & 1); b++)
        if (ad_stands_with(dump, a, b, ~(1u << axis)) && divisors_differ(dump, a, b)) axes |= 1u << axis;
  return axes;
}

/* Reports that ranks along `axes` had different batches. No parameter is summed over these axes, so their ranks
 * should work on one batch and divide their losses by the same number. */
static void report_other_batches(ad_case *c, uint32_t axes, double least, double most) {
  char names[AD_VERDICT_TEXT / 4];
  ad_case_report(c, AD_CAUSE_OWN_COUNT, axes, 1);
  snprintf(c->out->text, sizeof c->out->text,
           "ranks along %s divided their losses by different counts (%.6g to %.6g), and nothing is summed there: they "
           "were fed different batches, or each counted its part of one; give them one batch, and divide by its count",
           ad_case_axes(c, axes, names, sizeof names), least, most);
}

/* Tries the verdict that the addends of this sum are right but wrongly weighted, since ranks that are not in this
 * sum divided their losses by other numbers. */
static int try_others_count(ad_case *c) {
  const ad_dump *dump = c->dump;
  double least = INFINITY, most = 0;
  for (int64_t i = 0; i < dump->mesh.world * dump->microbatches; i++) widen(dump->addends[i]->divisor, &least, &most);
  if (!(least < most)) return 0;
  uint32_t axes = axes_of_batches(dump);
  if (axes)
    report_other_batches(c, axes, least, most);
  else
    report_own_count(c, least, most, 1);
  return 1;
}

/* Tries the verdict that all addends have the same count although ranks divided their losses by different numbers. */
static int try_own_count(ad_case *c) {
  const ad_members *members = ad_case_members(c, c->first);
  double least = INFINITY, most = 0, value = uniform(c, c->first);
  for (size_t i = 0; i < members->count; i++) widen(members->columns[i].divisor, &least, &most);
  if (isnan(value)) return 0;
  if (!(least < most)) return ad_counts_close(value, 1, 0) && try_others_count(c);
  report_own_count(c, least, most, value);
  return 1;
}

/* Reports that the sum differs by rounding only, as if it was summed in a narrower dtype: the finest dtype that
 * explains the difference, or any coarser one. */
static void report_rounding(ad_case *c) {
  ad_dtype dtype = c->first->why.rounded;
  ad_case_report(c, AD_CAUSE_ROUNDING, 0, 1);
  ad_text text = ad_text_on(c->out->text, sizeof c->out->text);
  ad_text_add(&text, "differs by rounding only: as if it was summed in %s", ad_dtype_name(dtype));
  while ((dtype = ad_dtype_coarser(dtype)))
    ad_text_add(&text, "%s%s", ad_dtype_coarser(dtype) ? ", " : " or ", ad_dtype_name(dtype));
  ad_text_add(&text, ", and the dump does not say so (addend.reduce)");
}

void ad_case_report_counts(ad_case *c) {
  double factor = uniform(c, c->first);
  if (c->first->why.rounded && ad_counts_close(factor, 1, 0)) {
    report_rounding(c);
    return;
  }
  if (try_own_count(c)) return;
  if (!isnan(factor)) {
    report_factor(c, factor);
    return;
  }
  if (try_microbatches(c) || try_each_microbatch(c) || try_ranks(c)) return;
  report_counts(c);
}
