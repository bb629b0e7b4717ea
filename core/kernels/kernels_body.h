/* The kernels, compiled once for each variant under the name KERNELS. Every loop gives the same bits for any vector
 * width: every sum follows the tree of tree.h, no product is fused with an addition, and every NaN that arithmetic
 * produces or has as an operand becomes one canonical NaN (otherwise the NaN's payload would depend on the order of an
 * instruction's operands). kernels.c decides which variant runs. */
#include <stdint.h>
#include <string.h>
#include "base/dtypes.h"
#include "kernels/kernels_table.h"
#include "kernels/nodes.h"
#include "kernels/tree.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* ---- converting one element's dtype ---- */

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

/* bf16_widened and f32_rounded convert like bf16_to_f32 and f32_to_bf16, but do not make NaNs quiet; for use inside a
 * reduction. In a reduction a NaN either becomes the canonical NaN, which these functions do not change, or is only
 * converted to f32 and back, which restores its bits. */
INLINE float bf16_widened(uint16_t half) { return float_of((uint32_t)half << 16); }

INLINE uint16_t f32_rounded(float value) {
  uint32_t bits = bits_of(value);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* narrow_to_f32 and f32_to_narrow convert a float whose bits are a sign, `exponent` bits of exponent (at most 8) and
 * `fraction` bits of fraction, laid out as IEEE 754 lays out f16. The two numbers are constants of each use. */
INLINE float narrow_to_f32(uint32_t bits, int exponent, int fraction) {
  // bits of the f32 with the value of the narrow type's smallest normal number
  uint32_t least = (uint32_t)(129 - (1 << (exponent - 1))) << 23;
  uint32_t infinity = ((1u << exponent) - 1) << fraction, magnitude = bits & ((1u << (exponent + fraction)) - 1);
  uint32_t widened = magnitude << (23 - fraction);
  uint32_t normal = widened + least - (1u << 23);
  uint32_t special = F32_INFINITY | widened | (magnitude > infinity ? F32_QUIET : 0);
  // A subnormal is its fraction times the smallest subnormal. In an f32 that has this fraction and the exponent of
  // `least`, the fraction counts the same unit; subtracting `least` leaves the subnormal's value.
  uint32_t subnormal = bits_of(float_of(least + widened) - float_of(least));
  uint32_t finite = magnitude < 1u << fraction ? subnormal : normal;
  uint32_t sign = bits >> (exponent + fraction) & 1;
  return float_of((magnitude < infinity ? finite : special) | sign << 31);
}

INLINE uint32_t f32_to_narrow(float value, int exponent, int fraction) {
  uint32_t magnitude = bits_of(value) & F32_MAGNITUDE, bias = (1u << (exponent - 1)) - 1;
  uint32_t infinity = ((1u << exponent) - 1) << fraction;
  int left = 23 - fraction;  // number of fraction bits that f32 has and the narrow type does not have
  uint32_t normal = (magnitude - ((127 - bias) << 23) + ((1u << (left - 1)) - 1) + (magnitude >> left & 1)) >> left;
  uint32_t nan = infinity | 1u << (fraction - 1) | (magnitude >> left & ((1u << fraction) - 1));
  // The last bit of the f32 `unit` counts the smallest subnormal of the narrow type. Therefore adding `unit` rounds the
  // value to a multiple of that subnormal.
  uint32_t unit = (151 - bias - (uint32_t)fraction) << 23;
  uint32_t subnormal = bits_of(float_of(magnitude) + float_of(unit)) - unit;
  uint32_t finite = magnitude < (128 - bias) << 23 ? subnormal : normal;
  // From the middle between the largest number and the next power of two on, values become infinite.
  uint32_t overflow = (127 + bias) << 23 | ((2u << fraction) - 1) << (left - 1);
  uint32_t special = magnitude > F32_INFINITY ? nan : infinity;
  uint32_t sign = bits_of(value) >> 31 << (exponent + fraction);
  return (magnitude < overflow ? finite : special) | sign;
}

INLINE float f16_to_f32(uint16_t half) { return narrow_to_f32(half, 5, 10); }
INLINE uint16_t f32_to_f16(float value) { return (uint16_t)f32_to_narrow(value, 5, 10); }

/* Rounds to odd: a value that f32 cannot represent becomes the neighbouring f32 whose last bit is 1. Rounding this f32
 * to a narrower float gives the same result as rounding the f64 directly. */
INLINE float f64_to_odd_f32(double value) {
  float nearest = (float)value;
  double wide = (double)nearest;
  double magnitude = __builtin_fabs(value), nearest_magnitude = __builtin_fabs(wide);
  uint32_t bits = bits_of(nearest) - (nearest_magnitude > magnitude);
  return float_of(bits | (wide > value) | (wide < value));
}

INLINE float f64_to_f32(double value) { return (float)value; }
INLINE double f32_to_f64(float value) { return (double)value; }

#include "kernels/kernels_lanes.h"

/* ---- converting arrays' dtypes ---- */

/* Written before a loop whose iterations are independent, because each output is exactly the memory of an input or
 * overlaps no input. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef void (*converter)(void *restrict dst, const void *restrict src, size_t n);

/* Defines a converter of n elements. `vectors` converts as many elements as it can with vector instructions and returns
 * their number; the loop converts the remaining ones. */
#define CONVERT(name, dst_type, src_type, convert, vectors)                     \
  static void name(void *restrict dst, const void *restrict src, size_t n) {    \
    dst_type *to = dst;                                                         \
    const src_type *from = src;                                                 \
    for (size_t i = vectors(to, from, n); i < n; i++) to[i] = convert(from[i]); \
  }

#define NO_VECTORS(to, from, n) 0

#if defined(__AVX512F__)
INLINE size_t f16_vectors_to_f32(float *to, const uint16_t *from, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + i))));
  return i;
}

