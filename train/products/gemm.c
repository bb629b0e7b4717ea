/* Computes matrix products: chooses a way for each product. No other file calls the products of OpenBLAS. */
#include "products/gemm.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include "products/blas.h"
#include "base/error.h"
#include "base/injection.h"
#include "products/gemm_ways.h"

/* ---- calling OpenBLAS ---- */

static blasint stride_of(int64_t stride) { return stride > 0 ? (blasint)stride : 1; }

static CBLAS_TRANSPOSE transpose_of(ad_matrix operand) { return operand.transposed ? CblasTrans : CblasNoTrans; }

void ad_gemm_blas(const gemm_product *of) {
  double beta = of->adds ? 1 : 0;
  blasint rows = (blasint)of->m, columns = (blasint)of->n, inner = (blasint)of->k;
  blasint lda = stride_of(of->a.stride), ldb = stride_of(of->b.stride), ldc = stride_of(of->c_stride);
  CBLAS_TRANSPOSE ta = transpose_of(of->a), tb = transpose_of(of->b);
  if (of->values == AD_F64)
    cblas_dgemm(CblasRowMajor, ta, tb, rows, columns, inner, of->factor, of->a.data, lda, of->b.data, ldb, beta, of->c,
                ldc);
  else
    cblas_sgemm(CblasRowMajor, ta, tb, rows, columns, inner, (float)of->factor, of->a.data, lda, of->b.data, ldb,
                (float)beta, of->c, ldc);
}

ad_status ad_gemm_try(void) { return ad_blas_prepare(ad_blas_threads()); }

ad_status ad_gemm_prepare(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int started;
  AD_TRY(ad_gemm_try());
  pthread_mutex_lock(&lock);
  ad_status status = started ? AD_OK : ad_blas_start_threads(ad_blas_threads());
  started = !status;
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- choosing a library for each product ---- */

static void keep_failure(gemm_kept *kept, ad_status status) {
  if (!status || kept->status) return;
  kept->status = status;
  snprintf(kept->message, sizeof kept->message, "%s", ad_last_error());
}

/* Computes the product in the way `way`, and keeps a failure for ad_gemm_status. */
static void multiply_by(const gemm_product *product, gemm_way way) {
  if (way == GEMM_BLAS) {
    ad_gemm_blas(product);
    return;
  }
  gemm_kept *kept = ad_gemm_kept();
  if (way == GEMM_ONEDNN)
    keep_failure(kept, ad_gemm_onednn(kept, product));
  else
    keep_failure(kept, ad_gemm_widen(kept, product, way == GEMM_WIDEN_ONEDNN ? GEMM_ONEDNN : GEMM_BLAS));
}

void ad_gemm(ad_dtype values, ad_dtype result, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a, ad_matrix b,
             int adds, void *c, int64_t c_stride) {
  gemm_product product = {values, result, m, n, k, factor, a, b, adds, c, c_stride};
  gemm_passing passing = {&product, 0};
  ad_inject(AD_INJECT_PRODUCT, &passing);
  if (passing.handled) return;
  ad_products with = ad_products_in_use();
  multiply_by(&product, ad_gemm_choose(&with, &product));
}

ad_status ad_gemm_status(void) {
  gemm_kept *kept = ad_gemm_kept();
  ad_status status = kept->status;
  kept->status = AD_OK;
  return status ? ad_fail(status, "%s", kept->message) : AD_OK;
}
