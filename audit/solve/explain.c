/* Explains each part of a dumped sum by counts: how often each addend is in the sum. First tests the expected
 * combination. If that is wrong, fits all counts by least squares if the addends are linearly independent, and else
 * tries hypotheses with one free number. */
#include "solve/explain.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "base/roundoff.h"
#include "solve/sparse_fit.h"
#include "solve/fit.h"
#include "solve/groups.h"
#include "solve/hypotheses.h"
#include "solve/known.h"
#include "solve/narrower.h"

uint32_t ad_untried_axes(const ad_parts *parts, const ad_judged *list) {
  uint32_t axes = 0;
  for (size_t i = 0; i < parts->count; i++)
    if (!list[i].holds && !list[i].why.explains) axes |= list[i].why.untried;
  return axes;
}

/* ---- the counts that a correct sum has ---- */

/* Returns the mean divisor of all addend files that have a tensor, or NaN if one of these files gives no divisor. */
static double mean_divisor(const ad_dump *dump) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < dump->mesh.world * dump->microbatches; i++) {
    if (!ad_safetensors_count(dump->addends[i]->tensors)) continue;
    sum += dump->addends[i]->divisor;
    count++;
  }
  return sum / (double)count;
}

void ad_expected_counts(const ad_parts *parts, const ad_members *members, double *out) {
  double mean = mean_divisor(parts->dump);
  for (size_t c = 0; c < members->count; c++) {
    double divisor = members->columns[c].divisor;
    out[c] = isnan(mean) || divisor == mean ? 1 : divisor / mean;
  }
}

/* ---- testing whether counts explain a part of a sum ---- */

/* Sets `out` to the fitted counts, each rounded to the nearest number that a bug typically produces (a whole number,
 * or one over the size of a group), if such a number is within the count's error. */
static void snap(const ad_parts *parts, size_t n, const double *counts, const double *errors, double *out) {
  for (size_t c = 0; c < n; c++) {
    double tolerance = ad_count_tolerance(errors[c]), simple = ad_simple_count(&parts->dump->mesh, counts[c]);
    out[c] = isinf(errors[c]) || fabs(simple - counts[c]) > tolerance ? counts[c] : simple;
  }
}

/* A fit of many counts to few elements may by chance agree within a narrow dtype's rounding. So this many bits must
 * agree in the elements beyond those that determine the counts. */
#define ENOUGH_BITS 40.0
/* So many, beyond one free number, tell a count from a rounding to a narrower dtype: those of three elements in f32. */
#define NUMBER_BITS 24.0

/* Returns 1 if every count that the fit determines is a number that a bug typically produces, so that the counts are
 * plausible without the fit. */
static int are_simple(const ad_parts *parts, size_t n, const double *counts, const double *errors) {
  for (size_t c = 0; c < n; c++)
    if (!isinf(errors[c]) && counts[c] != ad_simple_count(&parts->dump->mesh, counts[c])) return 0;
  return 1;
}

/* Tests whether these counts give the part. If they give it only if the sum was rounded to a narrower dtype than the
 * dump's, sets why->rounded to this dtype. `spare` is the number of elements beyond those that determined the counts.
 * */
static ad_status try_counts(const ad_parts *parts, const ad_part *part, const double *counts, size_t spare,
                            ad_explanation *why) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  ad_narrower narrower;
  AD_TRY(ad_part_test(parts, part, counts, parts->param->expect, &rounding, &why->fitness));
  why->explains = why->fitness.holds;
  if (why->explains) return AD_OK;
  int simple = are_simple(parts, ad_part_members(parts, part)->count, counts, why->errors);
  AD_TRY(ad_narrower_find(parts, part, counts, spare, simple ? 0 : ENOUGH_BITS, &narrower));
  why->rounded = narrower.dtype;
  why->explains = narrower.dtype != 0;
  return AD_OK;
}

/* Makes the part the expected combination, rounded to a narrower dtype. Explanations that the part had become others,
 * unless `alone` is 1. */
static ad_status use_rounding(const double *expected, size_t n, const ad_narrower *narrower, int alone,
                              ad_explanation *why) {
  if (alone) {
    why->other_count = why->more = 0;
  } else {
    if (!why->others) AD_TRY(ad_new(AD_OTHERS * n, &why->others));
    why->more |= why->other_count == AD_OTHERS;
    if (why->other_count == AD_OTHERS) why->other_count--;
    memmove(why->others + n, why->others, why->other_count++ * n * sizeof *why->others);
    memcpy(why->others, why->counts, n * sizeof *why->others);
  }
  memcpy(why->counts, expected, n * sizeof *expected);
  why->fitness = narrower->fitness;
  why->rounded = narrower->dtype;
  why->explains = 1;
  return AD_OK;
}

