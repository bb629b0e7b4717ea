/* Sums of f32, and of 16-bit floats in f32, whose values stay in registers from the loads to the stores. Included by
 * kernels_body.h, whose loops over blocks give the same bits. */

/* Writes the sum of all sources to every output; an output may be one of the sources. The sources are consecutive
 * addends of the tree, from index `first` on. Handles only as many of the first elements as fill whole registers, and
 * returns their number. */
typedef size_t (*register_sum)(void *const *out, size_t out_count, const void *const *sources, size_t first,
                               size_t source_count, size_t n);

#if defined(HAS_LANES)
/* Prefetches, for writing, the cache lines that will be written soon. A line that is in another core's cache is then
 * transferred once; otherwise it would be transferred once to be read and again to be written. Lines from `end` on
 * belong to another rank and are not prefetched. Measured: saves a third of the time of 1 MiB of bf16. */
enum { AHEAD = 1024 };  // how many bytes ahead of the loop lines are prefetched
INLINE void fetch_to_write(const void *at, const void *end, size_t bytes) {
  const char *line = (const char *)at + AHEAD;
  for (size_t i = 0; i < bytes && line + i < (const char *)end; i += 64) __builtin_prefetch(line + i, 1);
}

/* Defines the register_sum `name` of one dtype. Two sources with at most two outputs (two ranks that sum in place) are
 * a special case, whose loop over the elements contains no loops over sources and outputs. Up to sixteen sources are
 * summed without a function call, and three, four and eight sources without branches on their number. */
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
  INLINE lanes name##_at(const void *const *sources, size_t j, size_t i) {                                            \
    return load((const type *)sources[j] + i);                                                                        \
  }                                                                                                                   \
  INLINE lanes name##_of_four(const void *const *sources, size_t i, size_t first, size_t count) {                     \
    lanes a = name##_at(sources, 0, i);                                                                               \
    if (count == 1) return a;                                                                                         \
    lanes b = name##_at(sources, 1, i);                                                                               \
    if (count == 2) return lanes_add(a, b);                                                                           \
    lanes c = name##_at(sources, 2, i);                                                                               \
    if (count == 4) return lanes_add(lanes_add(a, b), lanes_add(c, name##_at(sources, 3, i)));                        \
    return ad_tree_lower(first, 3) == 1 ? lanes_add(a, lanes_add(b, c)) : lanes_add(lanes_add(a, b), c);              \
  }                                                                                                                   \
  INLINE lanes name##_of_eight(const void *const *sources, size_t i, size_t first, size_t count) {                    \
    if (count <= 4) return name##_of_four(sources, i, first, count);                                                  \
    size_t lower = ad_tree_lower(first, count);                                                                       \
    return lanes_add(name##_of_four(sources, i, first, lower),                                                        \
                     name##_of_four(sources + lower, i, first + lower, count - lower));                               \
  }                                                                                                                   \
  INLINE lanes name##_of_sixteen(const void *const *sources, size_t i, size_t first, size_t count) {                  \
    if (count <= 8) return name##_of_eight(sources, i, first, count);                                                 \
    size_t lower = ad_tree_lower(first, count);                                                                       \
    return lanes_add(name##_of_eight(sources, i, first, lower),                                                       \
                     name##_of_eight(sources + lower, i, first + lower, count - lower));                              \
  }                                                                                                                   \
  static lanes name##_of_many(const void *const *sources, size_t i, size_t first, size_t count) {                     \
    if (count <= 16) return name##_of_sixteen(sources, i, first, count);                                              \
    size_t lower = ad_tree_lower(first, count);                                                                       \
    return lanes_add(name##_of_many(sources, i, first, lower),                                                        \
                     name##_of_many(sources + lower, i, first + lower, count - lower));                               \
  }                                                                                                                   \
  INLINE size_t name##_to_all(void *const *out, size_t out_count, const void *const *sources, size_t first,           \
                              size_t count, size_t n) {                                                               \
    size_t i = 0;                                                                                                     \
    for (; i + LANES <= n; i += LANES) {                                                                              \
      __auto_type result =                                                                                            \
          pack(count <= 16 ? name##_of_sixteen(sources, i, first, count) : name##_of_many(sources, i, first, count)); \
      for (size_t k = 0; k < out_count; k++) put((type *)out[k] + i, result);                                         \
    }                                                                                                                 \
    return i;                                                                                                         \
  }                                                                                                                   \
  static size_t name(void *const *out, size_t out_count, const void *const *sources, size_t first, size_t count,      \
                     size_t n) {                                                                                      \
    if (count == 2 && out_count <= 2)                                                                                 \
      return name##_of_two(out[0], out_count == 2 ? out[1] : NULL, sources[0], sources[1], n);                        \
    if (count == 3) return name##_to_all(out, out_count, sources, first, 3, n);                                       \
    if (count == 4) return name##_to_all(out, out_count, sources, first, 4, n);                                       \
    if (count == 8) return name##_to_all(out, out_count, sources, first, 8, n);                                       \
    return name##_to_all(out, out_count, sources, first, count, n);                                                   \
  }

INLINE lanes sum_two_f32(const float *x, const float *y) {
  return f32_of(lanes_add(lanes_from_f32(x), lanes_from_f32(y)));
}
INLINE halves sum_two_bf16(const uint16_t *x, const uint16_t *y) {
  return bf16_of(lanes_add(lanes_from_bf16(x), lanes_from_bf16(y)));
}
#if defined(__AVX512FP16__)
/* A sum of two f16 that is rounded directly to f16 has the same bits as one that is computed in f32 and then rounded:
 * f32 has more than twice as many significant bits as f16, plus two, so rounding to f32 first changes nothing (S.
 * Figueroa, When is double rounding innocuous?, 1995). */
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
static const register_sum register_sums[AD_DTYPE_END] = {
    [AD_F32] = sum_f32s, [AD_BF16] = sum_bf16s, [AD_F16] = sum_f16s};
#else
static const register_sum register_sums[AD_DTYPE_END] = {NULL};
#endif
