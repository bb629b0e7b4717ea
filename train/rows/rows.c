/* Chooses the variant of the row kernels: the one that the core's vector kernels use, too. The kernels are in
 * rows_dtype.h. */
#include "rows/rows.h"

#include "rows/rows_table.h"

const row_kernels *ad_rows(ad_dtype dtype) {
  static const row_table *const variants[] = {[AD_PLAIN] = &ad_rows_plain,
                                              [AD_AVX2] = &ad_rows_avx2,
                                              [AD_AVX512] = &ad_rows_avx512,
                                              [AD_AVX512FP16] = &ad_rows_avx512fp16};
  const row_table *table = variants[ad_kernels_variant()];
  return dtype == AD_F64 ? table->f64 : dtype == AD_BF16 ? table->bf16 : table->f32;
}
