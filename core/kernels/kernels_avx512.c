/* The kernels compiled for AVX-512 F, BW, DQ and VL; the code is in kernels_body.h. */
#define KERNELS ad_kernels_avx512
#include "kernels/kernels_body.h"
