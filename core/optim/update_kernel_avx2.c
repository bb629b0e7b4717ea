/* The updates compiled for AVX2; the code is in update_kernel_body.h. */
#define KERNELS ad_updates_avx2
#include "optim/update_kernel_body.h"
