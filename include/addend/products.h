/* Matrix products in plain memory, outside a tape: for what a program computes beside its steps. On a tape ad_linear
 * and its kin make them, with their gradients. */
#ifndef ADDEND_PRODUCTS_H
#define ADDEND_PRODUCTS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A matrix as a product reads it. */
typedef struct ad_matrix {
  const void *data;
  int64_t stride; /* elements of memory from the start of one row to that of the next */
  int transposed; /* 1: element (i, j) is data[j * stride + i]; 0: data[i * stride + j] */
} ad_matrix;

/* out [m, n] = factor * a [m, k] b [k, n]. */
typedef struct ad_matrix_product {
  size_t size;     /* sizeof(ad_matrix_product) */
  ad_dtype dtype;  /* of all three: AD_F64, whose sums form in f64, or AD_F32 */
  int64_t m, n, k; /* each 0 or more; k = 0 gives zeros */
  ad_matrix a, b;
  double factor; /* 0: 1 */
  int adds;      /* 1: the product is added to what stands in out */
  void *out;     /* apart from a and b */
  int64_t out_stride;
} ad_matrix_product;

/* By the library that makes the products of a training, on one thread. AD_INVALID for another dtype, a negative size,
 * rows that overlap or memory that is NULL; AD_MEMORY; nothing was written then. */
AD_API AD_CHECKED ad_status ad_multiply_matrices(const ad_matrix_product *product);

#if defined(__cplusplus)
}
#endif
#endif
