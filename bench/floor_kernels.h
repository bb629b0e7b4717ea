/* The loops of the bare program. */
#ifndef BENCH_FLOOR_KERNELS_H
#define BENCH_FLOOR_KERNELS_H
#include <stddef.h>
#include <stdint.h>

/* to[j][i] = sum over from[0..sources) of [i], for every target; a target may be a source. */
void bench_floor_sum(const float *const from[], int sources, float *const to[], int targets, size_t numel);
/* The same for one target from bf16. */
void bench_floor_sum_narrow(const uint16_t *const from[], int sources, float *to, size_t numel);
/* The upper halves of f32, which are bf16, and bf16 as f32. */
void bench_floor_narrow(uint16_t *to, const float *from, size_t numel);
void bench_floor_widen(float *to, const uint16_t *from, size_t numel);
/* AdamW with everything that does not change in a step left out. */
void bench_floor_update(float *param, float *first, float *second, const float *grad, size_t numel);
/* Copies; large blocks past the caches. */
void bench_floor_copy(void *to, const void *from, size_t bytes);

#endif
