/* The loss: cross-entropy as a sum over the counted positions. Its count belongs to the batch, not here. */
#include <math.h>
#include <string.h>
#include "tensor/operation.h"

static const int32_t *targets_of(const ad_tensor *out) { return out->operand[1]->array.data; }
static const void *logits_row(const ad_tensor *logits, size_t i) {
  return ad_at(logits, logits->array.data, i * ad_columns(logits));
}

// The log-sum-exp of every row.
static size_t loss_saved(const ad_tensor *out) { return ad_rows_of(out->operand[0]) * ad_dtype_size(out->array.dtype); }

// One row of exponentials.
static size_t loss_scratch(const ad_tensor *out) {
  return ad_columns(out->operand[0]) * ad_dtype_size(out->array.dtype);
}

static double log_sum_exp(const row_kernels *rows, const void *row, size_t n, void *scratch) {
  double largest = rows->max(row, n);
  return largest + log(rows->exp_sum(scratch, row, largest, n));
}

static ad_status loss_forward(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *logits = out->operand[0];
  ad_dtype dtype = out->array.dtype;
  size_t vocabulary = ad_columns(logits), count = ad_rows_of(logits);
  double total = 0;
  for (size_t i = 0; i < count; i++) {
    int32_t target = targets_of(out)[i];
    if (target >= 0 && (size_t)target >= vocabulary)
      return ad_fail(AD_INVALID, "%s: cross_entropy: target %d at position %zu is outside the %zu logits", out->site,
                     target, i, vocabulary);
    if (target < 0) continue;
    double lse = log_sum_exp(ad_rows(dtype), logits_row(logits, i), vocabulary, out->scratch);
    ad_set_element(dtype, out->saved, i, lse);
    total += lse - ad_element(dtype, logits_row(logits, i), (size_t)target);
  }
  ad_set_element(dtype, out->array.data, 0, total);
  return AD_OK;
}

// (softmax - one at the target) times the loss's gradient; zero where nothing is counted.
static ad_status loss_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  const ad_tensor *logits = out->operand[0];
  const row_kernels *rows = ad_rows(out->array.dtype);
  ad_dtype dtype = out->array.dtype;
  size_t vocabulary = ad_columns(logits), count = ad_rows_of(logits);
  double slope = ad_element(dtype, out->grad.data, 0);
  for (size_t i = 0; i < count; i++) {
    int32_t target = targets_of(out)[i];
    void *row = ad_at(logits, slot[0].data, i * vocabulary);
    if (target < 0) {
      rows->fill(row, 0, vocabulary, slot[0].adds);
      continue;
    }
    rows->put_exp(row, logits_row(logits, i), ad_element(dtype, out->saved, i), slope, vocabulary, slot[0].adds);
    ad_set_element(dtype, row, (size_t)target, ad_element(dtype, row, (size_t)target) - slope);
  }
  return AD_OK;
}

static const operation cross_entropy = {.name = "cross_entropy",
                                        .dims = "...v,...->",
                                        .linearity = AD_NONLINEAR,
                                        .dtypes = IN_F32_F64,
                                        .whole = "v",
                                        .indices = 1u << 1,
                                        .saved = loss_saved,
                                        .scratch = loss_scratch,
                                        .forward = loss_forward,
                                        .backward = loss_backward};

ad_tensor *ad_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site) {
  return ad_tape_apply(tape, &cross_entropy, (ad_tensor *[]){logits, targets}, 2, NULL, site);
}
