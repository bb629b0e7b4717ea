/* The bare program's loops in the widest vectors that the processor has. */
#include "floor_kernels.h"

#include <math.h>
#include <string.h>

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16, STEP = 4 * LANES };

static inline __attribute__((always_inline)) void sum(const float *const from[], int sources, float *const to[],
                                                      int targets, size_t numel) {
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

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void sum_avx512(const float *const from[], int sources, float *const to[],
                                                          int targets, size_t numel) {
  sum(from, sources, to, targets, numel);
}
__attribute__((target("avx2"))) static void sum_avx2(const float *const from[], int sources, float *const to[],
                                                     int targets, size_t numel) {
  sum(from, sources, to, targets, numel);
}
#endif

void bench_floor_sum(const float *const from[], int sources, float *const to[], int targets, size_t numel) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512(from, sources, to, targets, numel), (void)0;
  if (__builtin_cpu_supports("avx2")) return sum_avx2(from, sources, to, targets, numel), (void)0;
#endif
  sum(from, sources, to, targets, numel);
}

/* Plain loops: the compiler's vectors keep up with memory. */
#if defined(__x86_64__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define WIDEST
#endif

static inline float widened(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

WIDEST void bench_floor_narrow(uint16_t *restrict to, const float *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) {
    uint32_t bits;
    memcpy(&bits, &from[i], sizeof bits);
    to[i] = (uint16_t)(bits >> 16);
  }
}

WIDEST void bench_floor_widen(float *restrict to, const uint16_t *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) to[i] = widened(from[i]);
}

/* In blocks that stay in the first cache until all are added. */
enum { BLOCK = 2048 };

WIDEST static void add_narrow(float *restrict to, const uint16_t *restrict from, size_t numel) {
  for (size_t i = 0; i < numel; i++) to[i] += widened(from[i]);
}

void bench_floor_sum_narrow(const uint16_t *const from[], int sources, float *to, size_t numel) {
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    bench_floor_widen(to + at, from[0] + at, n);
    for (int s = 1; s < sources; s++) add_narrow(to + at, from[s] + at, n);
  }
}

WIDEST void bench_floor_update(float *restrict param, float *restrict first, float *restrict second,
                               const float *restrict grad, size_t numel) {
  for (size_t i = 0; i < numel; i++) {
    first[i] = 0.9f * first[i] + 0.1f * grad[i];
    second[i] = 0.95f * second[i] + 0.05f * (grad[i] * grad[i]);
    param[i] -= 1e-4f * (first[i] / (sqrtf(second[i]) + 1e-8f));
  }
}

void bench_floor_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
