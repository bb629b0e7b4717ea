/* The update of AdamW, compiled once for each instruction set under the name KERNELS. Each element is a fixed sequence
 * of IEEE operations, so any vector width gives the same bits. */
#include <math.h>
#include "optim/adamw_kernel.h"

/* Algorithm 2 of Loshchilov and Hutter 2019. The constants are converted to the type once, before the loop. */
#define UPDATE(name, type, root)                                                                              \
  static void name(const adamw_step *step, type *restrict param, type *restrict first, type *restrict second, \
                   const type *restrict grad, size_t n) {                                                     \
    const type factor = (type)step->factor, decay = (type)step->decay, lr = (type)step->lr;                   \
    const type beta1 = (type)step->beta1, rest1 = (type)(1 - step->beta1);                                    \
    const type beta2 = (type)step->beta2, rest2 = (type)(1 - step->beta2);                                    \
    const type correction1 = (type)step->correction1, correction2 = (type)step->correction2;                  \
    const type epsilon = (type)step->epsilon;                                                                 \
    for (size_t i = 0; i < n; i++) {                                                                          \
      type g = factor * grad[i];                                                                              \
      type m = beta1 * first[i] + rest1 * g;                                                                  \
      type v = beta2 * second[i] + rest2 * (g * g);                                                           \
      first[i] = m;                                                                                           \
      second[i] = v;                                                                                          \
      param[i] -= lr * (m * correction1 / (root(v * correction2) + epsilon) + decay * param[i]);              \
    }                                                                                                         \
  }
UPDATE(update_f32, float, sqrtf)
UPDATE(update_f64, double, sqrt)

const adamw_kernels KERNELS = {.f32 = update_f32, .f64 = update_f64};
