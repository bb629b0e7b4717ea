/* How much of a step is matrix products, and how fast they are beside OpenBLAS's of f32 alone on the same shapes. A
 * program of its own, linked with --wrap=ad_gemm: every product of the step passes through here. Prints one JSON
 * object. */
#include <stdio.h>
#include <stdlib.h>

#include "library.h"
#include "tensor/gemm_ways.h"

/* What ad_gemm takes, the signature of both functions below. */
#define PRODUCT                                                                                                     \
  ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, gemm_operand a, gemm_operand b, \
      int adds, void *c, int64_t c_stride
void __real_ad_gemm(PRODUCT);
void __wrap_ad_gemm(PRODUCT);

enum { SHAPES_MAX = 512, ROUNDS = 5 };

typedef struct seen {
  gemm_product shape; /* without memory */
  int64_t calls;
  double own; /* seconds of one call of OpenBLAS alone, summed over rounds */
} seen;

static seen shapes[SHAPES_MAX];
static int shape_count, overflowed;
static double inside; /* seconds in products of steps */

static int is_same(const gemm_product *a, const gemm_product *b) {
  return a->a.transposed == b->a.transposed && a->b.transposed == b->b.transposed && a->m == b->m && a->n == b->n &&
         a->k == b->k && a->a.stride == b->a.stride && a->b.stride == b->b.stride && a->c_stride == b->c_stride &&
         a->adds == b->adds;
}

static void remember(gemm_product shape) {
  for (int i = 0; i < shape_count; i++)
    if (is_same(&shapes[i].shape, &shape)) return (void)shapes[i].calls++;
  if (shape_count == SHAPES_MAX) return (void)(overflowed = 1);
  shapes[shape_count++] = (seen){.shape = shape, .calls = 1};
}

void __wrap_ad_gemm(PRODUCT) {
  remember((gemm_product){values, result, m, n, k, factor, a, b, adds, NULL, c_stride});
  double start = bench_now();
  __real_ad_gemm(values, result, m, n, k, factor, a, b, adds, c, c_stride);
  inside += bench_now() - start;
}

static float *numbers(size_t count) {
  float *memory = malloc(count * sizeof *memory);
  for (size_t i = 0; memory && i < count; i++) memory[i] = 1e-3f * (float)(i % 1000);
  return memory;
}

static float *operand(const gemm_operand *of, int64_t rows, int64_t columns) {
  return numbers((size_t)(of->transposed ? columns : rows) * (size_t)of->stride);
}

/* The second of two calls is timed. */
static double time_alone(const gemm_product *shape) {
  gemm_product p = *shape;
  float *a = operand(&p.a, p.m, p.k), *b = operand(&p.b, p.k, p.n), *c = numbers((size_t)(p.m * p.c_stride));
  double start = 0;
  p.values = p.result = AD_F32;
  p.a.data = a, p.b.data = b, p.c = c;
  for (int i = 0; a && b && c && i < 2; i++) {
    start = bench_now();
    ad_gemm_blas(&p);
  }
  double seconds = bench_now() - start;
  free(a);
  free(b);
  free(c);
  return seconds;
}

static double flops(const gemm_product *p) { return 2.0 * (double)p->m * (double)p->n * (double)p->k; }

static void report(double step_seconds) {
  double work = 0, own = 0;
  for (int i = 0; i < shape_count; i++) {
    double calls = (double)shapes[i].calls / ROUNDS;
    work += calls * flops(&shapes[i].shape);
    own += calls * shapes[i].own / ROUNDS;
  }
  printf("{\"step_seconds\":%.6g,\"gemm_share\":%.4g,\"gemm_gflops\":%.5g,\"openblas_gflops\":%.5g,\"shapes\":%d}\n",
         step_seconds, inside / ROUNDS / step_seconds, work / (inside / ROUNDS) / 1e9, work / own / 1e9, shape_count);
}

/* Steps and products alone take turns, so that both see the same machine. */
static ad_status measure(bench_steps *steps) {
  double seconds = 0;
  AD_TRY(bench_steps_run(steps)); /* warm */
  inside = 0, shape_count = 0;
  for (int round = 0; round < ROUNDS; round++) {
    double start = bench_now();
    AD_TRY(bench_steps_run(steps));
    seconds += bench_now() - start;
    for (int i = 0; i < shape_count; i++) shapes[i].own += time_alone(&shapes[i].shape);
  }
  report(seconds / ROUNDS);
  return AD_OK;
}

int main(void) {
  ad_comm *comm;
  bench_steps *steps;
  if (ad_comm_open_alone(&comm)) return fprintf(stderr, "gemm: %s\n", ad_last_error()), 1;
  bench_setting setting = bench_setting_of(&bench_small, "dp_replicate", 1);
  ad_recipe *recipe;
  ad_status status = bench_recipe(&setting, &recipe);
  if (!status) status = bench_steps_create(comm, recipe, &steps);
  if (!status) {
    status = measure(steps);
    bench_steps_destroy(steps);
  }
  if (status) fprintf(stderr, "gemm: %s\n", ad_last_error());
  ad_comm_close(comm);
  return status != AD_OK || overflowed;
}
