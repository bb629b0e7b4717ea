/* The two loops of the bare program. */
#ifndef BENCH_FLOOR_KERNELS_H
#define BENCH_FLOOR_KERNELS_H
#include <stddef.h>

/* to[j][i] = sum over from[0..sources) of [i], for every target; a target may be a source. */
void bench_floor_sum(const float *const from[], int sources, float *const to[], int targets, size_t numel);
/* Copies; large blocks past the caches. */
void bench_floor_copy(void *to, const void *from, size_t bytes);

#endif
