/* The update compiled for AVX-512; the code is in adamw_kernel_body.h. */
#define KERNELS ad_adamw_avx512
#include "optim/adamw_kernel_body.h"
