/* Tests every operation's gradient against finite differences in f64 along a random direction, linear operations as
 * adjoints, and f32 and bf16 against f64. All on one rank; more ranks are tested in test_moves.c. */
#include <stdio.h>
#include "rows/rows.h"
#include "says.h"
#include "world.h"
#include "addend/helpers.h"
#include "tensor/tape.h"
#include "addend/routing.h"

enum { OPERANDS = 3 };

typedef struct operand {
  ad_shape shape;
  int32_t below;  // above 0: the operand holds indices below this
  int wide;       // f32 even on a bf16 tape
} operand;

typedef ad_tensor *(*formula)(ad_tape *, ad_tensor *const *x);

typedef struct experiment {
  world w;
  formula f;
  const operand *operands;
  int count;
  int used_twice;  // every operand has a second user, so f's backward must add to an existing gradient
  ad_dtype dtype;
  ad_array value[OPERANDS], grad[OPERANDS];
} experiment;

static void fill_values(experiment *e) {
  for (int i = 0; i < e->count; i++) {
    ad_dtype dtype = e->operands[i].wide ? ad_dtype_wide(e->dtype) : e->dtype;
    if (e->operands[i].below) dtype = AD_I32;
    e->value[i] = random_array(&e->w, dtype, e->operands[i].shape, 10 + (uint64_t)i, e->operands[i].below);
    e->grad[i] = e->value[i];
    e->grad[i].data = calloc(1, ad_array_bytes(&e->value[i]) + 1);
  }
}

static void free_values(experiment *e) {
  for (int i = 0; i < e->count; i++) {
    free(e->value[i].data);
    free(e->grad[i].data);
  }
}

static void keep_gradients(experiment *e, ad_tensor *const *x) {
  for (int i = 0; i < e->count; i++) {
    if (e->operands[i].below) continue;
    const ad_array *grad = ad_grad(x[i]);
    assert_non_null(grad);
    assert_true(ad_shape_equal(&grad->shape, &e->value[i].shape));
    assert_int_equal(grad->dtype, e->value[i].dtype);
    memcpy(e->grad[i].data, grad->data, ad_array_bytes(grad));
  }
}

/* Returns the loss; if `backward`, e->grad gets the gradients. */
static double evaluate(experiment *e, int backward) {
  ad_tape *tape = open_tape(&e->w, e->dtype);
  ad_tensor *x[OPERANDS];
  ad_array c[OPERANDS + 1] = {{0}};
  for (int i = 0; i < e->count; i++)
    x[i] = e->operands[i].below ? ad_constant(tape, &e->value[i]) : ad_input(tape, &e->value[i]);
  ad_tensor *loss = project(&e->w, tape, e->f(tape, x), 3, &c[OPERANDS]);
  for (int i = 0; i < e->count && e->used_twice; i++)
    if (!e->operands[i].below) loss = ad_add(tape, loss, project(&e->w, tape, x[i], 4, &c[i]));
  must(ad_tape_status(tape));
  double result = ad_tensor_scalar(loss);
  if (backward) {
    must(ad_backward(tape, loss));
    keep_gradients(e, x);
  }
  ad_tape_destroy(tape);
  for (int i = 0; i <= OPERANDS; i++) free(c[i].data);
  return result;
}

static double direction(int operand_index, size_t i) { return ad_random_normal(11, 20 + (uint64_t)operand_index, i); }

static void shift(experiment *e, double by) {
  for (int k = 0; k < e->count; k++)
    for (size_t i = 0; !e->operands[k].below && i < ad_array_numel(&e->value[k]); i++)
      ((double *)e->value[k].data)[i] += by * direction(k, i);
}

static double slope_by_gradients(const experiment *e) {
  double slope = 0;
  for (int k = 0; k < e->count; k++)
    for (size_t i = 0; !e->operands[k].below && i < ad_array_numel(&e->grad[k]); i++)
      slope += element(&e->grad[k], i) * direction(k, i);
  return slope;
}

/* The bound 1e-7 of the slope: a central difference errs by its step squared times a third derivative (here 1e-10 times
 * some tens) and by the loss's rounding over the step (1e-16 * 100 / 1e-5); ten times both. */
static void against_differences(experiment *e) {
  const double step = 1e-5;
  evaluate(e, 1);
  double slope = slope_by_gradients(e);
  shift(e, step);
  double above = evaluate(e, 0);
  shift(e, -2 * step);
  double below = evaluate(e, 0);
  double measured = (above - below) / (2 * step);
  assert_true(fabs(measured - slope) <= 1e-7 * (fabs(slope) + 1));
}

/* The bound 2e-5 of the largest gradient: sums of some hundred terms, each rounded at 6e-8, never reach it. */
static void f32_near_f64(experiment *narrow, const experiment *wide) {
  evaluate(narrow, 1);
  for (int k = 0; k < wide->count; k++) {
    double largest = 0, error = 0;
    for (size_t i = 0; !wide->operands[k].below && i < ad_array_numel(&wide->grad[k]); i++) {
      largest = fmax(largest, fabs(element(&wide->grad[k], i)));
      error = fmax(error, fabs(element(&wide->grad[k], i) - element(&narrow->grad[k], i)));
    }
    assert_true(error <= 2e-5 * largest);
  }
}

/* Every gradient has the dtype of its value. The bound, 3 % of the largest gradient: one rounding errs by 2^-9, no
 * formula here has more than a few in a row, nor sums of more than some ten of them. */
static void bf16_near_f64(formula f, const operand *operands, int count) {
  experiment narrow = {.f = f, .operands = operands, .count = count, .dtype = AD_BF16};
  narrow.w = world_open();
  experiment wide = narrow;
  wide.dtype = AD_F64;
  fill_values(&narrow);
  fill_values(&wide);
  for (int k = 0; k < count; k++)
    if (!operands[k].below)
      ad_cast(wide.value[k].data, AD_F64, narrow.value[k].data, narrow.value[k].dtype, ad_array_numel(&wide.value[k]));
  double loss = evaluate(&narrow, 1), exact = evaluate(&wide, 1);
  assert_true(fabs(loss - exact) <= 0.03 * (1 + fabs(exact)));
  for (int k = 0; k < count; k++) {
    double largest = 0, error = 0;
    for (size_t i = 0; !operands[k].below && i < ad_array_numel(&wide.grad[k]); i++) {
      largest = fmax(largest, fabs(element(&wide.grad[k], i)));
      error = fmax(error, fabs(element(&wide.grad[k], i) - element(&narrow.grad[k], i)));
    }
    if (error > 0.03 * largest) fail_msg("operand %d: %g of %g", k, error, largest);
  }
  free_values(&wide);
  free_values(&narrow);
  world_close(&narrow.w);
}
#define CHECK_BF16(f, ...) \
  bf16_near_f64((f), (const operand[]){__VA_ARGS__}, (int)(sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)))

static void check_once(formula f, const operand *operands, int count, int used_twice) {
  experiment wide = {.f = f, .operands = operands, .count = count, .used_twice = used_twice, .dtype = AD_F64};
  wide.w = world_open();
  experiment narrow = wide;
  narrow.dtype = AD_F32;
  fill_values(&wide);
  fill_values(&narrow);
  evaluate(&wide, 1);
  f32_near_f64(&narrow, &wide);
  against_differences(&wide);
  free_values(&wide);
  free_values(&narrow);
  world_close(&wide.w);
}

