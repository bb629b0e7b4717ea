/* The kernels, compiled once per variant under the name KERNELS. Every loop is written so that any vector width gives
 * the same bits: no sum is reassociated, no product is fused, and a NaN that arithmetic makes or meets becomes the one
 * canonical NaN (its payload would depend on the order in which an instruction takes its operands).
 * Which variant runs is decided in kernels.c. */
#include <stdint.h>
#include <string.h>
#include "base/kernels_table.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- conversion of one element ---- */

INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

enum { F32_MAGNITUDE = 0x7fffffff, F32_INFINITY = 0x7f800000, F32_QUIET = 0x400000 };

INLINE float bf16_to_f32(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  return float_of((bits & F32_MAGNITUDE) > F32_INFINITY ? bits | F32_QUIET : bits);
}

INLINE uint16_t f32_to_bf16(float value) {
  uint32_t bits = bits_of(value);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = bits >> 16 | F32_QUIET >> 16;
  return (uint16_t)((bits & F32_MAGNITUDE) > F32_INFINITY ? nan : rounded);
}

INLINE float f16_to_f32(uint16_t half) {
  uint32_t magnitude = half & 0x7fff;
  uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  uint32_t special = F32_INFINITY | magnitude << 13 | (magnitude > 0x7c00 ? F32_QUIET : 0);
  // A subnormal is its mantissa in units of 2^-24: put behind an implicit 1 at 2^-14, which is then taken away.
  uint32_t subnormal = bits_of(float_of(0x38800000 + (magnitude << 13)) - 0x1p-14f);
  uint32_t bits = magnitude < 0x400 ? subnormal : magnitude < 0x7c00 ? normal : special;
  return float_of(bits | (uint32_t)(half & 0x8000) << 16);
}

INLINE uint16_t f32_to_f16(float value) {
  uint32_t magnitude = bits_of(value) & F32_MAGNITUDE;
  uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  // The last bit of 0.5f stands for 2^-24, the unit of f16 subnormals, so that the addition itself rounds to it.
  uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;  // below 2^-14
  uint32_t special = magnitude > F32_INFINITY ? nan : 0x7c00;
  uint32_t half = magnitude < 0x477ff000 ? finite : special;  // 65520 and above are infinite
  return (uint16_t)(half | (bits_of(value) >> 16 & 0x8000));
}

/* Rounds to odd: what a second rounding to fewer bits gets is then as good as the f64 itself. */
INLINE float f64_to_odd_f32(double value) {
  float nearest = (float)value;
  double wide = (double)nearest;
  double magnitude = __builtin_fabs(value), nearest_magnitude = __builtin_fabs(wide);
  uint32_t bits = bits_of(nearest) - (nearest_magnitude > magnitude);
  return float_of(bits | (wide > value) | (wide < value));
}

INLINE float same_f32(float value) { return value; }
INLINE double same_f64(double value) { return value; }
INLINE float f64_to_f32(double value) { return (float)value; }
INLINE double f32_to_f64(float value) { return (double)value; }
INLINE double bf16_to_f64(uint16_t half) { return (double)bf16_to_f32(half); }
INLINE double f16_to_f64(uint16_t half) { return (double)f16_to_f32(half); }
INLINE uint16_t f64_to_bf16(double value) { return f32_to_bf16(f64_to_odd_f32(value)); }
INLINE uint16_t f64_to_f16(double value) { return f32_to_f16(f64_to_odd_f32(value)); }

/* ---- conversion of many ---- */

#define CONVERT(name, dst_type, src_type, convert)                           \
  static void name(void *restrict dst, const void *restrict src, size_t n) { \
    dst_type *to = dst;                                                      \
    const src_type *from = src;                                              \
    for (size_t i = 0; i < n; i++) to[i] = convert(from[i]);                 \
  }
CONVERT(f64s_to_f32s, float, double, f64_to_f32)
CONVERT(f64s_to_bf16s, uint16_t, double, f64_to_bf16)
CONVERT(f64s_to_f16s, uint16_t, double, f64_to_f16)
CONVERT(f32s_to_f64s, double, float, f32_to_f64)
CONVERT(f32s_to_bf16s, uint16_t, float, f32_to_bf16)
CONVERT(f32s_to_f16s, uint16_t, float, f32_to_f16)
CONVERT(bf16s_to_f64s, double, uint16_t, bf16_to_f64)
CONVERT(bf16s_to_f32s, float, uint16_t, bf16_to_f32)
CONVERT(f16s_to_f64s, double, uint16_t, f16_to_f64)
CONVERT(f16s_to_f32s, float, uint16_t, f16_to_f32)

