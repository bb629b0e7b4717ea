/* Vector kernels: casts, sums and scaled additions over plain memory. There are four variants (plain, AVX2, AVX-512
 * without and with 16-bit floats), and all give the same bits. A process chooses the widest variant that its machine
 * supports; ranks agree on one variant when they join. A conversion of a NaN keeps its sign and the upper bits of its
 * payload and makes it a quiet NaN; a NaN that results from arithmetic is always one canonical NaN.
 *
 * "Past the caches" means: with non-temporal stores, which write to memory without first reading the old lines into a
 * cache. They are faster for outputs so large that they would leave the caches again before they are read. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "addend/status.h"
#include "base/internal.h"

typedef enum ad_variant { AD_PLAIN, AD_AVX2, AD_AVX512, AD_AVX512FP16 } ad_variant;

/* Returns the widest variant that this machine supports, but none wider than the environment variable ADDEND_KERNELS
 * (plain, avx2, avx512 or avx512fp16) allows. */
ad_variant ad_kernels_best(void);
/* Returns AD_INVALID, with a list of the variants, if ADDEND_KERNELS is set and names none of them. */
ad_status ad_kernels_check(void) AD_CHECKED;
AD_INTERNAL ad_variant ad_kernels_variant(void); /* the variant in use */
AD_INTERNAL const char *ad_kernels_name(ad_variant variant);
void ad_kernels_choose(ad_variant variant); /* chooses a variant, but none wider than ad_kernels_best() */

/* dst[i] = (dst_dtype)(factor * src[i]). The product is computed in f64 if either dtype is f64, and in f32 otherwise.
 * Floating dtypes only; dst == src is allowed if the dtypes are equal. */
AD_INTERNAL void ad_cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                                size_t n);
/* Like ad_cast_scaled, or for factor 1 like ad_cast, but writes dst past the caches. dst must not overlap src. */
void ad_cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* dst[i] += factor * src[i]. The sum is computed in f64 if dst is f64 and in f32 otherwise, and is then rounded to
 * dst's dtype. Floating dtypes only. */
AD_INTERNAL void ad_accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor,
                               size_t n);
/* How ad_reduce combines its sources: result[i] is the reduction over j of (accumulate)sources[j][i], in the order of
 * the tree (tree.h, or with `aligned` nodes.h). */
typedef struct ad_reducing {
  ad_dtype dtype; /* dtype of the sources */
  /* dtype in which the result is accumulated: AD_F32 or AD_F64; for integers and bool their own dtype */
  ad_dtype accumulate;
  ad_reduction reduction;
  /* dtype of the outputs, to which results are rounded once; 0: `dtype`; integers and bool keep their dtype */
  ad_dtype out_dtype;
  int shift; /* for sums of floats: the result is the sum times 2^shift */
  int adds;  /* 1: the result is added to the contents of the outputs, which have the accumulate dtype */
  int past;  /* 1: outputs that are not also sources are written past the caches */
  /* The sources are consecutive addends of a larger tree and form one part of it: index of their first addend in that
   * tree. */
  size_t first;
  /* For each source, the number of addends that it is the result of; NULL: one each. The addends of one source form one
   * part of the tree. A source of several addends is their sum (or other reduction) in the accumulate dtype. */
  const uint32_t *leaves;
  /* 1: the sources are leaves, or sums of leaves, and are summed by the aligned tree over leaves (nodes.h), of which
   * they form one node. `leaves` must then not be NULL, and `first` must be 0. */
  int aligned;
} ad_reducing;
/* The core of every reduction: writes the result of n elements to out[k] for every k < out_count, in one pass that
 * reads each source and writes each output once. source_count must be at least 1. An output may be the same pointer as
 * one of the sources, if elements of sources and outputs have the same size and `adds` is 0; otherwise it must overlap
 * no source. Integer sums and products wrap around; a maximum or minimum with a NaN is NaN; a bool is written as 0 or
 * 1. */
void ad_reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
               const ad_reducing *how, size_t n);
/* Rounds values to the precision of bf16 but keeps their dtype. For mutations that lose precision, of values whose
 * precision policy is wider. */
AD_INTERNAL void ad_round_to_bf16(void *values, ad_dtype dtype, size_t numel);
/* ad_copy and ad_copy_past copy memory; dst and src must not overlap. ad_copy_past writes past the caches; ad_copy does
 * that only if the copy is large. */
void ad_copy(void *dst, const void *src, size_t bytes);
void ad_copy_past(void *dst, const void *src, size_t bytes);
/* Copies to memory that another core has read and will read next; writes past the caches if this is faster. On AMD's
 * processors ordinary stores would first have to fetch the lines from the other core's cache, one after another
 * (docs/rationale.md). */
void ad_copy_shared(void *dst, const void *src, size_t bytes);
/* Returns 1 if an operation whose ranks together read and write `bytes` bytes should write past the caches, because its
 * outputs are only read when the whole operation is done. After a smaller operation part of the outputs is still in a
 * cache, and ordinary stores are faster. docs/rationale.md says how the limit was chosen. */
int ad_is_past_caches(size_t bytes);

#endif
