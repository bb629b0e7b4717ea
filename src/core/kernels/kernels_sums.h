/* Sums of f32, and of 16-bit floats in f32, that stay in registers from the loads to the stores. Part of
 * kernels_body.h, whose loops over blocks give the same bits. */

/* Writes the sum of all sources to every output, which may be one of the sources. Does the first elements only, as many
 * as fill whole registers, and returns how many those are. */
typedef size_t (*register_sum)(void *const *out, size_t out_count, const void *const *sources, size_t source_count,
                               size_t n);

#if defined(HAS_LANES)
/* Asks for the cache lines that will be written soon, ready to be written. A line that another core has then travels
 * once; without this it travels once to be read and once more to be written. Lines from `end` on are left alone:
 * another rank writes them. Measured: saves a third of the time of 1 MiB of bf16. */
enum { AHEAD = 1024 };  // bytes
INLINE void fetch_to_write(const void *at, const void *end, size_t bytes) {
  const char *line = (const char *)at + AHEAD;
  for (size_t i = 0; i < bytes && line + i < (const char *)end; i += 64) __builtin_prefetch(line + i, 1);
}

/* Defines the register_sum `name` of one dtype. Two sources and at most two outputs, which is two ranks summing in
 * place, is a case of its own: its loop over the elements has no loops over sources and outputs inside. */
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
/* A sum of two f16 can be rounded to f16 directly and has the same bits as if it were formed in f32: f32 has more than
 * twice as many significant bits as f16, plus two, so that rounding to f32 in between changes nothing (S. Figueroa,
 * When is double rounding innocuous?, 1995). */
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
