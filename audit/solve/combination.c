/* Tests whether a part of a sum is a given combination of addends. A sum of n addends in a dtype of unit roundoff u,
 * added in any order and scaled before or after, has an error of at most (n + 1) u times the sum of the addends'
 * absolute values. The array that holds the sum rounds once more for each microbatch. The combination that is computed
 * here in f64 has an error of at most (n + 2) 2^-53 times that sum. */
#include "solve/combination.h"

#include <math.h>
#include "base/memory.h"
#include "base/roundoff.h"
#include "solve/fit_kernel.h"

ad_rounding ad_rounding_of(const ad_parts *parts, const ad_part *part) {
  const ad_members *members = ad_part_members(parts, part);
  ad_dtype sum = part->terms[0].tensor->dtype, reduce = parts->param->reduce, adds = reduce ? reduce : sum;
  ad_rounding rounding = {.reduce = ad_unit_roundoff(adds),
                          .sum = ad_unit_roundoff(sum),
                          .smallest = fmax(ad_smallest_number(sum), ad_smallest_number(adds)),
                          .inside = members->inside,
                          .microbatches = parts->dump->microbatches};
  if (!reduce) {
    rounding.reduce = fmax(rounding.reduce, members->unit);
    rounding.smallest = fmax(rounding.smallest, members->smallest);
  }
  return rounding;
}

double ad_rounding_share(const ad_rounding *rounding, size_t n) {
  double addends = (double)n, stored = (double)rounding->microbatches;
  return (addends + 1) * rounding->reduce + stored * rounding->sum + (addends + 2) * 0x1p-53;
}

int ad_rounding_hides_addends(const ad_rounding *rounding, size_t n) {
  return ad_rounding_share(rounding, n) * 2 * (double)n > 1;
}

/* Values of one block of elements: the part's sum, the tested combination of addends, the sum of the addends'
 * absolute values, and one addend. */
typedef struct ad_rows {
  double *sum, *combined, *size, *addend;
} ad_rows;

/* f32 addends that can be used where they are in the mapped file; they are collected here and then added in one
 * call. */
typedef struct ad_waiting {
  const float *values[AD_FIT_COLUMNS];
  double counts[AD_FIT_COLUMNS];
  size_t count;
} ad_waiting;

static void add_waiting(ad_waiting *waiting, size_t n, ad_rows *rows) {
  ad_fit_kernels()->add_sized_floats(rows->combined, rows->size, waiting->counts, waiting->values, waiting->count, n);
  waiting->count = 0;
}

static void add_addend(const ad_parts *parts, const ad_part *part, const ad_piece *piece, double count, size_t begin,
                       size_t end, ad_waiting *waiting, ad_rows *rows) {
  const float *floats = ad_part_floats(parts, part, piece, begin);
  if (floats) {
    waiting->values[waiting->count] = floats;
    waiting->counts[waiting->count++] = count;
  }
  if (!floats || waiting->count == AD_FIT_COLUMNS) add_waiting(waiting, end - begin, rows);
  if (floats) return;
  ad_part_read(parts, part, piece, begin, end, rows->addend);
  ad_fit_kernels()->add_sized(rows->combined, rows->size, count, rows->addend, end - begin);
}

static size_t combine(const ad_parts *parts, const ad_part *part, const double *counts, size_t begin, size_t end,
                      ad_rows *rows) {
  const ad_members *members = ad_part_members(parts, part);
  ad_waiting waiting = {.count = 0};
  size_t used = 0, n = end - begin;
  for (size_t i = 0; i < n; i++) rows->combined[i] = rows->size[i] = 0;
  for (size_t c = 0; c < members->count; c++) {
    if (counts[c] == 0) continue;
    if (!begin && c + 1 < members->count) ad_piece_expect(&members->columns[c + 1].piece, end);
    add_addend(parts, part, &members->columns[c].piece, counts[c], begin, end, &waiting, rows);
    used++;
  }
  add_waiting(&waiting, n, rows);
  return used;
}

/* Compares a block of the sum with the combination, and updates the largest ratio of residual to bound in *worst and
 * *out. If all addends are 0, the residual is relative to the sum itself. A residual that is NaN (overflow even in f64)
 * counts as the largest. */
static void note_worst(const ad_rows *rows, size_t n, double factor, double share, double least, double *worst,
                       ad_fitness *out) {
  for (size_t i = 0; i < n; i++) {
    double size = fabs(factor) * rows->size[i], bound = share * size + least;
    double residual = fabs(rows->sum[i] - factor * rows->combined[i]);
    if (isnan(*worst) || residual <= *worst * bound) continue;
    double measure = size > 0 ? size : fabs(rows->sum[i]);
    *worst = residual / bound;
    out->residual = residual / measure;
    out->bound = bound / measure;
  }
}

/* A test of one combination on several parts together. */
typedef struct ad_test {
  const ad_parts *parts;
  const ad_part *const *list; /* parts of the sum with the same members and box */
  size_t count, elements;     /* only the first `elements` elements of each part are compared */
  const double *counts;
  double factor;
  const ad_rounding *rounding; /* [count]: rounding of each part; NULL: that of ad_rounding_of */
  double *worst;               /* [count]: each part's largest ratio of residual to bound so far */
  ad_fitness *out;             /* [count]: how well the combination gives each part */
  ad_rows rows;
} ad_test;

