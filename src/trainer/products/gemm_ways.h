/* The ways to make a matrix product, for gemm.c to choose from, and what they keep. */
#ifndef PRODUCTS_GEMM_WAYS_H
#define PRODUCTS_GEMM_WAYS_H
#include <stddef.h>
#include "products/products.h"
#include "products/gemm.h"

/* The arguments of ad_gemm. */
typedef struct gemm_product {
  ad_dtype values, result;
  int64_t m, n, k;
  double factor;
  gemm_operand a, b;
  int adds;
  void *c;
  int64_t c_stride;
} gemm_product;

/* What passes AD_SEAM_PRODUCT. */
typedef struct gemm_passing {
  const gemm_product *product;
  int handled; /* it was made */
} gemm_passing;

/* What a thread keeps from product to product, until it ends. */
typedef struct gemm_kept {
  float *widened;        /* gemm_widen.c */
  struct onednn *onednn; /* gemm_onednn.c */
  ad_status status;
  char message[256];
} gemm_kept;

/* This thread's own, empty at first. */
gemm_kept *ad_gemm_kept(void);

typedef enum gemm_way {
  GEMM_BLAS,   /* f32 and f64 */
  GEMM_ONEDNN, /* f32 and bf16 */
  GEMM_WIDEN_BLAS,
  GEMM_WIDEN_ONEDNN /* bf16: operands are widened to f32, which that library multiplies */
} gemm_way;

/* What a choice asks of a shape: one row or one column of c; small enough for kernels that read where matrices lie. */
typedef enum gemm_shape { GEMM_VECTOR, GEMM_SMALL, GEMM_LARGE } gemm_shape;
gemm_shape ad_gemm_shape_of(const gemm_product *product);

/* How this product is made with what all ranks have: gemm_choice.c, which looks at nothing else. */
gemm_way ad_gemm_choose(const ad_products *with, const gemm_product *product);

void ad_gemm_blas(const gemm_product *product);
/* `f32` makes the products of the widened blocks. */
ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product, gemm_way f32) AD_CHECKED;
ad_status ad_gemm_onednn(gemm_kept *kept, const gemm_product *product) AD_CHECKED;
/* The same so many times over with a primitive, f32 too, found once: oneDNN's own rate. */
ad_status ad_gemm_onednn_repeat(gemm_kept *kept, const gemm_product *product, int times) AD_CHECKED;
void ad_gemm_onednn_destroy(struct onednn *kept); /* NULL allowed */
/* How many primitives this thread has made so far; ad_gemm_onednn makes none for products of f32. */
long ad_gemm_onednn_made(const gemm_kept *kept);
/* The instructions that oneDNN uses in this process, in its words; NULL without it. */
const char *ad_gemm_onednn_instructions(void);

#endif
