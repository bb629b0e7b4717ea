/* The update of AdamW over plain memory, in one pass. It is compiled once for each instruction set; all variants give
 * the same bits. */
#ifndef OPTIM_ADAMW_KERNEL_H
#define OPTIM_ADAMW_KERNEL_H
#include <stddef.h>

/* The numbers of one step. */
typedef struct adamw_step {
  double factor; /* multiplies the gradient */
  double beta1, beta2, epsilon, decay, lr;
  double correction1, correction2; /* bias corrections 1 / (1 - beta^t) of step t */
} adamw_step;

typedef struct adamw_kernels {
  void (*f32)(const adamw_step *step, float *param, float *first, float *second, const float *grad, size_t n);
  void (*f64)(const adamw_step *step, double *param, double *first, double *second, const double *grad, size_t n);
} adamw_kernels;

extern const adamw_kernels ad_adamw_plain, ad_adamw_avx2, ad_adamw_avx512;
const adamw_kernels *ad_adamw_kernels(void); /* the update's variant for the variant of the kernels in use */

#endif
