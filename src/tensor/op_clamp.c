/* Numbers clamped to [0, 1]: lower, whose backward lets what lies below 0 come back, and upper, which goes on slowly
 * above
 * 1. And mix, which brings a number nearer to 1. */
#include "tensor/operation.h"

static const double slow = 0.01; /* the slope outside */

static double value(const ad_tensor *out, int i, size_t at) {
  return ad_element(out->array.dtype, out->operand[i]->array.data, at);
}

static double arriving(const ad_tensor *out, size_t at) { return ad_element(out->array.dtype, out->grad.data, at); }

/* What is no number stays none. */
static double clamped(double x) {
  if (x < 0) return 0;
  return x > 1 ? 1 : x;
}

/* ---- lower ---- */

static ad_status lower_forward(ad_tape *tape, ad_tensor *out) {
  for (size_t i = 0; i < ad_numel(out); i++)
    ad_set_element(out->array.dtype, out->array.data, i, clamped(value(out, 0, i)));
  return AD_OK;
}

/* A gradient below 0 would raise x: one that lies under 0 can come back, but is pushed no further down. */
static double lower_share(double x, double gradient) {
  if (x > 1) return 0;
  if (x < 0) return gradient >= 0 ? 0 : slow * gradient;
  return gradient;
}

static ad_status lower_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  for (size_t i = 0; i < ad_numel(out); i++)
    ad_put_share(slot, out->array.dtype, i, lower_share(value(out, 0, i), arriving(out, i)));
  return AD_OK;
}

static ad_status plain_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  for (size_t i = 0; i < ad_numel(out); i++) {
    double x = value(out, 0, i);
    ad_put_share(slot, out->array.dtype, i, x < 0 || x > 1 ? 0 : arriving(out, i));
  }
  return AD_OK;
}

static const operation lower = {.name = "lower",
                                .dims = "...->...",
                                .linearity = AD_NONLINEAR,
                                .dtypes = IN_F32_F64,
                                .not_linear = 1,
                                .forward = lower_forward,
                                .backward = lower_backward};

static const operation plain_lower = {.name = "lower",
                                      .dims = "...->...",
                                      .linearity = AD_NONLINEAR,
                                      .dtypes = IN_F32_F64,
                                      .forward = lower_forward,
                                      .backward = plain_backward};

ad_tensor *ad_lower_at(ad_tape *tape, ad_tensor *x, int plain, const char *site) {
  return ad_tape_apply(tape, plain ? &plain_lower : &lower, &x, 1, NULL, site);
}

/* ---- upper ---- */

static ad_status upper_forward(ad_tape *tape, ad_tensor *out) {
  for (size_t i = 0; i < ad_numel(out); i++) {
    double x = value(out, 0, i);
    ad_set_element(out->array.dtype, out->array.data, i, x > 1 ? 1 + slow * (x - 1) : clamped(x));
  }
  return AD_OK;
}

static ad_status upper_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  for (size_t i = 0; i < ad_numel(out); i++) {
    double x = value(out, 0, i), slope = x > 1 ? slow : x >= 0;
    ad_put_share(slot, out->array.dtype, i, slope * arriving(out, i));
  }
  return AD_OK;
}

static const operation upper = {.name = "upper",
                                .dims = "...->...",
                                .linearity = AD_NONLINEAR,
                                .dtypes = IN_F32_F64,
                                .forward = upper_forward,
                                .backward = upper_backward};

ad_tensor *ad_upper_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &upper, &x, 1, NULL, site);
}

/* ---- mix ---- */

static ad_status mix_forward(ad_tape *tape, ad_tensor *out) {
  for (size_t i = 0; i < ad_numel(out); i++) {
    double x = value(out, 0, i), u = value(out, 1, i);
    ad_set_element(out->array.dtype, out->array.data, i, x + (1 - x) * u);
  }
  return AD_OK;
}

static ad_status mix_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  for (size_t i = 0; i < ad_numel(out); i++) {
    double gradient = arriving(out, i);
    if (slot[0].data) ad_put_share(&slot[0], out->array.dtype, i, gradient * (1 - value(out, 1, i)));
    if (slot[1].data) ad_put_share(&slot[1], out->array.dtype, i, gradient * (1 - value(out, 0, i)));
  }
  return AD_OK;
}

/* Linear in neither: the 1 would count once for each addend. */
static const operation mix = {.name = "mix",
                              .dims = "...,...->...",
                              .linearity = AD_NONLINEAR,
                              .dtypes = IN_F32_F64,
                              .forward = mix_forward,
                              .backward = mix_backward};

ad_tensor *ad_mix_at(ad_tape *tape, ad_tensor *x, ad_tensor *u, const char *site) {
  return ad_tape_apply(tape, &mix, (ad_tensor *[]){x, u}, 2, NULL, site);
}