/* Prefers a rounding of the expected combination to counts that few elements gave by one free number. Bits of the sum show
 * it; if they do not, both are kept. */
static ad_status prefer_rounding(const ad_parts *parts, const double *expected, ad_judged *judged) {
  const ad_part *part = judged->part;
  ad_narrower narrower;
  if (!judged->why.explains || judged->why.rounded) return AD_OK;
  AD_TRY(ad_narrower_find(parts, part, expected, part->count, 0, &narrower));
  if (!narrower.dtype || ad_narrower_bits(parts, part, &narrower, part->count - 1) >= NUMBER_BITS) return AD_OK;
  return use_rounding(expected, ad_part_members(parts, part)->count, &narrower,
                      ad_narrower_is_shown(parts, part, expected), &judged->why);
}

/* Returns 1 if the fitted counts may be the expected ones: each differs by at most 8 of its errors, or these are measured
 * by so few elements that they may be much too small. */
static int may_be_expected(size_t n, const double *expected, const double *counts, const double *errors, size_t spare) {
  enum { MEASURED = 16 };
  for (size_t c = 0; c < n && spare >= MEASURED; c++)
    if (isfinite(errors[c]) && fabs(counts[c] - expected[c]) > 1e-4 + 8 * errors[c]) return 0;
  return 1;
}

/* Keeps the counts rounded by `snap` if they give the part, else the counts as fitted; but if these may be the expected
 * ones, and too few elements say otherwise, the part is the expected combination, rounded to a narrower dtype. */
static ad_status settle(const ad_parts *parts, const ad_part *part, const double *expected, const double *counts,
                        const double *errors, size_t spare, ad_explanation *why) {
  size_t n = ad_part_members(parts, part)->count;
  ad_narrower narrower = {0};
  memcpy(why->errors, errors, n * sizeof *errors);
  snap(parts, n, counts, errors, why->counts);
  AD_TRY(try_counts(parts, part, why->counts, spare, why));
  if (why->explains && !why->rounded) return AD_OK;
  ad_explanation fitted = *why;
  ad_rounding rounding = ad_rounding_of(parts, part);
  AD_TRY(ad_part_test(parts, part, counts, parts->param->expect, &rounding, &fitted.fitness));
  if (may_be_expected(n, expected, counts, errors, spare))
    AD_TRY(ad_narrower_find(parts, part, expected, part->count, 0, &narrower));
  int few = !fitted.fitness.holds || ad_narrower_bits(parts, part, &narrower, spare) < ENOUGH_BITS;
  if (narrower.dtype && few) return use_rounding(expected, n, &narrower, 1, why);
  if (!fitted.fitness.holds && why->explains) return AD_OK;
  memcpy(why->counts, counts, n * sizeof *counts);
  why->fitness = fitted.fitness;
  why->explains = fitted.fitness.holds;
  why->rounded = 0;
  return AD_OK;
}

/* ---- explaining a part that is not the expected combination ---- */

/* Fits the counts of these parts by least squares; they have more elements than addends. Sets *known to 1 if the fit
 * determines the count of every addend, so that no hypothesis is needed. */
static ad_status explain_by_fit(const ad_parts *parts, const ad_products *products, const double *expected,
                                ad_judged *const *list, size_t count, int *known) {
  ad_fit fit;
  AD_TRY(ad_fit_create(products, expected, &fit));
  *known = fit.rank + ad_products_zeros(products) == products->n;
  ad_status status = AD_OK;
  for (size_t i = 0; i < count && *known && !status; i++)
    status = settle(parts, list[i]->part, expected, fit.counts, fit.errors, products->rows - fit.rank, &list[i]->why);
  ad_fit_destroy(&fit);
  return status;
}