INLINE size_t f32_vectors_to_f16(uint16_t *to, const float *from, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((void *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#elif defined(__F16C__)
INLINE size_t f16_vectors_to_f32(float *to, const uint16_t *from, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
  return i;
}

INLINE size_t f32_vectors_to_f16(uint16_t *to, const float *from, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#else
#define f16_vectors_to_f32 NO_VECTORS
#define f32_vectors_to_f16 NO_VECTORS
#endif

/* A conversion must keep the upper bits of a NaN's payload, and the vector instructions do not. Registers that contain
 * a NaN are converted element by element. */
#if defined(HAS_LANES)
INLINE size_t f32_vectors_to_bf16(uint16_t *to, const float *from, size_t n) {
  size_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    lanes values = lanes_from_f32(from + i);
    if (__builtin_expect(are_rare(values), 0))
      for (size_t k = i; k < i + LANES; k++) to[k] = f32_to_bf16(from[k]);
    else
      put_halves(to + i, ordered_usual(values));
  }
  return i;
}
#else
#define f32_vectors_to_bf16 NO_VECTORS
#endif

CONVERT(f64s_to_f32s, float, double, f64_to_f32, NO_VECTORS)
CONVERT(f32s_to_f64s, double, float, f32_to_f64, NO_VECTORS)
CONVERT(f32s_rounded, uint16_t, float, f32_rounded, NO_VECTORS)
CONVERT(bf16s_widened, float, uint16_t, bf16_widened, NO_VECTORS)

/* NAME_to_f32 and f32_to_NAME convert one element of a narrow float. BY_HAND: these functions are written above, and
 * also NAME_vectors_to_f32 and f32_vectors_to_NAME. BY_WIDTHS: the functions are made from the numbers of bits of
 * exponent and fraction, without vector instructions. */
#define bf16_vectors_to_f32 NO_VECTORS
#define ELEMENT_BY_HAND(name, type, exponent, fraction)
#define ELEMENT_BY_WIDTHS(name, type, exponent, fraction)                                           \
  INLINE float name##_to_f32(type bits) { return narrow_to_f32(bits, exponent, fraction); }         \
  INLINE type f32_to_##name(float value) { return (type)f32_to_narrow(value, exponent, fraction); } \
  INLINE size_t name##_vectors_to_f32(const float *to, const type *from, size_t n) { return 0; }    \
  INLINE size_t f32_vectors_to_##name(const type *to, const float *from, size_t n) { return 0; }

#define ELEMENT(code, name, type, how, exponent, fraction, ...) ELEMENT_##how(name, type, exponent, fraction)
AD_NARROW_LIST(ELEMENT)

/* Defines all converters of a narrow float. */
#define CONVERT_NARROW(code, name, type, ...)                                              \
  INLINE double name##_to_f64(type bits) { return (double)name##_to_f32(bits); }           \
  INLINE type f64_to_##name(double value) { return f32_to_##name(f64_to_odd_f32(value)); } \
  CONVERT(f64s_to_##name##s, type, double, f64_to_##name, NO_VECTORS)                      \
  CONVERT(f32s_to_##name##s, type, float, f32_to_##name, f32_vectors_to_##name)            \
  CONVERT(name##s_to_f64s, double, type, name##_to_f64, NO_VECTORS)                        \
  CONVERT(name##s_to_f32s, float, type, name##_to_f32, name##_vectors_to_f32)
AD_NARROW_LIST(CONVERT_NARROW)

/* Converts the bytes of bools, possibly in place: 0 stays 0, every other value becomes 1. */
static void bools_loaded(void *dst, const void *src, size_t n) {
  uint8_t *to = dst;
  const uint8_t *from = src;
  INDEPENDENT for (size_t i = 0; i < n; i++) to[i] = from[i] != 0;
}

/* The converters by dtype. An entry is NULL if no conversion is needed, because the memory has the accumulate type
 * already. */
#define NARROW_TO_F32(code, name, ...) [code] = name##s_to_f32s,
#define NARROW_FROM_F32(code, name, ...) [code] = f32s_to_##name##s,
#define NARROW_TO_F64(code, name, ...) [code] = name##s_to_f64s,
#define NARROW_FROM_F64(code, name, ...) [code] = f64s_to_##name##s,
static const converter to_f32[AD_DTYPE_END] = {[AD_F64] = f64s_to_f32s, AD_NARROW_LIST(NARROW_TO_F32)};
static const converter from_f32[AD_DTYPE_END] = {[AD_F64] = f32s_to_f64s, AD_NARROW_LIST(NARROW_FROM_F32)};
static const converter to_f64[AD_DTYPE_END] = {[AD_F32] = f32s_to_f64s, AD_NARROW_LIST(NARROW_TO_F64)};
static const converter from_f64[AD_DTYPE_END] = {[AD_F32] = f64s_to_f32s, AD_NARROW_LIST(NARROW_FROM_F64)};

#define SIZE(code, name, type, ...) [code] = sizeof(type),
static const size_t sizes[AD_DTYPE_END] = {AD_WIDE_LIST(SIZE) AD_NARROW_LIST(SIZE) AD_INTEGER_LIST(SIZE)
                                               AD_BOOL_LIST(SIZE)};

/* ---- blocks: pieces in the accumulate type that fit into the L1 cache ---- */

enum { BLOCK = 1024 };  // number of elements

typedef union block {
  float f32[BLOCK];
  double f64[BLOCK];
} block;

INLINE size_t block_of(size_t left) { return left < BLOCK ? left : BLOCK; }

/* Returns the elements at `memory` in the accumulate type: `memory` itself if `load` is NULL, else `space` with the
 * converted elements. */
INLINE const void *loaded(converter load, const void *memory, void *space, size_t n) {
  if (!load) return memory;
  load(space, memory, n);
  return space;
}

static void cast(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, size_t n) {
  if (dst_dtype == src_dtype) {
    if (n && dst != src) memmove(dst, src, n * sizes[dst_dtype]);
    return;
  }
  if (src_dtype == AD_F64) return from_f64[dst_dtype](dst, src, n);
  if (src_dtype == AD_F32) return from_f32[dst_dtype](dst, src, n);
  if (dst_dtype == AD_F64) return to_f64[src_dtype](dst, src, n);
  if (dst_dtype == AD_F32) return to_f32[src_dtype](dst, src, n);
  char *to = dst;
  const char *from = src;
  block between;  // the values in f32, which can represent every narrow float
  for (size_t done = 0; done < n; done += BLOCK) {
    size_t count = block_of(n - done);
    to_f32[src_dtype](&between, from + done * sizes[src_dtype], count);
    from_f32[dst_dtype](to + done * sizes[dst_dtype], &between, count);
  }
}

INLINE float canonical_f32(float value) { return value == value ? value : float_of(0x7fc00000); }
INLINE double canonical_f64(double value) { return value == value ? value : __builtin_nan(""); }

/* ---- scaling and accumulating ---- */

#define SCALE(scale, add_scaled, type, canonical)                                               \
  static void scale(void *out, const void *a, double factor, size_t n) {                        \
    type *to = out, by = (type)factor;                                                          \
    const type *from = a;                                                                       \
    INDEPENDENT for (size_t i = 0; i < n; i++) to[i] = canonical(by * from[i]);                 \
  }                                                                                             \
  static void add_scaled(void *out, const void *base, const void *a, double factor, size_t n) { \
    type *to = out, by = (type)factor;                                                          \
    const type *from = base, *term = a;                                                         \
    INDEPENDENT for (size_t i = 0; i < n; i++) to[i] = canonical(from[i] + by * term[i]);       \
  }
SCALE(scale_f32, add_scaled_f32, float, canonical_f32)
SCALE(scale_f64, add_scaled_f64, double, canonical_f64)

#include "kernels/kernels_casts.h"

/* ad_cast_scaled: converts as many elements as possible in registers, and all others block by block. */
static void cast_scaled(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  int wide = dst_dtype == AD_F64 || src_dtype == AD_F64;
  converter load = wide ? to_f64[src_dtype] : to_f32[src_dtype];
  converter store = wide ? from_f64[dst_dtype] : from_f32[dst_dtype];
  block space, product;
  size_t done = pass_in_registers(scaled_casts, dst, dst_dtype, src, src_dtype, factor, n), count;
  for (; done < n; done += count) {
    char *to = (char *)dst + done * sizes[dst_dtype];
    count = block_of(n - done);
    const void *term = loaded(load, (const char *)src + done * sizes[src_dtype], &space, count);
    (wide ? scale_f64 : scale_f32)(store ? (void *)&product : to, term, factor, count);
    if (store) store(to, &product, count);
  }
}

/* ad_accumulate: adds as many elements as possible in registers, and all others block by block. */
static void accumulate(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  int wide = dst_dtype == AD_F64;
  const converter *load = wide ? to_f64 : to_f32;
  converter store = wide ? NULL : from_f32[dst_dtype];
  block base_space, term_space;
  size_t done = pass_in_registers(scaled_sums, dst, dst_dtype, src, src_dtype, factor, n), count;
  for (; done < n; done += count) {
    char *to = (char *)dst + done * sizes[dst_dtype];
    count = block_of(n - done);
    const void *base = loaded(load[dst_dtype], to, &base_space, count);
    const void *term = loaded(load[src_dtype], (const char *)src + done * sizes[src_dtype], &term_space, count);
    (wide ? add_scaled_f64 : add_scaled_f32)(store ? (void *)&base_space : to, base, term, factor, count);
    if (store) store(to, &base_space, count);
  }
}

/* ---- reducing: adding, or comparing, several inputs ---- */

#define SUM(a, b) ((a) + (b))
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))  // if either operand is NaN the result is NaN
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX_INTEGER(a, b) ((a) > (b) ? (a) : (b))
#define MIN_INTEGER(a, b) ((a) < (b) ? (a) : (b))
#define PRODUCT(a, b) ((a) * (b))
// without 1u, two uint16_t would be multiplied as int, which can overflow
#define PRODUCT_INTEGER(a, b) (1u * (a) * (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))
#define SAME(value) (value)

/* Defines a function of type `folder`, which combines `count` terms (one to four) into `out`; the terms are consecutive
 * addends from index `first` on. Sums and products of integers are computed in the unsigned type, so that they wrap
 * around. */
#define FOLD_LOOP(result) INDEPENDENT for (size_t i = 0; i < n; i++) to[i] = result
#define FOLD(name, type, canonical, op)                                                                    \
  INLINE type name##_two(type a, type b) { return (type)op(a, b); }                                        \
  static void name(void *out, const void *const *terms, size_t first, size_t term_count, size_t n) {       \
    type *to = out;                                                                                        \
    const type *a = terms[0], *b = terms[1], *c = terms[2], *d = terms[3];                                 \
    int pair_first = ad_tree_lower(first, 3) == 2;                                                         \
    if (term_count == 1) memmove(to, a, n * sizeof *to);                                                   \
    if (term_count == 2) FOLD_LOOP(canonical(name##_two(a[i], b[i])));                                     \
    if (term_count == 3 && pair_first) FOLD_LOOP(canonical(name##_two(name##_two(a[i], b[i]), c[i])));     \
    if (term_count == 3 && !pair_first) FOLD_LOOP(canonical(name##_two(a[i], name##_two(b[i], c[i]))));    \
    if (term_count == 4) FOLD_LOOP(canonical(name##_two(name##_two(a[i], b[i]), name##_two(c[i], d[i])))); \
  }
FOLD(sum_f32, float, canonical_f32, SUM)
FOLD(max_f32, float, canonical_f32, MAX)
FOLD(min_f32, float, canonical_f32, MIN)
FOLD(product_f32, float, canonical_f32, PRODUCT)
FOLD(sum_f64, double, canonical_f64, SUM)
FOLD(max_f64, double, canonical_f64, MAX)
FOLD(min_f64, double, canonical_f64, MIN)
FOLD(product_f64, double, canonical_f64, PRODUCT)

/* Among the reductions of integers of one size only MAX and MIN depend on the signedness of the type. */
#define FOLD_UNSIGNED(size, type)                   \
  FOLD(sum_##size, type, SAME, SUM)                 \
  FOLD(product_##size, type, SAME, PRODUCT_INTEGER) \
  FOLD(and_##size, type, SAME, AND)                 \
  FOLD(or_##size, type, SAME, OR)                   \
  FOLD(xor_##size, type, SAME, XOR)
#define FOLD_ORDERED(name, type)            \
  FOLD(max_##name, type, SAME, MAX_INTEGER) \
  FOLD(min_##name, type, SAME, MIN_INTEGER)
FOLD_UNSIGNED(8, uint8_t)
FOLD_UNSIGNED(16, uint16_t)
FOLD_UNSIGNED(32, uint32_t)
FOLD_UNSIGNED(64, uint64_t)
#define FOLD_INTEGER(code, name, type, ...) FOLD_ORDERED(name, type)
AD_INTEGER_LIST(FOLD_INTEGER)

enum { TERMS = 4 };  // number of terms folded in one pass; each needs a register and a stream of the prefetcher
enum { REDUCTION_END = AD_BIT_XOR + 1 };
typedef void (*folder)(void *out, const void *const *terms, size_t first, size_t term_count, size_t n);
#define FOLDERS_OF_FLOATS(name) \
  { [AD_SUM] = sum_##name, [AD_MAX] = max_##name, [AD_MIN] = min_##name, [AD_PRODUCT] = product_##name }
#define FOLDERS_OF_INTEGERS(name, size)                                                                 \
  {                                                                                                     \
    [AD_SUM] = sum_##size, [AD_MAX] = max_##name, [AD_MIN] = min_##name, [AD_PRODUCT] = product_##size, \
    [AD_BIT_AND] = and_##size, [AD_BIT_OR] = or_##size, [AD_BIT_XOR] = xor_##size                       \
  }
#define WIDE_FOLDERS(code, name, ...) [code] = FOLDERS_OF_FLOATS(name),
#define INTEGER_FOLDERS(code, name, type, bits, ...) [code] = FOLDERS_OF_INTEGERS(name, bits),
/* Narrow floats have no functions here, because they are accumulated in a wide dtype. */
static const folder folders[AD_DTYPE_END][REDUCTION_END] = {
    AD_WIDE_LIST(WIDE_FOLDERS) AD_INTEGER_LIST(INTEGER_FOLDERS)
        // the bytes are 0 or 1, because bools_loaded makes them so
        [AD_BOOL] = {[AD_SUM] = or_8,
                     [AD_MAX] = or_8,
                     [AD_MIN] = and_8,
                     [AD_PRODUCT] = and_8,
                     [AD_BIT_AND] = and_8,
                     [AD_BIT_OR] = or_8,
                     [AD_BIT_XOR] = xor_8},
};

/* Writes one line of 64 bytes past the caches; dst is aligned to 64 bytes. */
INLINE void stream_line(char *dst, const char *src) {
#if defined(__AVX512F__)
  _mm512_stream_si512((void *)dst, _mm512_loadu_si512((const void *)src));
#elif defined(__AVX2__)
  for (int i = 0; i < 64; i += 32) _mm256_stream_si256((void *)(dst + i), _mm256_loadu_si256((const void *)(src + i)));
#elif defined(__x86_64__)
  for (int i = 0; i < 64; i += 16) _mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
#else
  memcpy(dst, src, 64);
#endif
}

static void stream_bytes(char *dst, const char *src, size_t bytes) {
  size_t at = -(uintptr_t)dst % 64;
  if (at > bytes) at = bytes;
  memcpy(dst, src, at);
  for (; at + 64 <= bytes; at += 64) stream_line(dst + at, src + at);
  memcpy(dst + at, src + at, bytes - at);
}

/* Makes streamed stores visible to other cores. Must be called before other cores are told to read. */
static void end_streaming(void) {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

static void copy_past(void *dst, const void *src, size_t bytes) {
  stream_bytes(dst, src, bytes);
  end_streaming();
}

static void cast_past(void *dst, ad_dtype dst_dtype, const void *src, ad_dtype src_dtype, double factor, size_t n) {
  if (dst_dtype == src_dtype && factor == 1) return copy_past(dst, src, n * sizes[dst_dtype]);
  block result;
  for (size_t done = 0, count; done < n; done += count) {
    const char *from = (const char *)src + done * sizes[src_dtype];
    count = block_of(n - done);
    if (factor == 1)
      cast(&result, dst_dtype, from, src_dtype, count);
    else
      cast_scaled(&result, dst_dtype, from, src_dtype, factor, count);
    stream_bytes((char *)dst + done * sizes[dst_dtype], (const char *)&result, count * sizes[dst_dtype]);
  }
  end_streaming();
}

#include "kernels/kernels_sums.h"

/* A reduction as ad_reduce executes it. */
typedef struct reducer {
  void *const *out;
  const void *const *sources;
  const uint32_t *leaves;  // `leaves` and `aligned` are as in ad_reducing
  int aligned;
  size_t out_count, source_count;
  size_t first, index_count;        // the addends that the sources contain: index of the first, and how many
  size_t size, sum_size, out_size;  // bytes of an element of the sources, of the sum, and of the outputs
  converter load, store;  // converters to and from the accumulate type; NULL: the dtype is the accumulate type
  folder fold;
  int wide;  // 1: the result is accumulated in f64
  double factor;
  int scales, adds;
  int streamed;    // 1: outputs that are not sources are written by non-temporal stores
  int sum_in_out;  // 1: the sum may be accumulated in out[0] itself
} reducer;

static int is_among(const void *out, const void *const *sources, size_t count) {
  for (size_t j = 0; j < count; j++)
    if (sources[j] == out) return 1;
  return 0;
}

static int is_source(const reducer *r, const void *out) { return is_among(out, r->sources, r->source_count); }

/* A part of the tree: `count` addends, from index `first` on. `next` is the first source that contains some of them;
 * folding the part sets `next` to the first source after the part. */
typedef struct part {
  size_t first, count, next;
} part;

/* Returns how many addends a source is the result of. */
static size_t leaves_of(const reducer *r, size_t source) { return r->leaves ? r->leaves[source] : 1; }

/* Returns the value of a part that one source contains: its addend, converted to the accumulate type, or the result of
 * several addends, which already has this type. */
static const void *value_of_one(const reducer *r, part *p, void *space, size_t at, size_t n) {
  const char *source = r->sources[p->next++];
  if (p->count > 1) return source + at * r->sum_size;
  return loaded(r->load, source + at * r->size, space, n);
}

/* Returns 1 if each addend of the part has its own source, and the part is small enough to be folded in one pass; else
 * 0. */
static int are_few(const reducer *r, const part *p) {
  if (p->count > TERMS) return 0;
  for (size_t j = 0; j < p->count; j++)
    if (leaves_of(r, p->next + j) != 1) return 0;
  return 1;
}

/* Folds a part for which are_few returns 1 into `sum`. This also follows the aligned tree: there a part of three
 * addends begins at a multiple of four, and both trees then add the third addend to the sum of the first two. */
static __attribute__((noinline)) void fold_few(const reducer *r, part *p, void *sum, size_t at, size_t n) {
  block space[TERMS];
  const void *terms[TERMS] = {sum};
  for (size_t j = 0; j < p->count; j++) {
    part one = {p->first + j, 1, p->next};
    terms[j] = value_of_one(r, &one, &space[j], at, n);
    p->next = one.next;
  }
  r->fold(sum, terms, p->first, p->count, n);
}

/* Folds a part of the tree. Returns the memory that has the result: `sum`, or the memory of a source. */
static const void *fold_part(const reducer *r, part *p, void *sum, size_t at, size_t n) {
  if (leaves_of(r, p->next) == p->count) return value_of_one(r, p, sum, at, n);
  if (are_few(r, p)) {
    fold_few(r, p, sum, at, n);
    return sum;
  }
  block space;
  size_t count = r->aligned ? ad_node_lower(p->count) : ad_tree_lower(p->first, p->count);
  part lower = {p->first, count, p->next};
  const void *terms[TERMS] = {fold_part(r, &lower, sum, at, n)};
  part upper = {p->first + count, p->count - count, lower.next};
  terms[1] = fold_part(r, &upper, &space, at, n);
  p->next = upper.next;
  r->fold(sum, terms, 0, 2, n);
  return sum;
}

/* Folds n elements, from element `at` on, of all sources into `sum`. */
static void fold_block(const reducer *r, void *sum, size_t at, size_t n) {
  part all = {r->first, r->index_count, 0};
  const void *value = fold_part(r, &all, sum, at, n);
  if (value != sum) memmove(sum, value, n * r->sum_size);
}

static size_t count_indices(const reducer *r) {
  size_t count = 0;
  for (size_t j = 0; j < r->source_count; j++) count += leaves_of(r, j);
  return count;
}

/* Returns how many sources, from the first on, are read before the first sum is written. */
static size_t read_at_once(const reducer *r) {
  size_t count = r->source_count;
  if (r->leaves) return 0;
  while (count > TERMS) count = ad_tree_lower(r->first, count);
  return count;
}

/* Writes a block's result to one output: adds it, streams it past the caches, or copies it. */
static void write_out(const reducer *r, void *out, size_t at, const void *result, size_t n) {
  char *to = (char *)out + at * r->out_size;
  if (to == result) return;
  if (r->adds)
    (r->wide ? add_scaled_f64 : add_scaled_f32)(to, to, result, r->factor, n);
  else if (r->streamed && !is_source(r, out))
    stream_bytes(to, result, n * r->out_size);
  else
    memcpy(to, result, n * r->out_size);
}

/* Reduces one block of n elements, from element `at` on, and writes the result to all outputs. */
static void reduce_block(const reducer *r, size_t at, size_t n) {
  block sum_space, result_space;
  void *first_out = (char *)r->out[0] + at * r->out_size;
  void *sum = r->sum_in_out ? first_out : &sum_space;
  void *result = sum;
  fold_block(r, sum, at, n);
  if (r->scales) (r->wide ? scale_f64 : scale_f32)(sum, sum, r->factor, n);
  if (r->store) {
    result = r->streamed ? &result_space : first_out;
    r->store(result, sum, n);
  }
  for (size_t k = 0; k < r->out_count; k++) write_out(r, r->out[k], at, result, n);
}

static __attribute__((noinline)) void reduce_blocks(reducer *r, size_t at, size_t n) {
  r->index_count = count_indices(r);
  // If out[0] is also a source, it must not be overwritten before it is read.
  size_t read = read_at_once(r);
  int read_later = is_among(r->out[0], r->sources + read, r->source_count - read);
  r->sum_in_out = !r->store && !r->adds && !r->streamed && !read_later;
  for (; at < n; at += BLOCK) reduce_block(r, at, block_of(n - at));
}

/* Returns 2^shift, even if that is subnormal or infinite. */
static double power_of_two(int shift) {
  double power = 1;
  for (; shift > 0; shift--) power *= 2;
  for (; shift < 0; shift++) power /= 2;
  return power;
}

/* Chooses the conversions of a reduction of floats. A NaN in a sum is always the canonical NaN. Therefore the faster
 * bf16 conversions can be used, which keep only the canonical NaN. */
static void choose_converters(reducer *r, const ad_reducing *how, ad_dtype out_dtype) {
  r->load = r->wide ? to_f64[how->dtype] : to_f32[how->dtype];
  r->store = r->wide ? from_f64[out_dtype] : from_f32[out_dtype];
  if (r->wide || (r->source_count == 1 && how->dtype != out_dtype)) return;
  if (how->dtype == AD_BF16) r->load = bf16s_widened;
  if (out_dtype == AD_BF16) r->store = f32s_rounded;
}

/* Returns 1 if the reduction is only a cast: it has a single source and one output, adds nothing to the output, and a
 * cast computes in the same dtype (in f64 if the source or the output is f64, else in f32). */
static int is_cast(const reducer *r, const ad_reducing *how, ad_dtype out_dtype) {
  if (r->source_count != 1 || r->leaves || r->out_count != 1 || r->adds || !ad_dtype_is_float(how->dtype)) return 0;
  return r->wide == (how->dtype == AD_F64 || out_dtype == AD_F64);
}

/* Returns 1 if outputs are written past the caches. An output that is also a source is not: it was just read, so that
 * its lines are in a cache already. */
static int is_streamed(const ad_reducing *how, const void *out, const void *const *sources, size_t source_count) {
  return how->past && !how->adds && !is_among(out, sources, source_count);
}

/* Prepares a reduction: sizes, converters, the function that combines terms, and how outputs are written. */
INLINE reducer plan_reduction(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
                              const ad_reducing *how, ad_dtype out_dtype) {
  int is_float = ad_dtype_is_float(how->dtype);
  ad_dtype sum = is_float ? how->accumulate : how->dtype;
  reducer r = {
      .out = out,
      .sources = sources,
      .out_count = out_count,
      .source_count = source_count,
      .leaves = how->leaves,
      .aligned = how->aligned,
      .first = how->first,
      .size = sizes[how->dtype],
      .sum_size = sizes[sum],
      .out_size = sizes[out_dtype],
      .fold = folders[sum][how->reduction],
      .load = how->dtype == AD_BOOL ? bools_loaded : NULL,
      .wide = sum == AD_F64,
      .factor = power_of_two(how->shift),
      .scales = how->shift && !how->adds,
      .adds = how->adds,
  };
  if (is_float) choose_converters(&r, how, out_dtype);
  r.streamed = is_streamed(how, out[0], sources, source_count);
  return r;
}

static void reduce_by_cast(const reducer *r, ad_dtype out_dtype, ad_dtype dtype, size_t n) {
  if (r->streamed)
    cast_past(r->out[0], out_dtype, r->sources[0], dtype, r->factor, n);
  else if (r->scales)
    cast_scaled(r->out[0], out_dtype, r->sources[0], dtype, r->factor, n);
  else
    cast(r->out[0], out_dtype, r->sources[0], dtype, n);
}

static __attribute__((noinline)) void reduce_from(size_t done, void *const *out, size_t out_count,
                                                  const void *const *sources, size_t source_count,
                                                  const ad_reducing *how, size_t n) {
  ad_dtype out_dtype = how->out_dtype ? how->out_dtype : how->dtype;
  reducer r = plan_reduction(out, out_count, sources, source_count, how, out_dtype);
  if (is_cast(&r, how, out_dtype)) return reduce_by_cast(&r, out_dtype, how->dtype, n);
  reduce_blocks(&r, done, n);
  if (r.streamed) end_streaming();
}

/* Returns 1 if the reduction is a sum in f32 of floats whose result has the sources' dtype, and which is not scaled and
 * not added to anything; else 0. */
static int is_plain_sum(const ad_reducing *how) {
  return how->reduction == AD_SUM && how->accumulate == AD_F32 && !how->leaves && !how->shift && !how->adds &&
         (!how->out_dtype || how->out_dtype == how->dtype) && register_sums[how->dtype];
}

static void reduce(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
                   const ad_reducing *how, size_t n) {
  size_t done = 0;
  if (!out_count) return;
  if (source_count > 1 && is_plain_sum(how) && !is_streamed(how, out[0], sources, source_count))
    done = register_sums[how->dtype](out, out_count, sources, how->first, source_count, n);
  if (done < n) reduce_from(done, out, out_count, sources, source_count, how, n);
}

const kernel_table KERNELS = {
    .cast = cast,
    .cast_scaled = cast_scaled,
    .cast_past = cast_past,
    .accumulate = accumulate,
    .reduce = reduce,
    .copy_past = copy_past,
};
