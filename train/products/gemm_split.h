/* Computes products in pieces along the summed dimension. The terms are the same, but they are added in another order,
 * so every sum is rounded differently. The check uses this to measure by how much a right gradient may differ. */
#ifndef PRODUCTS_GEMM_SPLIT_H
#define PRODUCTS_GEMM_SPLIT_H
#include "products/gemm_ways.h"

/* The context of ad_gemm_split. Where a product is split depends on `seed` and on the number of products that were
 * split before. */
typedef struct gemm_splits {
  uint64_t seed, made;
  int rounds_between; /* 1: the first piece is rounded to the result's dtype before the second is added, as if they
                       * were on different ranks; 0: only the sum of both is rounded */
  int within;         /* 1: a piece is being computed, and must not be split again */
} gemm_splits;

/* A function for the injection point AD_INJECT_PRODUCT. Leaves the product to gemm.c if it has fewer than two terms, or
 * if there is no memory for the sums. */
void ad_gemm_split(void *context, void *passing);

/* Returns the operand without the terms before `at` of the sums: from column `at` of a, or (in_rows) from row `at` of
 * b. */
ad_matrix ad_gemm_from_term(ad_matrix of, ad_dtype values, int64_t at, int in_rows);
/* Writes the sums [m, n], which have this dtype, to the product's result, or adds them to the result if the product has
 * `adds`. */
void ad_gemm_write_out(const gemm_product *of, const void *sums, ad_dtype dtype);

#endif
