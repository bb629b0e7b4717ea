/* Tests by its bits whether a sum was formed in the dtype that the job promises.
 *
 * Let s be the exact sum of n addends with their counts, S the sum of their absolute values, f the expected factor and u
 * the unit roundoff of the promised dtype. An addend is rounded at most n + 6 times on its way: by n - 1 additions, by
 * the cast to the promised dtype, and by six roundings of factors (its count, a factor before and one after the
 * additions, and these three numbers themselves). Each rounding, also one that is not to nearest, changes the value by
 * a share of at most 2u, and a flush of subnormal numbers by less than the smallest normal one. So every sum lies within
 *   w = |f| S k / (1 - k) + (n + 6) max(1, |f|) smallest,   k = (n + 6) 2u,
 * of f s, and the stored value between the numbers of its dtype that enclose the interval [f s - w, f s + w]. */
#include "solve/formed.h"

#include <math.h>
#include "base/memory.h"
#include "base/roundoff.h"
#include "solve/explain.h"

enum {
  FACTORS = 6, /* roundings of factors */
  ENOUGH = 4,  /* so many elements outside show a narrower sum; a single one may be a corrupted number */
  NAMED = 64,  /* so many values that a narrower dtype has all name it; half of them have it by chance */
  /* A large part is tested at so many places, of so many elements each */
  PLACES = 16,
  BLOCK = 1024
};

/* How a sum's elements are, and others would be, if `stored` is a dtype that its result alone was rounded to: how many are
 * no such number, rounded to nearest; how many would not be if addends had been rounded to it, or partial sums. */
typedef struct ad_rounded {
  int64_t other, by_addends, by_partial;
} ad_rounded;

/* What the test of one part needs. */
typedef struct ad_forming {
  const ad_parts *parts;
  const ad_part *part;
  double *counts;      /* expected counts of the part's addends */
  ad_dtype stored;     /* dtype to which the sum's result was rounded last: that of its tensor, or a narrower one */
  double share, least; /* w = share * |f| S + least */
  double telling;      /* an element tells only if its w is at most this share of f s */
  double filled;       /* ... and only if so many of its addends are not 0 */
  int64_t *tested, *outside;
  ad_rounded *rounded; /* NULL: not asked for */
} ad_forming;

/* ---- which sums can be tested ---- */

/* Returns 1 if the number, apart from a power of two, is an integer below 2^24 or one over such an integer: then it is
 * exact, and no rounded one. */
static int is_exact(double number) {
  int exponent;
  double mantissa = frexp(fabs(number), &exponent), up = ldexp(mantissa, 24), down = ldexp(1, 24) / mantissa;
  return fabs(up - round(up)) <= up * 0x1p-50 || fabs(down - round(down)) <= down * 0x1p-50;
}

static int is_narrower(ad_dtype dtype, ad_dtype than) { return ad_unit_roundoff(dtype) > ad_unit_roundoff(than); }

/* Returns why this part cannot be tested, or NULL if it can. */
static const char *why_untested(const ad_forming *forming, ad_dtype promised) {
  const ad_parts *parts = forming->parts;
  const ad_part *part = forming->part;
  const ad_members *members = ad_part_members(parts, part);
  ad_dtype stored = forming->stored;
  double unit = ad_unit_roundoff(promised);
  if (!ad_dtype_is_float(stored) || !ad_dtype_coarser(promised)) return "no narrower dtype is known";
  if (part->term_count > 1) return "the ranks hold Partial sums";
  if (members->count < 2) return "there is one addend";
  if (members->inside > 0) return "its addends are sums themselves";
  if (!is_exact(parts->param->expect)) return "the expected factor may be a rounded number";
  if (parts->dump->microbatches > 1 && (members->unit > unit || is_narrower(stored, promised)))
    return "the sums of several microbatches may be rounded one by one";
  if (members->count == 2 && is_narrower(stored, promised) && members->unit >= ad_unit_roundoff(stored))
    return "a sum of two addends is rounded once in any dtype";
  return NULL;
}

/* Returns how many elements a part needs so that fewer than ENOUGH of them outside are less likely than 1e-9, if the
 * sum was formed in a narrower dtype, of independent addends. `audit/tests/solve/test_formed.c` counts them. */
static int64_t elements_needed(const ad_forming *forming, ad_dtype promised) {
  const ad_members *members = ad_part_members(forming->parts, forming->part);
  if (!is_narrower(forming->stored, promised)) return 70;
  if (members->unit < ad_unit_roundoff(forming->stored)) return 260;
  return members->count > 7 ? 150 : members->count > 3 ? 320 : 560;
}