static void copy_4(void *restrict dst, const void *restrict src, size_t n) { memcpy(dst, src, 4 * n); }
static void copy_8(void *restrict dst, const void *restrict src, size_t n) { memcpy(dst, src, 8 * n); }

typedef void (*converter)(void *restrict dst, const void *restrict src, size_t n);
enum { DTYPE_END = AD_I64 + 1 };
static const converter to_f32[DTYPE_END] = {
    [AD_F64] = f64s_to_f32s, [AD_F32] = copy_4, [AD_BF16] = bf16s_to_f32s, [AD_F16] = f16s_to_f32s};
static const converter from_f32[DTYPE_END] = {
    [AD_F64] = f32s_to_f64s, [AD_F32] = copy_4, [AD_BF16] = f32s_to_bf16s, [AD_F16] = f32s_to_f16s};
static const converter to_f64[DTYPE_END] = {
    [AD_F64] = copy_8, [AD_F32] = f32s_to_f64s, [AD_BF16] = bf16s_to_f64s, [AD_F16] = f16s_to_f64s};
static const converter from_f64[DTYPE_END] = {
    [AD_F64] = copy_8, [AD_F32] = f64s_to_f32s, [AD_BF16] = f64s_to_bf16s, [AD_F16] = f64s_to_f16s};

static const size_t sizes[DTYPE_END] = {
    [AD_F64] = 8, [AD_F32] = 4, [AD_BF16] = 2, [AD_F16] = 2, [AD_I32] = 4, [AD_I64] = 8};

/* ---- blocks: one element type, one accumulate type, pieces that stay in the first cache ---- */

enum { BLOCK = 1024 };  // elements

INLINE size_t block_of(size_t left) { return left < BLOCK ? left : BLOCK; }

static void cast(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n) {
  if (dst_dtype == src_dtype) {
    if (n) memmove(dst, src, n * sizes[dst_dtype]);
    return;
  }
  if (src_dtype == AD_F64) return from_f64[dst_dtype](dst, src, n);
  if (src_dtype == AD_F32) return from_f32[dst_dtype](dst, src, n);
  if (dst_dtype == AD_F64) return to_f64[src_dtype](dst, src, n);
  if (dst_dtype == AD_F32) return to_f32[src_dtype](dst, src, n);
  float block[BLOCK];  // between f16 and bf16, both exact in f32
  char *to = dst;
  const char *from = src;
  for (size_t done = 0; done < n; done += BLOCK) {
    size_t count = block_of(n - done);
    to_f32[src_dtype](block, from + done * sizes[src_dtype], count);
    from_f32[dst_dtype](to + done * sizes[dst_dtype], block, count);
  }
}

INLINE float canonical_f32(float value) { return value == value ? value : float_of(0x7fc00000); }
INLINE double canonical_f64(double value) { return value == value ? value : __builtin_nan(""); }
INLINE int32_t canonical_i32(int32_t value) { return value; }
INLINE int64_t canonical_i64(int64_t value) { return value; }

#define SUM(a, b) ((a) + (b))
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))  // a NaN on either side wins
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define WRAPPING_SUM_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define WRAPPING_SUM_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))

/* sum[i] = a[i] op b[i]; sum may be a. */
#define FOLD(name, type, canonical, op)                                       \
  static void name(void *sum, const void *a, const void *b, size_t n) {       \
    type *out = sum;                                                          \
    const type *left = a, *restrict right = b;                                \
    for (size_t i = 0; i < n; i++) out[i] = canonical(op(left[i], right[i])); \
  }