static void check(formula f, const operand *operands, int count) {
  check_once(f, operands, count, 0);
  check_once(f, operands, count, 1);
}
#define CHECK(f, ...) \
  check((f), (const operand[]){__VA_ARGS__}, (int)(sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)))

#define SHAPE1(a) \
  { {1, {a}}, 0, 0 }
#define SHAPE2(a, b) \
  { {2, {a, b}}, 0, 0 }
#define SHAPE3(a, b, c) \
  { {3, {a, b, c}}, 0, 0 }
#define WIDE1(a) \
  { {1, {a}}, 0, 1 }
#define WIDE2(a, b) \
  { {2, {a, b}}, 0, 1 }
#define WIDE3(a, b, c) \
  { {3, {a, b, c}}, 0, 1 }
#define INDICES2(a, b, below) \
  { {2, {a, b}}, below, 0 }

/* ---- the formulas ---- */

static ad_tensor *add(ad_tape *t, ad_tensor *const *x) { return ad_add(t, x[0], x[1]); }
static ad_tensor *add_of_one(ad_tape *t, ad_tensor *const *x) { return ad_add(t, x[0], x[0]); }
static ad_tensor *multiply(ad_tape *t, ad_tensor *const *x) { return ad_multiply(t, x[0], x[1]); }
static ad_tensor *square(ad_tape *t, ad_tensor *const *x) { return ad_multiply(t, x[0], x[0]); }
static ad_tensor *scale(ad_tape *t, ad_tensor *const *x) { return ad_scale(t, x[0], -1.75); }
static ad_count *step_count;  // counts 2 and 5 in two microbatches
static ad_tensor *divide(ad_tape *t, ad_tensor *const *x) { return ad_divide(t, x[0], step_count); }
static ad_tensor *share(ad_tape *t, ad_tensor *const *x) { return ad_share(t, x[0], step_count, 1); }
static ad_tensor *sum(ad_tape *t, ad_tensor *const *x) { return ad_sum(t, x[0]); }
static ad_tensor *linear(ad_tape *t, ad_tensor *const *x) { return ad_linear(t, x[0], x[1]); }
static ad_tensor *linear_transposed(ad_tape *t, ad_tensor *const *x) { return ad_linear_transposed(t, x[0], x[1]); }
static ad_tensor *embedding(ad_tape *t, ad_tensor *const *x) { return ad_embedding(t, x[0], x[1]); }
static ad_tensor *rms_norm(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm(t, x[0], x[1], 1e-5); }
static ad_tensor *rms_norm_unweighted(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm_unweighted(t, x[0], 1e-5); }
static ad_tensor *scale_rows(ad_tape *t, ad_tensor *const *x) { return ad_scale_rows(t, x[0], x[1]); }
static ad_tensor *concat(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 3, -1); }
static ad_tensor *concat_of_one(ad_tape *t, ad_tensor *const *x) {
  return ad_concat(t, (ad_tensor *[]){x[0], x[0], x[0]}, 3, -1);
}
static ad_tensor *slice(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], -1, 2, 3); }
static ad_tensor *slices(ad_tape *t, ad_tensor *const *x) {
  return ad_multiply(t, ad_slice(t, x[0], -1, 0, 4), ad_slice(t, x[0], -1, 3, 4));
}
/* The gradient of the slice forms in memory that another gradient has used before. */
static ad_tensor *slice_later(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *first = ad_slice(t, ad_gelu(t, x[0]), -1, 2, 3);
  return ad_add(t, first, ad_slice(t, ad_gelu(t, ad_gelu(t, x[0])), -1, 0, 3));
}
static ad_tensor *repeat(ad_tape *t, ad_tensor *const *x) { return ad_repeat(t, x[0], x[1]); }
static ad_tensor *scale_by(ad_tape *t, ad_tensor *const *x) { return ad_scale_by(t, x[0], x[1]); }
static ad_tensor *norm_over(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 1); }
static ad_tensor *squared_error(ad_tape *t, ad_tensor *const *x) { return ad_squared_error(t, x[0], x[1]); }
/* The KL divergence to a constant target. */
static ad_tensor *kl_divergence(ad_tape *t, ad_tensor *const *x) {
  static double memory[2 * 9 * 13];
  ad_array target = *ad_tensor_array(x[0]);
  target.data = memory;
  for (size_t i = 0; i < ad_array_numel(&target); i++)
    ad_set_element(target.dtype, memory, i, ad_random_normal(7, 50, i));
  return ad_kl_divergence(t, x[0], ad_constant(t, &target));
}
static ad_tensor *rotary(ad_tape *t, ad_tensor *const *x) { return ad_rotary(t, x[0], 6, 10000); }
/* Scaled rotary frequencies: pair 0 keeps its frequency, pair 1 is between, pair 2 is slower by the whole factor. */
static const ad_rotary_scaling slower = {.factor = 8, .low_turns = 0.5, .high_turns = 2, .original_positions = 16};
static ad_tensor *rotary_scaled(ad_tape *t, ad_tensor *const *x) { return ad_rotary_scaled(t, x[0], 6, 12, &slower); }
static ad_tensor *attention(ad_tape *t, ad_tensor *const *x) { return ad_attention(t, x[0], x[1], x[2], 4); }
static ad_tensor *self_attention(ad_tape *t, ad_tensor *const *x) { return ad_attention(t, x[0], x[0], x[0], 4); }
static ad_tensor *attention_all(ad_tape *t, ad_tensor *const *x) { return ad_attention_all(t, x[0], x[1], x[2], 4); }
static ad_tensor *self_attention_all(ad_tape *t, ad_tensor *const *x) {
  return ad_attention_all(t, x[0], x[0], x[0], 4);
}
static ad_tensor *swiglu(ad_tape *t, ad_tensor *const *x) { return ad_swiglu(t, x[0], x[1]); }
static ad_tensor *swiglu_of_one(ad_tape *t, ad_tensor *const *x) { return ad_swiglu(t, x[0], x[0]); }
static ad_tensor *gelu(ad_tape *t, ad_tensor *const *x) { return ad_gelu(t, x[0]); }
static ad_tensor *sum_over(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 1); }
static ad_tensor *mean_over(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 1); }
static ad_tensor *max_over(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 1); }
static ad_tensor *concat_along(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 3, 1); }
static ad_tensor *slices_along(ad_tape *t, ad_tensor *const *x) {
  return ad_multiply(t, ad_slice(t, x[0], 1, 0, 4), ad_slice(t, x[0], 1, 3, 4));
}
static ad_tensor *transpose(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 1, 0); }
static ad_tensor *reshape(ad_tape *t, ad_tensor *const *x) { return ad_reshape(t, x[0], &(ad_shape){2, {3, 10}}); }
static ad_tensor *layer_norm(ad_tape *t, ad_tensor *const *x) { return ad_layer_norm(t, x[0], x[1], x[2], 1e-5); }
static ad_tensor *dropout(ad_tape *t, ad_tensor *const *x) { return ad_dropout(t, x[0], 0.3, 7, "dropped", 2, 0); }
static ad_tensor *relu(ad_tape *t, ad_tensor *const *x) { return ad_relu(t, x[0]); }
static ad_tensor *hyperbolic_tangent(ad_tape *t, ad_tensor *const *x) { return ad_tanh(t, x[0]); }
static ad_tensor *exponential(ad_tape *t, ad_tensor *const *x) { return ad_exp(t, x[0]); }
static ad_tensor *above_one(ad_tape *t, ad_tensor *x) { return ad_exp(t, ad_multiply(t, x, x)); }
static ad_tensor *logarithm(ad_tape *t, ad_tensor *const *x) { return ad_ln(t, above_one(t, x[0])); }
static ad_tensor *square_root(ad_tape *t, ad_tensor *const *x) { return ad_sqrt(t, above_one(t, x[0])); }
static ad_tensor *cross_entropy(ad_tape *t, ad_tensor *const *x) { return ad_cross_entropy(t, x[0], x[1]); }
static ad_tensor *tied(ad_tape *t, ad_tensor *const *x) {
  return ad_linear_transposed(t, ad_embedding(t, x[0], x[1]), x[0]);
}
static ad_tensor *residual(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *h = ad_linear(t, x[0], x[1]);
  h = ad_add(t, h, ad_gelu(t, h));
  return ad_add(t, ad_swiglu(t, h, h), h);
}

