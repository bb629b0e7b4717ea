/* Prepares OpenBLAS for its first product. The products themselves are in gemm.c. */
#ifndef PRODUCTS_BLAS_H
#define PRODUCTS_BLAS_H
#include "addend/status.h"

/* Makes OpenBLAS allocate the memory for this thread's products. `threads`: the number of threads of a product,
 * including this one; there must be memory for all. AD_MEMORY: the process may not have that memory (OpenBLAS itself
 * would retry for ever). Call it before the thread's first product; later calls do nothing. */
ad_status ad_blas_prepare(int threads) AD_CHECKED;
/* Makes OpenBLAS use `threads` threads in this process, including the caller, and starts them. AD_SYSTEM: they
 * cannot be started (OpenBLAS itself would give work to missing threads and wait for them). */
ad_status ad_blas_start_threads(int threads) AD_CHECKED;
/* OpenBLAS's version, and the processor for which its kernels are made, such as "OpenBLAS 0.3.21 SkylakeX". */
const char *ad_blas_name(void);

#endif
