/* Reads numbers that PyTorch computed, and measures how far other numbers are from them. Used by ranks and by the test
 * process, so nothing here asserts. */
#ifndef TESTS_ORACLE_NUMBERS_H
#define TESTS_ORACLE_NUMBERS_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "addend/safetensors.h"

#define FIXTURES "programs/tests/oracle/fixtures/"

static inline double largest(const double *values, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = fmax(most, fabs(values[i]));
  return most;
}

// The largest difference; NaN if any number is NaN.
static inline double worst_difference(const double *a, const double *b, size_t n) {
  double worst = 0;
  for (size_t i = 0; i < n; i++) {
    double difference = fabs(a[i] - b[i]);
    if (isnan(difference)) return difference;
    worst = fmax(worst, difference);
  }
  return worst;
}

// An aligned copy of the tensor's numbers (the caller frees it); NULL if the file does not have it in f64.
static inline double *numbers(const ad_safetensors *file, const char *name, size_t *n) {
  const ad_safetensor *tensor = ad_safetensors_find(file, name);
  double *copy = NULL;
  if (tensor && tensor->dtype == AD_F64 && (copy = malloc(tensor->bytes + 1)))
    memcpy(copy, tensor->data, tensor->bytes);
  *n = tensor ? tensor->bytes / sizeof(double) : 0;
  return copy;
}

#endif
