/* Compares a distributed gradient with its reference: their ratio and the worst error of an element. */
#include <math.h>

#include "check/result.h"

static double value_at(const void *values, ad_dtype dtype, size_t i) {
  return dtype == AD_F64 ? ((const double *)values)[i] : ((const float *)values)[i];
}

double ad_largest(const void *values, ad_dtype dtype, size_t numel) {
  double largest = 0;
  for (size_t i = 0; i < numel; i++) largest = fmax(largest, fabs(value_at(values, dtype, i)));
  return largest;
}

static double worst_difference(const void *dist, const void *ref, ad_dtype dtype, size_t numel) {
  double worst = 0;
  for (size_t i = 0; i < numel; i++) {
    double difference = fabs(value_at(dist, dtype, i) - value_at(ref, dtype, i));
    if (isnan(difference)) return NAN;
    worst = fmax(worst, difference);
  }
  return worst;
}

static double dot(const void *a, const void *b, ad_dtype dtype, size_t numel) {
  double sum = 0;
  for (size_t i = 0; i < numel; i++) sum += value_at(a, dtype, i) * value_at(b, dtype, i);
  return sum;
}

void ad_compare(const void *dist, const void *ref, ad_dtype dtype, size_t numel, double largest, double *ratio,
                double *max_rel_err) {
  double square = dot(ref, ref, dtype, numel), worst = worst_difference(dist, ref, dtype, numel);
  double scale = fmax(ad_largest(ref, dtype, numel), 1e-6 * largest);
  if (square > 0)
    *ratio = dot(dist, ref, dtype, numel) / square;
  else
    *ratio = worst == 0 ? 1 : NAN;
  *max_rel_err = worst == 0 ? 0 : worst / scale;
}

double ad_norm_of(const double *values, size_t numel) { return sqrt(dot(values, values, AD_F64, numel)); }

double ad_cosine(const double *a, const double *b, size_t numel) {
  double squares = dot(a, a, AD_F64, numel) * dot(b, b, AD_F64, numel);
  return squares > 0 ? dot(a, b, AD_F64, numel) / sqrt(squares) : NAN;
}

double ad_relative_difference(double a, double b) {
  if (!isfinite(a) || !isfinite(b)) return NAN;
  return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}
