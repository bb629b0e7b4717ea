/* The loops of the bare program. */
#ifndef BENCH_FLOOR_KERNELS_H
#define BENCH_FLOOR_KERNELS_H
#include <stddef.h>
#include <stdint.h>

/* to[j][i] = the sum of from[s][i] over all sources s, for every target j; a target may be one of the sources. */
void bench_floor_sum(const float *const from[], int sources, float *const to[], int targets, size_t numel);
/* The same for one target from bf16. */
void bench_floor_sum_narrow(const uint16_t *const from[], int sources, float *to, size_t numel);
/* From f32 to bf16 by keeping the upper halves, and back. */
void bench_floor_narrow(uint16_t *to, const float *from, size_t numel);
void bench_floor_widen(float *to, const uint16_t *from, size_t numel);
/* AdamW with everything that does not change in a step left out. */
void bench_floor_update(float *param, float *first, float *second, const float *grad, size_t numel);
/* Copies; large blocks past the caches. */
void bench_floor_copy(void *to, const void *from, size_t bytes);

#endif
