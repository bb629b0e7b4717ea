/* Makes products in pieces along the summed dimension: the same terms, added in another order, so that every sum is
 * rounded differently. The check measures with them by how much a right gradient may differ. */
#ifndef PRODUCTS_GEMM_SPLIT_H
#define PRODUCTS_GEMM_SPLIT_H
#include "products/gemm_ways.h"

/* The context of ad_gemm_split. The place of a split depends on `seed` and on the number of products split before. */
typedef struct gemm_splits {
  uint64_t seed, made;
  int rounds_between; /* 1: each piece is rounded to the result's dtype before the next is added, as on ranks that hold
                       * pieces; 0: the sum of the pieces is rounded once */
  int within;         /* 1: a piece is being made, which is not split again */
} gemm_splits;

/* A function for AD_INJECT_PRODUCT. Does not handle a product with fewer than two terms, or without memory for sums. */
void ad_gemm_split(void *context, void *passing);

/* The operand from term `at` of the sums on: from column `at` of a, or from row `at` of b (`in_rows`). */
gemm_operand ad_gemm_from_term(gemm_operand of, ad_dtype values, int64_t at, int in_rows);
/* Writes sums [m, n] of this dtype to the product's result, or adds them if the product adds. */
void ad_gemm_write_out(const gemm_product *of, const void *sums, ad_dtype dtype);

#endif
