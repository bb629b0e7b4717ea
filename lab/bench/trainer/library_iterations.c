/* The side "addend_products" of the task "muon": the matrix products of the Newton-Schulz iterations that this rank
 * makes in a step, and nothing else, by the library that is the fastest for each. */
#include <stdlib.h>

#include "measured.h"
#include "optim/whole.h"
#include "products/gemm.h"

enum { STEPS = 5, BUFFERS = 4 };

/* Matrices of one shape, of which the smaller size is `least`. */
typedef struct own_matrices {
  int64_t count, least, most;
} own_matrices;

struct bench_iterations {
  own_matrices *each;
  size_t shapes;
  float *buffer[BUFFERS]; /* each as large as the largest matrix */
};

static int64_t own_count(const ad_stack *stack) {
  int64_t count = 0;
  for (int64_t round = 0; round < stack->rounds; round++) count += stack->slot[round * stack->ranks + stack->own] >= 0;
  return count;
}

static own_matrices own_of(const ad_stack *stack) {
  int64_t rows = stack->rows, cols = stack->cols;
  return (own_matrices){own_count(stack), rows < cols ? rows : cols, rows < cols ? cols : rows};
}

static ad_status fill(bench_iterations *out, const ad_stack *stacks) {
  size_t largest = 0;
  for (size_t i = 0; i < out->shapes; i++) {
    out->each[i] = own_of(&stacks[i]);
    size_t numel = (size_t)out->each[i].least * (size_t)out->each[i].most;
    if (numel > largest) largest = numel;
  }
  for (int i = 0; i < BUFFERS; i++) {
    out->buffer[i] = malloc((largest + 1) * sizeof(float));
    if (!out->buffer[i]) return AD_MEMORY;
    for (size_t k = 0; k < largest; k++) out->buffer[i][k] = 1e-3f * (float)(k % 1000);
  }
  return AD_OK;
}

ad_status bench_iterations_create(const ad_optimizer *optimizer, bench_iterations **out) {
  bench_iterations *iterations = calloc(1, sizeof *iterations);
  if (!iterations) return AD_MEMORY;
  const ad_stack *stacks = ad_whole_stacks(ad_optimizer_whole(optimizer), &iterations->shapes);
  iterations->each = calloc(iterations->shapes + 1, sizeof *iterations->each);
  ad_status status = iterations->each ? fill(iterations, stacks) : AD_MEMORY;
  if (status) return bench_iterations_destroy(iterations), status;
  *out = iterations;
  return AD_OK;
}

void bench_iterations_destroy(bench_iterations *iterations) {
  if (!iterations) return;
  for (int i = 0; i < BUFFERS; i++) free(iterations->buffer[i]);
  free(iterations->each);
  free(iterations);
}

/* c [m, n] = a [m, k] times b [k, n], or times the transpose of b [n, k]. */
static ad_status multiply(int64_t m, int64_t n, int64_t k, const float *a, const float *b, int b_is_transposed,
                          float *c) {
  return ad_gemm_multiply(NULL, AD_F32, m, n, k, 1, (ad_matrix){a, k, 0},
                          (ad_matrix){b, b_is_transposed ? k : n, b_is_transposed}, 0, c, n);
}

/* The products of one step on x [least, most]: x x', its square, and the polynomial times x. */
static ad_status iterate(const bench_iterations *iterations, int64_t least, int64_t most) {
  float *const *buffer = iterations->buffer;
  AD_TRY(multiply(least, least, most, buffer[0], buffer[0], 1, buffer[1]));
  AD_TRY(multiply(least, least, least, buffer[1], buffer[1], 0, buffer[2]));
  return multiply(least, most, least, buffer[2], buffer[0], 0, buffer[3]);
}

ad_status bench_iterations_run(bench_iterations *iterations) {
  for (size_t i = 0; i < iterations->shapes; i++)
    for (int64_t step = 0; step < STEPS * iterations->each[i].count; step++)
      AD_TRY(iterate(iterations, iterations->each[i].least, iterations->each[i].most));
  return AD_OK;
}
