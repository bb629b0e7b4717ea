/* Products of matrices that are not on a tape: ad_multiply_matrices for the code of programs, ad_gemm_multiply for
 * optimizers. */
#include "addend/products.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "kernels/kernels.h"
#include "products/gemm.h"

static const char call[] = "ad_multiply_matrices";

/* Checks that a matrix has [rows, columns]. If it is transposed, [columns, rows] are in memory. */
static ad_status check_matrix(const char *name, const ad_matrix *matrix, int64_t rows, int64_t columns) {
  int64_t width = matrix->transposed ? rows : columns;
  if (rows && columns && !matrix->data)
    return ad_fail(AD_INVALID, "%s: the memory of the matrix `%s` is NULL; pass its first element", call, name);
  if (matrix->stride < width)
    return ad_fail(AD_INVALID,
                   "%s: the rows of `%s` have %lld elements, but its stride is only %lld; set `stride` to at least the "
                   "number of elements of a row",
                   call, name, (long long)width, (long long)matrix->stride);
  return AD_OK;
}

static ad_status check_product(const ad_matrix_product *p) {
  ad_matrix out = {p->out, p->out_stride, 0};
  if (p->dtype != AD_F64 && p->dtype != AD_F32)
    return ad_fail(AD_INVALID, "%s: the product cannot be computed in %s; use f64 or f32", call,
                   ad_dtype_name(p->dtype));
  if (p->m < 0 || p->n < 0 || p->k < 0)
    return ad_fail(AD_INVALID, "%s: the product has m %lld, n %lld and k %lld, but all three must be 0 or more", call,
                   (long long)p->m, (long long)p->n, (long long)p->k);
  AD_TRY(check_matrix("a", &p->a, p->m, p->k));
  AD_TRY(check_matrix("b", &p->b, p->k, p->n));
  return check_matrix("out", &out, p->m, p->n);
}

static ad_matrix operand(const ad_matrix *matrix) {
  return (ad_matrix){matrix->data, matrix->stride, matrix->transposed};
}

ad_status ad_multiply_matrices(const ad_matrix_product *product) {
  ad_matrix_product p;
  AD_NEED(product);
  AD_TRY(ad_options_take(&p, sizeof p, product, "ad_matrix_product"));
  AD_TRY(check_product(&p));
  if (!p.m || !p.n) return AD_OK;
  AD_TRY(ad_gemm_prepare());
  ad_gemm(p.dtype, p.dtype, p.m, p.n, p.k, p.factor != 0 ? p.factor : 1, operand(&p.a), operand(&p.b), p.adds, p.out,
          p.out_stride);
  return ad_gemm_status();
}

/* ---- products for optimizers ---- */

/* Computes a product of bf16 a block of rows at a time, so that the sums in f32 need little memory. `sums` has
 * [rows, n]. */
static void multiply_in_blocks(int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b, int adds,
                               uint16_t *c, int64_t c_stride, float *sums, int64_t rows) {
  for (int64_t at = 0; at < m; at += rows) {
    int64_t taken = m - at < rows ? m - at : rows;
    ad_matrix part = {(const uint16_t *)a.data + at * (a.transposed ? 1 : a.stride), a.stride, a.transposed};
    for (int64_t i = 0; adds && i < taken; i++)
      ad_cast(sums + i * n, AD_F32, c + (at + i) * c_stride, AD_BF16, (size_t)n);
    ad_gemm(AD_BF16, AD_F32, taken, n, k, factor, part, b, adds, sums, n);
    for (int64_t i = 0; i < taken; i++) ad_cast(c + (at + i) * c_stride, AD_BF16, sums + i * n, AD_F32, (size_t)n);
  }
}

static ad_status multiply_bf16(int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b, int adds,
                               void *c, int64_t c_stride) {
  enum { BLOCK = 1 << 18 };
  int64_t rows = n < BLOCK ? BLOCK / n : 1;
  float *sums;
  if (rows > m) rows = m;
  AD_TRY(ad_new((size_t)(rows * n), &sums));
  multiply_in_blocks(m, n, k, factor, a, b, adds, c, c_stride, sums, rows);
  ad_release(sums);
  return ad_gemm_status();
}

ad_status ad_gemm_multiply(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                           ad_matrix b, int adds, void *c, int64_t c_stride) {
  if (!m || !n) return AD_OK;
  AD_TRY(ad_gemm_prepare());
  if (dtype == AD_BF16) return multiply_bf16(m, n, k, factor, a, b, adds, c, c_stride);
  ad_gemm(dtype, dtype, m, n, k, factor, a, b, adds, c, c_stride);
  return ad_gemm_status();
}
