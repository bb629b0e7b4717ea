/* Operations along one dimension see an array as [before, size, after]: the number of elements before the dimension,
 * in it, and after it. */
#ifndef TENSOR_ALONG_H
#define TENSOR_ALONG_H
#include "tensor/operation.h"

typedef struct along {
  size_t before, size, after; /* numbers of local elements */
} along;
along ad_along(const ad_array *array, int dim);

/* Checks that operand i has dimension `dim`; AD_INVALID if not. */
ad_status ad_check_dim(const ad_tensor *out, int i, int dim) AD_CHECKED;
/* Writes one letter for each of `ndim` dimensions ("abc"), but none for dimension `without` (-1: all are written).
 * Returns the end of the text. */
char *ad_put_letters(char *to, int ndim, int without);
/* Returns the letter that ad_put_letters writes for dimension `dim`. */
static inline char ad_letter_of(int dim) { return (char)('a' + dim); }

#endif
