/* Vectors of floats: a `lanes` has LANES f32 values in two registers, a `halves` has LANES 16-bit floats in one. A
 * variant whose instruction set has no such registers does not define HAS_LANES. It uses the loops of kernels_body.h
 * for everything, which give the same bits. */

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define HAS_LANES 1
enum { LANES = 32 };
typedef struct lanes {
  __m512 a, b;
} lanes;
typedef __m512i halves;

INLINE lanes lanes_from_f32(const float *from) {
  return (lanes){_mm512_loadu_ps(from), _mm512_loadu_ps(from + LANES / 2)};
}
INLINE void put_f32(float *to, lanes value) {
  _mm512_storeu_ps(to, value.a);
  _mm512_storeu_ps(to + LANES / 2, value.b);
}
INLINE void put_halves(uint16_t *to, halves value) { _mm512_storeu_si512((void *)to, value); }
INLINE lanes lanes_add(lanes x, lanes y) { return (lanes){_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b)}; }
INLINE lanes lanes_times(lanes x, float factor) {
  __m512 by = _mm512_set1_ps(factor);
  return (lanes){_mm512_mul_ps(by, x.a), _mm512_mul_ps(by, x.b)};
}
INLINE int lanes_have_nan(lanes value) { return _mm512_cmp_ps_mask(value.a, value.b, _CMP_UNORD_Q) != 0; }

INLINE __m512 lane_canonical(__m512 value) {
  __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

/* Converts bf16 to f32, with even elements in `a` and odd elements in `b`. A bf16 is the upper half of an f32, and each
 * f32 lane is loaded with two neighbouring bf16: shifting a lane gives the f32 of the even element, masking it the f32
 * of the odd element. No element changes its lane. */
INLINE lanes lanes_from_bf16(const uint16_t *from) {
  __m512i both = _mm512_loadu_si512((const void *)from);
  return (lanes){_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                 _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)))};
}

/* Like lanes_from_bf16, but with the elements in order: the first half of them in `a`, the second half in `b`. */
INLINE lanes ordered_from_bf16(const uint16_t *from) {
  __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
  __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(from + LANES / 2)));
  return (lanes){_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
}

/* Rounds f32 to bf16: the upper half of the result is the value, rounded to nearest even. Adding 0x7fff to the bits
 * rounds up everything above the middle of two bf16 values. If the last bit of the upper half is odd, one more is
 * added, so that the middle itself is rounded to the even value. */