/* ---- the numbers of a dtype beside a number ---- */

/* Returns the distance to the next smaller one, which is half as far where x is a power of two. */
static double step_down(double x, ad_dtype dtype) {
  int exponent;
  double step = ad_step_up(x, dtype);
  return x > 0 && frexp(x, &exponent) == 0.5 ? fmax(step / 2, ad_smallest_number(dtype)) : step;
}

/* Returns 1 if x, a number of the dtype, is none of those that a value between `least` and `most` may be rounded to,
 * up or down. */
static int is_outside(double x, double least, double most, ad_dtype dtype) {
  if (x >= least && x <= most) return 0; /* the same answer as below, for most elements and at once */
  if (x < 0) return is_outside(-x, -most, -least, dtype);
  return x - step_down(x, dtype) >= most || x + ad_step_up(x, dtype) <= least;
}

static double nearest(double x, ad_dtype dtype) {
  double step = ad_step_up(fabs(x), dtype);
  return rint(x / step) * step;
}

/* ---- the test ---- */

static size_t stride_of(const ad_part *part) { return part->count / PLACES > BLOCK ? part->count / PLACES : BLOCK; }

static size_t block_end(const ad_part *part, size_t begin) {
  return begin + BLOCK < part->count ? begin + BLOCK : part->count;
}

/* Counts in forming->rounded. `middle` and `width`: what sums in the promised dtype may be, for each element. */
static void test_result(const ad_forming *forming, size_t begin, size_t end, const double *middle,
                        const double *width) {
  const ad_parts *parts = forming->parts;
  const ad_members *members = ad_part_members(parts, forming->part);
  double *values = parts->rows + 3 * AD_ROWS, sent[BLOCK] = {0}, added[BLOCK] = {0}, factor = parts->param->expect;
  ad_dtype dtype = forming->stored;
  for (size_t c = 0; c < members->count; c++) {
    ad_part_read(parts, forming->part, &members->columns[c].piece, begin, end, values);
    for (size_t i = 0; i < end - begin; i++) {
      double addend = factor * forming->counts[c] * values[i];
      sent[i] += nearest(addend, dtype);
      added[i] = nearest(added[i] + addend, dtype);
    }
  }
  ad_part_read(parts, forming->part, &forming->part->terms[0], begin, end, values);
  for (size_t i = 0; i < end - begin; i++) {
    double least = nearest(middle[i] - width[i], dtype), most = nearest(middle[i] + width[i], dtype);
    double sum = nearest(sent[i], dtype);
    forming->rounded->other += values[i] < least || values[i] > most;
    forming->rounded->by_addends += sum < least || sum > most;
    forming->rounded->by_partial += added[i] < least || added[i] > most;
  }
}

static void test_block(const ad_forming *forming, size_t begin, size_t end) {
  const ad_parts *parts = forming->parts;
  const ad_members *members = ad_part_members(parts, forming->part);
  double *sum = parts->rows, *combined = sum + AD_ROWS, *size = combined + AD_ROWS, *addend = size + AD_ROWS;
  double *filled = parts->buffer, factor = parts->param->expect;
  size_t n = end - begin;
  for (size_t i = 0; i < n; i++) combined[i] = size[i] = filled[i] = 0;
  for (size_t c = 0; c < members->count; c++) {
    ad_part_read(parts, forming->part, &members->columns[c].piece, begin, end, addend);
    for (size_t i = 0; i < n; i++) {
      combined[i] += forming->counts[c] * addend[i];
      size[i] += fabs(forming->counts[c] * addend[i]);
      filled[i] += addend[i] != 0;
    }
  }
  ad_part_read(parts, forming->part, &forming->part->terms[0], begin, end, sum);
  for (size_t i = 0; i < n; i++) {
    double middle = combined[i] *= factor, width = size[i] = forming->share * fabs(factor) * size[i] + forming->least;
    *forming->outside += is_outside(sum[i], middle - width, middle + width, forming->stored);
    *forming->tested += filled[i] >= forming->filled && width <= forming->telling * fabs(middle);
  }
  if (forming->rounded) test_result(forming, begin, end, combined, size);
}