static ad_status explain_with(const ad_parts *parts, const ad_products *products, const double *expected,
                              ad_judged *judged, int *known) {
  *known = 0;
  size_t filled = products->n - ad_products_zeros(products);
  if (products->rows > filled && products->n <= AD_FIT_MAX)
    AD_TRY(explain_by_fit(parts, products, expected, &judged, 1, known));
  if (!*known) AD_TRY(ad_try_hypotheses(parts, products, expected, judged->part, &judged->why));
  if (!*known) AD_TRY(prefer_rounding(parts, expected, judged));
  if (*known || judged->why.explains) return *known = 1, AD_OK;
  memcpy(judged->why.counts, expected, products->n * sizeof *expected);
  AD_TRY(try_counts(parts, judged->part, judged->why.counts, judged->part->count, &judged->why));
  *known = judged->why.explains;
  return AD_OK;
}

static ad_status explain_fitted(const ad_parts *parts, const double *expected, ad_judged *judged, int *known) {
  const ad_part *part = judged->part;
  ad_products products;
  AD_TRY(ad_products_create(parts, &part, 1, &products));
  ad_status status = explain_with(parts, &products, expected, judged, known);
  ad_products_destroy(&products);
  return status;
}

/* Explains one wrong part by counts. Sets *done to 0 if a fit of several parts together may still explain it. */
static ad_status explain(const ad_parts *parts, ad_known *known, const double *expected, ad_judged *judged, int *done) {
  size_t n = ad_part_members(parts, judged->part)->count;
  *done = 1;
  AD_TRY(ad_known_try(known, parts, judged));
  if (judged->why.explains) return AD_OK;
  if (ad_known_affords(known, parts->param, AD_KNOWN_FIT, n, judged->part->count)) {
    AD_TRY(explain_fitted(parts, expected, judged, done));
    return *done ? ad_known_add(known, parts, judged) : AD_OK;
  }
  AD_TRY(ad_try_sparse_fit(parts, expected, judged));
  AD_TRY(prefer_rounding(parts, expected, judged));
  judged->why.unfitted = !judged->why.explains;
  if (judged->why.unfitted) memcpy(judged->why.counts, expected, n * sizeof *expected);
  return ad_known_add(known, parts, judged);
}

/* Explains parts of the sum that each have too few elements: fits them together, as if they had the same counts. */
static ad_status explain_together(const ad_parts *parts, const double *expected, ad_judged *const *list, size_t count) {
  const ad_part **together;
  ad_products products;
  AD_TRY(ad_new(count, &together));
  for (size_t i = 0; i < count; i++) together[i] = list[i]->part;
  ad_status status = ad_products_create(parts, together, count, &products);
  ad_release(together);
  if (status) return status;
  int known;
  if (products.rows > products.n) status = explain_by_fit(parts, &products, expected, list, count, &known);
  ad_products_destroy(&products);
  return status;
}

/* ---- parts whose dtype hides a missing addend ---- */

/* If the rounding of the dtype may hide a missing addend, also fits the counts, which must be right within the fit's
 * errors. A count that the fit cannot determine is not called wrong. */
static ad_status check_weak(const ad_parts *parts, ad_known *known, const double *expected, ad_judged *judged) {
  const ad_part *part = judged->part;
  ad_rounding rounding = ad_rounding_of(parts, part);
  size_t n = ad_part_members(parts, part)->count;
  ad_products products;
  ad_fit fit;
  int differ;
  if (!ad_rounding_hides_addends(&rounding, n) || n > AD_FIT_MAX || part->count <= n) return AD_OK;
  if (!ad_known_affords(known, parts->param, AD_KNOWN_WEAK_FIT, n, part->count)) {
    AD_TRY(ad_sparse_fit_differs(parts, expected, part, &differ));
    judged->holds = !differ;
    return AD_OK;
  }
  AD_TRY(ad_products_create(parts, &part, 1, &products));
  ad_status status = ad_fit_create(&products, expected, &fit);
  if (!status) {
    for (size_t c = 0; c < n; c++)
      if (isfinite(fit.errors[c]) && fabs(fit.counts[c] - expected[c]) > 1e-4 + 8 * fit.errors[c]) judged->holds = 0;
    ad_fit_destroy(&fit);
  }
  ad_products_destroy(&products);
  return status;
}

/* ---- explaining all parts of the same members ---- */

typedef struct ad_judging {
  const ad_parts *parts;
  ad_known *known;
  const double *expected;
  ad_judged *list;
  size_t members;
  /* arrays of parts->count entries */
  const ad_part **together; /* parts of one box and the same members, which are tested together */
  size_t *index;            /* index in `list` of each of the parts in `together` */
  ad_fitness *fitness;
  unsigned char *tested;
  ad_judged **unknown;
} ad_judging;

