/* The program bench_gemm: measures the share of matrix products in a step, and their speed and that of libraries alone
 * on the same shapes: OpenBLAS in f32, oneDNN in the step's dtype and in f32. The linker's --wrap=ad_gemm sends every
 * product of the step through this file. Prints one JSON object. Usage: bench_gemm [f32|bf16 [quick]]. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measured.h"
#include "products/gemm_ways.h"
#include "ways.h"

/* The parameters of ad_gemm, for both functions below. */
#define PRODUCT                                                                                               \
  ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b, \
      int adds, void *c, int64_t c_stride
void __real_ad_gemm(PRODUCT);
void __wrap_ad_gemm(PRODUCT);

enum { SHAPES_MAX = 512, ROUNDS = 5 };

/* The libraries that are timed alone. */
enum { OPENBLAS_F32, ONEDNN_SAME, ONEDNN_F32, LIBRARIES };
static const char *const rate_names[LIBRARIES] = {"openblas_gflops", "onednn_gflops", "onednn_f32_gflops"};

typedef struct seen {
  gemm_product shape; /* the product, without its arrays */
  int64_t calls;
  double alone[LIBRARIES]; /* seconds of one call with each library alone, summed over rounds */
} seen;

static seen shapes[SHAPES_MAX];
static int shape_count, overflowed, failed[LIBRARIES];
static double inside; /* seconds in matrix products of steps */

static int is_same(const gemm_product *a, const gemm_product *b) {
  return a->a.transposed == b->a.transposed && a->b.transposed == b->b.transposed && a->m == b->m && a->n == b->n &&
         a->k == b->k && a->a.stride == b->a.stride && a->b.stride == b->b.stride && a->c_stride == b->c_stride &&
         a->adds == b->adds && a->values == b->values && a->result == b->result;
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

/* Returns numbers from 1 on in steps of 1/128, which bf16 can represent: bf16 is the upper half of an f32. */
static void *numbers(ad_dtype dtype, size_t count) {
  uint16_t *halves = malloc(count * ad_dtype_size(dtype));
  size_t each = ad_dtype_size(dtype) / sizeof *halves;
  for (size_t i = 0; halves && i < count * each; i++)
    halves[i] = (uint16_t)((i + 1) % each ? 0 : 0x3f80 + i / each % 128);
  return halves;
}

static void *operand(ad_dtype dtype, const ad_matrix *of, int64_t rows, int64_t columns) {
  return numbers(dtype, (size_t)(of->transposed ? columns : rows) * (size_t)of->stride);
}

static ad_status multiply(int library, const gemm_product *of) {
  if (library != OPENBLAS_F32) return ad_gemm_onednn_repeat(ad_gemm_kept(), of, 1);
  ad_gemm_blas(of);
  return AD_OK;
}

/* Times the second of two calls, since the library may compile code in the first. */
static double time_alone(int library, const gemm_product *shape) {
  gemm_product p = *shape;
  if (library != ONEDNN_SAME) p.values = p.result = AD_F32;
  void *a = operand(p.values, &p.a, p.m, p.k), *b = operand(p.values, &p.b, p.k, p.n);
  p.a.data = a, p.b.data = b, p.c = numbers(p.result, (size_t)(p.m * p.c_stride));
  ad_status status = a && b && p.c ? AD_OK : AD_MEMORY;
  double start = 0;
  for (int i = 0; !status && i < 2; i++) {
    start = bench_now();
    status = multiply(library, &p);
  }
  double seconds = bench_now() - start;
  if (status) failed[library] = 1;
  free(a);
  free(b);
  free(p.c);
  return seconds;
}

static double flops(const gemm_product *p) { return 2.0 * (double)p->m * (double)p->n * (double)p->k; }

/* Returns the GFLOP/s of a step's products, each timed with this library alone; null if it cannot do one. */
static json_t *rate_alone(int library, double work) {
  double seconds = 0;
  for (int i = 0; i < shape_count; i++) seconds += (double)shapes[i].calls / ROUNDS * shapes[i].alone[library] / ROUNDS;
  return failed[library] || seconds <= 0 ? json_null() : json_real(work / seconds / 1e9);
}

/* Returns the library ("way") that computes most of the products' work. */
static gemm_way main_way(void) {
  double made[GEMM_WIDEN_ONEDNN + 1] = {0};
  gemm_way most = GEMM_BLAS;
  for (int i = 0; i < shape_count; i++)
    made[bench_way_of(&shapes[i].shape)] += (double)shapes[i].calls * flops(&shapes[i].shape);
  for (gemm_way way = GEMM_BLAS; way <= GEMM_WIDEN_ONEDNN; way++)
    if (made[way] > made[most]) most = way;
  return most;
}

static int report(const bench_setting *of, double step_seconds) {
  double work = 0;
  for (int i = 0; i < shape_count; i++) work += (double)shapes[i].calls / ROUNDS * flops(&shapes[i].shape);
  json_t *document =
      json_pack("{ss sf sf sf si}", "dtype", of->compute, "step_seconds", step_seconds, "gemm_share",
                inside / ROUNDS / step_seconds, "gemm_gflops", work / (inside / ROUNDS) / 1e9, "shapes", shape_count);
  json_t *words = bench_way_words(main_way(), strcmp(of->compute, "bf16") == 0 ? AD_BF16 : AD_F32);
  json_object_update(document, words);
  for (int library = 0; library < LIBRARIES; library++)
    json_object_set_new(document, rate_names[library], rate_alone(library, work));
  int unprinted = json_dumpf(document, stdout, JSON_REAL_PRECISION(6) | JSON_COMPACT);
  json_decref(words);
  json_decref(document);
  return unprinted;
}

/* Measures steps and single products in turns, so that both run under the same load of the machine. */
static ad_status measure(bench_steps *steps, double *out) {
  double seconds = 0;
  AD_TRY(bench_steps_run(steps)); /* to warm up */
  inside = 0, shape_count = 0;
  for (int round = 0; round < ROUNDS; round++) {
    double start = bench_now();
    AD_TRY(bench_steps_run(steps));
    seconds += bench_now() - start;
    for (int i = 0; i < LIBRARIES * shape_count; i++)
      shapes[i / LIBRARIES].alone[i % LIBRARIES] += time_alone(i % LIBRARIES, &shapes[i / LIBRARIES].shape);
  }
  *out = seconds / ROUNDS;
  return AD_OK;
}

static ad_status measure_setting(const bench_setting *setting, double *out) {
  ad_comm *comm;
  bench_steps *steps;
  ad_recipe *recipe;
  AD_TRY(ad_comm_open_alone(&comm));
  ad_status status = bench_recipe(setting, &recipe);
  if (!status) status = bench_steps_create(comm, recipe, &steps);
  if (!status) {
    status = measure(steps, out);
    bench_steps_destroy(steps);
  }
  ad_comm_close(comm);
  return status;
}

int main(int argc, char **argv) {
  double step_seconds;
  bench_setting setting = bench_setting_of(argc > 2 ? &bench_tiny : &bench_small, "dp_replicate", 1);
  if (argc > 1) setting.compute = argv[1];
  ad_status status = measure_setting(&setting, &step_seconds);
  if (status) return fprintf(stderr, "gemm: %s\n", ad_last_error()), 1;
  return overflowed || report(&setting, step_seconds);
}
