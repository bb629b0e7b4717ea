/* Matrix products in row-major memory of f32, f64 or bf16. Products of f64 accumulate in f64, all others in f32. */
#ifndef PRODUCTS_GEMM_H
#define PRODUCTS_GEMM_H
#include <stdint.h>
#include "addend/dtype.h"

/* A matrix operand: element (i, j) is data[i * stride + j], or data[j * stride + i] if transposed. */
typedef struct gemm_operand {
  const void *data;
  int64_t stride;
  int transposed;
} gemm_operand;

/* c[m, n] = factor * a[m, k] b[k, n], plus c if `adds`. k = 0 gives zeros. a and b have dtype `values`; c has dtype
 * `result`: `values`, or f32 if `values` is bf16. c is rounded once, after its earlier value was added. Products of
 * dtypes other than f64 may fail: see ad_gemm_status. */
void ad_gemm(ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, gemm_operand a,
             gemm_operand b, int adds, void *c, int64_t c_stride);
/* Returns the first failure of this thread's products since the previous call, with its message. The output of a
 * failed product is unspecified. */
ad_status ad_gemm_status(void) AD_CHECKED;
/* Before the first product: starts ADDEND_BLAS_THREADS threads (default 1) and allocates OpenBLAS's memory.
 * AD_MEMORY: the process may not have the memory; AD_SYSTEM: the threads cannot be started. */
ad_status ad_gemm_prepare(void) AD_CHECKED;
/* AD_MEMORY if ad_gemm_prepare would fail with AD_MEMORY. Starts no thread, so that ranks can be forked afterwards. */
ad_status ad_gemm_try(void) AD_CHECKED;

#endif
