/* The loops of the optimizers, compiled once for each instruction set under the name KERNELS. Each element is a fixed
 * sequence of IEEE operations, so any vector width gives the same bits. */
#include <math.h>
#include "optim/record.h"

/* AdamW: algorithm 2 of Loshchilov and Hutter 2019. The constants are converted to the type once, before the loop. */
#define ADAMW(name, type, root)                                                                                   \
  static void name(const ad_update *update, type *restrict param, void *const *states, const type *restrict grad, \
                   size_t n) {                                                                                    \
    const ad_optimizer_options *options = update->options;                                                        \
    type *restrict first = states[0], *restrict second = states[1];                                               \
    const type factor = (type)update->factor, decay = (type)update->decay, lr = (type)update->lr;                 \
    const type beta1 = (type)options->beta1, rest1 = (type)(1 - options->beta1);                                  \
    const type beta2 = (type)options->beta2, rest2 = (type)(1 - options->beta2);                                  \
    const type correction1 = (type)update->derived[0], correction2 = (type)update->derived[1];                    \
    const type epsilon = (type)options->epsilon;                                                                  \
    for (size_t i = 0; i < n; i++) {                                                                              \
      type g = factor * grad[i];                                                                                  \
      type m = beta1 * first[i] + rest1 * g;                                                                      \
      type v = beta2 * second[i] + rest2 * (g * g);                                                               \
      first[i] = m;                                                                                               \
      second[i] = v;                                                                                              \
      param[i] -= lr * (m * correction1 / (root(v * correction2) + epsilon) + decay * param[i]);                  \
    }                                                                                                             \
  }
ADAMW(adamw_f32, float, sqrtf)
ADAMW(adamw_f64, double, sqrt)

/* SGD as torch.optim.SGD computes it with dampening 0, where the first step's buffer is the gradient: here it is
 * momentum * 0 + g. */
#define SGD(name, type)                                                                                           \
  static void name(const ad_update *update, type *restrict param, void *const *states, const type *restrict grad, \
                   size_t n) {                                                                                    \
    const type factor = (type)update->factor, decay = (type)update->decay, lr = (type)update->lr;                 \
    const type momentum = (type)update->options->momentum;                                                        \
    const int nesterov = update->options->nesterov;                                                               \
    type *restrict buffer = states[0];                                                                            \
    if (!buffer) {                                                                                                \
      for (size_t i = 0; i < n; i++) param[i] -= lr * (factor * grad[i] + decay * param[i]);                      \
      return;                                                                                                     \
    }                                                                                                             \
    for (size_t i = 0; i < n; i++) {                                                                              \
      type g = factor * grad[i] + decay * param[i];                                                               \
      type b = momentum * buffer[i] + g;                                                                          \
      buffer[i] = b;                                                                                              \
      param[i] -= lr * (nesterov ? g + momentum * b : b);                                                         \
    }                                                                                                             \
  }
SGD(sgd_f32, float)
SGD(sgd_f64, double)

/* Muon as torch.optim.Muon computes it: its buffer is an average of gradients. Decay has the rate itself, without the
 * factor of the shape, which the direction has already. */
#define MUON(direct, apply, type)                                                                              \
  static void direct(const ad_update *update, void *const *states, const type *restrict grad,                  \
                     type *restrict direction, size_t n) {                                                     \
    const type factor = (type)update->factor, momentum = (type)update->options->muon.momentum;                 \
    const type rest = (type)(1 - update->options->muon.momentum);                                              \
    const int nesterov = update->options->muon.nesterov;                                                       \
    type *restrict average = states[0];                                                                        \
    for (size_t i = 0; i < n; i++) {                                                                           \
      type g = factor * grad[i];                                                                               \
      type m = average ? average[i] + rest * (g - average[i]) : g;                                             \
      if (average) average[i] = m;                                                                             \
      if (direction) direction[i] = nesterov ? g + momentum * (m - g) : m;                                     \
    }                                                                                                          \
  }                                                                                                            \
  static void apply(const ad_update *update, type *restrict param, const type *restrict direction, size_t n) { \
    const type lr = (type)update->lr, keeps = (type)(1 - update->lr * update->decay);                          \
    for (size_t i = 0; i < n; i++) param[i] = param[i] * keeps - lr * direction[i];                            \
  }
MUON(muon_direct_f32, muon_apply_f32, float)
MUON(muon_direct_f64, muon_apply_f64, double)

const ad_update_kernels KERNELS[] = {[AD_ADAMW] = {.f32 = adamw_f32, .f64 = adamw_f64},
                                     [AD_SGD] = {.f32 = sgd_f32, .f64 = sgd_f64},
                                     [AD_MUON] = {.direct_f32 = muon_direct_f32,
                                                  .direct_f64 = muon_direct_f64,
                                                  .apply_f32 = muon_apply_f32,
                                                  .apply_f64 = muon_apply_f64}};
