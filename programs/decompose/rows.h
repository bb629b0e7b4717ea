/* Operations on rows of f64 that are not on a tape, for products of small matrices. */
#ifndef DECOMPOSE_ROWS_H
#define DECOMPOSE_ROWS_H
#include <stdint.h>

/* Adds factor * from[k] to to[k]. */
static inline void ad_row_add(double *restrict to, const double *restrict from, double factor, int64_t count) {
  for (int64_t k = 0; k < count; k++) to[k] += factor * from[k];
}

static inline double ad_row_dot(const double *a, const double *b, int64_t count) {
  double sum = 0;
  for (int64_t k = 0; k < count; k++) sum += a[k] * b[k];
  return sum;
}

#endif
