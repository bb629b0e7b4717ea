/* The test of a combination.
 *
 * A sum of n addends in a dtype of unit roundoff u, in any order, scaled before or after, is off by at most (n + 1) u
 * times the sum of their absolute values; what holds it rounds once for each microbatch; and what is computed here in
 * f64 is off by (n + 2) 2^-53 of the same. */
#include "diff/test.h"

#include <math.h>
#include "base/memory.h"
#include "base/roundoff.h"

static void widen(ad_rounding *rounding, ad_dtype dtype) {
  rounding->reduce = fmax(rounding->reduce, ad_unit_roundoff(dtype));
  rounding->smallest = fmax(rounding->smallest, ad_smallest_number(dtype));
}

/* Addends that were sums themselves, whose terms the job's sum may add in another order: in all as many as T, of which
 * the largest absolute sum is S, are off by T u S. */
static double inside_of(const ad_parts *parts, const ad_members *members) {
  double terms = 0, size = 0;
  for (size_t i = 0; i < members->count; i++) {
    const ad_piece *piece = &members->columns[i].piece;
    const ad_dump_file *file = parts->dump->addends[piece->rank * parts->dump->microbatches + piece->microbatch];
    const json_t *inside = json_object_get(file->inside, parts->param->name);
    terms += json_number_value(json_array_get(inside, 0));
    size += json_number_value(json_array_get(inside, 1));
  }
  return terms * size;
}

ad_rounding ad_rounding_of(const ad_parts *parts, const ad_part *part) {
  const ad_members *members = ad_part_members(parts, part);
  ad_dtype sum = part->terms[0].tensor->dtype, reduce = parts->param->reduce;
  ad_rounding rounding = {.sum = ad_unit_roundoff(sum), .microbatches = parts->dump->microbatches};
  rounding.smallest = ad_smallest_number(sum);
  widen(&rounding, reduce ? reduce : sum);
  rounding.inside = inside_of(parts, members);
  for (size_t i = 0; i < members->count && !reduce; i++) widen(&rounding, members->columns[i].piece.tensor->dtype);
  return rounding;
}

double ad_rounding_share(const ad_rounding *rounding, size_t n) {
  double addends = (double)n, stored = (double)rounding->microbatches;
  return (addends + 1) * rounding->reduce + stored * rounding->sum + (addends + 2) * 0x1p-53;
}

/* Three rows of a block: the sum, the combination, and the addends' absolute sum. */
typedef struct ad_rows {
  double *sum, *combined, *size, *addend;
} ad_rows;

static size_t combine(const ad_parts *parts, const ad_part *part, const double *counts, size_t begin, size_t end,
                      ad_rows *rows) {
  const ad_members *members = ad_part_members(parts, part);
  size_t used = 0, n = end - begin;
  for (size_t i = 0; i < n; i++) rows->combined[i] = rows->size[i] = 0;
  for (size_t c = 0; c < members->count; c++) {
    double count = counts[c];
    if (count == 0) continue;
    ad_part_read(parts, part, &members->columns[c].piece, begin, end, rows->addend);
    for (size_t i = 0; i < n; i++) {
      double value = count * rows->addend[i];
      rows->combined[i] += value;
      rows->size[i] += fabs(value);
    }
    used++;
  }
  ad_part_read_sum(parts, part, begin, end, rows->sum);
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

static void test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                 const ad_rounding *rounding, ad_rows *rows, ad_fitness *out) {
  double worst = 0;
  *out = (ad_fitness){.holds = 1, .bound = ad_rounding_share(rounding, ad_part_members(parts, part)->count)};
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    size_t used = combine(parts, part, counts, begin, end, rows);
    double least = (double)(used + 1) * rounding->smallest + fabs(factor) * rounding->inside * rounding->reduce;
    judge(rows, end - begin, factor, ad_rounding_share(rounding, used), least, &worst, out);
  }
  out->holds = worst <= 1;
}

ad_status ad_part_test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                       const ad_rounding *rounding, ad_fitness *out) {
  double *memory;
  AD_TRY(ad_new(4 * AD_ROWS, &memory));
  ad_rows rows = {memory, memory + AD_ROWS, memory + 2 * AD_ROWS, memory + 3 * AD_ROWS};
  test(parts, part, counts, factor, rounding, &rows, out);
  ad_release(memory);
  return AD_OK;
}
