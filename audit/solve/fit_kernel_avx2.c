/* The fit's loops compiled for the instruction set that is called AVX2; the code is in fit_kernel_body.h. */
#define KERNELS ad_fit_avx2
#define REGISTER 32
#define SIDE 3
#include "solve/fit_kernel_body.h"
