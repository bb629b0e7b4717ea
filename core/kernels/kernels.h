/* Vector kernels: casts, sums and scaled additions over plain memory. There are four variants (plain, AVX2, AVX-512
 * without and with 16-bit floats), which all give the same bits. A process chooses the widest variant that its machine
 * supports; ranks agree on one variant when they join. A conversion keeps a NaN's sign and the upper bits of its
 * payload and makes the NaN quiet; a NaN that results from arithmetic is always the same, canonical NaN.
 *
 * "Past the caches" means with stores that write to memory without first reading the old lines into a cache. That is
 * faster for outputs that are too large to still be in a cache when they are read. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "addend/status.h"
#include "base/internal.h"

typedef enum ad_variant { AD_PLAIN, AD_AVX2, AD_AVX512, AD_AVX512FP16 } ad_variant;

/* The widest variant that this machine supports; ADDEND_KERNELS=plain|avx2|avx512|avx512fp16 in the environment limits
 * it. */
ad_variant ad_kernels_best(void);
/* Returns AD_INVALID, with a list of the variants, if ADDEND_KERNELS names none of them. */
ad_status ad_kernels_check(void) AD_CHECKED;
AD_INTERNAL ad_variant ad_kernels_variant(void); /* the variant in use */
void ad_kernels_choose(ad_variant variant);      /* limited to ad_kernels_best() */

/* dst[i] = (dst_dtype)(factor * src[i]), the product formed in f64 if either dtype is f64 and in f32 otherwise.
 * Floating dtypes; dst == src is allowed when the dtypes are equal. */
AD_INTERNAL void ad_cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                                size_t n);
/* Like ad_cast_scaled, or for factor 1 like ad_cast, but writes dst past the caches. dst must not overlap src. */
void ad_cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* dst[i] += factor * src[i]. The sum is formed in f64 if dst is f64 and in f32 otherwise, and is then rounded to dst's
 * dtype. Factor 1 is a plain sum. Floating dtypes. */
AD_INTERNAL void ad_accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                               size_t n);
/* How ad_reduce combines its sources: result[i] is the reduction over j of (accumulate)sources[j][i], in the order of
 * the tree (tree.h). */
typedef struct ad_reducing {
  ad_dtype dtype;      /* dtype of the sources */
  ad_dtype accumulate; /* dtype in which the result is formed: AD_F32 or AD_F64; integers and bool use their own */
  ad_reduction reduction;
  ad_dtype out_dtype; /* dtype of the outputs, rounded to once at the end; 0: `dtype`. Integers and bool keep theirs. */
  int shift;          /* for sums of floats: the result is the sum times 2^shift */
  int adds;           /* 1: the result is added to the contents of the outputs, which have the accumulate dtype */
  int past;           /* 1: outputs that are not also sources are written past the caches */
  size_t first; /* the sources are the addends with the indices from `first` on, which form one part of the tree */
  /* For each source, the number of indices that it covers; NULL: one each. The indices of a source form one part of the
   * tree. A source that covers several indices is their result already, in the accumulate dtype. */
  const uint32_t *leaves;
} ad_reducing;
/* The core of every reduction: writes the result of n elements to out[k] for every k < out_count, in one pass that
 * reads each source and writes each output once. source_count >= 1. An output may be the same pointer as one of the
 * sources (then elements of inputs and outputs have the same size and `adds` is 0); otherwise it overlaps no source.
 * Integer sums and products wrap around; a maximum or minimum with a NaN is NaN; a bool is written as 0 or 1. */
void ad_reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
               const ad_reducing *how, size_t n);
/* Rounds values to the precision of bf16 but keeps their dtype. For mutations of values with a wider precision
 * policy. */
AD_INTERNAL void ad_round_to_bf16(void *values, ad_dtype dtype, size_t numel);
/* Copy memory; dst and src must not overlap. ad_copy_past writes past the caches, ad_copy does so only for large
 * pieces. */
AD_INTERNAL void ad_copy(void *dst, const void *src, size_t bytes);
void ad_copy_past(void *dst, const void *src, size_t bytes);
/* Copies to memory that another core has read and will read next; past the caches if this is faster. On AMD's
 * processors ordinary stores must first take the lines back, one after another, from the other core's cache
 * (docs/rationale.md). */
void ad_copy_shared(void *dst, const void *src, size_t bytes);
/* Returns 1 if an operation whose ranks together read and write `bytes` should write past the caches, because its
 * outputs are only read when all of it is done. After smaller operations part of the outputs is still in a cache, so
 * ordinary stores are faster. docs/rationale.md says how the limit was chosen. */
int ad_is_past_caches(size_t bytes);

#endif
