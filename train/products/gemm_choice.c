/* Chooses how a product is computed, from a table of instructions, dtype and shape. The table comes from measurements
 * (lab/measured/). A program does not measure time, so all ranks make the same choice and a resumed run has the same
 * bits. */
#include "products/gemm_ways.h"
#include "products/ways.h"

typedef struct table_row {
  ad_units units; /* the row is for processors with these instructions or better ones */
  ad_dtype values;
  gemm_shape shape; /* the row is for this shape; GEMM_LARGE is for any shape */
  gemm_way way;
} table_row;

/* The first row that fits is used. bf16 instructions without matrix units are twice as fast as those of f32 on some
 * processors and half as fast on others (cpu.c); on the slow ones, operands are widened. On small matrices OpenBLAS is
 * several times as fast as oneDNN, because its kernels do not copy the matrices. On larger matrices oneDNN is about a
 * tenth faster with AVX-512, and equally fast with AVX2. */
static const table_row table[] = {
    {AD_UNITS_AVX512BF16, AD_BF16, GEMM_VECTOR, GEMM_ONEDNN}, {AD_UNITS_FAST_BF16, AD_BF16, GEMM_LARGE, GEMM_ONEDNN},
    {AD_UNITS_AVX512, AD_BF16, GEMM_SMALL, GEMM_WIDEN_BLAS},  {AD_UNITS_AVX512, AD_BF16, GEMM_LARGE, GEMM_WIDEN_ONEDNN},
    {AD_UNITS_AVX512, AD_F32, GEMM_SMALL, GEMM_BLAS},         {AD_UNITS_AVX512, AD_F32, GEMM_LARGE, GEMM_ONEDNN},
};

enum { SMALL_PRODUCTS = 1 << 18 }; /* the most multiplications of a product that counts as small: 64 x 64 x 64 */

static int is_shape(gemm_shape shape, const gemm_product *of) {
  int is_vector = of->m == 1 || of->n == 1;
  return shape == GEMM_LARGE || (shape == GEMM_VECTOR ? is_vector : of->m * of->n <= SMALL_PRODUCTS / of->k);
}

gemm_shape ad_gemm_shape_of(const gemm_product *of) {
  return is_shape(GEMM_VECTOR, of) ? GEMM_VECTOR : is_shape(GEMM_SMALL, of) ? GEMM_SMALL : GEMM_LARGE;
}

static int fits(const table_row *row, const ad_products *with, const gemm_product *of) {
  return with->units >= row->units && of->values == row->values && is_shape(row->shape, of);
}

static gemm_way without_onednn(ad_dtype values) { return values == AD_BF16 ? GEMM_WIDEN_BLAS : GEMM_BLAS; }

/* Returns 1 if an operand is one row or one column with gaps between its elements; oneDNN 3.6 ignores the gaps. */
static int has_gaps(const gemm_product *of) {
  return (of->m == 1 && of->a.transposed && of->a.stride > 1) || (of->n == 1 && !of->b.transposed && of->b.stride > 1);
}

/* Returns 1 if k is 31 modulo 32 and there are matrix units. oneDNN 2.6 and 2.7 may then configure the units for tiles
 * of other sizes than they multiply, and SIGILL ends the process (oneDNN's issue 1661; seen for k = 63 and for k from
 * 3071 on). */
static int breaks_units(const ad_products *with, const gemm_product *of) {
  return with->units >= AD_UNITS_AMX && of->k % 32 == 31;
}

/* Returns 1 if oneDNN can multiply bf16, for which it needs AVX-512. */
static int has_bf16(const ad_products *with) { return with->units >= AD_UNITS_AVX512; }

gemm_way ad_gemm_choose(const ad_products *with, const gemm_product *product) {
  int is_empty = !product->m || !product->n || !product->k;
  ad_dtype values = product->values;
  if (!with->onednn || with->library == AD_LIBRARY_OPENBLAS || values == AD_F64 || is_empty)
    return without_onednn(values);
  if (values == AD_BF16 && (has_gaps(product) || breaks_units(with, product))) return GEMM_WIDEN_ONEDNN;
  if (with->library == AD_LIBRARY_ONEDNN) return values == AD_BF16 && !has_bf16(with) ? GEMM_WIDEN_ONEDNN : GEMM_ONEDNN;
  if (with->library == AD_LIBRARY_BY_FILE) return ad_ways_at(with->ways, values, ad_gemm_shape_of(product));
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (fits(&table[i], with, product)) return table[i].way;
  return without_onednn(values);
}

int ad_products_widen(ad_products with) {
  gemm_product large = {.values = AD_BF16, .m = 512, .n = 512, .k = 512};
  return ad_gemm_choose(&with, &large) != GEMM_ONEDNN;
}