/* Collects those parts of the sum that have the same members and the same box as part number `first`. Returns their
 * number. */
static size_t find_together(ad_judging *judging, size_t first) {
  const ad_parts *parts = judging->parts;
  size_t count = 0;
  for (size_t i = first; i < parts->count; i++) {
    const ad_part *part = judging->list[i].part;
    if (part->members != judging->members || judging->tested[i] ||
        !ad_box_equal(&parts->param->shape, &part->box, &judging->list[first].part->box))
      continue;
    judging->tested[i] = 1;
    judging->together[count] = part;
    judging->index[count++] = i;
  }
  return count;
}

static ad_status test_expected(ad_judging *judging) {
  const ad_parts *parts = judging->parts;
  memset(judging->tested, 0, parts->count);
  for (size_t first = 0; first < parts->count; first++) {
    if (judging->list[first].part->members != judging->members || judging->tested[first]) continue;
    size_t count = find_together(judging, first);
    AD_TRY(ad_parts_test(parts, judging->together, count, judging->expected, parts->param->expect, judging->fitness));
    for (size_t i = 0; i < count; i++) {
      ad_judged *judged = &judging->list[judging->index[i]];
      judged->fitness = judging->fitness[i];
      judged->holds = judged->fitness.holds;
      if (judged->holds) AD_TRY(check_weak(parts, judging->known, judging->expected, judged));
    }
  }
  return AD_OK;
}

static ad_status judge_members(ad_judging *judging) {
  const ad_parts *parts = judging->parts;
  size_t unknown = 0, n = parts->members[judging->members].count, rows = 0;
  AD_TRY(test_expected(judging));
  for (size_t i = 0; i < parts->count; i++) {
    ad_judged *judged = &judging->list[i];
    int done;
    if (judged->part->members != judging->members || judged->holds) continue;
    AD_TRY(ad_new(n, &judged->why.counts));
    AD_TRY(ad_new(n, &judged->why.errors));
    judged->why.fitness = judged->fitness;
    AD_TRY(explain(parts, judging->known, judging->expected, judged, &done));
    if (done) continue;
    judging->unknown[unknown++] = judged;
    rows += judged->part->count;
  }
  if (unknown < 2 || n > AD_FIT_MAX || !ad_known_affords(judging->known, parts->param, AD_KNOWN_FIT, n, rows))
    return AD_OK;
  return explain_together(parts, judging->expected, judging->unknown, unknown);
}

static ad_status judge_all(ad_judging *judging) {
  const ad_parts *parts = judging->parts;
  for (judging->members = 0; judging->members < parts->member_count; judging->members++) {
    const ad_members *members = &parts->members[judging->members];
    double *expected;
    AD_TRY(ad_new(members->count, &expected));
    ad_expected_counts(parts, members, expected);
    judging->expected = expected;
    ad_status status = judge_members(judging);
    ad_release(expected);
    if (status) return status;
  }
  return AD_OK;
}

static ad_status judge_expected(const ad_parts *parts, ad_known *known, ad_judged *list) {
  ad_judging judging = {.parts = parts, .known = known, .list = list};
  ad_status status = ad_new(parts->count, &judging.together);
  if (!status) status = ad_new(parts->count, &judging.index);
  if (!status) status = ad_new(parts->count, &judging.fitness);
  if (!status) status = ad_new(parts->count, &judging.tested);
  if (!status) status = ad_new(parts->count, &judging.unknown);
  if (!status) status = judge_all(&judging);
  ad_release(judging.together);
  ad_release(judging.index);
  ad_release(judging.fitness);
  ad_release(judging.tested);
  ad_release(judging.unknown);
  return status;
}

/* Sets judged->why.left: the root mean square of the part minus the expected combination of addends, relative to the
 * larger of the root mean squares of these two. */
static void measure_left(const ad_parts *parts, const double *expected, ad_judged *judged) {
  const ad_part *part = judged->part;
  const ad_members *members = ad_part_members(parts, part);
  double *sum = parts->rows, factor = parts->param->expect, left = 0, is = 0, wanted = 0;
  double *all = sum + AD_ROWS, *addend = all + AD_ROWS;
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    ad_part_read_sum(parts, part, begin, end, sum);
    memset(all, 0, AD_ROWS * sizeof *all);
    for (size_t c = 0; c < members->count; c++) {
      ad_part_read(parts, part, &members->columns[c].piece, begin, end, addend);
      for (size_t i = 0; i < end - begin; i++) all[i] += factor * expected[c] * addend[i];
    }
    for (size_t i = 0; i < end - begin; i++) {
      left += (sum[i] - all[i]) * (sum[i] - all[i]);
      is += sum[i] * sum[i];
      wanted += all[i] * all[i];
    }
  }
  judged->why.left = sqrt(left / fmax(is, wanted));
}

