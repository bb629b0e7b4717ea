/* Measures matrix products alone, at the shapes of a training step: as addend computes them, with each library, and
 * with one oneDNN primitive repeated (oneDNN's own rate). All take turns. */
#include "products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/row.h"
#include "products/gemm_ways.h"

enum { TURNS = 15, QUICK_TURNS = 3, OWN_CALLS = 4 };

/* The shapes: y = x w, dx = dy w^T and dw = x^T dy of a model with d_model 384, of a block of an attention head, and of
 * experts. */
static const struct {
  const char *variant;
  int64_t m, n, k;
  int a_transposed, b_transposed;
} shapes[] = {
    {"forward", 2048, 384, 384, 0, 0},  {"input", 2048, 384, 384, 0, 1},
    {"weight", 384, 384, 2048, 1, 0},   {"forward", 2048, 1024, 384, 0, 0},
    {"input", 2048, 384, 1024, 0, 1},   {"weight", 384, 1024, 2048, 1, 0},
    {"forward", 2048, 384, 1024, 0, 0}, {"input", 2048, 1024, 384, 0, 1},
    {"weight", 1024, 384, 2048, 1, 0},  {"scores", 64, 256, 64, 0, 1},
    {"attend", 64, 64, 256, 0, 0},      {"attend_weight", 256, 64, 64, 1, 0},
    {"expert", 128, 1024, 512, 0, 0},   {"expert_weight", 512, 1024, 128, 1, 0},
    {"row", 1, 1024, 384, 0, 0},        {"few_rows", 8, 1024, 384, 0, 0},
    {"thin", 2048, 8, 384, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct { ad_dtype values, result; } dtypes[] = {{AD_F32, AD_F32}, {AD_BF16, AD_BF16}, {AD_BF16, AD_F32}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

typedef ad_status (*maker)(const gemm_product *product);

static ad_status make_ours(const gemm_product *of) {
  ad_gemm(of->values, of->result, of->m, of->n, of->k, of->factor, of->a, of->b, of->adds, of->c, of->c_stride);
  return ad_gemm_status();
}

static ad_status make_openblas(const gemm_product *of) {
  if (of->values == AD_BF16) return ad_gemm_widen(ad_gemm_kept(), of, GEMM_BLAS);
  ad_gemm_blas(of);
  return AD_OK;
}

static ad_status make_onednn(const gemm_product *of) { return ad_gemm_onednn(ad_gemm_kept(), of); }

static ad_status make_widened(const gemm_product *of) {
  return of->values == AD_BF16 ? ad_gemm_widen(ad_gemm_kept(), of, GEMM_ONEDNN) : AD_INVALID;
}

static ad_status make_own(const gemm_product *of) { return ad_gemm_onednn_repeat(ad_gemm_kept(), of, OWN_CALLS); }

enum { OURS, OPENBLAS, ONEDNN, WIDENED, OWN, WAYS };
static const struct {
  maker make;
  const char *seconds;
  int calls;
} ways[WAYS] = {{make_ours, NULL, 1},
                {make_openblas, "openblas_seconds", 1},
                {make_onednn, "onednn_seconds", 1},
                {make_widened, "widened_seconds", 1},
                {make_own, "onednn_own_seconds", OWN_CALLS}};

typedef struct timing {
  double seconds[WAYS][TURNS];
  int failed[WAYS];
} timing;

static void take_turn(const gemm_product *of, timing *out, int turn) {
  for (int way = 0; way < WAYS; way++) {
    double start = bench_now();
    if (out->failed[way] || ways[way].make(of)) out->failed[way] = 1;
    out->seconds[way][turn] = (bench_now() - start) / ways[way].calls;
  }
}

static double rate_of(const gemm_product *of, double seconds) {
  return 2e-9 * (double)of->m * (double)of->n * (double)of->k / seconds;
}

/* Makes a row with the least of the measured times: other programs on the machine can only make a measurement
 * slower. */
static json_t *row_of(const gemm_product *of, const char *variant, timing *took, int turns) {
  bench_task task = {.op = "products", .memory = "ordinary"};
  snprintf(task.dtype, sizeof task.dtype, "%s", ad_dtype_name(of->values));
  task.bytes = (size_t)(of->m * of->k + of->k * of->n) * ad_dtype_size(of->values) +
               (size_t)(of->m * of->n) * ad_dtype_size(of->result);
  json_t *row = bench_row(&task, 1, took->seconds[OURS], turns);
  json_object_set_new(row, "variant", json_string(variant));
  json_object_set_new(row, "result", json_string(ad_dtype_name(of->result)));
  json_object_set_new(row, "m", json_integer(of->m));
  json_object_set_new(row, "n", json_integer(of->n));
  json_object_set_new(row, "k", json_integer(of->k));
  json_object_set_new(row, "gflops", json_real(rate_of(of, took->seconds[OURS][0])));
  for (int way = OPENBLAS; way < WAYS; way++) {
    bench_sort(took->seconds[way], turns);
    json_object_set_new(row, ways[way].seconds, took->failed[way] ? json_null() : json_real(took->seconds[way][0]));
  }
  const char *instructions = ad_gemm_onednn_instructions();
  json_object_set_new(row, "instructions", instructions ? json_string(instructions) : json_null());
  return row;
}

static ad_status measure(int shape, int dtype, int turns, json_t *rows) {
  gemm_product of = {dtypes[dtype].values,
                     dtypes[dtype].result,
                     shapes[shape].m,
                     shapes[shape].n,
                     shapes[shape].k,
                     1,
                     {NULL, 0, shapes[shape].a_transposed},
                     {NULL, 0, shapes[shape].b_transposed},
                     0,
                     NULL,
                     0};
  of.a.stride = of.a.transposed ? of.m : of.k;
  of.b.stride = of.b.transposed ? of.k : of.n;
  of.c_stride = of.n;
  timing took = {.failed = {0}};
  void *a = calloc((size_t)(of.m * of.k), sizeof(float)), *b = calloc((size_t)(of.k * of.n), sizeof(float));
  of.a.data = a, of.b.data = b, of.c = calloc((size_t)(of.m * of.n), sizeof(float));
  ad_status status = a && b && of.c ? AD_OK : ad_fail(AD_MEMORY, "no memory for operands");
  for (int turn = -1; turn < turns && !status; turn++) take_turn(&of, &took, turn < 0 ? 0 : turn); /* -1: warm up */
  if (!status && took.failed[OURS]) status = AD_PEER_FAILED;
  if (!status) json_array_append_new(rows, row_of(&of, shapes[shape].variant, &took, turns));
  free(a);
  free(b);
  free(of.c);
  return status;
}

static ad_status measure_all(const bench_options *options, json_t *rows) {
  AD_TRY(ad_gemm_prepare());
  for (int i = 0; i < SHAPES * DTYPES; i++) {
    if (options->progress) options->progress("products", i, SHAPES * DTYPES);
    AD_TRY(measure(i % SHAPES, i / SHAPES, options->quick ? QUICK_TURNS : TURNS, rows));
  }
  if (options->progress) options->progress("done", SHAPES * DTYPES, SHAPES * DTYPES);
  return AD_OK;
}

ad_status bench_measure_products(const bench_options *options, json_t *rows) {
  ad_status status = measure_all(options, rows);
  if (status) fprintf(stderr, "addend bench: products: %s\n", ad_last_error());
  return status;
}
