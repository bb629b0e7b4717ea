/* Vector kernels: casts, sums and scaled additions over plain memory. Every variant (plain, AVX2, AVX-512 without and
 * with 16-bit floats) gives the same bits; the widest that the machine has is chosen once, and ranks agree on one when
 * they join. A conversion keeps a NaN's sign and the top of its payload and makes it quiet; a NaN that comes out of
 * arithmetic is the canonical one.
 */
#ifndef BASE_KERNELS_H
#define BASE_KERNELS_H
#include <stddef.h>
#include "addend/dtype.h"
#include "addend/status.h"

typedef enum ad_variant { AD_PLAIN, AD_AVX2, AD_AVX512, AD_AVX512FP16 } ad_variant;

ad_variant ad_kernels_best(
    void); /* the widest this machine runs; ADDEND_KERNELS=plain|avx2|avx512|avx512fp16 lowers it */
ad_status ad_kernels_check(void) AD_CHECKED; /* AD_INVALID, with the names there are, if ADDEND_KERNELS is none */
const char *ad_variant_name(ad_variant variant);
ad_variant ad_kernels_variant(void);        /* in use now */
void ad_kernels_choose(ad_variant variant); /* not wider than ad_kernels_best() */

/* dst[i] = (dst_dtype)src[i]; each conversion rounds once. Floating dtypes, and i32/i64 to themselves. dst == src
 * allowed when the dtypes are equal. */
void ad_cast(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n);
/* dst[i] = (dst_dtype)(factor * src[i]), the product formed in f64 if either dtype is f64 and in f32 otherwise.
 * Floating dtypes; dst == src allowed when the dtypes are equal. */
void ad_cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* As ad_cast_scaled, and with factor 1 as ad_cast, but past the caches; dst and src are apart. */
void ad_cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* dst[i] += factor * src[i], formed in dst's dtype if that is f64, in f32 otherwise, then rounded to dst's dtype.
 * factor 1 is a plain sum. Floating dtypes. */
void ad_accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n);
/* How a reduction forms: the sum, maximum or minimum over j of (accumulate)sources[j][i], in the order of the sources.
 */
typedef struct ad_reducing {
  ad_dtype dtype;      /* of the sources */
  ad_dtype accumulate; /* AD_F32 or AD_F64; for integers their own dtype */
  ad_reduction reduction;
  ad_dtype out_dtype; /* rounded to once, at the end; 0: dtype. Integers only to themselves */
  int shift;          /* sums of floats: the sum times 2^shift is what is written */
  int adds;           /* 1: that is added to what stands in the outs, whose dtype is `accumulate` */
  int past;           /* 1: past the caches, if the outs are no sources */
} ad_reducing;
/* Writes it to out[k] for every k < out_count. One pass: reads each source once, writes each out once; an out may be
 * one of the sources if the elements have one size (the same pointer; otherwise apart, and apart where it adds).
 * source_count >= 1; integer sums wrap around; the maximum or minimum with a NaN is NaN. The core of every reduction.
 */
void ad_reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
               const ad_reducing *how, size_t n);
/* Copies; a large piece past the caches. */
void ad_copy(void *dst, const void *src, size_t bytes);
void ad_copy_past(void *dst, const void *src, size_t bytes);
/* Whether work whose ranks together touch so many bytes writes past the caches, what it writes being read when all of
 * it is done. Of less, part would still lie in a cache; of more, no line is fetched only to be overwritten. Why the
 * limit stands where it does: docs/rationale.md. */
int ad_is_past_caches(size_t bytes);

#endif
