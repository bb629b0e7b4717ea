/* The kernels compiled for AVX2 with FMA and F16C; the code is in kernels_body.h. */
#define KERNELS ad_kernels_avx2
#include "kernels/kernels_body.h"
