/* Vector kernels on rows of f32, f64 or bf16. Outside matrix products, operations spend most of their time here. Every
 * instruction set runs the same code and gives the same bits: sums use a fixed number of lanes, and multiplications are
 * not fused with additions. Files op_*.c have the operations.
 *
 * bf16 is only a format in memory: arithmetic is in f32 registers, and a stored element is rounded to nearest even.
 * Denormals are kept; every NaN becomes the one canonical NaN. */
#ifndef ROWS_ROWS_H
#define ROWS_ROWS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "kernels/kernels.h"

/* Each pointer points to n elements of the table's dtype T, unless a comment says that they are wide: of the wide dtype
 * of T (ad_dtype_wide), which is f32 for bf16 and T itself otherwise. _wide: an operand is wide. _narrow: a source is
 * wide and the result is T. If `adds`, the result is added to dst; otherwise dst is overwritten. dst overlaps no source
 * unless a comment allows it, and then only if both have the same dtype. */
typedef struct row_kernels {
  void (*add)(void *dst, const void *a, const void *b, size_t n);
  void (*add_wide)(void *dst, const void *a, const void *b, size_t n); /* dst = a + b; dst, a wide; dst may be a */
  void (*put)(void *dst, const void *src, double factor, size_t n, int adds);        /* dst = factor * src */
  void (*put_wide)(void *dst, const void *src, double factor, size_t n, int adds);   /* dst = factor * src; dst wide */
  void (*put_narrow)(void *dst, const void *src, double factor, size_t n, int adds); /* dst = factor * src; src wide */
  void (*put_divided)(void *dst, const void *src, double divisor, size_t n,
                      int adds); /* dst = src / divisor; dst may be src */
  void (*put_product)(void *dst, const void *a, const void *b, size_t n, int adds); /* dst = a * b */
  void (*fill)(void *dst, double value, size_t n, int adds);                        /* dst = value */
  double (*sum)(const void *src, size_t n);
  double (*dot)(const void *a, const void *b, size_t n);
  double (*max)(const void *src, size_t n); /* the largest element; -infinity for n = 0 */
  /* Sets dst to exp(src - shift), and returns the sum of these exponentials before they are rounded to T. dst may be
   * src. */
  double (*exp_sum)(void *dst, const void *src, double shift, size_t n);
  double (*exp_sum_narrow)(void *dst, const void *src, double shift, size_t n); /* src is wide */
  void (*put_exp)(void *dst, const void *src, double shift, double factor, size_t n,
                  int adds); /* dst = factor * exp(src - shift) */
  /* Backward of softmax: p = exp(score - shift) / sum, and d = scale * p * (slope - centre), where p is not rounded
   * yet. score and slope (the gradient of p) are wide. p may be score, and d may be slope. */
  void (*softmax_backward)(void *p, void *d, const void *score, const void *slope, double shift, double sum,
                           double centre, double scale, size_t n);
  void (*swiglu)(void *dst, const void *gate, const void *up, size_t n); /* dst = silu(gate) * up */
  /* d_gate and d_up may be the same memory if both are added to. */
  void (*swiglu_backward)(void *d_gate, int gate_adds, void *d_up, int up_adds, const void *gate, const void *up,
                          const void *d_out, size_t n);
  void (*gelu)(void *dst, const void *x, size_t n);
  void (*gelu_backward)(void *dx, const void *x, const void *d_out, size_t n, int adds);
  void (*norm)(void *dst, const void *x, const void *weight, double inverse,
               size_t n); /* dst = x * inverse * weight; weight is wide */
  void (*norm_wide)(void *dst, const void *x, const void *weight, double inverse, size_t n); /* x and weight are wide */
  /* Backward of one row of rms_norm: writes dx, and adds the row's contribution to d_weight. inverse = 1 /
   * sqrt(mean(x^2) + epsilon). weight and d_weight are wide. */
  void (*norm_backward)(void *dx, int adds, void *d_weight, const void *x, const void *weight, const void *d_out,
                        double inverse, size_t n);
  void (*norm_backward_wide)(void *dx, int adds, void *d_weight, const void *x, const void *weight, const void *d_out,
                             double inverse, size_t n); /* dx and x are wide, too */
  /* Rotates the pairs (i, i + half) in each of `heads` pieces of 2 * half elements, by angles whose cosines and sines
   * are wide. `direction` is 1 or -1. */
  void (*rotate)(void *dst, const void *src, const void *cosine, const void *sine, double direction, size_t half,
                 size_t heads, int adds);
} row_kernels;

const row_kernels *ad_rows(ad_dtype dtype); /* returns the table of the variant in use; dtype: AD_F32, AD_F64 or
                                             * AD_BF16 */

/* Returns the value of a bf16, whose bits are the upper half of an f32. */
static inline float ad_bf16_value(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Read and write single elements, for work that is done once for a row. */
static inline double ad_element(ad_dtype dtype, const void *data, size_t i) {
  if (dtype == AD_BF16) return (double)ad_bf16_value(((const uint16_t *)data)[i]);
  return dtype == AD_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}
static inline void ad_set_element(ad_dtype dtype, void *data, size_t i, double value) {
  if (dtype == AD_F64)
    ((double *)data)[i] = value;
  else if (dtype == AD_BF16)
    ad_cast((uint16_t *)data + i, AD_BF16, &value, AD_F64, 1);
  else
    ((float *)data)[i] = (float)value;
}

#endif