FOLD(sum_f32, float, canonical_f32, SUM)
FOLD(max_f32, float, canonical_f32, MAX)
FOLD(min_f32, float, canonical_f32, MIN)
FOLD(sum_f64, double, canonical_f64, SUM)
FOLD(max_f64, double, canonical_f64, MAX)
FOLD(min_f64, double, canonical_f64, MIN)
FOLD(sum_i32, int32_t, canonical_i32, WRAPPING_SUM_I32)
FOLD(max_i32, int32_t, canonical_i32, MAX)
FOLD(min_i32, int32_t, canonical_i32, MIN)
FOLD(sum_i64, int64_t, canonical_i64, WRAPPING_SUM_I64)
FOLD(max_i64, int64_t, canonical_i64, MAX)
FOLD(min_i64, int64_t, canonical_i64, MIN)

typedef void (*folder)(void *sum, const void *a, const void *b, size_t n);
static const folder folders[DTYPE_END][3] = {
    [AD_F32] = {[AD_SUM] = sum_f32, [AD_MAX] = max_f32, [AD_MIN] = min_f32},
    [AD_F64] = {[AD_SUM] = sum_f64, [AD_MAX] = max_f64, [AD_MIN] = min_f64},
    [AD_I32] = {[AD_SUM] = sum_i32, [AD_MAX] = max_i32, [AD_MIN] = min_i32},
    [AD_I64] = {[AD_SUM] = sum_i64, [AD_MAX] = max_i64, [AD_MIN] = min_i64},
};

/* dst[i] = factor * src[i], dst[i] += factor * src[i] over a block in the accumulate type. */
static void scale_f32(float *dst, float factor, size_t n) {
  for (size_t i = 0; i < n; i++) dst[i] = canonical_f32(factor * dst[i]);
}

static void scale_f64(double *dst, double factor, size_t n) {
  for (size_t i = 0; i < n; i++) dst[i] = canonical_f64(factor * dst[i]);
}

static void cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  int wide = dst_dtype == AD_F64 || src_dtype == AD_F64;
  char *to = dst;
  const char *from = src;
  for (size_t done = 0; done < n; done += BLOCK, to += BLOCK * sizes[dst_dtype], from += BLOCK * sizes[src_dtype]) {
    size_t count = block_of(n - done);
    double block[BLOCK];
    if (wide) {
      to_f64[src_dtype](block, from, count);
      scale_f64(block, factor, count);
      from_f64[dst_dtype](to, block, count);
    } else {
      to_f32[src_dtype](block, from, count);
      scale_f32((float *)(void *)block, (float)factor, count);
      from_f32[dst_dtype](to, block, count);
    }
  }
}

static void accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  char *to = dst;
  const char *from = src;
  for (size_t done = 0; done < n; done += BLOCK, to += BLOCK * sizes[dst_dtype], from += BLOCK * sizes[src_dtype]) {
    size_t count = block_of(n - done);
    double sum[BLOCK], term[BLOCK];
    if (dst_dtype == AD_F64) {
      to_f64[src_dtype](term, from, count);
      scale_f64(term, factor, count);
      sum_f64(to, to, term, count);
    } else {
      to_f32[src_dtype](term, from, count);
      scale_f32((float *)(void *)term, (float)factor, count);
      to_f32[dst_dtype](sum, to, count);
      sum_f32(sum, sum, term, count);
      from_f32[dst_dtype](to, sum, count);
    }
  }
}

static void reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count, ad_dtype dtype,
                   ad_dtype accumulate_dtype, ad_reduction reduction, size_t n) {
  if (dtype == AD_I32 || dtype == AD_I64) accumulate_dtype = dtype;
  converter load = accumulate_dtype == AD_F64 ? to_f64[dtype] : to_f32[dtype];
  converter store = accumulate_dtype == AD_F64 ? from_f64[dtype] : from_f32[dtype];
  if (dtype == AD_I32) load = store = copy_4;
  if (dtype == AD_I64) load = store = copy_8;
  folder fold = folders[accumulate_dtype][reduction];
  size_t size = sizes[dtype];
  double sum[BLOCK], term[BLOCK];
  for (size_t done = 0; done < n; done += BLOCK) {
    size_t count = block_of(n - done), at = done * size;
    load(sum, (const char *)sources[0] + at, count);
    for (size_t j = 1; j < source_count; j++) {
      load(term, (const char *)sources[j] + at, count);
      fold(sum, sum, term, count);
    }
    for (size_t k = 0; k < out_count; k++) store((char *)out[k] + at, sum, count);
  }
}

const kernel_table KERNELS = {cast, cast_scaled, accumulate, reduce};
