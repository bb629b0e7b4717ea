/* Computes a product in two pieces along k, the summed dimension. */
#include "products/gemm_split.h"

#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/random.h"

ad_matrix ad_gemm_from_term(ad_matrix of, ad_dtype values, int64_t at, int in_rows) {
  int64_t first = of.transposed == in_rows ? at : at * of.stride;
  of.data = (const char *)of.data + (size_t)first * ad_dtype_size(values);
  return of;
}

void ad_gemm_write_out(const gemm_product *of, const void *sums, ad_dtype dtype) {
  size_t columns = (size_t)of->n, size = ad_dtype_size(of->result);
  for (size_t i = 0; i < (size_t)of->m; i++) {
    const void *from = (const char *)sums + i * columns * ad_dtype_size(dtype);
    void *row = (char *)of->c + i * (size_t)of->c_stride * size;
    if (of->adds)
      ad_accumulate(row, of->result, from, dtype, 1, columns);
    else
      ad_cast(row, of->result, from, dtype, columns);
  }
}

/* Computes the product of the terms before `at`, and then adds the product of the terms from `at` on. */
static void make_pieces(const gemm_product *of, int64_t at) {
  ad_gemm(of->values, of->result, of->m, of->n, at, of->factor, of->a, of->b, of->adds, of->c, of->c_stride);
  ad_gemm(of->values, of->result, of->m, of->n, of->k - at, of->factor, ad_gemm_from_term(of->a, of->values, at, 0),
          ad_gemm_from_term(of->b, of->values, at, 1), 1, of->c, of->c_stride);
}

/* Sums both pieces in the accumulating dtype, and rounds once. Returns 0 if there is no memory for the sums. */
static int make_wide(const gemm_product *of, int64_t at) {
  gemm_product wide = *of;
  wide.result = ad_dtype_wide(of->values);
  wide.adds = 0;
  wide.c_stride = of->n;
  char *sums;
  if (ad_new((size_t)(of->m * of->n) * ad_dtype_size(wide.result), &sums)) return 0;
  wide.c = sums;
  make_pieces(&wide, at);
  ad_gemm_write_out(of, sums, wide.result);
  ad_release(sums);
  return 1;
}

void ad_gemm_split(void *context, void *passing) {
  gemm_splits *splits = context;
  gemm_passing *pass = passing;
  const gemm_product *of = pass->product;
  if (splits->within || of->k < 2) return;
  int64_t at = 1 + ad_random_below(splits->seed, 0, splits->made++, of->k - 1);
  splits->within = 1;
  pass->handled = 1;
  if (splits->rounds_between || of->result == ad_dtype_wide(of->values))
    make_pieces(of, at);
  else
    pass->handled = make_wide(of, at);
  splits->within = 0;
}
