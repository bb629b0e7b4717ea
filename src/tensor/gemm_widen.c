/* Products of bf16 on OpenBLAS, which knows f32: a block of each operand is widened at a time, so that a thread keeps
 * the same memory whatever the sizes are. */
#include "base/kernels.h"
#include "base/memory.h"
#include "tensor/gemm_ways.h"

enum { ROWS = 256, COLUMNS = 512, DEPTH = 512 }; /* of a block: 2 MiB in all */
enum { A_BLOCK = ROWS * DEPTH, B_BLOCK = DEPTH * COLUMNS, C_BLOCK = ROWS * COLUMNS };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static char *element(ad_dtype dtype, const void *data, int64_t index) {
  return (char *)(uintptr_t)data + (size_t)index * ad_dtype_size(dtype);
}

/* rows x columns from (row, column) on, as f32. */
static gemm_operand widen(gemm_operand from, int64_t row, int64_t column, int64_t rows, int64_t columns, float *block) {
  int64_t first = from.transposed ? column : row, count = from.transposed ? columns : rows;
  int64_t inner = from.transposed ? row : column, length = from.transposed ? rows : columns;
  for (int64_t i = 0; i < count; i++)
    ad_cast(block + i * length, AD_F32, element(AD_BF16, from.data, (first + i) * from.stride + inner), AD_BF16,
            (size_t)length);
  return (gemm_operand){block, length, from.transposed};
}

static void cast_rows(void *dst, ad_dtype dst_dtype, int64_t dst_stride, const void *src, ad_dtype src_dtype,
                      int64_t src_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    ad_cast(element(dst_dtype, dst, i * dst_stride), dst_dtype, element(src_dtype, src, i * src_stride), src_dtype,
            (size_t)columns);
}

/* One block of c, in f32: all of k, a block at a time. k = 0 has one block, without depth. */
static void multiply_block(const gemm_product *all, gemm_product part, int64_t row, int64_t column, float *memory) {
  int64_t depth = 0;
  do {
    part.k = least(all->k - depth, DEPTH);
    part.a = widen(all->a, row, depth, part.m, part.k, memory);
    part.b = widen(all->b, depth, column, part.k, part.n, memory + A_BLOCK);
    ad_gemm_blas(&part);
    part.adds = 1;
    depth += DEPTH;
  } while (depth < all->k);
}

static void block_of(const gemm_product *all, int64_t row, int64_t column, float *memory) {
  char *c = element(all->result, all->c, row * all->c_stride + column);
  int is_narrow = all->result == AD_BF16;
  gemm_product part = *all;
  part.values = part.result = AD_F32;
  part.m = least(all->m - row, ROWS);
  part.n = least(all->n - column, COLUMNS);
  part.c = is_narrow ? (void *)(memory + A_BLOCK + B_BLOCK) : c;
  part.c_stride = is_narrow ? part.n : all->c_stride;
  if (is_narrow && all->adds) cast_rows(part.c, AD_F32, part.n, c, AD_BF16, all->c_stride, part.m, part.n);
  multiply_block(all, part, row, column, memory);
  if (is_narrow) cast_rows(c, AD_BF16, all->c_stride, part.c, AD_F32, part.n, part.m, part.n);
}

ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product) {
  if (!kept->widened) AD_TRY(ad_new(A_BLOCK + B_BLOCK + C_BLOCK, &kept->widened));
  for (int64_t row = 0; row < product->m; row += ROWS)
    for (int64_t column = 0; column < product->n; column += COLUMNS) block_of(product, row, column, kept->widened);
  return AD_OK;
}
