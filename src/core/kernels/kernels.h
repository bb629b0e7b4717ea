/* Vector kernels: casts, sums and scaled additions over plain memory. Every variant (plain, AVX2, AVX-512 without and
 * with 16-bit floats) gives the same bits; the widest that the machine has is chosen once, and ranks agree on one when
 * they join. A conversion keeps a NaN's sign and the top of its payload and makes it quiet; a NaN that comes out of
 * arithmetic is the canonical one.
 *
 * "Past the caches" means with stores that write to memory without reading the old lines into a cache first. That is
 * faster for outputs that are too large to be found in a cache when they are read. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "addend/status.h"
#include "base/internal.h"

typedef enum ad_variant { AD_PLAIN, AD_AVX2, AD_AVX512, AD_AVX512FP16 } ad_variant;

/* The widest variant that this machine runs; ADDEND_KERNELS=plain|avx2|avx512|avx512fp16 in the environment lowers it.
 */
ad_variant ad_kernels_best(void);
/* AD_INVALID, listing the variants, if ADDEND_KERNELS names none of them. */
ad_status ad_kernels_check(void) AD_CHECKED;
AD_INTERNAL ad_variant ad_kernels_variant(void); /* in use now */
void ad_kernels_choose(ad_variant variant);      /* a wider one than ad_kernels_best() means that one */

/* dst[i] = (dst_dtype)(factor * src[i]), the product formed in f64 if either dtype is f64 and in f32 otherwise.
 * Floating dtypes; dst == src is allowed when the dtypes are equal. */
AD_INTERNAL void ad_cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                                size_t n);
/* As ad_cast_scaled, or with factor 1 as ad_cast, but dst is written past the caches and must not overlap src. */
void ad_cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* dst[i] += factor * src[i], formed in dst's dtype if that is f64, in f32 otherwise, then rounded to dst's dtype.
 * factor 1 is a plain sum. Floating dtypes. */
AD_INTERNAL void ad_accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                               size_t n);
/* How ad_reduce combines its sources: result[i] is the reduction over j of (accumulate)sources[j][i], in the order of
 * the tree (tree.h). */
typedef struct ad_reducing {
  ad_dtype dtype;      /* of the sources */
  ad_dtype accumulate; /* AD_F32 or AD_F64; integers and bool take their own dtype */
  ad_reduction reduction;
  ad_dtype out_dtype; /* the result is rounded to it once, at the end; 0: dtype. Integers and bool keep theirs */
  int shift;          /* sums of floats: the result is the sum times 2^shift */
  int adds;           /* 1: the result is added to what stands in the outputs, whose dtype is `accumulate` */
  int past;           /* 1: outputs that are no sources are written past the caches */
  size_t first;       /* the sources stand for the indices from this one on, which are one part of the tree */
  /* For how many indices each source stands, which are one part of the tree; NULL: for one each. A source of several
   * has their result already, in the accumulate dtype. */
  const uint32_t *leaves;
} ad_reducing;
/* The core of every reduction: writes the result of n elements to out[k] for every k < out_count, in one pass that
 * reads each source once and writes each output once. source_count >= 1. An output either is one of the sources (the
 * same pointer; inputs and outputs then have elements of one size, and nothing is added) or overlaps none. Integer sums
 * and products wrap around; the maximum or minimum with a NaN is NaN; a bool is written as 0 or 1. */
void ad_reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
               const ad_reducing *how, size_t n);
/* values[i] keeps the digits of bf16, in its own dtype: what mistakes do to values that were promised more. */
AD_INTERNAL void ad_round_to_bf16(void *values, ad_dtype dtype, size_t numel);
/* Copies memory that does not overlap: ad_copy_past past the caches, ad_copy so only if the piece is large. */
AD_INTERNAL void ad_copy(void *dst, const void *src, size_t bytes);
void ad_copy_past(void *dst, const void *src, size_t bytes);
/* The same to memory that another core reads next, and read before: past the caches where that is faster. AMD's cores
 * take back lines that another one holds a copy of one after another (docs/rationale.md). */
void ad_copy_shared(void *dst, const void *src, size_t bytes);
/* 1 if a piece of work whose ranks together read and write `bytes` should write past the caches, because its outputs
 * are read only when all of it is done. Of smaller work a part of the outputs is still in a cache then, so that
 * ordinary stores are faster. docs/rationale.md says why the limit is where it is. */
int ad_is_past_caches(size_t bytes);

#endif
