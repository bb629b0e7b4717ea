/* The table of functions that each variant of the kernels exports: functions of kernels.h, compiled for the variant's
 * instruction set. */
#ifndef KERNELS_KERNELS_TABLE_H
#define KERNELS_KERNELS_TABLE_H
#include "kernels/kernels.h"

/* Member NAME is the function ad_NAME as kernels.h documents it. Every variant gives the same bits. */
typedef struct kernel_table {
  void (*cast)(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n);
  void (*cast_scaled)(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
  void (*cast_past)(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
  void (*accumulate)(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
  void (*reduce)(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
                 const ad_reducing *how, size_t n);
  void (*copy_past)(void *dst, const void *src, size_t bytes);
} kernel_table;

extern const kernel_table ad_kernels_plain, ad_kernels_avx2, ad_kernels_avx512, ad_kernels_avx512fp16;

#endif
