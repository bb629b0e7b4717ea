/* Matrix products on row-major memory of f32, f64 or bf16. Products of f64 accumulate in f64, all others in f32. */
#ifndef PRODUCTS_GEMM_H
#define PRODUCTS_GEMM_H
#include <stdint.h>
#include "addend/dtype.h"

/* A matrix as the product sees it: element (i, j) is data[i * stride + j], or data[j * stride + i] if transposed. */
typedef struct gemm_operand {
  const void *data;
  int64_t stride;
  int transposed;
} gemm_operand;

/* c[m, n] = factor * a[m, k] b[k, n], added to c if `adds`. k = 0 gives zeros. a and b are of `values`, c is of
 * `result`: `values`, or f32 where `values` are bf16. c is rounded once: the sum with what stood there forms in the
 * dtype that the product accumulates in. A product may fail, but for f64: see ad_gemm_status. */
void ad_gemm(ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, gemm_operand a,
             gemm_operand b, int adds, void *c, int64_t c_stride);
/* The first failure of this thread's products since the last call, with its message; what such a product should have
 * written is unspecified. */
ad_status ad_gemm_status(void) AD_CHECKED;
/* Before the first product: one thread, or as many as ADDEND_BLAS_THREADS says, and the memory that OpenBLAS needs.
 * AD_MEMORY where the process may not have that, AD_SYSTEM where the threads cannot be started. */
ad_status ad_gemm_prepare(void) AD_CHECKED;
/* AD_MEMORY if ad_gemm_prepare will say so; starts no thread, so that ranks can be forked afterwards. */
ad_status ad_gemm_try(void) AD_CHECKED;

#endif