static void test_part(ad_forming *forming, ad_dtype promised) {
  const ad_part *part = forming->part;
  const ad_members *members = ad_part_members(forming->parts, part);
  double unit = ad_unit_roundoff(promised), roundings = (double)members->count + FACTORS, all = roundings * 2 * unit;
  int is_stored_narrower = is_narrower(forming->stored, promised);
  int is_narrow = is_stored_narrower && members->unit >= ad_unit_roundoff(forming->stored);
  if (all >= 0.5) return;
  forming->share = all / (1 - all) + (roundings + 2) * 0x1p-52; /* the combination's own error, in f64 */
  forming->least = roundings * fmax(1, fabs(forming->parts->param->expect)) * ad_smallest_number(promised) / (2 * unit);
  forming->telling = ad_unit_roundoff(is_stored_narrower ? forming->stored : ad_dtype_coarser(promised)) / 4;
  forming->filled = is_narrow ? 3 : 2;
  for (size_t begin = 0; begin < part->count; begin += stride_of(part))
    test_block(forming, begin, block_end(part, begin));
}

/* Tests the sums of a parameter as if they were stored in `stored`; 0: in the dtype of their tensors. `rounded`: NULL, or
 * where it counts what tells of a rounding of the result. */
static ad_status test_as(const ad_parts *parts, ad_dtype promised, ad_dtype stored, ad_rounded *rounded,
                         ad_formed_found *out) {
  int64_t needed = 0;
  ad_formed_found found = {.why = "it has no sum"};
  for (size_t p = 0; p < parts->count; p++) {
    const ad_part *part = &parts->parts[p];
    if (!ad_part_is_first_of_its_box(parts, p)) continue;
    const ad_members *members = ad_part_members(parts, part);
    ad_forming forming = {.parts = parts, .part = part, .stored = stored ? stored : part->terms[0].tensor->dtype};
    const char *why = why_untested(&forming, promised);
    if (why) found.why = why;
    if (why) continue;
    AD_TRY(ad_new(members->count, &forming.counts));
    ad_expected_counts(parts, members, forming.counts);
    forming.tested = &found.tested;
    forming.outside = &found.outside;
    forming.rounded = rounded;
    test_part(&forming, promised);
    ad_release(forming.counts);
    if (elements_needed(&forming, promised) > needed) needed = elements_needed(&forming, promised);
  }
  if (needed) found.why = "too few of its elements tell";
  found.formed = found.outside >= ENOUGH            ? AD_FORMED_NARROWER
                 : needed && found.tested >= needed ? AD_FORMED_AS_PROMISED
                                                    : AD_FORMED_UNTESTED;
  if (found.formed) found.why = NULL;
  *out = found;
  return AD_OK;
}

/* ---- which dtype it was ---- */

/* Returns 1 if all tested values of the sums, which are stored in wider dtypes, are numbers of this one. */
static int all_have(const ad_parts *parts, ad_dtype dtype) {
  size_t numbers = 0;
  for (size_t p = 0; p < parts->count; p++) {
    const ad_part *part = &parts->parts[p];
    if (!is_narrower(dtype, part->terms[0].tensor->dtype)) return 0;
    for (size_t begin = 0; begin < part->count; begin += stride_of(part)) {
      ad_part_read(parts, part, &part->terms[0], begin, block_end(part, begin), parts->rows);
      for (size_t i = 0; i < block_end(part, begin) - begin; i++) {
        if (!ad_is_number_of(dtype, parts->rows[i])) return 0;
        numbers += parts->rows[i] != 0;
      }
    }
  }
  return numbers >= NAMED;
}

/* Finds to which dtype a sum was rounded, and whether that was its result alone: then each element is a sum in the
 * promised dtype, rounded to nearest once, and is not what it would be of rounded addends or partial sums. Only the
 * narrowest dtype that there is gets named without that: a sum in f32 of a few numbers of bf16 often is one of f16. */
static ad_status find_rounding(const ad_parts *parts, ad_dtype promised, ad_formed_found *out) {
  for (ad_dtype dtype = promised; (dtype = ad_dtype_coarser(dtype));) {
    ad_rounded rounded = {0};
    ad_formed_found as;
    if (!all_have(parts, dtype)) continue;
    AD_TRY(test_as(parts, promised, dtype, &rounded, &as));
    int tells = rounded.by_addends >= ENOUGH && rounded.by_partial >= ENOUGH;
    int is_result = as.formed == AD_FORMED_AS_PROMISED && !rounded.other && tells;
    if (!is_result && ad_dtype_coarser(dtype)) continue;
    out->dtype = dtype;
    out->before = as.formed == AD_FORMED_NARROWER;
    if (is_result) out->formed = AD_FORMED_THEN_ROUNDED;
    return AD_OK;
  }
  return AD_OK;
}

ad_status ad_formed_find(const ad_parts *parts, ad_dtype promised, ad_formed_found *out) {
  AD_TRY(test_as(parts, promised, 0, NULL, out));
  return out->formed == AD_FORMED_NARROWER ? find_rounding(parts, promised, out) : AD_OK;
}
