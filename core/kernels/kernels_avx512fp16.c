/* The kernels compiled for AVX-512 with its 16-bit floats (FP16 and BF16 besides F, BW, DQ and VL); the code is in
 * kernels_body.h. */
#define KERNELS ad_kernels_avx512fp16
#include "kernels/kernels_body.h"
