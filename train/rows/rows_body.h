/* The row kernels, compiled once for each variant: ROWS is the name of the variant. Includes rows_dtype.h for each
 * dtype, and has the exponentials of f32 and f64 and the rounding to bf16. rows.c chooses the variant. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#include "rows/rows_table.h"

#define INLINE static inline __attribute__((always_inline))

/* Computes exp(x) = 2^n exp(r) with |r| <= log(2)/2. exp(r) is its series up to the term below half a unit in the last
 * place. 2^n is computed as 2 * 2^(n-1), so that n = 128 (1024 in f64) overflows to infinity. Results below four times
 * the smallest normal number become 0; NaN stays NaN. */
INLINE float exp_f32(float x) {
  float bounded = x < -88.0f ? -88.0f : x;
  bounded = bounded > 89.0f ? 89.0f : bounded;
  float shifted = bounded * 0x1.715476p+0f + 0x1.8p23f;  // the low bits of `shifted` are n, in units of 1
  float n = shifted - 0x1.8p23f;
  float r = bounded - n * 0.693359375f;
  // Subtracts log(2) in two parts, of which the first is so short that its product is exact.
  r = r - n * -2.12194440e-4f;
  float q = 1.0f / 5040;
  q = q * r + 1.0f / 720;
  q = q * r + 1.0f / 120;
  q = q * r + 1.0f / 24;
  q = q * r + 1.0f / 6;
  q = q * r + 0.5f;
  float p = 1.0f + (r + r * r * q);
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4b400000u + 126u) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  float y = (p + p) * power;
  return x < -86.0f ? 0.0f : y;
}

INLINE double exp_f64(double x) {
  double bounded = x < -709.0 ? -709.0 : x;
  bounded = bounded > 710.0 ? 710.0 : bounded;
  double shifted = bounded * 0x1.71547652b82fep+0 + 0x1.8p52;
  double n = shifted - 0x1.8p52;
  double r = bounded - n * 6.93147180369123816490e-01;
  r = r - n * 1.90821492927058770002e-10;
  double q = 1.0 / 6227020800.0;
  q = q * r + 1.0 / 479001600.0;
  q = q * r + 1.0 / 39916800.0;
  q = q * r + 1.0 / 3628800.0;
  q = q * r + 1.0 / 362880.0;
  q = q * r + 1.0 / 40320.0;
  q = q * r + 1.0 / 5040.0;
  q = q * r + 1.0 / 720.0;
  q = q * r + 1.0 / 120.0;
  q = q * r + 1.0 / 24.0;
  q = q * r + 1.0 / 6.0;
  q = q * r + 0.5;
  double p = 1.0 + (r + r * r * q);
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4338000000000000u + 1022u) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  double y = (p + p) * power;
  return x < -707.0 ? 0.0 : y;
}

/* Rounds to nearest even. Adding 0x7fff rounds up every value above the middle. If the last kept bit is 1, 1 more is
 * added, so that the middle is rounded to the even neighbour. */
INLINE uint16_t bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = value == value ? bits + 0x7fff + (bits >> 16 & 1) : 0x7fc00000;
  return (uint16_t)(bits >> 16);
}

/* Returns 1 if a register has subnormals or NaNs. The instruction that rounds whole registers treats subnormals as
 * zeros and keeps the payloads of NaNs, so such registers are rounded element by element. */
#if defined(__AVX512BF16__)
INLINE int are_rare(__m512 a, __m512 b) {
  enum { QUIET_NAN = 0x01, SUBNORMAL = 0x20, SIGNALLING_NAN = 0x80, RARE = QUIET_NAN | SUBNORMAL | SIGNALLING_NAN };
  return !_kortestz_mask16_u8(_mm512_fpclass_ps_mask(a, RARE), _mm512_fpclass_ps_mask(b, RARE));
}

/* Rounds as many elements as fill whole registers, and returns how many. */
INLINE size_t round_registers(uint16_t *restrict to, const float *restrict from, size_t n) {
  enum { ROUNDED = 32 };
  size_t i = 0;
  for (; i + ROUNDED <= n; i += ROUNDED) {
    __m512 a = _mm512_loadu_ps(from + i), b = _mm512_loadu_ps(from + i + ROUNDED / 2);
    if (__builtin_expect(are_rare(a, b), 0))
      for (size_t j = i; j < i + ROUNDED; j++) to[j] = bf16_of(from[j]);
    else
      _mm512_storeu_si512((void *)(to + i), (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  return i;
}
#else
INLINE size_t round_registers(uint16_t *restrict to, const float *restrict from, size_t n) { return 0; }
#endif

#define SAME(value) (value)

#define ELEMENT float
#define REAL float
#define LOAD SAME
#define STORE SAME
#define ROUNDS 0
#define STORE_REGISTERS(to, from, n) 0
#define EXP exp_f32
#define NAME(name) name##_f32
#include "rows/rows_dtype.h"
#define ELEMENT double
#define REAL double
#define LOAD SAME
#define STORE SAME
#define ROUNDS 0
#define STORE_REGISTERS(to, from, n) 0
#define EXP exp_f64
#define NAME(name) name##_f64
#include "rows/rows_dtype.h"
#define ELEMENT uint16_t
#define REAL float
#define LOAD ad_bf16_value
#define STORE bf16_of
#define ROUNDS 1
#define STORE_REGISTERS round_registers
#define EXP exp_f32
#define NAME(name) name##_bf16
#include "rows/rows_dtype.h"

const row_table ROWS = {.f32 = &table_f32, .f64 = &table_f64, .bf16 = &table_bf16};
