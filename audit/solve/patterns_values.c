/* What every search for patterns needs: the values of a part, comparisons of values within rounding, and the list of
 * found patterns. */
#include <math.h>
#include <stdlib.h>
#include "base/memory.h"
#include "solve/combination.h"
#include "solve/patterns.h"

/* A pattern is believed if at least so many bits of the sum agree with it. */
#define ENOUGH_BITS 64.0

void ad_pattern_add(ad_found_patterns *found, ad_pattern pattern) {
  if (found->count < AD_PATTERNS) found->list[found->count++] = pattern;
}

int ad_values_agree(const ad_part_values *values, double a, double b, double size) {
  return fabs(a - b) <= values->share * size + values->least;
}

static int by_value(const void *a, const void *b) {
  double one = ((const ad_placed *)a)->value, other = ((const ad_placed *)b)->value;
  return (one > other) - (one < other);
}

void ad_placed_sort(ad_placed *list, size_t n) { qsort(list, n, sizeof *list, by_value); }

size_t ad_placed_from(const ad_placed *sorted, size_t n, double value) {
  size_t low = 0, high = n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (sorted[middle].value < value)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void ad_part_values_clear(ad_part_values *values) {
  ad_release(values->sum);
  ad_release(values->right);
  ad_release(values->size);
  ad_release(values->at);
}

static void read_values(const ad_parts *parts, const ad_part *part, const double *expected, double *addend,
                        ad_part_values *out) {
  const ad_members *members = ad_part_members(parts, part);
  double factor = parts->param->expect;
  for (size_t begin = 0; begin < out->n; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < out->n ? begin + AD_ROWS : out->n;
    ad_part_read_sum(parts, part, begin, end, out->sum + begin);
    for (size_t c = 0; c < members->count; c++) {
      ad_part_read(parts, part, &members->columns[c].piece, begin, end, addend);
      for (size_t i = begin; i < end; i++) {
        double value = factor * expected[c] * addend[i - begin];
        out->right[i] += value;
        out->size[i] += fabs(value);
      }
    }
  }
  for (size_t i = 0; i < out->n; i++) out->at[i] = ad_part_flat(parts, part, i);
}

ad_status ad_part_values_create(const ad_parts *parts, const ad_part *part, const double *expected,
                                ad_part_values *out) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  size_t addends = ad_part_members(parts, part)->count;
  double *addend;
  *out = (ad_part_values){.n = part->count, .share = ad_rounding_share(&rounding, addends)};
  out->least =
      (double)(addends + 1) * rounding.smallest + fabs(parts->param->expect) * rounding.inside * rounding.reduce;
  out->enough = (size_t)(ENOUGH_BITS / fmax(1, -log2(out->share))) + 1;
  AD_TRY(ad_new(AD_ROWS, &addend));
  ad_status status = ad_new(out->n, &out->sum);
  if (!status) status = ad_new(out->n, &out->right);
  if (!status) status = ad_new(out->n, &out->size);
  if (!status) status = ad_new(out->n, &out->at);
  if (!status) read_values(parts, part, expected, addend, out);
  ad_release(addend);
  if (status) ad_part_values_clear(out);
  return status;
}
