/* The bare program's loops in the widest vectors that the processor has. */
#include "floor_kernels.h"

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

void bench_floor_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