static ad_tensor *add_row(ad_tape *t, ad_tensor *const *x) { return ad_add_row(t, x[0], x[1]); }
static ad_tensor *to_wide(ad_tape *t, ad_tensor *const *x) {
  return ad_to_dtype(t, x[0], ad_dtype_wide(ad_tape_dtype(t)));
}
static ad_tensor *to_narrow(ad_tape *t, ad_tensor *const *x) { return ad_to_dtype(t, x[0], ad_tape_dtype(t)); }
static ad_tensor *wide_residual(ad_tape *t, ad_tensor *const *x) {
  return ad_add(t, x[0], ad_linear(t, ad_rms_norm(t, x[0], x[1], 1e-5), x[2]));
}

static ad_tensor *softmax(ad_tape *t, ad_tensor *const *x) { return ad_softmax(t, x[0]); }
static ad_tensor *shares(ad_tape *t, ad_tensor *const *x) { return ad_shares(t, ad_sigmoid(t, x[0])); }
static ad_tensor *sigmoid(ad_tape *t, ad_tensor *const *x) { return ad_sigmoid(t, x[0]); }
static ad_tensor *place(ad_tape *t, ad_tensor *const *x) { return ad_place(t, x[0], x[1]); }
static ad_tensor *rows_and_back(ad_tape *t, ad_tensor *const *x) { return ad_from_rows(t, ad_to_rows(t, x[0]), x[0]); }
/* Each row goes to three experts, so it becomes three rows, which are weighted and added. */
static ad_tensor *slots_and_back(ad_tape *t, ad_tensor *const *x) {
  ad_routing *routing;
  ad_tensor *chosen = ad_top_k(t, x[1], 3, NULL, &routing);
  ad_tensor *slots = ad_scale_rows(t, ad_to_slots(t, x[0], routing), ad_slot_weights(t, chosen, routing));
  return ad_from_slots(t, slots, routing);
}

static void elementwise_operations_have_their_gradients(void **state) {
  CHECK(add, SHAPE2(3, 5), SHAPE2(3, 5));
  CHECK(add_of_one, SHAPE2(3, 5));
  CHECK(multiply, SHAPE3(3, 5, 2), SHAPE3(3, 5, 2));
  CHECK(square, SHAPE1(37));
  CHECK(scale, SHAPE2(3, 5));
  CHECK(divide, SHAPE2(3, 5));
  CHECK(share, SHAPE2(3, 5));
  CHECK(sum, SHAPE3(3, 5, 7));
  CHECK(swiglu, SHAPE2(7, 45), SHAPE2(7, 45));
  CHECK(swiglu_of_one, SHAPE2(7, 45));
  CHECK(gelu, SHAPE2(7, 5));
  CHECK(relu, SHAPE2(7, 50));
  CHECK(hyperbolic_tangent, SHAPE2(7, 50));
  CHECK(sigmoid, SHAPE2(7, 5));
  CHECK(shares, SHAPE2(7, 5));
  CHECK(shares, SHAPE3(2, 3, 1));
  CHECK(exponential, SHAPE2(7, 5));
  CHECK(logarithm, SHAPE2(7, 5));
  CHECK(square_root, SHAPE2(7, 5));
  CHECK(sum_over, SHAPE3(2, 3, 5));
  CHECK(mean_over, SHAPE3(2, 3, 5));
  CHECK(max_over, SHAPE3(2, 3, 5));
  CHECK(norm_over, SHAPE3(2, 3, 5));
  CHECK(transpose, SHAPE3(2, 3, 5));
  CHECK(reshape, SHAPE3(2, 3, 5));
  CHECK(dropout, SHAPE3(2, 3, 50));
  CHECK(scale_rows, SHAPE3(2, 3, 5), SHAPE2(2, 3));
  CHECK(scale_rows, SHAPE2(3, 5), SHAPE1(3));
  CHECK(scale_by, SHAPE3(2, 3, 5), SHAPE1(1));
  CHECK(repeat, SHAPE2(3, 5), INDICES2(4, 3, 11));
  CHECK(repeat, SHAPE1(5), INDICES2(1, 3, 11));
}

static void products_have_their_gradients(void **state) {
  CHECK(linear, SHAPE3(2, 3, 5), SHAPE2(5, 7));
  CHECK(linear, SHAPE1(5), SHAPE2(5, 7));
  CHECK(linear_transposed, SHAPE3(2, 3, 5), SHAPE2(7, 5));
}

static void columns_have_their_gradients(void **state) {
  CHECK(concat, SHAPE3(2, 3, 5), SHAPE3(2, 3, 1), SHAPE3(2, 3, 4));
  CHECK(concat, SHAPE1(5), SHAPE1(0), SHAPE1(4));
  CHECK(concat_of_one, SHAPE2(3, 5));
  CHECK(concat_along, SHAPE3(2, 3, 5), SHAPE3(2, 1, 5), SHAPE3(2, 0, 5));
  CHECK(slices_along, SHAPE3(2, 7, 3));
  CHECK(slice, SHAPE3(2, 3, 7));
  CHECK(slices, SHAPE3(2, 3, 7));
  CHECK(slice_later, SHAPE3(2, 3, 7));
  CHECK(slices, SHAPE1(7));
}

/* More columns are joined than one operation takes, twice, each of another width: joined and split again they have the
 * same bits, and so have their gradients. */
static void many_columns_come_back(void **state) {
  enum { MANY = 131, ROWS = 3 };
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array array[MANY], slope[MANY];
  ad_tensor *part[MANY], *back, *total = NULL;
  for (int64_t i = 0; i < MANY; i++) {
    array[i] = random_array(&w, AD_F64, (ad_shape){2, {ROWS, i % 5}}, (uint64_t)i, 0);
    slope[i] = random_array(&w, AD_F64, (ad_shape){2, {ROWS, i % 5}}, (uint64_t)(MANY + i), 0);
    part[i] = ad_input(t, &array[i]);
  }
  ad_tensor *joined = ad_concat(t, part, MANY, -1);
  for (int64_t i = 0, first = 0; i < MANY; first += i++ % 5) {
    back = ad_slice(t, joined, -1, first, i % 5);
    must(ad_tape_status(t));
    assert_memory_equal(ad_tensor_array(back)->data, array[i].data, ad_array_bytes(&array[i]));
    ad_tensor *share = ad_sum(t, ad_multiply(t, back, ad_constant(t, &slope[i])));
    total = total ? ad_add(t, total, share) : share;
  }
  must(ad_backward(t, total));
  for (int i = 0; i < MANY; i++) {
    assert_memory_equal(ad_grad(part[i])->data, slope[i].data, ad_array_bytes(&slope[i]));
    free(array[i].data);
    free(slope[i].data);
  }
  ad_tape_destroy(t);
  world_close(&w);
}

