/* Vector kernels on rows of f32, f64 or bf16, which take most of the time that operations spend outside matrix
 * products. Every instruction set runs the same code and gives the same bits: sums use a fixed number of lanes, and
 * multiplications are not fused with additions. The operations themselves are in op_*.c.
 *
 * bf16 is only a format in memory: arithmetic is in f32 registers, and a stored element is rounded to nearest even.
 * Denormals are kept; every NaN becomes the one canonical NaN. */
#ifndef ROWS_ROWS_H
#define ROWS_ROWS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "kernels/kernels.h"

/* Each pointer points to n elements of the table's dtype T, except where a comment has R: the wide dtype of T
 * (ad_dtype_wide), which is T itself unless T is bf16. _wide: an operand is R, not T. _narrow: a source is R and the
 * result T. adds: the result is added to dst; otherwise dst is overwritten. dst overlaps no source except where a
 * comment allows it, and then only if both have the same dtype. */
typedef struct row_kernels {
  void (*add)(void *dst, const void *a, const void *b, size_t n);
  void (*add_wide)(void *dst, const void *a, const void *b, size_t n);        /* a + b; dst and a are R; dst may be a */
  void (*put)(void *dst, const void *src, double factor, size_t n, int adds); /* factor * src */
  void (*put_wide)(void *dst, const void *src, double factor, size_t n, int adds);   /* factor * src; dst is R */
  void (*put_narrow)(void *dst, const void *src, double factor, size_t n, int adds); /* factor * src; src is R */
  void (*put_divided)(void *dst, const void *src, double divisor, size_t n,
                      int adds);                                                    /* src / divisor; dst may be src */
  void (*put_product)(void *dst, const void *a, const void *b, size_t n, int adds); /* a * b */
  void (*fill)(void *dst, double value, size_t n, int adds);                        /* value */
  double (*sum)(const void *src, size_t n);
  double (*dot)(const void *a, const void *b, size_t n);
  double (*max)(const void *src, size_t n); /* -infinity for n = 0 */
  /* dst = exp(src - shift). Returns the sum of these exponentials before they are rounded to T. dst may be src. */
  double (*exp_sum)(void *dst, const void *src, double shift, size_t n);
  double (*exp_sum_narrow)(void *dst, const void *src, double shift, size_t n); /* R src */
  void (*put_exp)(void *dst, const void *src, double shift, double factor, size_t n,
                  int adds); /* factor * exp(src - shift) */
  /* Backward of softmax. p = exp(score - shift) / sum; d = scale * p * (slope - centre), with p not yet rounded.
   * score and slope (the gradient of p) are R. p may be score, and d may be slope. */
  void (*softmax_backward)(void *p, void *d, const void *score, const void *slope, double shift, double sum,
                           double centre, double scale, size_t n);
  void (*swiglu)(void *dst, const void *gate, const void *up, size_t n); /* silu(gate) * up */
  /* d_gate and d_up may be the same memory if both add. */
  void (*swiglu_backward)(void *d_gate, int gate_adds, void *d_up, int up_adds, const void *gate, const void *up,
                          const void *d_out, size_t n);
  void (*gelu)(void *dst, const void *x, size_t n);
  void (*gelu_backward)(void *dx, const void *x, const void *d_out, size_t n, int adds);
  void (*norm)(void *dst, const void *x, const void *weight, double inverse,
               size_t n); /* x * inverse * weight; R weight */
  void (*norm_wide)(void *dst, const void *x, const void *weight, double inverse, size_t n); /* R x, R weight */
  /* Backward of one row of rms_norm: writes dx and adds the row's share to d_weight. inverse = 1 / sqrt(mean(x^2) +
   * epsilon). weight and d_weight are R. */
  void (*norm_backward)(void *dx, int adds, void *d_weight, const void *x, const void *weight, const void *d_out,
                        double inverse, size_t n);
  void (*norm_backward_wide)(void *dx, int adds, void *d_weight, const void *x, const void *weight, const void *d_out,
                             double inverse, size_t n); /* R dx and x too */
  /* Rotates, in each of `heads` pieces of 2 * half elements, the pairs (i, i + half) by angles whose cosines and sines
   * are R; direction 1 or -1. */
  void (*rotate)(void *dst, const void *src, const void *cosine, const void *sine, double direction, size_t half,
                 size_t heads, int adds);
} row_kernels;

const row_kernels *ad_rows(ad_dtype dtype); /* of the variant in use; dtype: AD_F32, AD_F64 or AD_BF16 */

/* bf16 is the upper half of an f32. */
static inline float ad_bf16_value(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Reads and writes single elements, for work that is done once per row. */
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
