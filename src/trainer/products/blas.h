/* What OpenBLAS needs before its first product. The products themselves are elsewhere. */
#ifndef PRODUCTS_BLAS_H
#define PRODUCTS_BLAS_H
#include "addend/status.h"

/* Gives OpenBLAS the memory in which it makes this thread's products. `threads`: how many of its own will help, this
 * one included, for which there must be room too. AD_MEMORY where the process may not have it: OpenBLAS itself would
 * ask again for ever. To be called before any of its products; a thread that has it asks for nothing. */
ad_status ad_blas_prepare(int threads) AD_CHECKED;
/* Has OpenBLAS make this process's products on so many threads, the caller's included, which it starts at once.
 * AD_SYSTEM where they cannot be started: OpenBLAS itself would give work to those that are missing, and wait for it.
 */
ad_status ad_blas_start_threads(int threads) AD_CHECKED;
/* Such as "OpenBLAS 0.3.21 SkylakeX": its version and the processor whose kernels it took. */
const char *ad_blas_name(void);

#endif
