/* Prepares OpenBLAS for its first product. The products themselves are made elsewhere. */
#ifndef PRODUCTS_BLAS_H
#define PRODUCTS_BLAS_H
#include "addend/status.h"

/* Makes OpenBLAS allocate the memory for this thread's products. `threads`: how many threads will help, this one
 * included; there must be room for all. AD_MEMORY: the process may not have so much (OpenBLAS itself would retry for
 * ever). Call it before the thread's first product; later calls do nothing. */
ad_status ad_blas_prepare(int threads) AD_CHECKED;
/* Makes OpenBLAS use so many threads in this process, the caller's included, and starts them. AD_SYSTEM: they cannot be
 * started (OpenBLAS itself would give work to missing threads and wait for it). */
ad_status ad_blas_start_threads(int threads) AD_CHECKED;
/* OpenBLAS's version and the processor whose kernels it uses, such as "OpenBLAS 0.3.21 SkylakeX". */
const char *ad_blas_name(void);

#endif
