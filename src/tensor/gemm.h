/* Matrix products from OpenBLAS, on row-major memory of f32 or f64. */
#ifndef TENSOR_GEMM_H
#define TENSOR_GEMM_H
#include <stdint.h>
#include "addend/dtype.h"

/* A matrix as the product sees it: element (i, j) is data[i * stride + j], or data[j * stride + i] if transposed. */
typedef struct gemm_operand {
  const void *data;
  int64_t stride;
  int transposed;
} gemm_operand;

/* c[m, n] = factor * a[m, k] b[k, n], added to c if `adds`. k = 0 gives zeros. */
void ad_gemm(ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, gemm_operand a, gemm_operand b, int adds,
             void *c, int64_t c_stride);
/* One thread, or as many as ADDEND_BLAS_THREADS says. */
void ad_gemm_set_threads(void);

#endif