static void embeddings_have_their_gradients(void **state) {
  CHECK(embedding, SHAPE2(11, 5), INDICES2(3, 7, 11));
  CHECK(tied, SHAPE2(11, 5), INDICES2(3, 7, 11));
}

static void norms_have_their_gradients(void **state) {
  CHECK(rms_norm, SHAPE3(2, 3, 37), SHAPE1(37));
  CHECK(rms_norm, SHAPE2(4, 2), SHAPE1(2));
  CHECK(rms_norm_unweighted, SHAPE3(2, 3, 37));
  CHECK(layer_norm, SHAPE3(2, 3, 37), SHAPE1(37), SHAPE1(37));
  CHECK(layer_norm, SHAPE2(4, 2), SHAPE1(2), SHAPE1(2));
  CHECK(rms_norm_unweighted, SHAPE2(4, 2));
}

static void rotary_and_attention_have_their_gradients(void **state) {
  CHECK(rotary, SHAPE3(2, 5, 12));
  CHECK(rotary_scaled, SHAPE3(2, 5, 12));
  CHECK(attention, SHAPE3(2, 7, 8), SHAPE3(2, 7, 8), SHAPE3(2, 7, 8));
  CHECK(attention, SHAPE3(1, 131, 4), SHAPE3(1, 131, 4), SHAPE3(1, 131, 4));  // more than one block of rows
  CHECK(self_attention, SHAPE3(2, 7, 8));
  CHECK(attention_all, SHAPE3(2, 7, 8), SHAPE3(2, 7, 4), SHAPE3(2, 7, 4));
  CHECK(attention_all, SHAPE3(1, 131, 4), SHAPE3(1, 131, 4), SHAPE3(1, 131, 4));
  CHECK(attention_all, SHAPE3(2, 1, 8), SHAPE3(2, 1, 8), SHAPE3(2, 1, 8));
  CHECK(self_attention_all, SHAPE3(2, 7, 8));
}

static void losses_have_their_gradients(void **state) {
  CHECK(cross_entropy, SHAPE3(2, 9, 13), INDICES2(2, 9, 13));
  CHECK(squared_error, SHAPE3(2, 29, 13), SHAPE3(2, 29, 13));  // more elements than one piece of the kernel
  CHECK(kl_divergence, SHAPE3(2, 9, 13));
}

static void operations_have_arithmetic_in_bf16(void **state) {
  CHECK_BF16(add, SHAPE2(3, 5), SHAPE2(3, 5));
  CHECK_BF16(add, WIDE2(3, 5), SHAPE2(3, 5));
  CHECK_BF16(add, SHAPE2(3, 5), WIDE2(3, 5));
  CHECK_BF16(add_row, SHAPE3(3, 4, 5), WIDE1(5));
  CHECK_BF16(multiply, SHAPE3(3, 5, 2), SHAPE3(3, 5, 2));
  CHECK_BF16(square, SHAPE1(37));
  CHECK_BF16(scale, SHAPE2(3, 5));
  CHECK_BF16(sum, SHAPE3(3, 5, 7));
  CHECK_BF16(to_wide, SHAPE3(3, 5, 7));
  CHECK_BF16(to_narrow, WIDE2(3, 5));
  CHECK_BF16(swiglu, SHAPE2(7, 45), SHAPE2(7, 45));
  CHECK_BF16(swiglu_of_one, SHAPE2(7, 45));
  CHECK_BF16(gelu, SHAPE2(7, 5));
  CHECK_BF16(linear, SHAPE3(2, 3, 5), SHAPE2(5, 7));
  CHECK_BF16(linear, WIDE2(3, 5), WIDE2(5, 7));
  CHECK_BF16(linear_transposed, SHAPE3(2, 3, 5), SHAPE2(7, 5));
  CHECK_BF16(embedding, SHAPE2(11, 5), INDICES2(3, 7, 11));
  CHECK_BF16(tied, SHAPE2(11, 5), INDICES2(3, 7, 11));
  CHECK_BF16(rms_norm, SHAPE3(2, 3, 37), WIDE1(37));
  CHECK_BF16(rms_norm, WIDE2(6, 37), WIDE1(37));
  CHECK_BF16(rotary, SHAPE3(2, 5, 12));
  CHECK_BF16(rotary_scaled, SHAPE3(2, 5, 12));
  CHECK_BF16(cross_entropy, SHAPE3(2, 9, 13), INDICES2(2, 9, 13));
  CHECK_BF16(residual, SHAPE2(3, 5), SHAPE2(5, 7));
  CHECK_BF16(wide_residual, WIDE2(3, 5), WIDE1(5), SHAPE2(5, 5));
}

static void operations_of_programs_have_arithmetic_in_bf16(void **state) {
  CHECK_BF16(divide, SHAPE2(3, 5));
  CHECK_BF16(share, WIDE2(3, 5));
  CHECK_BF16(scale_rows, SHAPE3(2, 3, 5), WIDE2(2, 3));
  CHECK_BF16(scale_by, SHAPE3(2, 3, 5), WIDE1(1));
  CHECK_BF16(norm_over, SHAPE3(2, 3, 5));
  CHECK_BF16(softmax, WIDE2(7, 5));
  CHECK_BF16(sigmoid, WIDE2(7, 5));
  CHECK_BF16(shares, WIDE2(7, 5));
  CHECK_BF16(rows_and_back, SHAPE3(2, 3, 5));
  CHECK_BF16(slots_and_back, SHAPE2(7, 5), WIDE2(7, 3));
  CHECK_BF16(place, SHAPE3(2, 5, 3), SHAPE3(2, 2, 3));
  CHECK_BF16(place, WIDE3(2, 5, 3), SHAPE3(2, 2, 3));
  CHECK_BF16(place, SHAPE3(2, 5, 3), WIDE3(2, 2, 3));
  CHECK_BF16(concat, SHAPE3(2, 3, 5), SHAPE3(2, 3, 1), SHAPE3(2, 3, 4));
  CHECK_BF16(concat, WIDE2(3, 5), WIDE2(3, 1), WIDE2(3, 4));
  CHECK_BF16(slices, SHAPE3(2, 3, 7));
  CHECK_BF16(layer_norm, SHAPE3(2, 3, 37), WIDE1(37), WIDE1(37));
  CHECK_BF16(layer_norm, WIDE2(6, 37), WIDE1(37), WIDE1(37));
  CHECK_BF16(dropout, SHAPE3(2, 3, 5));
  CHECK_BF16(transpose, SHAPE3(2, 3, 5));
  CHECK_BF16(reshape, WIDE3(2, 3, 5));
  CHECK_BF16(slices_along, SHAPE3(2, 7, 3));
  CHECK_BF16(concat_along, WIDE3(2, 3, 5), WIDE3(2, 1, 5), WIDE3(2, 2, 5));
  CHECK_BF16(repeat, WIDE2(3, 5), INDICES2(4, 3, 11));
  CHECK_BF16(rms_norm_unweighted, SHAPE3(2, 3, 37));
  CHECK_BF16(squared_error, SHAPE3(2, 29, 13), SHAPE3(2, 29, 13));
  CHECK_BF16(squared_error, WIDE2(29, 13), WIDE2(29, 13));
  CHECK_BF16(kl_divergence, SHAPE3(2, 9, 13));
}

