/* How evenly tokens choose experts: the choices of all tokens as a value on the tape, and the load-balancing
 * loss, which has a gradient. */
#include "tensor/routing.h"
#include "tensor/tape.h"

ad_tensor *ad_choices_at(ad_tape *tape, const ad_routing *routing, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "choices");
  if (ad_tape_failed(tape)) return ad_tape_fail(tape, AD_OK);
  return ad_constant_at(tape, &routing->choices, site);
}

/* ---- the load-balancing loss ---- */

typedef struct balance_numbers {
  double top_k;
} balance_numbers;

static double element(const ad_tensor *tensor, size_t i) {
  return ad_element(tensor->array.dtype, tensor->array.data, i);
}

/* Returns the constant factor of the loss, experts * top_k / choices^2, where `choices` is the number of choices of all
 * tokens. */
static double factor_of(const ad_tensor *out) {
  const ad_tensor *choices = out->operand[1];
  double sum = 0;
  for (size_t e = 0; e < ad_numel(choices); e++) sum += element(choices, e);
  return sum > 0 ? (double)ad_numel(choices) * ((const balance_numbers *)out->own)->top_k / (sum * sum) : 0;
}

static ad_status balance_forward(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *shares = out->operand[0], *choices = out->operand[1];
  double sum = 0;
  for (size_t i = 0; i < ad_rows_of(shares); i++)
    sum +=
        ad_rows(out->array.dtype)
            ->dot(ad_at(shares, shares->array.data, i * ad_columns(shares)), choices->array.data, ad_columns(shares));
  ad_set_element(out->array.dtype, out->array.data, 0, sum * factor_of(out));
  return AD_OK;
}

static ad_status balance_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_tensor *shares = out->operand[0], *choices = out->operand[1];
  double slope = ad_element(out->array.dtype, out->grad.data, 0) * factor_of(out);
  for (size_t i = 0; i < ad_rows_of(shares); i++)
    ad_rows(out->array.dtype)
        ->put(ad_at(shares, slot[0].data, i * ad_columns(shares)), choices->array.data, slope, ad_columns(shares),
              slot[0].adds);
  return AD_OK;
}

static const ad_operation balance = {.name = "balance",
                                     .dims = "ne,e->",
                                     .linearity = AD_MULTILINEAR,
                                     .full = "e",
                                     .unread = 1,
                                     .dtypes = AD_IN_F32_F64,
                                     .own_size = sizeof(balance_numbers),
                                     .forward = balance_forward,
                                     .backward = balance_backward};

ad_tensor *ad_balance_at(ad_tape *tape, ad_tensor *shares, ad_tensor *choices, int64_t top_k, const char *site) {
  return ad_tape_apply(tape, &balance, (ad_tensor *[]){shares, choices}, 2, &(balance_numbers){(double)top_k}, site);
}
