/* An operation whose backward is not linear in the gradient that arrives, to test how the tape handles such records. */
#ifndef TESTS_TENSOR_BENT_H
#define TESTS_TENSOR_BENT_H
#include "addend/operation.h"

/* Forward: clamp(x, 0, 1). */
static inline ad_status bent_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = ad_operand(out, 0), *y = ad_tensor_array(out);
  for (size_t i = 0; i < ad_array_numel(y); i++) {
    double at = ad_array_get(x, i);
    ad_array_set(y, i, at < 0 ? 0 : at > 1 ? 1 : at);
  }
  return AD_OK;
}

/* A backward that is not linear: where x is below 0, x gets a hundredth of a negative gradient, and 0 for others. */
static inline ad_status bent_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *x = ad_operand(out, 0), *gradient = ad_result_grad(out);
  for (size_t i = 0; i < ad_array_numel(x); i++) {
    double at = ad_array_get(x, i), g = ad_array_get(gradient, i);
    ad_slot_put(slot, i, at > 1 || (at < 0 && g >= 0) ? 0 : at < 0 ? 0.01 * g : g);
  }
  return AD_OK;
}

static const ad_operation bent_record = {.size = sizeof bent_record,
                                         .name = "bent",
                                         .dims = "...->...",
                                         .linearity = AD_NONLINEAR,
                                         .not_linear = 1,
                                         .forward = bent_forward,
                                         .backward = bent_backward};

static inline ad_tensor *bent_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_operation_apply_at(tape, &bent_record, &x, 1, NULL, site);
}
#define bent(t, x) bent_at((t), (x), AD_HERE)

#endif
