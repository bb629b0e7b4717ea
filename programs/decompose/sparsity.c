/* How much each column is used: sums of powers over rows, and the sparsity loss of these sums. */
#include <math.h>
#include <string.h>
#include "decompose/operations.h"
#include "decompose/pieces.h"

/* ---- operation: sums of powers over rows ---- */

static size_t width_of(const ad_tensor *out) { return ad_array_numel(ad_tensor_array(out)); }

static size_t column_after(size_t column, size_t width) { return column + 1 < width ? column + 1 : 0; }

/* Returns the bytes of scratch memory: in forward for the sums, in backward for their gradients. */
static size_t power_scratch(const ad_tensor *out) { return width_of(out) * sizeof(double); }

static ad_status power_forward(ad_tape *tape, ad_tensor *out) {
  const ad_power_numbers *own = ad_operation_own(out);
  const ad_array *x = ad_operand(out, 0);
  size_t width = width_of(out), c = 0;
  double *sums = ad_operation_scratch(out), piece[PIECE];
  memset(sums, 0, width * sizeof *sums);
  for (size_t first = 0, numel = ad_array_numel(x); first < numel; first += PIECE) {
    size_t n = ad_piece_size(first, numel);
    ad_piece_take(x, first, n, piece);
    for (size_t k = 0; k < n; k++, c = column_after(c, width)) sums[c] += pow(piece[k] + own->epsilon, own->p);
  }
  ad_piece_put(ad_tensor_array(out), 0, width, sums);
  return AD_OK;
}

static ad_status power_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_power_numbers *own = ad_operation_own(out);
  const ad_array *x = ad_operand(out, 0);
  size_t width = width_of(out), c = 0;
  double *gradient = ad_operation_scratch(out), piece[PIECE];
  ad_piece_take(ad_result_grad(out), 0, width, gradient);
  for (size_t first = 0, numel = ad_array_numel(x); first < numel; first += PIECE) {
    size_t n = ad_piece_size(first, numel);
    ad_piece_take(x, first, n, piece);
    for (size_t k = 0; k < n; k++, c = column_after(c, width)) {
      double slope = own->p * pow(piece[k] + own->epsilon, own->p - 1);
      ad_slot_put(slot, first + k, slope * gradient[c]);
    }
  }
  return AD_OK;
}

const ad_operation ad_power_sums_record = {.size = sizeof(ad_operation),
                                           .name = "power_sums",
                                           .dims = "...c->c",
                                           .linearity = AD_NONLINEAR,
                                           .dtypes = AD_IN_ANY_FLOAT,
                                           .result = AD_LIKE_WIDE,
                                           .own_size = sizeof(ad_power_numbers),
                                           .scratch = power_scratch,
                                           .forward = power_forward,
                                           .backward = power_backward};

ad_tensor *ad_power_sums_at(ad_tape *tape, ad_tensor *x, double epsilon, double p, const char *site) {
  return ad_operation_apply_at(tape, &ad_power_sums_record, &x, 1, &(ad_power_numbers){epsilon, p}, site);
}

/* ---- operation: the sparsity loss ---- */

static double beta_of(const ad_tensor *out) { return *(const double *)ad_operation_own(out); }

/* Describes the loss. The general rule for nonlinear operations would accept only sums of type R. Here the sums may
 * also be I: all ranks then have the same sums and compute the same loss. */
static ad_status sparsity_describe(ad_tape *tape, ad_tensor *out) {
  const ad_layout *sums = &ad_operand(out, 0)->layout;
  ad_axes partial = ad_layout_axes_of(sums, AD_P) & ad_mesh_named(sums->mesh);
  if (!partial) return ad_operation_describe(tape, out);
  return ad_fail(AD_TYPE,
                 "%s: the sums of `sparsity` are P on `%s`, but must be complete, because the logarithm of a sum is "
                 "not the sum of the logarithms of its addends; possible repair: all_reduce P->I",
                 ad_tensor_site(out), ad_axis_name((ad_axis)__builtin_ctz(partial)));
}

static ad_status sparsity_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *sums = ad_operand(out, 0);
  double total = 0;
  for (size_t c = 0; c < ad_array_numel(sums); c++) {
    double sum = ad_array_get(sums, c);
    total += sum * (1 + beta_of(out) * log1p(sum) / M_LN2);
  }
  ad_array_set(ad_tensor_array(out), 0, total);
  return AD_OK;
}

static ad_status sparsity_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *sums = ad_operand(out, 0);
  double gradient = ad_array_get(ad_result_grad(out), 0);
  for (size_t c = 0; c < ad_array_numel(sums); c++) {
    double sum = ad_array_get(sums, c), slope = 1 + beta_of(out) * (log1p(sum) + sum / (1 + sum)) / M_LN2;
    ad_slot_put(slot, c, gradient * slope);
  }
  return AD_OK;
}

const ad_operation ad_sparsity_record = {.size = sizeof(ad_operation),
                                         .name = "sparsity",
                                         .dims = "c->",
                                         .linearity = AD_NONLINEAR,
                                         .dtypes = AD_IN_F32_F64,
                                         .own_size = sizeof(double),
                                         .describe = sparsity_describe,
                                         .forward = sparsity_forward,
                                         .backward = sparsity_backward};

ad_tensor *ad_sparsity_at(ad_tape *tape, ad_tensor *sums, double beta, const char *site) {
  return ad_operation_apply_at(tape, &ad_sparsity_record, &sums, 1, &beta, site);
}
