/* Products of row-major matrices of f32, f64 or bf16. Products of f64 accumulate in f64, all others in f32. */
#ifndef PRODUCTS_GEMM_H
#define PRODUCTS_GEMM_H
#include "addend/products.h"

/* Computes c[m, n] = factor * a[m, k] b[k, n], plus the earlier c if `adds`. If k = 0, the product is zero. a and b
 * have the dtype `values`. c has the dtype `result`: that of `values`, or f32 if `values` is bf16. c is rounded once,
 * after its earlier value was added. Products of dtypes other than f64 may fail: see ad_gemm_status. */
void ad_gemm(ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b,
             int adds, void *c, int64_t c_stride);
/* Returns the first failure of this thread's products since the previous call of this function, with its message. The
 * output of a failed product is undefined. */
ad_status ad_gemm_status(void) AD_CHECKED;
/* Starts ADDEND_BLAS_THREADS threads (default 1) and allocates OpenBLAS's memory. Must be called before the first
 * product. Returns AD_MEMORY if the process cannot have the memory, AD_SYSTEM if the threads cannot be started. */
ad_status ad_gemm_prepare(void) AD_CHECKED;
/* Returns AD_MEMORY if ad_gemm_prepare would. Starts no thread, so ranks can be forked after this call. */
ad_status ad_gemm_try(void) AD_CHECKED;
/* Computes a product as ad_optimizer_product.multiply (addend/optim.h) says. `context` is not used. Also makes products
 * of bf16 with a bf16 result, which are summed in f32 and rounded once. */
ad_status ad_gemm_multiply(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                           ad_matrix b, int adds, void *c, int64_t c_stride) AD_CHECKED;

#endif
