/* ad_multiply_matrices: products of matrices that are not on a tape, for the code of programs. */
#include "addend/products.h"

#include "base/error.h"
#include "base/options.h"
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

static gemm_operand operand(const ad_matrix *matrix) {
  return (gemm_operand){matrix->data, matrix->stride, matrix->transposed};
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
