/* Products made in pieces along the terms of their sums: the same terms, added in other orders, so that every sum is
 * rounded anew. How far a right gradient may be off is measured with them. */
#ifndef PRODUCTS_GEMM_CUT_H
#define PRODUCTS_GEMM_CUT_H
#include "products/gemm_ways.h"

/* The context of ad_gemm_cut: where each product is cut follows from `seed` and from how many were made before. */
typedef struct gemm_cuts {
  uint64_t seed, made;
  int rounds_between; /* a piece is rounded to the result's dtype before the next is added, as ranks that hold pieces
                         do; 0: the sum of the pieces is rounded once */
  int within;         /* a piece is being made */
} gemm_cuts;

/* A function for AD_SEAM_PRODUCT. A product of fewer than two terms passes, and one for which there is no memory. */
void ad_gemm_cut(void *context, void *passing);

/* The operand from term `at` of the sums on: columns of a, or rows of b (`in_rows`). */
gemm_operand ad_gemm_from_term(gemm_operand of, ad_dtype values, int64_t at, int in_rows);
/* Sums [m, n] of that dtype into the product's result, added where it adds. */
void ad_gemm_hand_out(const gemm_product *of, const void *sums, ad_dtype dtype);

#endif
