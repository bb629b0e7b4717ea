/* Matrix products in plain memory, outside a tape, for what a program computes besides its steps. On a tape, ad_linear
 * and similar operations make products together with their gradients.
 *
 * For authors of operations and programs. Any thread may call these functions at any time, on memory of its own. */
#ifndef ADDEND_PRODUCTS_H
#define ADDEND_PRODUCTS_H
#include "addend/optim.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A product: out [m, n] = factor * a [m, k] b [k, n]. */
typedef struct ad_matrix_product {
  size_t size;     /* sizeof(ad_matrix_product) */
  ad_dtype dtype;  /* dtype of all three matrices: AD_F64, whose products are summed in f64, or AD_F32 */
  int64_t m, n, k; /* each 0 or more; k = 0 gives zeros */
  ad_matrix a, b;
  double factor; /* 0 means 1 */
  int adds;      /* 1: adds the product to the contents of out */
  void *out;     /* must not overlap a or b */
  int64_t out_stride;
} ad_matrix_product;

/* Computes the product on one thread, with the same library as products in training. AD_INVALID for another dtype, a
 * negative size, rows that overlap or memory that is NULL; AD_MEMORY. After an error nothing was written. */
AD_API AD_CHECKED ad_status ad_multiply_matrices(const ad_matrix_product *product);

#if defined(__cplusplus)
}
#endif
#endif
