/* The Newton-Schulz iteration of one matrix, and plain products. */
#include "optim/orthogonal.h"

#include <math.h>
#include "array/array.h"
#include "base/error.h"

enum {
  BLOCK = 1024,  // elements that are converted at a time
  LANES = 8,     // sums of squares that are added side by side, always in this order
  TILE = 48      // rows and columns of the pieces of a plain product
};

static char *at(const void *data, ad_dtype dtype, int64_t element) {
  return (char *)(uintptr_t)data + (size_t)element * ad_dtype_size(dtype);
}

/* ---- plain products ---- */

/* Copies rows [row, row + rows) and columns [col, col + cols) of an operand to a tile. */
static void load_tile(double tile[TILE][TILE], ad_dtype dtype, const ad_matrix *from, int64_t row, int64_t rows,
                      int64_t col, int64_t cols) {
  double column[TILE];
  if (!from->transposed) {
    for (int64_t i = 0; i < rows; i++)
      ad_cast(tile[i], AD_F64, at(from->data, dtype, (row + i) * from->stride + col), dtype, (size_t)cols);
    return;
  }
  for (int64_t j = 0; j < cols; j++) {
    ad_cast(column, AD_F64, at(from->data, dtype, (col + j) * from->stride + row), dtype, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) tile[i][j] = column[i];
  }
}

/* sum [rows, cols] += a [rows, k] b [k, cols] */
static void add_product(double sum[TILE][TILE], double a[TILE][TILE], double b[TILE][TILE], int64_t rows, int64_t cols,
                        int64_t k) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < cols; j++) sum[i][j] += a[i][l] * b[l][j];
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

ad_status ad_plain_product(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                           ad_matrix b, int adds, void *c, int64_t c_stride) {
  double a_tile[TILE][TILE], b_tile[TILE][TILE], sum[TILE][TILE], row[TILE];
  for (int64_t i = 0; i < m; i += TILE)
    for (int64_t j = 0; j < n; j += TILE) {
      int64_t rows = least(TILE, m - i), cols = least(TILE, n - j);
      memset(sum, 0, sizeof sum);
      for (int64_t l = 0; l < k; l += TILE) {
        int64_t depth = least(TILE, k - l);
        load_tile(a_tile, dtype, &a, i, rows, l, depth);
        load_tile(b_tile, dtype, &b, l, depth, j, cols);
        add_product(sum, a_tile, b_tile, rows, cols, depth);
      }
      for (int64_t r = 0; r < rows; r++) {
        char *out = at(c, dtype, (i + r) * c_stride + j);
        memset(row, 0, sizeof row);
        if (adds) ad_cast(row, AD_F64, out, dtype, (size_t)cols);
        for (int64_t q = 0; q < cols; q++) row[q] += factor * sum[r][q];
        ad_cast(out, dtype, row, AD_F64, (size_t)cols);
      }
    }
  return AD_OK;
}

/* ---- the norm ---- */

/* The sum of squares of one row, in f64. */
static double row_squares(const void *row, ad_dtype dtype, int64_t cols) {
  double block[BLOCK], lanes[LANES] = {0}, sum = 0;
  for (int64_t j = 0; j < cols; j += BLOCK) {
    int64_t n = least(BLOCK, cols - j);
    memset(block, 0, sizeof block);
    ad_cast(block, AD_F64, at(row, dtype, j), dtype, (size_t)n);
    for (int64_t i = 0; i < n; i += LANES)
      for (int l = 0; l < LANES; l++) lanes[l] += block[i + l] * block[i + l];
  }
  for (int l = 0; l < LANES; l++) sum += lanes[l];
  return sum;
}

static double frobenius_norm(const ad_whole_matrix *matrix) {
  double sum = 0;
  for (int64_t i = 0; i < matrix->rows; i++)
    sum += row_squares(at(matrix->data, matrix->dtype, i * matrix->stride), matrix->dtype, matrix->cols);
  return sqrt(sum);
}

/* Writes the matrix divided by `divisor` to x [rows, cols]. */
static void divide(const ad_whole_matrix *matrix, double divisor, void *x, ad_dtype dtype) {
  double block[BLOCK];
  for (int64_t i = 0; i < matrix->rows; i++)
    for (int64_t j = 0; j < matrix->cols; j += BLOCK) {
      int64_t n = least(BLOCK, matrix->cols - j);
      ad_cast(block, AD_F64, at(matrix->data, matrix->dtype, i * matrix->stride + j), matrix->dtype, (size_t)n);
      for (int64_t e = 0; e < n; e++) block[e] /= divisor;
      ad_cast(at(x, dtype, i * matrix->cols + j), dtype, block, AD_F64, (size_t)n);
    }
}

/* ---- the iteration ---- */

/* X and Y are [rows, cols]; A and B are square, of the smaller of the two sizes. */
typedef struct iteration {
  const ad_optimizer_product *product;
  ad_dtype dtype;
  int64_t rows, cols, square;
  void *x, *y, *a, *b;
} iteration;

