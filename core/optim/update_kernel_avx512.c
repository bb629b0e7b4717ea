/* The updates compiled for AVX-512; the code is in update_kernel_body.h. */
#define KERNELS ad_updates_avx512
#include "optim/update_kernel_body.h"