/* Looks for patterns in a part that no counts of its addends give. */
static ad_status look_for_patterns(const ad_parts *parts, ad_known *known, ad_judged *judged) {
  const ad_members *members = ad_part_members(parts, judged->part);
  double *expected;
  int others = ad_known_compares(known, parts->param);
  AD_TRY(ad_new(members->count, &expected));
  ad_expected_counts(parts, members, expected);
  measure_left(parts, expected, judged);
  ad_status status = ad_patterns_find(parts, judged->part, expected, others, &judged->why.patterns);
  ad_release(expected);
  return status;
}

/* Tests, for each part that its own members' addends do not explain, whether it is a sum over another group of
 * ranks. Also tests each part of one element, since one number is a multiple of any other, so that its own members
 * always explain it. */
static ad_status look_further(ad_parts *parts, ad_known *known, ad_judged *list) {
  for (size_t i = 0; i < parts->count; i++) {
    if (!list[i].holds && !list[i].why.unfitted && (!list[i].why.explains || list[i].part->count == 1))
      AD_TRY(ad_try_groups(parts, &list[i]));
    if (!list[i].holds && !list[i].why.explains) AD_TRY(look_for_patterns(parts, known, &list[i]));
  }
  return AD_OK;
}

/* ---- comparing replicas that should be equal ---- */

/* Two replicas may differ by this many times the rounding of their sums, since ranks may add in different orders
 * throughout the model. */
#define REPLICAS_ROUND 64

/* Returns 1 if two replicas differ by more than REPLICAS_ROUND roundings. `values` is scratch memory for 2 * AD_ROWS
 * numbers. */
static int differ(const ad_parts *parts, const ad_part *a, const ad_part *b, double *values) {
  ad_rounding rounding = ad_rounding_of(parts, a);
  double share = ad_rounding_share(&rounding, ad_part_members(parts, a)->count), worst = 0, largest = 0;
  for (size_t begin = 0; begin < a->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < a->count ? begin + AD_ROWS : a->count;
    ad_part_read_sum(parts, a, begin, end, values);
    ad_part_read_sum(parts, b, begin, end, values + AD_ROWS);
    for (size_t i = 0; i < end - begin; i++) {
      worst = fmax(worst, fabs(values[i] - values[AD_ROWS + i]));
      largest = fmax(largest, fmax(fabs(values[i]), fabs(values[AD_ROWS + i])));
    }
  }
  return worst > REPLICAS_ROUND * share * largest;
}

/* Marks replicas (in list[i].apart) that differ although their ranks do the same work: each replica is the sum of
 * its rank's addends, but they cannot all be right. */
static void find_apart(const ad_parts *parts, ad_judged *list) {
  for (size_t i = 0; i < parts->count; i++)
    for (size_t j = 0; j < i && list[i].holds && !list[i].apart; j++)
      if (list[j].holds && list[j].part->members != list[i].part->members &&
          ad_box_equal(&parts->param->shape, &list[i].part->box, &list[j].part->box))
        list[i].apart = differ(parts, list[i].part, list[j].part, parts->rows);
}

ad_status ad_judge_parts(ad_parts *parts, ad_known *known, ad_judged *list) {
  for (size_t i = 0; i < parts->count; i++) {
    list[i] = (ad_judged){.part = &parts->parts[i]};
    list[i].holds = !parts->dump->microbatches; /* without addends nothing is expected */
  }
  ad_status status = parts->dump->microbatches ? judge_expected(parts, known, list) : AD_OK;
  if (!status) status = look_further(parts, known, list);
  ad_known_pass(known, parts->param);
  if (!status) find_apart(parts, list);
  return status;
}

void ad_judged_clear(const ad_parts *parts, ad_judged *list) {
  for (size_t i = 0; i < parts->count; i++) {
    ad_release(list[i].why.counts);
    ad_release(list[i].why.errors);
    ad_release(list[i].why.others);
  }
}
