/* The ways to make a matrix product, for gemm.c to choose from, and what they keep. */
#ifndef TENSOR_GEMM_WAYS_H
#define TENSOR_GEMM_WAYS_H
#include <stddef.h>
#include "tensor/gemm.h"

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

/* What a thread keeps from product to product, until it ends. */
typedef struct gemm_kept {
  float *widened; /* gemm_widen.c */
  ad_status status;
  char message[256];
} gemm_kept;

/* This thread's own, empty at first. */
gemm_kept *ad_gemm_kept(void);

/* f32 or f64 by OpenBLAS. */
void ad_gemm_blas(const gemm_product *product);
/* bf16 by OpenBLAS: operands are widened to f32 block by block. */
ad_status ad_gemm_widen(gemm_kept *kept, const gemm_product *product) AD_CHECKED;

#endif
