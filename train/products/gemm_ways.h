/* The ways to make a matrix product, from which gemm.c chooses; and the data that they keep between products. */
#ifndef PRODUCTS_GEMM_WAYS_H
#define PRODUCTS_GEMM_WAYS_H
#include <stddef.h>
#include "products/products.h"
#include "products/gemm.h"

/* A product, with the arguments of ad_gemm. */
typedef struct gemm_product {
  ad_dtype values, result;
  int64_t m, n, k;
  double factor;
  gemm_operand a, b;
  int adds;
  void *c;
  int64_t c_stride;
} gemm_product;

/* Argument of functions at the injection point AD_INJECT_PRODUCT: a matrix product that is about to be made. */
typedef struct gemm_passing {
  const gemm_product *product;
  int handled; /* set to 1 by a function at the injection point that made the product itself */
} gemm_passing;

/* The data that a thread keeps between its products. */
typedef struct gemm_kept {
  float *widened;        /* blocks in f32: gemm_widen.c */
  struct onednn *onednn; /* compiled primitives: gemm_onednn.c */
  ad_status status;
  char message[256];
} gemm_kept;

/* This thread's data; empty at first. */
gemm_kept *ad_gemm_kept(void);

typedef enum gemm_way {
  GEMM_BLAS,   /* f32 and f64 */
  GEMM_ONEDNN, /* f32 and bf16 */
  GEMM_WIDEN_BLAS,
  GEMM_WIDEN_ONEDNN /* bf16: operands are widened to f32, which that library multiplies */
} gemm_way;

/* The choice distinguishes three shapes: c has one row or one column; the matrices are small enough for kernels that
 * do not copy them; all others. */
typedef enum gemm_shape { GEMM_VECTOR, GEMM_SMALL, GEMM_LARGE } gemm_shape;
gemm_shape ad_gemm_shape_of(const gemm_product *product);

/* The way for this product, by the properties that all ranks have; in gemm_choice.c. */
gemm_way ad_gemm_choose(const ad_products *with, const gemm_product *product);

void ad_gemm_blas(const gemm_product *product);
/* `f32`: the way to multiply the widened blocks. */
ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product, gemm_way f32) AD_CHECKED;
ad_status ad_gemm_onednn(gemm_kept *kept, const gemm_product *product) AD_CHECKED;
/* Makes the product `times` times with one primitive, even for f32: measures oneDNN's own rate. */
ad_status ad_gemm_onednn_repeat(gemm_kept *kept, const gemm_product *product, int times) AD_CHECKED;
void ad_gemm_onednn_destroy(struct onednn *kept); /* NULL allowed */
/* How many primitives this thread has compiled; ad_gemm_onednn needs none for f32. */
long ad_gemm_onednn_made(const gemm_kept *kept);
/* oneDNN's name for the instructions that it uses in this process; NULL without oneDNN. */
const char *ad_gemm_onednn_instructions(void);

#endif
