/* The fit's loops compiled for the instruction set that is called AVX-512; the code is in fit_kernel_body.h. */
#define KERNELS ad_fit_avx512
#define REGISTER 64
#define SIDE 4
#include "solve/fit_kernel_body.h"