INLINE __m512i lane_rounded(__m512 value) {
  __m512i bits = _mm512_castps_si512(value), below = _mm512_set1_epi32(0x7fff);
  __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  __m512i up = _mm512_add_epi32(bits, below);
  return _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
}
INLINE halves bf16_of_any(lanes value) {
  __m512i even = _mm512_srli_epi32(lane_rounded(lane_canonical(value.a)), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, even, lane_rounded(lane_canonical(value.b)));
}
INLINE halves ordered_rounded(lanes value) {
  __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(lane_rounded(value.a), 16));
  __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(lane_rounded(value.b), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

#if defined(__AVX512BF16__)
/* The conversion instruction treats subnormals as zeros and keeps the payloads of NaNs. Registers that contain such
 * values are converted by bf16_of_any instead. */
INLINE int are_rare(lanes value) {
  enum { QUIET_NAN = 0x01, SUBNORMAL = 0x20, SIGNALLING_NAN = 0x80, RARE = QUIET_NAN | SUBNORMAL | SIGNALLING_NAN };
  __mmask16 a = _mm512_fpclass_ps_mask(value.a, RARE), b = _mm512_fpclass_ps_mask(value.b, RARE);
  return __builtin_expect(!_kortestz_mask16_u8(a, b), 0);
}
INLINE halves bf16_of(lanes value) {
  if (are_rare(value)) return bf16_of_any(value);
  static const uint16_t interleaved[LANES] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(value.b, value.a);
  return _mm512_permutexvar_epi16(_mm512_loadu_si512((const void *)interleaved), packed);
}
INLINE halves ordered_usual(lanes value) { return (__m512i)_mm512_cvtne2ps_pbh(value.b, value.a); }
#else
INLINE int are_rare(lanes value) { return __builtin_expect(lanes_have_nan(value), 0); }
INLINE halves bf16_of(lanes value) { return bf16_of_any(value); }
INLINE halves ordered_usual(lanes value) { return ordered_rounded(value); }
#endif

INLINE lanes lanes_from_f16(const uint16_t *from) {
  return (lanes){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from)),
                 _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + LANES / 2)))};
}
INLINE halves f16_of(lanes value) {
  __m256i a = _mm512_cvtps_ph(lane_canonical(value.a), _MM_FROUND_TO_NEAREST_INT);
  __m256i b = _mm512_cvtps_ph(lane_canonical(value.b), _MM_FROUND_TO_NEAREST_INT);
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

#elif defined(__AVX2__) && defined(__F16C__)
#define HAS_LANES 1
enum { LANES = 16 };
typedef struct lanes {
  __m256 a, b;
} lanes;
typedef __m256i halves;

INLINE lanes lanes_from_f32(const float *from) {
  return (lanes){_mm256_loadu_ps(from), _mm256_loadu_ps(from + LANES / 2)};
}
INLINE void put_f32(float *to, lanes value) {
  _mm256_storeu_ps(to, value.a);
  _mm256_storeu_ps(to + LANES / 2, value.b);
}
INLINE void put_halves(uint16_t *to, halves value) { _mm256_storeu_si256((void *)to, value); }
INLINE lanes lanes_add(lanes x, lanes y) { return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE lanes lanes_times(lanes x, float factor) {
  __m256 by = _mm256_set1_ps(factor);
  return (lanes){_mm256_mul_ps(by, x.a), _mm256_mul_ps(by, x.b)};
}
INLINE int lanes_have_nan(lanes value) {
  return _mm256_movemask_ps(_mm256_cmp_ps(value.a, value.b, _CMP_UNORD_Q)) != 0;
}
INLINE __m256 lane_canonical(__m256 value) {
  __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan);
}

INLINE lanes lanes_from_bf16(const uint16_t *from) {
  __m256i both = _mm256_loadu_si256((const void *)from);
  return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
                 _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)))};
}
INLINE lanes ordered_from_bf16(const uint16_t *from) {
  __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
  __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(from + LANES / 2)));
  return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
INLINE __m256i lane_rounded(__m256 value) {
  __m256i bits = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
INLINE halves bf16_of(lanes value) {
  __m256i even = _mm256_srli_epi32(lane_rounded(lane_canonical(value.a)), 16);
  return _mm256_blend_epi16(even, lane_rounded(lane_canonical(value.b)), 0xaa);
}
INLINE int are_rare(lanes value) { return __builtin_expect(lanes_have_nan(value), 0); }
INLINE halves ordered_rounded(lanes value) {
  __m256i a = _mm256_srli_epi32(lane_rounded(value.a), 16), b = _mm256_srli_epi32(lane_rounded(value.b), 16);
  // packus works on each half of the registers separately; the permutation puts the four quarters in order
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
INLINE halves ordered_usual(lanes value) { return ordered_rounded(value); }

INLINE lanes lanes_from_f16(const uint16_t *from) {
  return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const void *)from)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + LANES / 2)))};
}
INLINE halves f16_of(lanes value) {
  __m128i a = _mm256_cvtps_ph(lane_canonical(value.a), _MM_FROUND_TO_NEAREST_INT);
  __m128i b = _mm256_cvtps_ph(lane_canonical(value.b), _MM_FROUND_TO_NEAREST_INT);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}
#endif

#if defined(HAS_LANES)
INLINE lanes f32_of(lanes value) {
  if (__builtin_expect(!lanes_have_nan(value), 1)) return value;
  return (lanes){lane_canonical(value.a), lane_canonical(value.b)};
}
/* Converts lanes with their elements in order to bf16. */
INLINE halves ordered_bf16_of(lanes value) {
  if (!are_rare(value)) return ordered_usual(value);
  return ordered_rounded((lanes){lane_canonical(value.a), lane_canonical(value.b)});
}
#endif
