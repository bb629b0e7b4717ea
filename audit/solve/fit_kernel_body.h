/* The fit's loops, compiled once per instruction set under the name KERNELS. Each sum is formed in eight lanes, which
 * are added in a fixed order; then the remaining elements, fewer than eight, are added. No multiplication is fused with
 * an addition. So the results have the same bits for any register width and any SIDE (number of columns that are
 * multiplied at a time). */
#include "solve/fit_kernel.h"

enum { LANES = 8, PART = REGISTER / sizeof(double) };
/* A vector that fills one register. */
typedef double part __attribute__((vector_size(REGISTER), aligned(8), may_alias));
#define AT(x) (*(const part *)(x))
#define TO(x) (*(part *)(x))

/* Adds the eight lanes of a sum, in the same order in every variant. */
static double total(const double *sums) {
  double half[4], quarter[2];
  for (size_t i = 0; i < 4; i++) half[i] = sums[i] + sums[i + 4];
  for (size_t i = 0; i < 2; i++) quarter[i] = half[i] + half[i + 2];
  return quarter[0] + quarter[1];
}

static double sum_rest(const double *x, const double *y, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; i++) sum += x[i] * y[i];
  return sum;
}

/* ---- products of columns, for the Gram matrix ---- */

enum {
  CHUNK = 512,             /* rows at a time: SIDE columns of 512 rows stay in the first-level cache */
  PANEL = 64 / SIDE * SIDE /* columns at a time: PANEL columns of CHUNK rows stay in the second-level cache */
};

/* Columns of one chunk of rows. */
typedef struct gram_columns {
  const double *first; /* column 0, at the chunk's first row */
  size_t stride, n, rows;
} gram_columns;

/* Returns column `index`, or the last column if there is no such column, so that a block always has SIDE columns.
 * Products with a column that is repeated in this way are not used. */
static const double *column_of(const gram_columns *columns, size_t index) {
  return columns->first + (index < columns->n ? index : columns->n - 1) * columns->stride;
}

/* The products of SIDE columns x with SIDE columns y, in lanes. */
typedef struct gram_square {
  const double *x[SIDE], *y[SIDE];
  double sums[SIDE][SIDE][LANES];
} gram_square;

/* Computes the sums of products in those lanes that one register holds: the lanes from number `lane` on. */
static void sum_lanes(gram_square *square, size_t rows, size_t lane) {
  part sums[SIDE][SIDE] = {0};
  for (size_t row = lane; row < rows; row += LANES)
    for (size_t a = 0; a < SIDE; a++)
      for (size_t b = 0; b < SIDE; b++) sums[a][b] += AT(square->x[a] + row) * AT(square->y[b] + row);
  for (size_t a = 0; a < SIDE; a++)
    for (size_t b = 0; b < SIDE; b++) TO(square->sums[a][b] + lane) = sums[a][b];
}

/* Adds the products of columns i .. i+SIDE-1 with columns j .. j+SIDE-1 to the upper triangle. */
static void add_square(const gram_columns *columns, size_t i, size_t j, double *out) {
  gram_square square;
  size_t whole = columns->rows / LANES * LANES, n = columns->n;
  for (size_t k = 0; k < SIDE; k++) {
    square.x[k] = column_of(columns, i + k);
    square.y[k] = column_of(columns, j + k);
  }
  for (size_t lane = 0; lane < LANES; lane += PART) sum_lanes(&square, whole, lane);
  for (size_t a = 0; a < SIDE; a++)
    for (size_t b = 0; b < SIDE; b++)
      if (i + a <= j + b && j + b < n)
        out[i + a + (j + b) * n] += total(square.sums[a][b]) + sum_rest(square.x[a], square.y[b], whole, columns->rows);
}

/* Adds the products of PANEL columns, from column `begin` on, with the columns up to the panel's last. */
static void add_panel(const gram_columns *chunk, size_t begin, double *out) {
  size_t end = begin + PANEL < chunk->n ? begin + PANEL : chunk->n;
  for (size_t i = 0; i < end; i += SIDE)
    for (size_t j = i > begin ? i : begin; j < end; j += SIDE) add_square(chunk, i, j, out);
}

static void gram(const double *columns, size_t stride, size_t n, size_t rows, double *out) {
  for (size_t row = 0; row < rows; row += CHUNK) {
    gram_columns chunk = {columns + row, stride, n, rows - row < CHUNK ? rows - row : CHUNK};
    for (size_t begin = 0; begin < n; begin += PANEL) add_panel(&chunk, begin, out);
  }
}

/* ---- sums and products of one or two rows ---- */

static double dot(const double *x, const double *y, size_t n) {
  double sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane] * y[i + lane];
  return total(sums) + sum_rest(x, y, i, n);
}

static void add_scaled(double *restrict y, double factor, const double *restrict x, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

static void add_sized(double *restrict y, double *restrict sizes, double factor, const double *restrict x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double value = factor * x[i];
    y[i] += value;
    sizes[i] += __builtin_fabs(value);
  }
}

/* Adds AD_FIT_COLUMNS columns in one pass, so that y and sizes stay in registers. */
static void add_sized_columns(double *restrict y, double *restrict sizes, const double *factors, const float *const *x,
                              size_t n) {
  const float *restrict columns[AD_FIT_COLUMNS];
  double by[AD_FIT_COLUMNS];
  for (size_t k = 0; k < AD_FIT_COLUMNS; k++) columns[k] = x[k], by[k] = factors[k];
  for (size_t i = 0; i < n; i++) {
    double sum = y[i], size = sizes[i];
    for (size_t k = 0; k < AD_FIT_COLUMNS; k++) {
      double value = by[k] * (double)columns[k][i];
      sum += value;
      size += __builtin_fabs(value);
    }
    y[i] = sum;
    sizes[i] = size;
  }
}

static void add_sized_column(double *restrict y, double *restrict sizes, double factor, const float *restrict x,
                             size_t n) {
  for (size_t i = 0; i < n; i++) {
    double value = factor * (double)x[i];
    y[i] += value;
    sizes[i] += __builtin_fabs(value);
  }
}

static void add_sized_floats(double *y, double *sizes, const double *factors, const float *const *x, size_t count,
                             size_t n) {
  if (count == AD_FIT_COLUMNS) {
    add_sized_columns(y, sizes, factors, x, n);
    return;
  }
  for (size_t k = 0; k < count; k++) add_sized_column(y, sizes, factors[k], x[k], n);
}

static void rotate(double *restrict x, double *restrict y, double cosine, double sine, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double was = x[i];
    x[i] = cosine * was + sine * y[i];
    y[i] = cosine * y[i] - sine * was;
  }
}

static double pass(double *restrict row, size_t i, const fit_passing *passing) {
  const double *v = passing->v, *w = passing->w, *u = passing->u, by_w = v[i], by_v = w[i], by_row = u[i];
  double *restrict product = passing->product;
  for (size_t j = 0; j < i; j++) row[j] -= by_w * w[j] + by_v * v[j];
  for (size_t j = 0; j < i; j++) product[j] += by_row * row[j];
  return dot(row, u, i);
}

const fit_kernels KERNELS = {.gram = gram,
                             .dot = dot,
                             .add = add_scaled,
                             .add_sized = add_sized,
                             .add_sized_floats = add_sized_floats,
                             .rotate = rotate,
                             .pass = pass};
