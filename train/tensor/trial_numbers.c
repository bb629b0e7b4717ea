/* Compares backward with differences of forward, and narrow dtypes with f64. */
#include <math.h>
#include "tensor/trial.h"

static const char site[] = "ad_check_operation";

static size_t numel_of_result(const ad_trial *trial) { return (size_t)ad_shape_numel(&trial->shape); }

/* ---- comparing backward with differences of forward ---- */

/* Computes the scalar that is differentiated: the sum of the result's elements times those of the arriving gradient. */
static ad_status loss(const ad_trial *trial, ad_tape *tape, double *out) {
  ad_tried tried;
  ad_tape_reset(tape);
  AD_TRY(ad_trial_record(trial, tape, NULL, &tried));
  AD_TRY(ad_tape_status(tape));
  *out = 0;
  for (size_t i = 0; i < numel_of_result(trial); i++)
    *out += trial->arriving[i] * ad_array_get(ad_tensor_array(tried.out), i);
  return AD_OK;
}

/* Computes the difference quotient of the loss by one element. */
static ad_status quotient(const ad_trial *trial, ad_tape *tape, double *element, double *out) {
  double is = *element, step = 1e-5 * fmax(1, fabs(is)), above, below;
  *element = is + step;
  AD_TRY(loss(trial, tape, &above));
  *element = is - step;
  AD_TRY(loss(trial, tape, &below));
  *element = is;
  *out = (above - below) / (2 * step);
  return AD_OK;
}

static double largest(const double *numbers, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = fmax(most, fabs(numbers[i]));
  return most;
}

static double size_of_loss(const ad_trial *trial) {
  double size = 0;
  for (size_t i = 0; i < numel_of_result(trial); i++) size += fabs(trial->arriving[i] * trial->result[i]);
  return size;
}

/* Compares each element of a gradient with its difference quotient. The quotient's error is its step squared (1e-10)
 * times a third derivative, plus the loss's rounding divided by the step. */
static ad_status differences_of(const ad_trial *trial, ad_tape *tape, size_t k) {
  size_t n = ad_trial_numel(trial, k);
  double most = largest(trial->gradient[k], n), rounding = 1e-10 * size_of_loss(trial);
  for (size_t i = 0; i < n; i++) {
    double measured, is = trial->gradient[k][i];
    AD_TRY(quotient(trial, tape, &trial->value[k][i], &measured));
    if (fabs(measured - is) <= 1e-6 * fmax(most, fabs(measured)) + rounding) continue;
    return ad_trial_fail(trial,
                         "backward is not the derivative of forward: for element %zu of operand %zu backward gives %g, "
                         "and finite differences of forward give %g",
                         i, k + 1, is, measured);
  }
  return AD_OK;
}

ad_status ad_trial_differences(const ad_trial *trial) {
  if (trial->op->not_linear) return AD_OK;
  ad_tape *tape;
  AD_TRY(ad_trial_tape(trial, AD_F64, &tape));
  ad_status status = AD_OK;
  for (size_t k = 0; !status && k < trial->given.count; k++)
    if (ad_trial_carries(trial, k)) status = differences_of(trial, tape, k);
  ad_tape_destroy(tape);
  return status;
}

/* ---- comparing narrow dtypes with f64 ---- */

static ad_status near_f64(const ad_trial *trial, const ad_array *array, const double *wanted, double bound,
                          const char *what, size_t number) {
  for (size_t i = 0; i < ad_array_numel(array); i++) {
    double is = ad_array_get(array, i);
    if (fabs(is - wanted[i]) <= bound) continue;
    return ad_trial_fail(trial, "computed in %s, element %zu of %s%.0zu is %g, but %g when computed in f64",
                         ad_dtype_name(array->dtype), i, what, number, is, wanted[i]);
  }
  return AD_OK;
}

static ad_status result_near(const ad_trial *trial, const ad_tensor *out, double share) {
  double bound = share * (1 + largest(trial->result, numel_of_result(trial)));
  return near_f64(trial, ad_tensor_array(out), trial->result, bound, "the result", 0);
}

static ad_status gradients_near(const ad_trial *trial, const ad_tried *tried, double share) {
  for (size_t k = 0; k < trial->given.count; k++) {
    const ad_array *grad = ad_grad(tried->x[k]);
    if (!grad) continue;
    double bound = share * largest(trial->gradient[k], ad_trial_numel(trial, k));
    AD_TRY(near_f64(trial, grad, trial->gradient[k], bound, "the gradient of operand ", k + 1));
  }
  return AD_OK;
}

static ad_status compute_in(const ad_trial *trial, ad_tape *tape, double share) {
  ad_tried tried;
  AD_TRY(ad_trial_record(trial, tape, NULL, &tried));
  AD_TRY(ad_tape_status(tape));
  AD_TRY(result_near(trial, tried.out, share));
  ad_layout dual = ad_layout_dual(&tried.out->array.layout);
  ad_array arriving = ad_array_describe(trial->alone, tried.out->grad_dtype, &trial->shape, &dual);
  AD_TRY(ad_trial_part(trial, tape, trial->arriving, 0, &arriving));
  AD_TRY(ad_backward_from_at(tape, &tried.out, (const ad_array *[]){&arriving}, 1, AD_LAST_START, site));
  return gradients_near(trial, &tried, share);
}

static ad_status check_dtype(const ad_trial *trial, ad_dtype dtype, double share) {
  unsigned dtypes = trial->op->dtypes ? trial->op->dtypes : AD_IN_F32_F64;
  if (!(dtypes >> dtype & 1)) return AD_OK;
  ad_tape *tape;
  AD_TRY(ad_trial_tape(trial, dtype, &tape));
  ad_status status = compute_in(trial, tape, share);
  ad_tape_destroy(tape);
  return status;
}

/* Compares results in f32 and bf16 with those in f64. The bounds allow some hundred terms of a sum, each rounded at
 * 6e-8 (f32), and a few roundings at 2^-9 (bf16). */
ad_status ad_trial_dtypes(const ad_trial *trial) {
  AD_TRY(check_dtype(trial, AD_F32, 2e-5));
  AD_TRY(check_dtype(trial, AD_BF16, 0.03));
  ad_trial of_parameters = *trial;
  of_parameters.as_parameters = 1;
  return trial->op->raw ? check_dtype(&of_parameters, AD_BF16, 0.03) : AD_OK;
}
