/* Operations along one dimension: the elements of an array as [before, size, after] of it. */
#ifndef TENSOR_ALONG_H
#define TENSOR_ALONG_H
#include "tensor/operation.h"

typedef struct along {
  size_t before, size, after; /* local */
} along;
along ad_along(const ad_array *array, int dim);

/* AD_INVALID: operand i has no such dimension. */
ad_status ad_check_dim(const ad_tensor *out, int i, int dim) AD_CHECKED;
/* The letters of a value's dimensions, "abc", without number `without` (-1: all of them). Returns the end. */
char *ad_put_letters(char *to, int ndim, int without);
/* The one letter of dimension `dim` there. */
static inline char ad_letter_of(int dim) { return (char)('a' + dim); }

#endif
