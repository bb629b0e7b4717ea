/* The ways to compute a matrix product, from which gemm.c chooses, and the data that these ways keep between
 * products. */
#ifndef PRODUCTS_GEMM_WAYS_H
#define PRODUCTS_GEMM_WAYS_H
#include <stddef.h>
#include "products/products.h"
#include "products/gemm.h"

/* A product: the arguments of ad_gemm. */
typedef struct gemm_product {
  ad_dtype values, result;
  int64_t m, n, k;
  double factor;
  ad_matrix a, b;
  int adds;
  void *c;
  int64_t c_stride;
} gemm_product;

/* The argument of functions at the injection point AD_INJECT_PRODUCT: a matrix product that is about to be computed. */
typedef struct gemm_passing {
  const gemm_product *product;
  int handled; /* a function at the injection point that computes the product itself sets this to 1 */
} gemm_passing;

/* What a thread keeps between its products. */
typedef struct gemm_kept {
  float *widened;        /* blocks widened to f32 (gemm_widen.c) */
  struct onednn *onednn; /* compiled primitives (gemm_onednn.c) */
  ad_status status;
  char message[256];
} gemm_kept;

/* Returns this thread's data, which are empty at first. */
gemm_kept *ad_gemm_kept(void);

typedef enum gemm_way {
  GEMM_BLAS,   /* OpenBLAS, for f32 and f64 */
  GEMM_ONEDNN, /* oneDNN, for f32 and bf16 */
  GEMM_WIDEN_BLAS,
  GEMM_WIDEN_ONEDNN /* for bf16: operands are widened to f32, and oneDNN multiplies them */
} gemm_way;

/* The shapes among which the choice distinguishes. VECTOR: c has one row or one column. SMALL: the matrices are small
 * enough for kernels that do not copy them. LARGE: all other shapes. */
typedef enum gemm_shape { GEMM_VECTOR, GEMM_SMALL, GEMM_LARGE } gemm_shape;
gemm_shape ad_gemm_shape_of(const gemm_product *product);

/* Chooses the way for this product from properties that all ranks have. Defined in gemm_choice.c. */
gemm_way ad_gemm_choose(const ad_products *with, const gemm_product *product);

void ad_gemm_blas(const gemm_product *product);
/* Multiplies bf16 by widening blocks to f32; `f32` is the way in which the widened blocks are multiplied. */
ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product, gemm_way f32) AD_CHECKED;
ad_status ad_gemm_onednn(gemm_kept *kept, const gemm_product *product) AD_CHECKED;
/* Computes the product `times` times with one primitive, even in f32, to measure oneDNN's own rate. */
ad_status ad_gemm_onednn_repeat(gemm_kept *kept, const gemm_product *product, int times) AD_CHECKED;
void ad_gemm_onednn_destroy(struct onednn *kept); /* `kept` may be NULL */
/* Returns how many primitives this thread has compiled. ad_gemm_onednn compiles none for f32. */
long ad_gemm_onednn_made(const gemm_kept *kept);
/* Returns oneDNN's name for the instructions that it uses in this process, or NULL without oneDNN. */
const char *ad_gemm_onednn_instructions(void);

#endif
