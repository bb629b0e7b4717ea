/* Numbers clamped to [0, 1]: lower, whose backward lets what lies below 0 come back, and upper, which goes on slowly
 * above 1. And mix, which brings a number nearer to 1. */
#include "tensor/operation.h"
#include "tensor/explained.h"

static const double slow = 0.01; /* the slope outside */

static const void *values(const ad_tensor *out, int i) { return out->operand[i]->array.data; }
static const row_kernels *rows_of(const ad_tensor *out) { return ad_rows(out->array.dtype); }

/* ---- lower ---- */

static ad_status lower_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->clamp(out->array.data, values(out, 0), ad_numel(out));
  return AD_OK;
}

/* A gradient below 0 would raise x: one that lies under 0 can come back, but is pushed no further down. */
static ad_status lower_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  rows_of(out)->clamp_backward(slot->data, values(out, 0), out->grad.data, slow, ad_numel(out), slot->adds);
  return AD_OK;
}

static ad_status plain_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  rows_of(out)->clamp_backward(slot->data, values(out, 0), out->grad.data, 0, ad_numel(out), slot->adds);
  return AD_OK;
}

static const ad_operation lower = {.name = "lower",
                                   .dims = "...->...",
                                   .linearity = AD_NONLINEAR,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .not_linear = 1,
                                   .forward = lower_forward,
                                   .backward = lower_backward};

static const ad_operation plain_lower = {.name = "lower",
                                         .dims = "...->...",
                                         .linearity = AD_NONLINEAR,
                                         .dtypes = AD_IN_ANY_FLOAT,
                                         .forward = lower_forward,
                                         .backward = plain_backward};

ad_tensor *ad_lower_at(ad_tape *tape, ad_tensor *x, ad_slope slope, const char *site) {
  return ad_tape_apply(tape, slope == AD_SLOPE_PLAIN ? &plain_lower : &lower, &x, 1, NULL, site);
}

/* ---- upper ---- */

static ad_status upper_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->leak(out->array.data, values(out, 0), slow, ad_numel(out));
  return AD_OK;
}

static ad_status upper_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  rows_of(out)->leak_backward(slot->data, values(out, 0), out->grad.data, slow, ad_numel(out), slot->adds);
  return AD_OK;
}

static const ad_operation upper = {.name = "upper",
                                   .dims = "...->...",
                                   .linearity = AD_NONLINEAR,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .forward = upper_forward,
                                   .backward = upper_backward};

ad_tensor *ad_upper_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &upper, &x, 1, NULL, site);
}

/* ---- mix ---- */

static ad_status mix_forward(ad_tape *tape, ad_tensor *out) {
  rows_of(out)->mix(out->array.data, values(out, 0), values(out, 1), ad_numel(out));
  return AD_OK;
}

static ad_status mix_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (int i = 0; i < 2; i++)
    if (slot[i].data)
      rows_of(out)->mix_backward(slot[i].data, values(out, 1 - i), out->grad.data, ad_numel(out), slot[i].adds);
  return AD_OK;
}

/* Linear in neither: the 1 would count once for each addend. */
static const ad_operation mix = {.name = "mix",
                                 .dims = "...,...->...",
                                 .linearity = AD_NONLINEAR,
                                 .dtypes = AD_IN_ANY_FLOAT,
                                 .forward = mix_forward,
                                 .backward = mix_backward};

ad_tensor *ad_mix_at(ad_tape *tape, ad_tensor *x, ad_tensor *u, const char *site) {
  return ad_tape_apply(tape, &mix, (ad_tensor *[]){x, u}, 2, NULL, site);
}
