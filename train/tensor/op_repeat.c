/* Repeats one value for every sample of a batch. Its gradient is the sum over the samples. */
#include <string.h>
#include "tensor/operation.h"

static size_t samples_of(const ad_tensor *out) { return (size_t)out->array.local.dim[0]; }

static ad_status repeat_forward(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *x = out->operand[0];
  size_t numel = ad_numel(x);
  for (size_t i = 0; i < samples_of(out); i++)
    memcpy(ad_at(out, out->array.data, i * numel), x->array.data, ad_array_bytes(&x->array));
  return AD_OK;
}

static ad_status repeat_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_tensor *x = out->operand[0];
  size_t numel = ad_numel(x);
  if (!slot[0].adds) memset(slot[0].data, 0, ad_array_bytes(&x->array));
  for (size_t i = 0; i < samples_of(out); i++)
    ad_rows(out->array.dtype)->put(slot[0].data, ad_at(out, out->grad.data, i * numel), 1, numel, 1);
  return AD_OK;
}

static const ad_operation repeat = {.name = "repeat",
                                    .dims = "...,ns->n...",
                                    .linearity = AD_MULTILINEAR,
                                    .full = "s",
                                    .indices = 1u << 1,
                                    .unread = 1u << 0 | 1u << 1,
                                    .dtypes = AD_IN_F32_F64,
                                    .forward = repeat_forward,
                                    .backward = repeat_backward};

ad_tensor *ad_repeat_at(ad_tape *tape, ad_tensor *x, ad_tensor *samples, const char *site) {
  return ad_tape_apply(tape, &repeat, (ad_tensor *[]){x, samples}, 2, NULL, site);
}
