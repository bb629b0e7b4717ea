/* The update compiled for AVX2; the code is in adamw_kernel_body.h. */
#define KERNELS ad_adamw_avx2
#include "optim/adamw_kernel_body.h"
