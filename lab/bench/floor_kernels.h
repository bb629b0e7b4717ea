/* The floor's loops over numbers (floor.h). */
#ifndef BENCH_FLOOR_KERNELS_H
#define BENCH_FLOOR_KERNELS_H
#include <stddef.h>
#include <stdint.h>

/* to[j][i] = the sum of from[s][i] over all sources s, for every target j; a target may be one of the sources. */
void bench_floor_sum(const float *const from[], int sources, float *const to[], int targets, size_t numel);
/* The same sum of bf16 sources into one f32 target. */
void bench_floor_sum_narrow(const uint16_t *const from[], int sources, float *to, size_t numel);
/* Converts f32 to bf16 by cutting off the lower 16 bits, and bf16 to f32. */
void bench_floor_narrow(uint16_t *to, const float *from, size_t numel);
void bench_floor_widen(float *to, const uint16_t *from, size_t numel);
/* One AdamW update with fixed factors: no bias correction, no weight decay. */
void bench_floor_update(float *param, float *first, float *second, const float *grad, size_t numel);
/* Muon's work on elements, with fixed factors: the average of gradients and the direction; and the update by what became
 * of the direction. */
void bench_floor_direction(float *average, const float *grad, float *direction, size_t numel);
void bench_floor_apply(float *param, const float *result, size_t numel);
/* Copies bytes with memcpy, which writes large blocks past the caches. */
void bench_floor_copy(void *to, const void *from, size_t bytes);

#endif
