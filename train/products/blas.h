/* Prepares OpenBLAS for its first product. gemm.c calls the products themselves. */
#ifndef PRODUCTS_BLAS_H
#define PRODUCTS_BLAS_H
#include "addend/status.h"

int ad_blas_threads(void); /* returns the number of threads of a product: ADDEND_BLAS_THREADS, default 1 */
/* Makes OpenBLAS allocate the memory for this thread's products. `threads` is the number of threads that compute a
 * product, including this one; there must be memory for all. Returns AD_MEMORY if the process cannot have that memory
 * (OpenBLAS itself would retry for ever). Must be called before the thread's first product; later calls do nothing. */
ad_status ad_blas_prepare(int threads) AD_CHECKED;
/* Makes OpenBLAS use `threads` threads in this process, including the caller, and starts them. Returns AD_SYSTEM if
 * they cannot be started (OpenBLAS itself would give work to missing threads and wait for it). */
ad_status ad_blas_start_threads(int threads) AD_CHECKED;
/* Returns OpenBLAS's version and the processor that its kernels are for, such as "OpenBLAS 0.3.21 SkylakeX". */
const char *ad_blas_name(void);

#endif
