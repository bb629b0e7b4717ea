/* The operations lower and upper (two clamps to [0, 1]) and mix. The backward of `lower` passes a gradient that raises
 * values below 0, `upper` continues with a small slope above 1, and `mix` moves a number nearer to 1. All compute in
 * f64 and round once. */
#include "decompose/operations.h"
#include "decompose/pieces.h"

static const double slow = 0.01; /* the small slope outside [0, 1] */

/* ---- applying a function to each element ---- */

typedef double function_of_two(double x, double other);

/* Sets each element of the result to f(element of operand 0, element of operand 1). If there is no operand 1, f's
 * second argument is 0. */
static void put_values(const ad_tensor *out, function_of_two *f) {
  const ad_array *x = ad_operand(out, 0), *other = ad_operand(out, 1), *y = ad_tensor_array(out);
  double of[PIECE], with[PIECE] = {0};
  for (size_t first = 0, numel = ad_array_numel(y); first < numel; first += PIECE) {
    size_t n = ad_piece_size(first, numel);
    ad_piece_take(x, first, n, of);
    if (other) ad_piece_take(other, first, n, with);
    for (size_t k = 0; k < n; k++) of[k] = f(of[k], with[k]);
    ad_piece_put(y, first, n, of);
  }
}

/* Adds f(x, gradient of the result) to the operand's gradient, element by element. */
static void put_shares(const ad_tensor *out, const ad_array *x, function_of_two *f, const ad_gradient_slot *slot) {
  const ad_array *gradient = ad_result_grad(out);
  double of[PIECE], g[PIECE];
  for (size_t first = 0, numel = ad_array_numel(x); slot->data && first < numel; first += PIECE) {
    size_t n = ad_piece_size(first, numel);
    ad_piece_take(x, first, n, of);
    ad_piece_take(gradient, first, n, g);
    for (size_t k = 0; k < n; k++) ad_slot_put(slot, first + k, f(of[k], g[k]));
  }
}

/* Returns x clamped to [0, 1]; a NaN stays NaN. */
static double clamped(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

/* ---- operation lower: clamps to [0, 1], and lets gradients pass that raise x < 0 ---- */

static double lower_of(double x, double unused) { return clamped(x); }

/* Returns the gradient that `lower` passes to x. For x below 0, a negative gradient is passed times `slow`, because it
 * raises x. A positive gradient would lower x further, and is not passed. */
static double returning_share(double x, double g) { return x > 1 || (x < 0 && g >= 0) ? 0 : x < 0 ? slow * g : g; }

static double plain_share(double x, double g) { return x < 0 || x > 1 ? 0 : g; }

static ad_status lower_forward(ad_tape *tape, ad_tensor *out) {
  put_values(out, lower_of);
  return AD_OK;
}

static ad_status returning_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  put_shares(out, ad_operand(out, 0), returning_share, slot);
  return AD_OK;
}

static ad_status plain_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  put_shares(out, ad_operand(out, 0), plain_share, slot);
  return AD_OK;
}

const ad_operation ad_returning_lower_record = {.size = sizeof(ad_operation),
                                                .name = "lower",
                                                .dims = "...->...",
                                                .linearity = AD_NONLINEAR,
                                                .dtypes = AD_IN_ANY_FLOAT,
                                                .not_linear = 1,
                                                .forward = lower_forward,
                                                .backward = returning_backward};

const ad_operation ad_plain_lower_record = {.size = sizeof(ad_operation),
                                            .name = "lower",
                                            .dims = "...->...",
                                            .linearity = AD_NONLINEAR,
                                            .dtypes = AD_IN_ANY_FLOAT,
                                            .forward = lower_forward,
                                            .backward = plain_backward};

ad_tensor *ad_lower_at(ad_tape *tape, ad_tensor *x, ad_slope slope, const char *site) {
  const ad_operation *record = slope == AD_SLOPE_PLAIN ? &ad_plain_lower_record : &ad_returning_lower_record;
  return ad_operation_apply_at(tape, record, &x, 1, NULL, site);
}

/* ---- operation upper: clamps below 0, and grows only slowly above 1 ---- */

static double upper_of(double x, double unused) { return x > 1 ? 1 + slow * (x - 1) : clamped(x); }

static double upper_share(double x, double g) { return (x > 1 ? slow : x >= 0 ? 1 : 0) * g; }

static ad_status upper_forward(ad_tape *tape, ad_tensor *out) {
  put_values(out, upper_of);
  return AD_OK;
}

static ad_status upper_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  put_shares(out, ad_operand(out, 0), upper_share, slot);
  return AD_OK;
}

const ad_operation ad_upper_record = {.size = sizeof(ad_operation),
                                      .name = "upper",
                                      .dims = "...->...",
                                      .linearity = AD_NONLINEAR,
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .forward = upper_forward,
                                      .backward = upper_backward};

ad_tensor *ad_upper_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_operation_apply_at(tape, &ad_upper_record, &x, 1, NULL, site);
}

/* ---- operation mix: x + (1 - x) u ---- */

static double mix_of(double x, double u) { return x + (1 - x) * u; }

static double mix_share(double other, double g) { return g * (1 - other); }

static ad_status mix_forward(ad_tape *tape, ad_tensor *out) {
  put_values(out, mix_of);
  return AD_OK;
}

static ad_status mix_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  for (size_t i = 0; i < 2; i++) put_shares(out, ad_operand(out, 1 - i), mix_share, &slot[i]);
  return AD_OK;
}

/* mix is nonlinear in x and u: if one of them were Partial, the 1 in the formula would be counted once for each
 * addend. */
const ad_operation ad_mix_record = {.size = sizeof(ad_operation),
                                    .name = "mix",
                                    .dims = "...,...->...",
                                    .linearity = AD_NONLINEAR,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .forward = mix_forward,
                                    .backward = mix_backward};

ad_tensor *ad_mix_at(ad_tape *tape, ad_tensor *x, ad_tensor *u, const char *site) {
  return ad_operation_apply_at(tape, &ad_mix_record, (ad_tensor *[]){x, u}, 2, NULL, site);
}
