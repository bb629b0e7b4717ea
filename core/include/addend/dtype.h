/* Element types (dtypes). Conversions between floating types follow IEEE 754: they round to nearest even and keep
 * subnormals, infinities and NaN.
 *
 * For users. Any thread may call these functions at any time, on memory of its own. */
#ifndef ADDEND_DTYPE_H
#define ADDEND_DTYPE_H
#include <stddef.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Collectives take values of all these dtypes; arrays, tensors, parameters and files only those of the first six. A
 * bool is one byte: 0 is false, anything else is true. */
typedef enum ad_dtype { AD_F64 = 1, AD_F32, AD_BF16, AD_F16, AD_I32, AD_I64, AD_U8, AD_I8, AD_I16, AD_BOOL } ad_dtype;

/* How addends combine. Gradients are always summed; the other reductions are for metrics, flags and masks. Sums and
 * products of integers wrap around. Bit operations are for integers and bool. For bools SUM and MAX mean "or", PRODUCT
 * and MIN mean "and", and a result is 0 or 1. There is no average (core/docs/laws.md, law 5). */
typedef enum ad_reduction { AD_SUM, AD_MAX, AD_MIN, AD_PRODUCT, AD_BIT_AND, AD_BIT_OR, AD_BIT_XOR } ad_reduction;

AD_API size_t ad_dtype_size(ad_dtype dtype);      /* bytes; 0 for a number that is no dtype */
AD_API const char *ad_dtype_name(ad_dtype dtype); /* "f64", "bf16", ...; "unknown" for a number that is no dtype */
/* The dtype's name in another format: "safetensors" ("BF16"), "numpy" (the type string of its array interface, without
 * the byte order: "f4"), "torch" (PyTorch, "bfloat16") or "dlpack" (the number of DLDataTypeCode, "4"). NULL where that
 * format does not have the dtype, for a number that is no dtype, and for any other format. */
AD_API const char *ad_dtype_name_in(ad_dtype dtype, const char *format);
/* "f32" -> AD_F32. AD_INVALID, naming the known dtypes, for anything else; *out is then unchanged. */
AD_API AD_CHECKED ad_status ad_dtype_parse(const char *text, ad_dtype *out);
AD_API int ad_dtype_is_float(ad_dtype dtype);
/* The dtype in which sums and statistics of floats are accumulated: f64 for f64, f32 for all others. (Sums of integers
 * are accumulated in their own dtype.) */
AD_API ad_dtype ad_dtype_wide(ad_dtype dtype);
/* dst[i] = (dst_dtype)src[i] for n elements; each is rounded once. Converts between floating dtypes, and copies any
 * dtype to itself. dst and src may overlap only if the dtypes are equal. AD_INVALID, with nothing written, for other
 * pairs of dtypes, and if dst or src is NULL for n > 0. */
AD_API ad_status ad_cast(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n);

#if defined(__cplusplus)
}
#endif
#endif