/* Compares each part with rows->combined, a combination of `used` addends. */
static void compare_block(ad_test *test, size_t used, size_t begin, size_t end) {
  ad_rows *rows = &test->rows;
  for (size_t i = 0; i < test->count; i++) {
    ad_rounding own = test->rounding ? test->rounding[i] : ad_rounding_of(test->parts, test->list[i]);
    ad_part_read_sum(test->parts, test->list[i], begin, end, rows->sum);
    double least = (double)(used + 1) * own.smallest + fabs(test->factor) * own.inside * own.reduce;
    note_worst(rows, end - begin, test->factor, ad_rounding_share(&own, used), least, &test->worst[i], &test->out[i]);
  }
}

static void begin_test(ad_test *test) {
  for (size_t i = 0; i < test->count; i++) {
    ad_rounding own = test->rounding ? test->rounding[i] : ad_rounding_of(test->parts, test->list[i]);
    size_t n = ad_part_members(test->parts, test->list[i])->count;
    test->out[i] = (ad_fitness){.holds = 1, .bound = ad_rounding_share(&own, n)};
  }
}

static void end_test(ad_test *test) {
  for (size_t i = 0; i < test->count; i++) test->out[i].holds = test->worst[i] <= 1;
}

static void test_all(ad_test *test) {
  begin_test(test);
  for (size_t begin = 0; begin < test->elements; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < test->elements ? begin + AD_ROWS : test->elements;
    compare_block(test, combine(test->parts, test->list[0], test->counts, begin, end, &test->rows), begin, end);
  }
  end_test(test);
}

static ad_rows rows_of(const ad_parts *parts) {
  double *rows = parts->rows;
  return (ad_rows){rows, rows + AD_ROWS, rows + 2 * AD_ROWS, rows + 3 * AD_ROWS};
}

static ad_status run_test(ad_test *test) {
  AD_TRY(ad_new(test->count, &test->worst));
  test->rows = rows_of(test->parts);
  test_all(test);
  ad_release(test->worst);
  return AD_OK;
}

ad_status ad_parts_test(const ad_parts *parts, const ad_part *const *list, size_t count, const double *counts,
                        double factor, ad_fitness *out) {
  return run_test(&(ad_test){parts, list, count, list[0]->count, counts, factor, NULL, NULL, out, {0}});
}

ad_status ad_part_test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                       const ad_rounding *rounding, ad_fitness *out) {
  return run_test(&(ad_test){parts, &part, 1, part->count, counts, factor, rounding, NULL, out, {0}});
}

/* ---- testing the first elements only ---- */

/* Most wrong combinations fail in the first AD_FIRSTS elements, which are one cache line. These elements of the addends
 * are kept, since many combinations are tried. If they match, the first FIRST_LINES elements are tested. */
enum { FIRST_LINES = 64 };

static size_t firsts_of(const ad_part *part, size_t most) { return part->count < most ? part->count : most; }

static ad_status read_firsts(const ad_parts *parts, const ad_part *part) {
  ad_firsts *firsts = parts->firsts;
  const ad_members *members = ad_part_members(parts, part);
  int is_there = firsts->values && firsts->members == part->members;
  if (is_there && ad_box_equal(&parts->param->shape, &firsts->box, &part->box)) return AD_OK;
  ad_release(firsts->values);
  AD_TRY(ad_new(members->count * AD_FIRSTS, &firsts->values));
  firsts->members = part->members;
  firsts->box = part->box;
  for (size_t c = 0; c < members->count; c++)
    ad_part_read(parts, part, &members->columns[c].piece, 0, firsts_of(part, AD_FIRSTS),
                 firsts->values + c * AD_FIRSTS);
  return AD_OK;
}

/* Combines the first elements of the addends, as the function `combine` does for a whole block; returns how many
 * addends have a count that is not 0. */
static size_t combine_firsts(const ad_parts *parts, const ad_part *part, const double *counts, ad_rows *rows) {
  const fit_kernels *kernels = ad_fit_kernels();
  size_t used = 0, n = ad_part_members(parts, part)->count, count = firsts_of(part, AD_FIRSTS);
  for (size_t i = 0; i < count; i++) rows->combined[i] = rows->size[i] = 0;
  for (size_t c = 0; c < n; c++) {
    if (counts[c] == 0) continue;
    kernels->add_sized(rows->combined, rows->size, counts[c], parts->firsts->values + c * AD_FIRSTS, count);
    used++;
  }
  return used;
}

/* Tests the combination on the first elements alone. */
static ad_status test_firsts(ad_test *test) {
  const ad_part *part = test->list[0];
  AD_TRY(read_firsts(test->parts, part));
  begin_test(test);
  compare_block(test, combine_firsts(test->parts, part, test->counts, &test->rows), 0, test->elements);
  end_test(test);
  return AD_OK;
}

ad_status ad_part_test_first(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                             const ad_rounding *rounding, ad_fitness *out) {
  enum { FEW = 16 }; /* reading so few addends costs less than reading and keeping the first elements of all addends */
  size_t used = 0, n = ad_part_members(parts, part)->count;
  double worst = 0;
  ad_test test = {parts, &part, 1, firsts_of(part, AD_FIRSTS), counts, factor, rounding, &worst, out, rows_of(parts)};
  for (size_t c = 0; c < n && used <= FEW; c++) used += counts[c] != 0;
  if (used <= FEW)
    test_all(&test);
  else
    AD_TRY(test_firsts(&test));
  if (!out->holds) return AD_OK;
  worst = 0;
  test.elements = firsts_of(part, FIRST_LINES);
  test_all(&test);
  return AD_OK;
}

ad_status ad_part_try(const ad_parts *parts, const ad_part *part, const double *counts, ad_fitness *out) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  double expect = parts->param->expect;
  AD_TRY(ad_part_test_first(parts, part, counts, expect, &rounding, out));
  return out->holds ? ad_part_test(parts, part, counts, expect, &rounding, out) : AD_OK;
}
