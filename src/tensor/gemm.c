/* Matrix products: the one place that calls OpenBLAS. */
#include "tensor/gemm.h"

#include <cblas.h>
#include <pthread.h>
#include "base/environment.h"

static blasint stride_of(int64_t stride) { return stride > 0 ? (blasint)stride : 1; }

static CBLAS_TRANSPOSE transpose_of(gemm_operand operand) { return operand.transposed ? CblasTrans : CblasNoTrans; }

void ad_gemm(ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, gemm_operand a, gemm_operand b, int adds,
             void *c, int64_t c_stride) {
  double beta = adds ? 1 : 0;
  blasint rows = (blasint)m, columns = (blasint)n, inner = (blasint)k;
  blasint lda = stride_of(a.stride), ldb = stride_of(b.stride), ldc = stride_of(c_stride);
  if (dtype == AD_F64)
    cblas_dgemm(CblasRowMajor, transpose_of(a), transpose_of(b), rows, columns, inner, factor, a.data, lda, b.data, ldb,
                beta, c, ldc);
  else
    cblas_sgemm(CblasRowMajor, transpose_of(a), transpose_of(b), rows, columns, inner, (float)factor, a.data, lda,
                b.data, ldb, (float)beta, c, ldc);
}

static void set_threads(void) { openblas_set_num_threads((int)ad_environment_number("ADDEND_BLAS_THREADS", 1)); }

void ad_gemm_set_threads(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, set_threads);
}
