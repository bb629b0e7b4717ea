/* Asking for OpenBLAS's memory in its place, since it has no error for the memory that it cannot have. */
#include "base/blas.h"

#include <cblas.h>
#include "base/memory.h"

/* What a thread maps as it makes its first product: BUFFER_SIZE of OpenBLAS's common_x86_64.h and common_arm64.h. Of
 * it a process takes only the pages that products touch. */
enum { BUFFER_MIB = 128 };

static _Thread_local int is_prepared;

/* The smallest product that OpenBLAS makes in its own memory, which it keeps for those that follow. */
static void make_one(void) {
  double one = 1, square = 0;
  cblas_dsyrk(CblasColMajor, CblasUpper, CblasTrans, 1, 1, 1, &one, 1, 0, &square, 1);
}

ad_status ad_blas_prepare(int threads) {
  if (is_prepared) return AD_OK;
  AD_TRY(ad_memory_try("matrix products by OpenBLAS", (size_t)threads * BUFFER_MIB));
  make_one();
  is_prepared = 1;
  return AD_OK;
}
