/* Chooses the variant of the update: the same variant as that of the kernels (kernels/kernels.h). adamw_kernel_body.h
 * has the update itself. */
#include "optim/adamw_kernel.h"

#include "kernels/kernels.h"

const adamw_kernels *ad_adamw_kernels(void) {
  static const adamw_kernels *const variants[] = {[AD_PLAIN] = &ad_adamw_plain,
                                                  [AD_AVX2] = &ad_adamw_avx2,
                                                  [AD_AVX512] = &ad_adamw_avx512,
                                                  [AD_AVX512FP16] = &ad_adamw_avx512};
  return variants[ad_kernels_variant()];
}
