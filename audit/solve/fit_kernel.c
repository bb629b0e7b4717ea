/* Chooses the variant of the fit's loops for the instruction set that all kernels use. The loops
 * are in fit_kernel_body.h. */
#include "solve/fit_kernel.h"

#include "kernels/kernels.h"

const fit_kernels *ad_fit_kernels(void) {
  static const fit_kernels *const variants[] = {[AD_PLAIN] = &ad_fit_plain,
                                                [AD_AVX2] = &ad_fit_avx2,
                                                [AD_AVX512] = &ad_fit_avx512,
                                                [AD_AVX512FP16] = &ad_fit_avx512};
  return variants[ad_kernels_variant()];
}
