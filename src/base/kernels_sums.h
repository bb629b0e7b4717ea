/* Sums of floats that stay in registers from the first source to the last output: f32, and 16-bit floats summed in f32.
 * Part of kernels_body.h; the same bits as its blocks give. */

/* Sums the first elements, as many as fill registers, of all sources into all outs, each of which may be a source;
 * returns how many. */
typedef size_t (*register_sum)(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
                               size_t n);

#if defined(HAS_LANES)
/* Lines that are written soon come from the other core once, to be read and written, not once for each. Not beyond
 * `end`, where the other rank writes. Measured: a third of the time of 1 MiB of bf16. */
enum { AHEAD = 1024 };  // bytes
INLINE void fetch_to_write(const void *at, const void *end, size_t bytes) {
  const char *line = (const char *)at + AHEAD;
  for (size_t i = 0; i < bytes && line + i < (const char *)end; i += 64) __builtin_prefetch(line + i, 1);
}

/* Two ranks are many users' all: their loop has no inner ones. */
#define REGISTER_SUM(name, type, load, pack, put, both)                                                               \
  static size_t name##_of_two(type *to, type *other, const type *from, const type *term, size_t n) {                  \
    size_t i = 0;                                                                                                     \
    for (; i + LANES <= n; i += LANES) {                                                                              \
      fetch_to_write(to + i, to + n, LANES * sizeof *to);                                                             \
      if (other) fetch_to_write(other + i, other + n, LANES * sizeof *to);                                            \
      __auto_type result = both(from + i, term + i);                                                                  \
      put(to + i, result);                                                                                            \
      if (other) put(other + i, result);                                                                              \
    }                                                                                                                 \
    return i;                                                                                                         \
  }                                                                                                                   \
  static size_t name(void *const *out, size_t out_count, const void *const *sources, size_t source_count, size_t n) { \
    size_t i = 0;                                                                                                     \
    if (source_count == 2 && out_count <= 2)                                                                          \
      return name##_of_two(out[0], out_count == 2 ? out[1] : NULL, sources[0], sources[1], n);                        \
    for (; i + LANES <= n; i += LANES) {                                                                              \
      lanes sum = load((const type *)sources[0] + i);                                                                 \
      for (size_t j = 1; j < source_count; j++) sum = lanes_add(sum, load((const type *)sources[j] + i));             \
      __auto_type result = pack(sum);                                                                                 \
      for (size_t k = 0; k < out_count; k++) put((type *)out[k] + i, result);                                         \
    }                                                                                                                 \
    return i;                                                                                                         \
  }

INLINE lanes sum_two_f32(const float *x, const float *y) {
  return f32_of(lanes_add(lanes_from_f32(x), lanes_from_f32(y)));
}
INLINE halves sum_two_bf16(const uint16_t *x, const uint16_t *y) {
  return bf16_of(lanes_add(lanes_from_bf16(x), lanes_from_bf16(y)));
}
#if defined(__AVX512FP16__)
/* The one rounding of a sum of two: f32 has more than twice the bits of f16 and two more, so that rounding to it first
 * changes nothing (S. Figueroa, When is double rounding innocuous?, 1995). */
INLINE halves sum_two_f16(const uint16_t *x, const uint16_t *y) {
  __m512h sum = _mm512_add_ph(_mm512_loadu_ph(x), _mm512_loadu_ph(y));
  __mmask32 nan = _mm512_cmp_ph_mask(sum, sum, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi16(_mm512_castph_si512(sum), nan, _mm512_set1_epi16(0x7e00));
}
#else
INLINE halves sum_two_f16(const uint16_t *x, const uint16_t *y) {
  return f16_of(lanes_add(lanes_from_f16(x), lanes_from_f16(y)));
}
#endif

REGISTER_SUM(sum_f32s, float, lanes_from_f32, f32_of, put_f32, sum_two_f32)
REGISTER_SUM(sum_bf16s, uint16_t, lanes_from_bf16, bf16_of, put_halves, sum_two_bf16)
REGISTER_SUM(sum_f16s, uint16_t, lanes_from_f16, f16_of, put_halves, sum_two_f16)
static const register_sum register_sums[DTYPE_END] = {[AD_F32] = sum_f32s, [AD_BF16] = sum_bf16s, [AD_F16] = sum_f16s};
#else
static const register_sum register_sums[DTYPE_END] = {NULL};
#endif
