/* The test of a combination.
 *
 * A sum of n addends in a dtype of unit roundoff u, in any order, scaled before or after, is off by at most (n + 1) u
 * times the sum of their absolute values; what holds it rounds once for each microbatch; and what is computed here in
 * f64 is off by (n + 2) 2^-53 of the same. */
#include "diff/test.h"

#include <math.h>
#include "base/memory.h"
#include "base/roundoff.h"
#include "diff/fit_kernel.h"

static void widen(ad_rounding *rounding, ad_dtype dtype) {
  rounding->reduce = fmax(rounding->reduce, ad_unit_roundoff(dtype));
  rounding->smallest = fmax(rounding->smallest, ad_smallest_number(dtype));
}

ad_rounding ad_rounding_of(const ad_parts *parts, const ad_part *part) {
  const ad_members *members = ad_part_members(parts, part);
  ad_dtype sum = part->terms[0].tensor->dtype, reduce = parts->param->reduce;
  ad_rounding rounding = {.sum = ad_unit_roundoff(sum), .microbatches = parts->dump->microbatches};
  rounding.smallest = ad_smallest_number(sum);
  widen(&rounding, reduce ? reduce : sum);
  rounding.inside = members->inside;
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

/* Rows of a block: the sum, the combination, and the addends' absolute sum. */
typedef struct ad_rows {
  double *sum, *combined, *size, *addend;
} ad_rows;

static size_t combine(const ad_parts *parts, const ad_part *part, const double *counts, size_t begin, size_t end,
                      ad_rows *rows) {
  const fit_kernels *kernels = ad_fit_kernels();
  const ad_members *members = ad_part_members(parts, part);
  size_t used = 0, n = end - begin;
  for (size_t i = 0; i < n; i++) rows->combined[i] = rows->size[i] = 0;
  for (size_t c = 0; c < members->count; c++) {
    double count = counts[c];
    if (count == 0) continue;
    if (!begin && c + 1 < members->count) ad_piece_expect(&members->columns[c + 1].piece, end);
    ad_part_read(parts, part, &members->columns[c].piece, begin, end, rows->addend);
    kernels->add_sized(rows->combined, rows->size, count, rows->addend, n);
    used++;
  }
  return used;
}

/* Where there is no addend at all the sum itself is the measure. What overflows even f64 has no number: it stays the
 * worst, whatever follows. */
static void judge(const ad_rows *rows, size_t n, double factor, double share, double least, double *worst,
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

/* What several tests of the same addends have in common. */
typedef struct ad_test {
  const ad_parts *parts;
  const ad_part *const *list; /* of the same members and box */
  size_t count, elements;     /* the first `elements` are looked at */
  const double *counts;
  double factor;
  const ad_rounding *rounding; /* one for each; NULL: each part's own */
  double *worst;               /* one for each */
  ad_fitness *out;             /* one for each */
  ad_rows rows;
} ad_test;

static void test_block(ad_test *test, size_t begin, size_t end) {
  ad_rows *rows = &test->rows;
  size_t used = combine(test->parts, test->list[0], test->counts, begin, end, rows);
  for (size_t i = 0; i < test->count; i++) {
    ad_rounding own = test->rounding ? test->rounding[i] : ad_rounding_of(test->parts, test->list[i]);
    ad_part_read_sum(test->parts, test->list[i], begin, end, rows->sum);
    double least = (double)(used + 1) * own.smallest + fabs(test->factor) * own.inside * own.reduce;
    judge(rows, end - begin, test->factor, ad_rounding_share(&own, used), least, &test->worst[i], &test->out[i]);
  }
}

static void test_all(ad_test *test) {
  for (size_t i = 0; i < test->count; i++) {
    ad_rounding own = test->rounding ? test->rounding[i] : ad_rounding_of(test->parts, test->list[i]);
    size_t n = ad_part_members(test->parts, test->list[i])->count;
    test->out[i] = (ad_fitness){.holds = 1, .bound = ad_rounding_share(&own, n)};
  }
  for (size_t begin = 0; begin < test->elements; begin += AD_ROWS)
    test_block(test, begin, begin + AD_ROWS < test->elements ? begin + AD_ROWS : test->elements);
  for (size_t i = 0; i < test->count; i++) test->out[i].holds = test->worst[i] <= 1;
}

static ad_status run(ad_test *test) {
  double *rows = test->parts->rows;
  AD_TRY(ad_new(test->count, &test->worst));
  test->rows = (ad_rows){rows, rows + AD_ROWS, rows + 2 * AD_ROWS, rows + 3 * AD_ROWS};
  test_all(test);
  ad_release(test->worst);
  return AD_OK;
}

ad_status ad_parts_test(const ad_parts *parts, const ad_part *const *list, size_t count, const double *counts,
                        double factor, ad_fitness *out) {
  return run(&(ad_test){parts, list, count, list[0]->count, counts, factor, NULL, NULL, out, {0}});
}

ad_status ad_part_test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                       const ad_rounding *rounding, ad_fitness *out) {
  return run(&(ad_test){parts, &part, 1, part->count, counts, factor, rounding, NULL, out, {0}});
}

/* A wrong combination mostly fails in the first few already, which are one line of memory of each addend. */
static const size_t firsts[] = {8, 64};

ad_status ad_part_test_first(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                             const ad_rounding *rounding, ad_fitness *out) {
  out->holds = 1;
  for (size_t i = 0; i < sizeof firsts / sizeof *firsts && out->holds; i++) {
    size_t elements = part->count < firsts[i] ? part->count : firsts[i];
    AD_TRY(run(&(ad_test){parts, &part, 1, elements, counts, factor, rounding, NULL, out, {0}}));
  }
  return AD_OK;
}
