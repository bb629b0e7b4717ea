/* Computes bf16 products as f32 products. One block of each operand is widened at a time, so a thread needs the same
 * memory for matrices of all sizes. */
#include "kernels/kernels.h"
#include "base/memory.h"
#include "products/gemm_ways.h"

enum { ROWS = 256, COLUMNS = 512, DEPTH = 512 }; /* the size of a block; 2 MiB for one of each */
enum { A_BLOCK = ROWS * DEPTH, B_BLOCK = DEPTH * COLUMNS, C_BLOCK = ROWS * COLUMNS };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static char *element(ad_dtype dtype, const void *data, int64_t index) {
  return (char *)(uintptr_t)data + (size_t)index * ad_dtype_size(dtype);
}

/* Copies `rows` x `columns` elements, from element (row, column) on, into `block` as f32. */
static ad_matrix widen(ad_matrix from, int64_t row, int64_t column, int64_t rows, int64_t columns, float *block) {
  int64_t first = from.transposed ? column : row, count = from.transposed ? columns : rows;
  int64_t inner = from.transposed ? row : column, length = from.transposed ? rows : columns;
  for (int64_t i = 0; i < count; i++)
    ad_cast(block + i * length, AD_F32, element(AD_BF16, from.data, (first + i) * from.stride + inner), AD_BF16,
            (size_t)length);
  return (ad_matrix){block, length, from.transposed};
}

static void cast_rows(void *dst, ad_dtype dst_dtype, int64_t dst_stride, const void *src, ad_dtype src_dtype,
                      int64_t src_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    ad_cast(element(dst_dtype, dst, i * dst_stride), dst_dtype, element(src_dtype, src, i * src_stride), src_dtype,
            (size_t)columns);
}

typedef struct widening {
  gemm_kept *kept;
  gemm_way f32;
} widening;

/* Computes one block of c in f32, summed over all of k block by block. If k is 0, one block of depth 0 is summed. */
static ad_status multiply_block(const widening *by, const gemm_product *all, gemm_product part, int64_t row,
                                int64_t column) {
  float *memory = by->kept->widened;
  int64_t depth = 0;
  do {
    part.k = least(all->k - depth, DEPTH);
    part.a = widen(all->a, row, depth, part.m, part.k, memory);
    part.b = widen(all->b, depth, column, part.k, part.n, memory + A_BLOCK);
    if (by->f32 == GEMM_ONEDNN && part.k)
      AD_TRY(ad_gemm_onednn(by->kept, &part));
    else
      ad_gemm_blas(&part);
    part.adds = 1;
    depth += DEPTH;
  } while (depth < all->k);
  return AD_OK;
}

static ad_status make_block(const widening *by, const gemm_product *all, int64_t row, int64_t column) {
  char *c = element(all->result, all->c, row * all->c_stride + column);
  int is_narrow = all->result == AD_BF16;
  gemm_product part = *all;
  part.values = part.result = AD_F32;
  part.m = least(all->m - row, ROWS);
  part.n = least(all->n - column, COLUMNS);
  part.c = is_narrow ? (void *)(by->kept->widened + A_BLOCK + B_BLOCK) : c;
  part.c_stride = is_narrow ? part.n : all->c_stride;
  if (is_narrow && all->adds) cast_rows(part.c, AD_F32, part.n, c, AD_BF16, all->c_stride, part.m, part.n);
  AD_TRY(multiply_block(by, all, part, row, column));
  if (is_narrow) cast_rows(c, AD_BF16, all->c_stride, part.c, AD_F32, part.n, part.m, part.n);
  return AD_OK;
}

ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product, gemm_way f32) {
  const widening by = {kept, f32};
  if (!kept->widened) AD_TRY(ad_new(A_BLOCK + B_BLOCK + C_BLOCK, &kept->widened));
  for (int64_t row = 0; row < product->m; row += ROWS)
    for (int64_t column = 0; column < product->n; column += COLUMNS) AD_TRY(make_block(&by, product, row, column));
  return AD_OK;
}
