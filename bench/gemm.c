/* How much of a step is matrix products, and how fast they are beside OpenBLAS alone on the same shapes. A program of
 * its own, linked with --wrap=cblas_sgemm: every product of the step passes through here. Prints one JSON object. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

void __real_cblas_sgemm(CBLAS_LAYOUT order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                        float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                        blasint ldc);
void __wrap_cblas_sgemm(CBLAS_LAYOUT order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                        float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                        blasint ldc);

enum { SHAPES_MAX = 512, ROUNDS = 5 };

typedef struct product {
  CBLAS_TRANSPOSE ta, tb;
  blasint m, n, k, lda, ldb, ldc;
  float beta;
} product;

typedef struct seen {
  product shape;
  int64_t calls;
  double own; /* seconds of one call of OpenBLAS alone, summed over rounds */
} seen;

static seen shapes[SHAPES_MAX];
static int shape_count, overflowed;
static double inside; /* seconds in products of steps */

static int is_same(const product *a, const product *b) {
  return a->ta == b->ta && a->tb == b->tb && a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda &&
         a->ldb == b->ldb && a->ldc == b->ldc && a->beta == b->beta;
}

static void remember(product shape) {
  for (int i = 0; i < shape_count; i++)
    if (is_same(&shapes[i].shape, &shape)) return (void)shapes[i].calls++;
  if (shape_count == SHAPES_MAX) return (void)(overflowed = 1);
  shapes[shape_count++] = (seen){.shape = shape, .calls = 1};
}

// NOLINTNEXTLINE(readability-function-size): the signature is BLAS's
void __wrap_cblas_sgemm(CBLAS_LAYOUT order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                        float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                        blasint ldc) {
  remember((product){ta, tb, m, n, k, lda, ldb, ldc, beta});
  double start = bench_now();
  __real_cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  inside += bench_now() - start;
}

static size_t floats(CBLAS_TRANSPOSE transpose, blasint rows, blasint columns, blasint stride) {
  return (size_t)(transpose == CblasNoTrans ? rows : columns) * (size_t)stride;
}

static float *numbers(size_t count) {
  float *memory = malloc(count * sizeof *memory);
  for (size_t i = 0; memory && i < count; i++) memory[i] = 1e-3f * (float)(i % 1000);
  return memory;
}

/* The second of two calls is timed. */
static double time_alone(const product *p) {
  float *a = numbers(floats(p->ta, p->m, p->k, p->lda)), *b = numbers(floats(p->tb, p->k, p->n, p->ldb));
  float *c = numbers((size_t)p->m * (size_t)p->ldc);
  double start = 0;
  for (int i = 0; a && b && c && i < 2; i++) {
    start = bench_now();
    __real_cblas_sgemm(CblasRowMajor, p->ta, p->tb, p->m, p->n, p->k, 1, a, p->lda, b, p->ldb, p->beta, c, p->ldc);
  }
  double seconds = bench_now() - start;
  free(a);
  free(b);
  free(c);
  return seconds;
}

static double flops(const product *p) { return 2.0 * p->m * p->n * p->k; }

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