/* A row whose target has probability 1 - 2^-12: bf16 has no number between 1 - 2^-8 and 1, so 1 - p must be formed in
 * f32. */
static void what_is_nearly_certain_has_a_gradient_in_bf16(void **state) {
  enum { VOCABULARY = 2 };
  world w = world_open();
  ad_array logits = random_array(&w, AD_BF16, (ad_shape){2, {1, VOCABULARY}}, 1, 0);
  ad_array target = random_array(&w, AD_I32, (ad_shape){1, {1}}, 1, 1);
  const float values[VOCABULARY] = {8.3125f, 0};
  ad_cast(logits.data, AD_BF16, values, AD_F32, VOCABULARY);
  *(int32_t *)target.data = 0;
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *x = ad_input(t, &logits);
  must(ad_backward(t, ad_cross_entropy(t, x, ad_constant(t, &target))));
  double likely = 1 / (1 + exp(-8.3125));
  for (int i = 0; i < VOCABULARY; i++) {
    double wanted = i ? 1 - likely : likely - 1, is = element(ad_grad(x), (size_t)i);
    if (fabs(is - wanted) > 0x1p-8 * fabs(wanted)) fail_msg("%d: %g, not %g", i, is, wanted);
  }
  free(logits.data);
  free(target.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* Logits beyond the range of exp, and one whose probability differs from 1 by less than f64 can say of 1. */
static void a_binary_cross_entropy_is_exact_for_logits_of_any_size(void **state) {
  enum { COUNT = 6 };
  const double x[COUNT] = {800, -800, 800, -800, 40, 0}, y[COUNT] = {1, 0, 0, 1, 1, 0.25};
  const double losses[COUNT] = {0, 0, 800, 800, exp(-40.0), log(2)};
  const double gradients[COUNT] = {0, 0, 1, -1, -exp(-40.0), 0.25};
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  for (int i = 0; i < COUNT; i++) {
    ad_array logit = random_array(&w, AD_F64, (ad_shape){1, {1}}, 1, 0), target = logit;
    target.data = (void *)(uintptr_t)&y[i];
    *(double *)logit.data = x[i];
    ad_tensor *leaf = ad_input(t, &logit), *loss = ad_binary_cross_entropy(t, leaf, ad_constant(t, &target));
    must(ad_backward(t, loss));
    double is = ad_tensor_scalar(loss), gradient = element(ad_grad(leaf), 0);
    if (!(fabs(is - losses[i]) <= 1e-15 * losses[i])) fail_msg("%d: loss %g, not %g", i, is, losses[i]);
    if (!(fabs(gradient - gradients[i]) <= 1e-15 * fabs(gradients[i])))
      fail_msg("%d: gradient %g, not %g", i, gradient, gradients[i]);
    ad_tape_reset(t);
    free(logit.data);
  }
  ad_tape_destroy(t);
  world_close(&w);
}

static void a_norm_of_zero_has_gradient_zero(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array x = random_array(&w, AD_F64, (ad_shape){2, {2, 2}}, 1, 0);
  memcpy(x.data, (double[]){0, 0, 3, -4}, 4 * sizeof(double));
  ad_tensor *leaf = ad_input(t, &x), *norm = ad_norm_over(t, leaf, 1);
  must(ad_backward(t, ad_sum(t, norm)));
  assert_true(element(ad_tensor_array(norm), 0) == 0 && element(ad_tensor_array(norm), 1) == 5);
  const double wanted[] = {0, 0, 0.6, -0.8};
  for (size_t i = 0; i < 4; i++) assert_true(fabs(element(ad_grad(leaf), i) - wanted[i]) < 1e-15);
  free(x.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* Operations that sum or decide (softmax, top-k) refuse values that were rounded to bf16. */
static void refuse_bf16(formula f, ad_shape shape, const char *name) {
  world w = world_open();
  ad_array array = random_array(&w, AD_BF16, shape, 1, 0);
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *x = ad_input(t, &array);
  assert_null(ad_tensor_array(f(t, &x)));
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_says(name, "bf16");
  free(array.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static ad_tensor *top_k(ad_tape *t, ad_tensor *const *x) { return ad_top_k(t, x[0], 1, NULL, NULL); }
static ad_tensor *balance(ad_tape *t, ad_tensor *const *x) {
  return ad_balance(t, x[0], ad_slice(t, x[0], -1, 0, 3), 1);
}
static ad_tensor *repeat_once(ad_tape *t, ad_tensor *const *x) { return ad_repeat(t, x[0], x[0]); }

static void what_is_statistics_is_refused_in_bf16(void **state) {
  refuse_bf16(softmax, (ad_shape){2, {4, 3}}, "softmax");
  refuse_bf16(sigmoid, (ad_shape){2, {4, 3}}, "sigmoid");
  refuse_bf16(top_k, (ad_shape){2, {4, 3}}, "top_k");
  refuse_bf16(balance, (ad_shape){2, {4, 3}}, "balance");
  refuse_bf16(repeat_once, (ad_shape){2, {4, 3}}, "repeat");
}

/* 256 + 1 + 1 would be 256 if each sum were rounded to bf16, whose step is 2 there. */
static void the_sum_of_experts_is_rounded_once(void **state) {
  world w = world_open();
  ad_array scores = random_array(&w, AD_F32, (ad_shape){2, {1, 3}}, 1, 0);
  ad_array rows = random_array(&w, AD_BF16, (ad_shape){2, {3, 2}}, 2, 0), slope;
  for (size_t i = 0; i < 6; i++) ad_set_element(AD_BF16, rows.data, i, i < 2 ? 256 : 1);
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_routing *routing;
  ad_top_k(t, ad_constant(t, &scores), 3, NULL, &routing);
  ad_tensor *sum = ad_from_slots(t, ad_input(t, &rows), routing);
  must(ad_tape_status(t));
  for (size_t i = 0; i < 2; i++) assert_true(element(ad_tensor_array(sum), i) == 258);
  ad_tensor *token = ad_input(t, ad_tensor_array(sum)), *slots = ad_to_slots(t, token, routing);
  slope = rows;
  must(ad_backward(t, ad_sum(t, ad_multiply(t, slots, ad_constant(t, &slope)))));
  for (size_t i = 0; i < 2; i++) assert_true(element(ad_grad(token), i) == 258);
  free(scores.data);
  free(rows.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* The gradient is the difference of two nearly equal probabilities, not the rounding error of one of them. */
static void what_is_where_it_shall_be_is_not_pulled(void **state) {
  world w = world_open();
  ad_array logits = random_array(&w, AD_BF16, (ad_shape){2, {5, 13}}, 1, 0);
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *x = ad_input(t, &logits);
  must(ad_backward(t, ad_kl_divergence(t, x, ad_constant(t, &logits))));
  for (size_t i = 0; i < 5 * 13; i++) assert_true(element(ad_grad(x), i) == 0);
  free(logits.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* A word that the target gives probability 0 adds nothing to the loss, even if its logit is -infinity (0 times
 * infinity). */
static void what_a_target_never_says_costs_nothing(void **state) {
  enum { WORDS = 4 };
  static const double of_target[WORDS] = {0, -INFINITY, -INFINITY, 0}, of_logits[WORDS] = {1, -INFINITY, 2, 0};
  world w = world_open();
  ad_array target = random_array(&w, AD_F64, (ad_shape){2, {1, WORDS}}, 1, 0), logits = target;
  memcpy(target.data, of_target, sizeof of_target);
  logits.data = (void *)(uintptr_t)of_logits;
  ad_tape *t = open_tape(&w, AD_F64);
  ad_tensor *x = ad_input(t, &logits), *loss = ad_kl_divergence(t, x, ad_constant(t, &target));
  must(ad_backward(t, loss));
  double sum = exp(1) + exp(2) + 1;
  assert_true(fabs(ad_tensor_scalar(loss) - (log(sum) - 0.5 - log(2))) < 1e-14);
  for (size_t i = 0; i < WORDS; i++) {
    double wanted = exp(of_logits[i]) / sum - (of_target[i] == 0 ? 0.5 : 0);
    assert_true(fabs(element(ad_grad(x), i) - wanted) < 1e-15);
  }
  free(target.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* A copy of a parameter, as it goes to another phase, gets its gradient in the parameter's gradient dtype. */
static void a_copy_of_a_parameter_has_its_gradient_unrounded(void **state) {
  world w = world_open();
  ad_array weight = random_array(&w, AD_BF16, (ad_shape){2, {5, 7}}, 2, 0);
  ad_array slope = random_array(&w, AD_F32, (ad_shape){2, {5, 7}}, 3, 0);
  const ad_array *values[] = {&weight};
  ad_parameters from = {.size = sizeof from, .values = values, .count = 1};
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *leaf = ad_parameter(t, &from, 0), *copy = ad_scale(t, leaf, 1);
  slope.layout = ad_layout_dual(&weight.layout);
  const ad_array *gradient = &slope;
  must(ad_backward_from(t, &copy, &gradient, 1, AD_LAST_START));
  assert_int_equal(ad_grad(leaf)->dtype, AD_F32);
  assert_memory_equal(ad_grad(leaf)->data, slope.data, ad_array_bytes(&slope));
  free(weight.data);
  free(slope.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* Multiplying elements of a bf16 parameter is refused: its gradient would be rounded to bf16, but f32 is promised. */
static void a_parameter_in_bf16_is_not_multiplied_by_elements(void **state) {
  world w = world_open();
  ad_array weight = random_array(&w, AD_BF16, (ad_shape){2, {5, 7}}, 2, 0);
  const ad_array *values[] = {&weight};
  ad_parameters from = {.size = sizeof from, .values = values, .count = 1};
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *leaf = ad_parameter(t, &from, 0);
  assert_null(ad_tensor_array(ad_multiply(t, ad_constant(t, &weight), leaf)));
  assert_int_equal(ad_tape_status(t), AD_INVALID);
  assert_says("multiply", "operand 2", "bf16");
  ad_tape_destroy(t);
  t = open_tape(&w, AD_BF16);
  leaf = ad_parameter(t, &from, 0);
  ad_tensor *wide = ad_to_dtype(t, leaf, AD_F32);
  must(ad_backward(t, ad_sum(t, ad_multiply(t, wide, wide))));
  assert_int_equal(ad_grad(leaf)->dtype, AD_F32);
  free(weight.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* A parameter's gradient is the product's own f32 sum, not rounded to bf16. */
static void gradients_of_parameters_are_not_rounded_to_bf16(void **state) {
  enum { ROWS = 3, INNER = 5, COLUMNS = 7 };
  world w = world_open();
  ad_array x = random_array(&w, AD_BF16, (ad_shape){2, {ROWS, INNER}}, 1, 0);
  ad_array weight = random_array(&w, AD_BF16, (ad_shape){2, {INNER, COLUMNS}}, 2, 0), c;
  const ad_array *values[] = {&weight};
  ad_parameters from = {.size = sizeof from, .values = values, .count = 1};
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_tensor *leaf = ad_parameter(t, &from, 0), *moved = ad_convert(t, leaf, "tp", AD_R);
  ad_tensor *y = ad_linear(t, ad_convert(t, ad_constant(t, &x), "tp", AD_R), moved);
  y = ad_all_reduce(t, ad_once(t, y, "tp"), "tp", AD_I);
  must(ad_backward(t, project(&w, t, y, 3, &c)));
  const ad_array *grad = ad_grad(leaf);
  assert_int_equal(grad->dtype, AD_F32);
  for (size_t i = 0; i < INNER; i++)
    for (size_t j = 0; j < COLUMNS; j++) {
      double sum = 0, size = 0;
      for (size_t row = 0; row < ROWS; row++) sum += element(&x, row * INNER + i) * element(&c, row * COLUMNS + j);
      for (size_t row = 0; row < ROWS; row++)
        size += fabs(element(&x, row * INNER + i) * element(&c, row * COLUMNS + j));
      assert_true(fabs(sum - element(grad, i * COLUMNS + j)) <= ROWS * 0x1p-24 * size);
    }
  free(x.data);
  free(weight.data);
  free(c.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void values_used_several_times_have_their_gradients(void **state) {
  CHECK(residual, SHAPE2(3, 5), SHAPE2(5, 7));
}

static void nothing_is_done_to_no_rows(void **state) {
  CHECK(add, SHAPE2(0, 5), SHAPE2(0, 5));
  CHECK(sum, SHAPE2(0, 5));
  CHECK(linear, SHAPE2(0, 5), SHAPE2(5, 7));
  CHECK(linear, SHAPE2(3, 0), SHAPE2(0, 7));
  CHECK(linear_transposed, SHAPE2(0, 5), SHAPE2(7, 5));
  CHECK(embedding, SHAPE2(11, 5), INDICES2(0, 7, 11));
  CHECK(rms_norm, SHAPE3(0, 3, 5), SHAPE1(5));
  CHECK(rotary, SHAPE3(2, 0, 12));
  CHECK(shares, SHAPE2(0, 5));
  CHECK(attention, SHAPE3(0, 7, 8), SHAPE3(0, 7, 8), SHAPE3(0, 7, 8));
  CHECK(attention, SHAPE3(2, 0, 8), SHAPE3(2, 0, 8), SHAPE3(2, 0, 8));
  CHECK(attention_all, SHAPE3(0, 7, 8), SHAPE3(0, 7, 8), SHAPE3(0, 7, 8));
  CHECK(attention_all, SHAPE3(2, 0, 8), SHAPE3(2, 0, 8), SHAPE3(2, 0, 8));
  CHECK(swiglu, SHAPE2(0, 5), SHAPE2(0, 5));
  CHECK(cross_entropy, SHAPE3(0, 9, 13), INDICES2(0, 9, 13));
  CHECK(rms_norm_unweighted, SHAPE3(0, 3, 5));
  CHECK(scale_rows, SHAPE3(2, 0, 5), SHAPE2(2, 0));
  CHECK(concat, SHAPE3(0, 3, 5), SHAPE3(0, 3, 1), SHAPE3(0, 3, 4));
  CHECK(slice, SHAPE3(0, 3, 7));
  CHECK(relu, SHAPE2(0, 5));
  CHECK(layer_norm, SHAPE3(0, 3, 5), SHAPE1(5), SHAPE1(5));
  CHECK(dropout, SHAPE3(2, 0, 5));
  CHECK(transpose, SHAPE3(2, 0, 5));
  CHECK(sum_over, SHAPE2(0, 5));
  CHECK(mean_over, SHAPE2(0, 5));
  CHECK(max_over, SHAPE2(0, 5));
  CHECK(norm_over, SHAPE2(0, 5));
  CHECK(norm_over, SHAPE3(2, 0, 5));
  CHECK(scale_by, SHAPE2(0, 5), SHAPE1(1));
  CHECK(sum_over, SHAPE3(2, 0, 5));
  CHECK(repeat, SHAPE2(3, 5), INDICES2(0, 3, 11));
  CHECK(squared_error, SHAPE2(0, 5), SHAPE2(0, 5));
  CHECK(kl_divergence, SHAPE3(0, 9, 13));
}

/* Dropout depends on a sample's number in the step, not on its microbatch. */
static void microbatches_drop_what_the_whole_batch_drops(void **state) {
  enum { SAMPLES = 5, OF_SAMPLE = 40, FIRST = 2 };
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  ad_array x = random_array(&w, AD_F64, (ad_shape){2, {SAMPLES, OF_SAMPLE}}, 1, 0);
  ad_array rest = ad_array_describe(w.comm, AD_F64, &(ad_shape){2, {SAMPLES - FIRST, OF_SAMPLE}}, &w.layout);
  rest.data = (double *)x.data + FIRST * OF_SAMPLE;
  const double *full = ad_tensor_array(ad_dropout(t, ad_constant(t, &x), 0.25, 7, "a", 3, 0))->data;
  const double *part = ad_tensor_array(ad_dropout(t, ad_constant(t, &rest), 0.25, 7, "a", 3, FIRST))->data;
  const double *step = ad_tensor_array(ad_dropout(t, ad_constant(t, &x), 0.25, 7, "a", 4, 0))->data;
  const double *none = ad_tensor_array(ad_dropout(t, ad_constant(t, &x), 0, 7, "a", 3, 0))->data;
  must(ad_tape_status(t));
  size_t dropped = 0;
  for (size_t i = 0; i < SAMPLES * OF_SAMPLE; i++) dropped += full[i] == 0;
  assert_in_range(dropped, 30, 70);  // a quarter of 200
  assert_memory_equal(full + FIRST * OF_SAMPLE, part, (SAMPLES - FIRST) * OF_SAMPLE * sizeof *part);
  assert_memory_not_equal(full, step, SAMPLES * OF_SAMPLE * sizeof *step);
  assert_memory_equal(none, x.data, ad_array_bytes(&x));
  free(x.data);
  ad_tape_destroy(t);
  world_close(&w);
}

/* ---- linear operations as adjoints ---- */

/* For f linear in an operand, <f(x), c> equals <x, gradient> of that operand, so forward and backward are adjoints.
 * `jointly`: f is linear in all operands together, not in each. */
static void check_adjoint(formula f, const operand *operands, int count, int jointly) {
  experiment e = {.w = world_open(), .f = f, .operands = operands, .count = count, .dtype = AD_F64};
  fill_values(&e);
  double forward = evaluate(&e, 1), together = 0;
  for (int k = 0; k < count; k++) {
    double backward = 0;
    for (size_t i = 0; !operands[k].below && i < ad_array_numel(&e.grad[k]); i++)
      backward += element(&e.grad[k], i) * element(&e.value[k], i);
    if (!jointly && !operands[k].below) assert_true(fabs(backward - forward) <= 1e-12 * (1 + fabs(forward)));
    together += backward;
  }
  if (jointly) assert_true(fabs(together - forward) <= 1e-12 * (1 + fabs(forward)));
  free_values(&e);
  world_close(&e.w);
}
#define ADJOINT(f, jointly, ...) \
  check_adjoint((f), (const operand[]){__VA_ARGS__}, (int)(sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)), jointly)

static void linear_operations_are_adjoint_to_their_backward(void **state) {
  ADJOINT(add, 1, SHAPE2(3, 5), SHAPE2(3, 5));
  ADJOINT(multiply, 0, SHAPE2(3, 5), SHAPE2(3, 5));
  ADJOINT(scale, 0, SHAPE2(3, 5));
  ADJOINT(divide, 0, SHAPE2(3, 5));
  ADJOINT(share, 0, SHAPE2(3, 5));
  ADJOINT(sum, 0, SHAPE3(3, 5, 7));
  ADJOINT(linear, 0, SHAPE3(2, 3, 5), SHAPE2(5, 7));
  ADJOINT(linear_transposed, 0, SHAPE3(2, 3, 5), SHAPE2(7, 5));
  ADJOINT(embedding, 0, SHAPE2(11, 5), INDICES2(3, 7, 11));
  ADJOINT(repeat, 0, SHAPE2(3, 5), INDICES2(4, 3, 11));
  ADJOINT(rotary, 0, SHAPE3(2, 5, 12));
  ADJOINT(rotary_scaled, 0, SHAPE3(2, 5, 12));
  ADJOINT(scale_rows, 0, SHAPE3(2, 3, 5), SHAPE2(2, 3));
  ADJOINT(scale_by, 0, SHAPE3(2, 3, 5), SHAPE1(1));
  ADJOINT(concat, 1, SHAPE3(2, 3, 5), SHAPE3(2, 3, 1), SHAPE3(2, 3, 4));
  ADJOINT(slice, 0, SHAPE3(2, 3, 7));
}

/* ---- values against their written definitions ---- */

static double value_of(const ad_array *array, size_t i) { return ((const double *)array->data)[i]; }

static void against_its_definition(formula f, int sees_all) {
  enum { SEQ = 150, HEADS = 3, HEAD = 4, WIDTH = HEADS * HEAD };
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  ad_shape shape = {3, {2, SEQ, WIDTH}};
  ad_array x[3];
  for (int i = 0; i < 3; i++) x[i] = random_array(&w, AD_F64, shape, 30 + (uint64_t)i, 0);
  ad_tensor *out =
      f(tape, (ad_tensor *[]){ad_constant(tape, &x[0]), ad_constant(tape, &x[1]), ad_constant(tape, &x[2])});
  must(ad_tape_status(tape));
  for (size_t row = 0; row < 2 * SEQ; row++)
    for (size_t column = 0; column < WIDTH; column++) {
      size_t head = column / HEAD * HEAD, start = row / SEQ * SEQ, end = sees_all ? start + SEQ : row + 1;
      double weights = 0, average = 0;
      for (size_t key = start; key < end; key++) {
        double score = 0;
        for (size_t i = 0; i < HEAD; i++)
          score += value_of(&x[0], row * WIDTH + head + i) * value_of(&x[1], key * WIDTH + head + i);
        double weight = exp(score / sqrt(HEAD));
        weights += weight;
        average += weight * value_of(&x[2], key * WIDTH + column);
      }
      assert_true(fabs(average / weights - element(ad_tensor_array(out), row * WIDTH + column)) < 1e-13);
    }
  for (int i = 0; i < 3; i++) free(x[i].data);
  ad_tape_destroy(tape);
  world_close(&w);
}

static void attention_is_the_softmax_average_of_what_came_before(void **state) { against_its_definition(attention, 0); }
static void attention_to_all_is_the_softmax_average_of_the_sequence(void **state) {
  against_its_definition(attention_all, 1);
}

static void padding_counts_neither_in_the_loss_nor_in_its_gradient(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  double logits[6] = {1, 2, 3, NAN, NAN, NAN};
  int32_t targets[2] = {2, -1};
  ad_array x = ad_array_describe(w.comm, AD_F64, &(ad_shape){3, {1, 2, 3}}, &w.layout);
  ad_array y = ad_array_describe(w.comm, AD_I32, &(ad_shape){2, {1, 2}}, &w.layout);
  x.data = logits;
  y.data = targets;
  ad_tensor *leaf = ad_input(tape, &x), *loss = ad_cross_entropy(tape, leaf, ad_constant(tape, &y));
  must(ad_backward(tape, loss));
  double sum_of_exponentials = exp(-2) + exp(-1) + 1;
  assert_true(fabs(ad_tensor_scalar(loss) - log(sum_of_exponentials)) < 1e-15);
  assert_true(fabs(element(ad_grad(leaf), 0) - exp(-2) / sum_of_exponentials) < 1e-15);
  for (size_t i = 3; i < 6; i++) assert_true(element(ad_grad(leaf), i) == 0);
  ad_tape_destroy(tape);
  world_close(&w);
}

/* A padded row's gradient keeps what another use of the logits adds to it, before or after the loss. */
static void padding_takes_no_other_gradient_away(void **state) {
  world w = world_open();
  for (int is_first = 0; is_first < 2; is_first++) {
    ad_tape *tape = open_tape(&w, AD_F64);
    double logits[6] = {1, 2, 3, 4, 5, 6};
    int32_t targets[2] = {2, -1};
    ad_array x = ad_array_describe(w.comm, AD_F64, &(ad_shape){3, {1, 2, 3}}, &w.layout);
    ad_array y = ad_array_describe(w.comm, AD_I32, &(ad_shape){2, {1, 2}}, &w.layout);
    x.data = logits;
    y.data = targets;
    ad_tensor *leaf = ad_input(tape, &x), *loss = is_first ? ad_cross_entropy(tape, leaf, ad_constant(tape, &y)) : NULL;
    ad_tensor *sum = ad_sum(tape, leaf);
    if (!is_first) loss = ad_cross_entropy(tape, leaf, ad_constant(tape, &y));
    must(ad_backward(tape, ad_add(tape, loss, sum)));
    double sum_of_exponentials = exp(-2) + exp(-1) + 1;
    assert_true(fabs(element(ad_grad(leaf), 0) - (1 + exp(-2) / sum_of_exponentials)) < 1e-15);
    for (size_t i = 3; i < 6; i++) assert_true(element(ad_grad(leaf), i) == 1);
    ad_tape_destroy(tape);
  }
  world_close(&w);
}

static void divide_by_zero(const world *w, const ad_count *none, int shares) {
  ad_tape *tape = open_tape(w, AD_F32);
  ad_array x = random_array(w, AD_F32, (ad_shape){1, {5}}, 1, 0);
  ((float *)x.data)[2] = NAN;
  ad_tensor *leaf = ad_input(tape, &x), *sum = ad_sum(tape, leaf);
  ad_tensor *loss = shares ? ad_share(tape, sum, none, 0) : ad_divide(tape, sum, none);
  must(ad_backward(tape, loss));
  assert_true(ad_tensor_scalar(loss) == 0);
  for (size_t i = 0; i < 5; i++) assert_true(element(ad_grad(leaf), i) == 0);
  free(x.data);
  ad_tape_destroy(tape);
}

static void a_count_of_zero_gives_gradient_zero(void **state) {
  world w = world_open();
  ad_count *none = summed_count(&w, 0);
  divide_by_zero(&w, none, 0);
  divide_by_zero(&w, none, 1);
  ad_count_destroy(none);
  world_close(&w);
}

static void the_shares_of_the_microbatches_are_their_part_of_the_count(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  double seven = 7;
  ad_array x = ad_array_describe(w.comm, AD_F64, &(ad_shape){0, {0}}, &w.layout);
  x.data = &seven;
  ad_tensor *leaf = ad_input(tape, &x);
  assert_true(ad_tensor_scalar(ad_share(tape, leaf, step_count, 0)) == 2.0 / 7 * 7);
  assert_true(ad_tensor_scalar(ad_share(tape, leaf, step_count, 1)) == 5.0 / 7 * 7);
  ad_share(tape, leaf, step_count, 2);
  assert_int_equal(ad_tape_status(tape), AD_INVALID);
  assert_says("microbatch 2", "2");
  ad_tape_destroy(tape);
  world_close(&w);
}

static world counted;

static int open_count(void **state) {
  counted = world_open();
  must(ad_count_create(counted.comm, &counted.layout, 2, &step_count));
  must(ad_count_post(step_count, (int64_t[]){2, 5}));
  must(ad_count_wait(step_count, NULL));
  return 0;
}

static int close_count(void **state) {
  ad_count_destroy(step_count);
  world_close(&counted);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(elementwise_operations_have_their_gradients),
      cmocka_unit_test(products_have_their_gradients),
      cmocka_unit_test(columns_have_their_gradients),
      cmocka_unit_test(many_columns_come_back),
      cmocka_unit_test(embeddings_have_their_gradients),
      cmocka_unit_test(norms_have_their_gradients),
      cmocka_unit_test(rotary_and_attention_have_their_gradients),
      cmocka_unit_test(losses_have_their_gradients),
      cmocka_unit_test(operations_have_arithmetic_in_bf16),
      cmocka_unit_test(operations_of_programs_have_arithmetic_in_bf16),
      cmocka_unit_test(what_is_statistics_is_refused_in_bf16),
      cmocka_unit_test(the_sum_of_experts_is_rounded_once),
      cmocka_unit_test(what_is_where_it_shall_be_is_not_pulled),
      cmocka_unit_test(what_a_target_never_says_costs_nothing),
      cmocka_unit_test(what_is_nearly_certain_has_a_gradient_in_bf16),
      cmocka_unit_test(a_binary_cross_entropy_is_exact_for_logits_of_any_size),
      cmocka_unit_test(a_norm_of_zero_has_gradient_zero),
      cmocka_unit_test(a_parameter_in_bf16_is_not_multiplied_by_elements),
      cmocka_unit_test(a_copy_of_a_parameter_has_its_gradient_unrounded),
      cmocka_unit_test(gradients_of_parameters_are_not_rounded_to_bf16),
      cmocka_unit_test(values_used_several_times_have_their_gradients),
      cmocka_unit_test(nothing_is_done_to_no_rows),
      cmocka_unit_test(microbatches_drop_what_the_whole_batch_drops),
      cmocka_unit_test(linear_operations_are_adjoint_to_their_backward),
      cmocka_unit_test(attention_is_the_softmax_average_of_what_came_before),
      cmocka_unit_test(attention_to_all_is_the_softmax_average_of_the_sequence),
      cmocka_unit_test(padding_counts_neither_in_the_loss_nor_in_its_gradient),
      cmocka_unit_test(padding_takes_no_other_gradient_away),
      cmocka_unit_test(a_count_of_zero_gives_gradient_zero),
      cmocka_unit_test(the_shares_of_the_microbatches_are_their_part_of_the_count),
  };
  return cmocka_run_group_tests(tests, open_count, close_count);
}
