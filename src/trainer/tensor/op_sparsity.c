/* How much of each column is in use: sums of powers over rows, and the loss of such sums. */
#include <math.h>
#include "layout/sentences.h"
#include "tensor/explained.h"
#include "tensor/tape.h"

static double value(const ad_tensor *out, size_t at) {
  return ad_element(out->operand[0]->array.dtype, out->operand[0]->array.data, at);
}

/* ---- sums of powers ---- */

typedef struct power_numbers {
  double epsilon, p;
} power_numbers;

// The sums while they form.
static size_t power_scratch(const ad_tensor *out) { return ad_numel(out) * sizeof(double); }

static ad_status power_forward(ad_tape *tape, ad_tensor *out) {
  const power_numbers *own = out->own;
  size_t width = ad_numel(out), rows = ad_rows_of(out->operand[0]);
  double *sums = out->scratch;
  for (size_t c = 0; c < width; c++) sums[c] = 0;
  for (size_t i = 0, at = 0; i < rows; i++)
    for (size_t c = 0; c < width; c++, at++) sums[c] += pow(value(out, at) + own->epsilon, own->p);
  for (size_t c = 0; c < width; c++) ad_set_element(out->array.dtype, out->array.data, c, sums[c]);
  return AD_OK;
}

static ad_status power_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const power_numbers *own = out->own;
  ad_dtype dtype = out->array.dtype;
  size_t width = ad_numel(out), rows = ad_rows_of(out->operand[0]);
  for (size_t i = 0, at = 0; i < rows; i++)
    for (size_t c = 0; c < width; c++, at++) {
      double slope = own->p * pow(value(out, at) + own->epsilon, own->p - 1);
      ad_slot_put(slot, at, slope * ad_element(dtype, out->grad.data, c));
    }
  return AD_OK;
}

static const ad_operation power_sums = {.name = "power_sums",
                                        .dims = "...c->c",
                                        .linearity = AD_NONLINEAR,
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .result = AD_LIKE_WIDE,
                                        .own_size = sizeof(power_numbers),
                                        .scratch = power_scratch,
                                        .forward = power_forward,
                                        .backward = power_backward};

ad_tensor *ad_power_sums_at(ad_tape *tape, ad_tensor *x, double epsilon, double p, const char *site) {
  return ad_tape_apply(tape, &power_sums, &x, 1, &(power_numbers){epsilon, p}, site);
}

/* ---- the loss ---- */

typedef struct sparsity_numbers {
  double beta;
} sparsity_numbers;

static double beta_of(const ad_tensor *out) { return ((const sparsity_numbers *)out->own)->beta; }

/* The rule would ask for R; but a sum that all ranks turn into the same loss is I. */
static ad_status sparsity_describe(ad_tape *tape, ad_tensor *out) {
  const ad_layout *sums = &out->operand[0]->array.layout;
  ad_axes pending = ad_layout_axes_of(sums, AD_P) & ad_mesh_named(sums->mesh);
  if (!pending) return ad_operation_describe(tape, out);
  return ad_fail(AD_TYPE,
                 "%s: sparsity: the sums are P on `%s`, and the logarithm of a sum is not the sum of its addends' "
                 "logarithms" AD_MAY_REPAIR "all_reduce P->I",
                 out->site, ad_axis_name((ad_axis)__builtin_ctz(pending)));
}

static ad_status sparsity_forward(ad_tape *tape, ad_tensor *out) {
  double total = 0;
  for (size_t c = 0; c < ad_numel(out->operand[0]); c++) {
    double sum = value(out, c);
    total += sum * (1 + beta_of(out) * log1p(sum) / M_LN2);
  }
  ad_set_element(out->array.dtype, out->array.data, 0, total);
  return AD_OK;
}

static ad_status sparsity_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_dtype dtype = out->array.dtype;
  double gradient = ad_element(dtype, out->grad.data, 0);
  for (size_t c = 0; c < ad_numel(out->operand[0]); c++) {
    double sum = value(out, c), slope = 1 + beta_of(out) * (log1p(sum) + sum / (1 + sum)) / M_LN2;
    ad_slot_put(slot, c, gradient * slope);
  }
  return AD_OK;
}

static const ad_operation sparsity = {.name = "sparsity",
                                      .dims = "c->",
                                      .linearity = AD_NONLINEAR,
                                      .dtypes = AD_IN_F32_F64,
                                      .own_size = sizeof(sparsity_numbers),
                                      .describe = sparsity_describe,
                                      .forward = sparsity_forward,
                                      .backward = sparsity_backward};

ad_tensor *ad_sparsity_at(ad_tape *tape, ad_tensor *sums, double beta, const char *site) {
  return ad_tape_apply(tape, &sparsity, &sums, 1, &(sparsity_numbers){beta}, site);
}
