/* The floor's loops, compiled for the widest vectors that the processor has. */
#include "floor_kernels.h"

#include <math.h>
#include <string.h>

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16, STEP = 4 * LANES };
#define INLINE static inline __attribute__((always_inline))

INLINE void sum(const float *const from[], int sources, float *const to[], int targets, size_t numel) {
  size_t i = 0;
  for (; i + STEP <= numel; i += STEP) {
    const vector *first = (const vector *)(from[0] + i);
    vector a = first[0], b = first[1], c = first[2], d = first[3];
    for (int s = 1; s < sources; s++) {
      const vector *next = (const vector *)(from[s] + i);
      a += next[0], b += next[1], c += next[2], d += next[3];
    }
    for (int t = 0; t < targets; t++) {
      vector *target = (vector *)(to[t] + i);
      target[0] = a, target[1] = b, target[2] = c, target[3] = d;
    }
  }
  for (; i < numel; i++) {
    float total = from[0][i];
    for (int s = 1; s < sources; s++) total += from[s][i];
    for (int t = 0; t < targets; t++) to[t][i] = total;
  }
}

INLINE float widened(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINE void narrow(uint16_t *restrict to, const float *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) {
    uint32_t bits;
    memcpy(&bits, &from[i], sizeof bits);
    to[i] = (uint16_t)(bits >> 16);
  }
}

INLINE void widen(float *restrict to, const uint16_t *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) to[i] = widened(from[i]);
}

INLINE void add_narrow(float *restrict to, const uint16_t *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) to[i] += widened(from[i]);
}

/* Elements of a block that stays in the first-level cache until all sources are added to it. */
enum { BLOCK = 2048 };

INLINE void sum_narrow(const uint16_t *const from[], int sources, float *to, size_t numel) {
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    widen(to + at, from[0] + at, n);
    for (int s = 1; s < sources; s++) add_narrow(to + at, from[s] + at, n);
  }
}

INLINE void update(float *restrict param, float *restrict first, float *restrict second, const float *restrict grad,
                   size_t numel) {
  for (size_t i = 0; i < numel; i++) {
    first[i] = 0.9f * first[i] + 0.1f * grad[i];
    second[i] = 0.95f * second[i] + 0.05f * (grad[i] * grad[i]);
    param[i] -= 1e-4f * (first[i] / (sqrtf(second[i]) + 1e-8f));
  }
}

INLINE void direction(float *restrict average, const float *restrict grad, float *restrict out, size_t numel) {
  for (size_t i = 0; i < numel; i++) {
    average[i] += 0.05f * (grad[i] - average[i]);
    out[i] = grad[i] + 0.95f * (average[i] - grad[i]);
  }
}

INLINE void apply(float *restrict param, const float *restrict result, size_t numel) {
  for (size_t i = 0; i < numel; i++) param[i] -= 1e-4f * result[i];
}

/* Defines bench_floor_NAME, which calls `NAME` compiled for AVX-512, AVX2 or neither, as the processor has them. */
#if defined(__x86_64__)
#define WIDEST(name, parameters, arguments)                                                            \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void name##_avx512 parameters { \
    name arguments;                                                                                    \
  }                                                                                                    \
  __attribute__((target("avx2"))) static void name##_avx2 parameters { name arguments; }               \
  void bench_floor_##name parameters {                                                                 \
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))                      \
      name##_avx512 arguments;                                                                         \
    else if (__builtin_cpu_supports("avx2"))                                                           \
      name##_avx2 arguments;                                                                           \
    else                                                                                               \
      name arguments;                                                                                  \
  }
#else
#define WIDEST(name, parameters, arguments) \
  void bench_floor_##name parameters { name arguments; }
#endif

WIDEST(sum, (const float *const from[], int sources, float *const to[], int targets, size_t numel),
       (from, sources, to, targets, numel))
WIDEST(sum_narrow, (const uint16_t *const from[], int sources, float *to, size_t numel), (from, sources, to, numel))
WIDEST(narrow, (uint16_t * to, const float *from, size_t numel), (to, from, numel))
WIDEST(widen, (float *to, const uint16_t *from, size_t numel), (to, from, numel))
WIDEST(update, (float *param, float *first, float *second, const float *grad, size_t numel),
       (param, first, second, grad, numel))
WIDEST(direction, (float *average, const float *grad, float *out, size_t numel), (average, grad, out, numel))
WIDEST(apply, (float *param, const float *result, size_t numel), (param, result, numel))

void bench_floor_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