static ad_dtype iteration_dtype(const ad_optimizer_options *options, ad_dtype dtype) {
  return options->muon.dtype ? options->muon.dtype : dtype;
}

static iteration begin_iteration(const ad_optimizer_options *options, const ad_whole_matrix *matrix,
                                 const ad_optimizer_product *product, void *scratch) {
  iteration it = {.product = product, .rows = matrix->rows, .cols = matrix->cols};
  it.dtype = iteration_dtype(options, matrix->dtype);
  it.square = least(it.rows, it.cols);
  size_t full = ad_padded((size_t)(it.rows * it.cols) * ad_dtype_size(it.dtype));
  it.x = scratch;
  it.y = (char *)scratch + full;
  it.a = (char *)it.y + full;
  it.b = (char *)it.a + ad_padded((size_t)(it.square * it.square) * ad_dtype_size(it.dtype));
  return it;
}

size_t ad_orthogonal_scratch(const ad_optimizer_options *options, ad_dtype dtype, int64_t rows, int64_t cols) {
  size_t size = ad_dtype_size(iteration_dtype(options, dtype)), square = (size_t)least(rows, cols);
  return 2 * ad_padded((size_t)(rows * cols) * size) + 2 * ad_padded(square * square * size);
}

static ad_status multiply(const iteration *it, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b,
                          int adds, void *c) {
  return it->product->multiply(it->product->context, it->dtype, m, n, k, factor, a, b, adds, c, n);
}

/* X becomes aX + (b A + c A A) X with A = X X'. If X has more rows than columns, A = X' X is smaller, and X (b A + c A A)
 * is the same. */
static ad_status iterate(iteration *it, const ad_muon_options *muon) {
  int64_t rows = it->rows, cols = it->cols, square = it->square;
  ad_matrix x = {it->x, cols, 0}, x_transposed = {it->x, cols, 1}, a = {it->a, square, 0}, b = {it->b, square, 0};
  int tall = rows > cols;
  AD_TRY(
      multiply(it, square, square, tall ? rows : cols, 1, tall ? x_transposed : x, tall ? x : x_transposed, 0, it->a));
  ad_cast_scaled(it->b, it->dtype, it->a, it->dtype, muon->b, (size_t)(square * square));
  AD_TRY(multiply(it, square, square, square, muon->c, a, a, 1, it->b));
  ad_cast_scaled(it->y, it->dtype, it->x, it->dtype, muon->a, (size_t)(rows * cols));
  AD_TRY(multiply(it, rows, cols, square, 1, tall ? x : b, tall ? b : x, 1, it->y));
  void *old = it->x;
  it->x = it->y;
  it->y = old;
  return AD_OK;
}

ad_status ad_orthogonalise(const ad_update *update, const ad_whole_matrix *matrix, const ad_optimizer_product *product,
                           void *scratch) {
  const ad_muon_options *muon = &update->options->muon;
  if (!matrix->rows || !matrix->cols) return AD_OK;
  double norm = frobenius_norm(matrix);
  if (!isfinite(norm))
    return ad_fail(AD_NUMBER,
                   "Muon: the norm of a direction of %lld rows and %lld columns is %g; skip a step whose gradients are "
                   "not finite, as ad_loss_scale_update reports",
                   (long long)matrix->rows, (long long)matrix->cols, norm);
  iteration it = begin_iteration(update->options, matrix, product, scratch);
  divide(matrix, norm > muon->epsilon ? norm : muon->epsilon, it.x, it.dtype);
  for (int step = 0; step < muon->steps; step++) AD_TRY(iterate(&it, muon));
  for (int64_t i = 0; i < matrix->rows; i++)
    ad_cast_scaled(at(matrix->data, matrix->dtype, i * matrix->stride), matrix->dtype, at(it.x, it.dtype, i * it.cols),
                   it.dtype, update->derived[0], (size_t)it.cols);
  norm = frobenius_norm(matrix);
  if (isfinite(norm)) return AD_OK;
  return ad_fail(
      AD_NUMBER,
      "Muon: the iteration of a matrix of %lld rows and %lld columns leads to the norm %g; its coefficients %g, "
      "%g, %g diverge in %d steps; use the defaults, or fewer steps",
      (long long)matrix->rows, (long long)matrix->cols, norm, muon->a, muon->b, muon->c, muon->steps);
}

double ad_orthogonal_operations(const ad_optimizer_options *options, int64_t rows, int64_t cols) {
  double m = (double)least(rows, cols), most = (double)(rows > cols ? rows : cols);
  return options->muon.steps * (4 * m * m * most + 2 * m * m * m);
}

double ad_muon_rate_factor(const ad_optimizer_options *options, int64_t in, int64_t out) {
  double ratio = (double)out / (double)in, most = (double)(in > out ? in : out);
  if (options->muon.rate == AD_MUON_MATCH_RMS_ADAMW) return 0.2 * sqrt(most);
  if (options->muon.rate == AD_MUON_SPECTRAL_UNCLAMPED) return sqrt(ratio);
  return sqrt(ratio > 1 ? ratio : 1);
}
