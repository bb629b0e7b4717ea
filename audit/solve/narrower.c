/* Tests whether a part of a sum was rounded to a narrower dtype than the dump's. */
#include "solve/narrower.h"

#include <math.h>
#include "base/roundoff.h"

/* A rounding that takes more of the addends than this explains nothing. */
#define LARGEST_SHARE 0.25

ad_status ad_narrower_find(const ad_parts *parts, const ad_part *part, const double *counts, size_t spare, double bits,
                           ad_narrower *out) {
  ad_rounding own = ad_rounding_of(parts, part), wide = own;
  size_t n = ad_part_members(parts, part)->count;
  *out = (ad_narrower){0};
  for (ad_dtype dtype = AD_F64; (dtype = ad_dtype_coarser(dtype)) && !out->dtype;) {
    wide.reduce = wide.sum = ad_unit_roundoff(dtype);
    double share = ad_rounding_share(&wide, n);
    if (wide.reduce <= own.reduce || share > LARGEST_SHARE || (double)spare * -log2(share) < bits) continue;
    AD_TRY(ad_part_test(parts, part, counts, parts->param->expect, &wide, &out->fitness));
    out->dtype = out->fitness.holds ? dtype : 0;
    out->share = share;
  }
  return AD_OK;
}

double ad_narrower_bits(const ad_parts *parts, const ad_part *part, const ad_narrower *narrower, size_t spare) {
  ad_rounding own = ad_rounding_of(parts, part);
  return (double)spare * log2(narrower->share / ad_rounding_share(&own, ad_part_members(parts, part)->count));
}

/* Returns 1 if the number has at most 16 binary digits: it may be one of a narrow dtype without having been rounded. */
static int is_short(double number) {
  int exponent;
  double digits = ldexp(frexp(number, &exponent), 16);
  return digits == rint(digits);
}

int ad_narrower_is_shown(const ad_parts *parts, const ad_part *part, const double *counts) {
  enum { BITS = 16 }; /* of one sum in 65536 so many are zeros by chance */
  const ad_members *members = ad_part_members(parts, part);
  double *sum = parts->rows, *combined = sum + AD_ROWS, *addend = combined + AD_ROWS;
  size_t n = part->count < AD_ROWS ? part->count : AD_ROWS, wide = 0;
  ad_dtype stored = part->terms[0].tensor->dtype;
  if (part->term_count > 1) return 0;
  for (size_t i = 0; i < n; i++) combined[i] = 0;
  for (size_t c = 0; c < members->count; c++) {
    ad_part_read(parts, part, &members->columns[c].piece, 0, n, addend);
    for (size_t i = 0; i < n; i++) combined[i] += parts->param->expect * counts[c] * addend[i];
  }
  ad_part_read_sum(parts, part, 0, n, sum);
  for (size_t i = 0; i < n; i++) wide += sum[i] != 0 && !is_short(combined[i]);
  for (ad_dtype dtype = stored; (dtype = ad_dtype_coarser(dtype));) {
    size_t numbers = 0;
    while (numbers < n && ad_is_number_of(dtype, sum[numbers])) numbers++;
    double bits = log2(ad_unit_roundoff(dtype) / ad_unit_roundoff(stored));
    if (numbers == n && (double)wide * bits >= BITS) return 1;
  }
  return 0;
}
