/* Layer normalization over the last dimension, with weight and bias: a row at a time in f64, rounded once. */
#include <math.h>
#include <string.h>
#include "tensor/tape.h"

enum { X, WEIGHT, BIAS };

typedef struct norm_numbers {
  double epsilon;
} norm_numbers;

/* The numbers with which a row is normalized. */
typedef struct statistics {
  double mean, inverse; /* 1 / sqrt(variance + epsilon) */
} statistics;

static size_t width_of(const ad_tensor *out) { return ad_columns(out->operand[WEIGHT]); }
static size_t count_of(const ad_tensor *out) { return width_of(out) ? ad_numel(out) / width_of(out) : 0; }
static size_t norm_saved(const ad_tensor *out) { return count_of(out) * sizeof(statistics); }

/* Rows of f64 in scratch memory: x, later normalized; the arriving gradient; the weight; the bias or its gradient;
 * the weight's gradient. */
enum { NORMED, ARRIVING, WEIGHTS, BIASES, OF_WEIGHT, ROWS };
static size_t norm_scratch(const ad_tensor *out) { return ROWS * width_of(out) * sizeof(double); }
static double *scratch_row(const ad_tensor *out, int which) {
  return (double *)out->scratch + (size_t)which * width_of(out);
}

/* Reads row i of an array as f64. */
static void read_row(const ad_array *from, size_t i, size_t width, double *to) {
  const char *at = (const char *)from->data + i * width * ad_dtype_size(from->dtype);
  ad_cast(to, AD_F64, at, from->dtype, width);
}

static statistics statistics_of(const ad_tensor *out, const double *x, size_t width) {
  const row_kernels *rows = ad_rows(AD_F64);
  double mean = rows->sum(x, width) / (double)width, squares = 0;
  for (size_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  double epsilon = ((const norm_numbers *)out->own)->epsilon;
  return (statistics){mean, 1 / sqrt(squares / (double)width + epsilon)};
}

static void normalise(double *x, statistics by, size_t width) {
  for (size_t i = 0; i < width; i++) x[i] = (x[i] - by.mean) * by.inverse;
}

static ad_status norm_forward(ad_tape *tape, ad_tensor *out) {
  size_t width = width_of(out), count = count_of(out);
  double *x = scratch_row(out, NORMED), *weight = scratch_row(out, WEIGHTS), *bias = scratch_row(out, BIASES);
  read_row(&out->operand[WEIGHT]->array, 0, width, weight);
  read_row(&out->operand[BIAS]->array, 0, width, bias);
  for (size_t row = 0; row < count; row++) {
    statistics *of = (statistics *)out->saved + row;
    read_row(&out->operand[X]->array, row, width, x);
    *of = statistics_of(out, x, width);
    normalise(x, *of, width);
    for (size_t i = 0; i < width; i++) x[i] = x[i] * weight[i] + bias[i];
    ad_cast(ad_at(out, out->array.data, row * width), out->array.dtype, x, AD_F64, width);
  }
  return AD_OK;
}

/* Computes dx = inverse (g - mean(g) - n mean(g n)) with g = weight * d_out, and n the normalized row. Writes dx over
 * n. */
static void gradient_of_row(double *normed, const double *d_out, const double *weight, double inverse, size_t width) {
  double sum = 0, along = 0;
  for (size_t i = 0; i < width; i++) sum += weight[i] * d_out[i];
  for (size_t i = 0; i < width; i++) along += weight[i] * d_out[i] * normed[i];
  for (size_t i = 0; i < width; i++)
    normed[i] = inverse * (weight[i] * d_out[i] - sum / (double)width - normed[i] * along / (double)width);
}

/* Adds a row's share to the gradients of weight and bias. */
static void add_to_sums(const ad_tensor *out, const double *normed, const double *d_out, size_t width) {
  double *of_weight = scratch_row(out, OF_WEIGHT), *of_bias = scratch_row(out, BIASES);
  for (size_t i = 0; i < width; i++) of_weight[i] += normed[i] * d_out[i];
  for (size_t i = 0; i < width; i++) of_bias[i] += d_out[i];
}

static ad_status norm_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  size_t width = width_of(out), count = count_of(out);
  double *normed = scratch_row(out, NORMED), *d_out = scratch_row(out, ARRIVING), *weight = scratch_row(out, WEIGHTS);
  // clears two rows of scratch memory: BIASES and, after it, OF_WEIGHT
  memset(scratch_row(out, BIASES), 0, 2 * width * sizeof(double));
  read_row(&out->operand[WEIGHT]->array, 0, width, weight);
  for (size_t row = 0; row < count; row++) {
    const statistics *of = (const statistics *)out->saved + row;
    read_row(&out->operand[X]->array, row, width, normed);
    read_row(&out->grad, row, width, d_out);
    normalise(normed, *of, width);
    if (slot[WEIGHT].data || slot[BIAS].data) add_to_sums(out, normed, d_out, width);
    if (!slot[X].data) continue;
    gradient_of_row(normed, d_out, weight, of->inverse, width);
    ad_slot_put_all(&slot[X], row * width, normed, AD_F64, width);
  }
  ad_slot_put_all(&slot[WEIGHT], 0, scratch_row(out, OF_WEIGHT), AD_F64, width);
  ad_slot_put_all(&slot[BIAS], 0, scratch_row(out, BIASES), AD_F64, width);
  return AD_OK;
}

static const ad_operation layer_norm = {.name = "layer_norm",
                                        .dims = "...d,d,d->...d",
                                        .linearity = AD_NONLINEAR,
                                        .full = "d",
                                        .unread = 1u << BIAS,
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .either = 1u << X,
                                        .wide = 1u << WEIGHT | 1u << BIAS,
                                        .raw = 1u << X,
                                        .result = AD_LIKE_TAPE,
                                        .own_size = sizeof(norm_numbers),
                                        .saved = norm_saved,
                                        .scratch = norm_scratch,
                                        .forward = norm_forward,
                                        .backward = norm_backward};

ad_tensor *ad_layer_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, ad_tensor *bias, double epsilon,
                            const char *site) {
  return ad_tape_apply(tape, &layer_norm, (ad_tensor *[]){x, weight, bias}, 3, &(norm_numbers){epsilon}, site);
}
