/* Tests addend's own operations as ad_check_operation tests a user's: against the promises of their record and their
 * types. All operations are tested that compute on the elements of one rank. */
#include "tensor/trial.h"
#include "world.h"
#include "addend/routing.h"

typedef ad_tensor *(*formula)(ad_tape *, ad_tensor *const *x);

static ad_tensor *apply(ad_tape *tape, ad_tensor *const *x, const void *context) {
  return (*(const formula *)context)(tape, x);
}

static void check(formula f, ad_operation_trial trial, int line) {
  trial.size = sizeof trial;
  trial.seed = 3;
  ad_status status = ad_check_applied(apply, &f, &trial);
  if (status) fail_msg("line %d: %s: %s", line, ad_status_name(status), ad_last_error());
}

#define SHAPES(...) \
  .shapes = (const ad_shape[]){__VA_ARGS__}, .count = sizeof((const ad_shape[]){__VA_ARGS__}) / sizeof(ad_shape)
#define SHAPE(n, ...)    \
  {                      \
    (n), { __VA_ARGS__ } \
  }
#define CHECK(f, ...) check((f), (ad_operation_trial){__VA_ARGS__}, __LINE__)

static ad_tensor *add(ad_tape *t, ad_tensor *const *x) { return ad_add(t, x[0], x[1]); }
static ad_tensor *add_row(ad_tape *t, ad_tensor *const *x) { return ad_add_row(t, x[0], x[1]); }
static ad_tensor *multiply(ad_tape *t, ad_tensor *const *x) { return ad_multiply(t, x[0], x[1]); }
static ad_tensor *scale_rows(ad_tape *t, ad_tensor *const *x) { return ad_scale_rows(t, x[0], x[1]); }
static ad_tensor *scale(ad_tape *t, ad_tensor *const *x) { return ad_scale(t, x[0], -1.75); }
static ad_tensor *scale_by(ad_tape *t, ad_tensor *const *x) { return ad_scale_by(t, x[0], x[1]); }
static ad_tensor *sum(ad_tape *t, ad_tensor *const *x) { return ad_sum(t, x[0]); }
static ad_tensor *sum_over_0(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 0); }
static ad_tensor *sum_over_2(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 2); }
static ad_tensor *mean_over_1(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 1); }
static ad_tensor *max_over_0(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 0); }
static ad_tensor *max_over_1(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 1); }
static ad_tensor *norm_over_0(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 0); }
static ad_tensor *norm_over_1(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 1); }
static ad_tensor *linear(ad_tape *t, ad_tensor *const *x) { return ad_linear(t, x[0], x[1]); }
static ad_tensor *linear_transposed(ad_tape *t, ad_tensor *const *x) { return ad_linear_transposed(t, x[0], x[1]); }
static ad_tensor *embedding(ad_tape *t, ad_tensor *const *x) { return ad_embedding(t, x[0], x[1]); }
static ad_tensor *rms_norm(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm(t, x[0], x[1], 1e-5); }
static ad_tensor *rms_norm_unweighted(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm_unweighted(t, x[0], 1e-5); }
static ad_tensor *layer_norm(ad_tape *t, ad_tensor *const *x) { return ad_layer_norm(t, x[0], x[1], x[2], 1e-5); }
static ad_tensor *dropout(ad_tape *t, ad_tensor *const *x) { return ad_dropout(t, x[0], 0.3, 7, "dropped", 2, 0); }
static ad_tensor *head_norm(ad_tape *t, ad_tensor *const *x) { return ad_head_norm(t, x[0], x[1], 1e-5); }
static ad_tensor *place(ad_tape *t, ad_tensor *const *x) { return ad_place(t, x[0], x[1]); }
static ad_tensor *concat(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 3, -1); }
static ad_tensor *slice(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], -1, 2, 3); }
static ad_tensor *concat_along_0(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 2, 0); }
static ad_tensor *concat_along_1(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 2, 1); }
static ad_tensor *slice_along_0(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], 0, 1, 3); }
static ad_tensor *slice_along_1(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], 1, 2, 2); }
static ad_tensor *transpose_01(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 0, 1); }
static ad_tensor *transpose_20(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 2, 0); }
static ad_tensor *transpose_11(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 1, 1); }
static ad_tensor *transpose_13(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 1, 3); }
static ad_tensor *reshape_split(ad_tape *t, ad_tensor *const *x) {
  return ad_reshape(t, x[0], &(ad_shape){4, {6, 2, 6, 4}});
}
static ad_tensor *reshape_join(ad_tape *t, ad_tensor *const *x) {
  return ad_reshape(t, x[0], &(ad_shape){2, {12, 24}});
}
static ad_tensor *reshape_flat(ad_tape *t, ad_tensor *const *x) { return ad_reshape(t, x[0], &(ad_shape){1, {288}}); }
static ad_tensor *reshape_ones(ad_tape *t, ad_tensor *const *x) {
  return ad_reshape(t, x[0], &(ad_shape){6, {1, 12, 1, 6, 4, 1}});
}
static ad_tensor *repeat(ad_tape *t, ad_tensor *const *x) { return ad_repeat(t, x[0], x[1]); }
static ad_tensor *rotary(ad_tape *t, ad_tensor *const *x) { return ad_rotary(t, x[0], 4, 100); }
static const ad_rotary_scaling slower = {.factor = 8, .low_turns = 0.5, .high_turns = 2, .original_positions = 16};
static ad_tensor *rotary_scaled(ad_tape *t, ad_tensor *const *x) { return ad_rotary_scaled(t, x[0], 4, 12, &slower); }
static ad_tensor *attention(ad_tape *t, ad_tensor *const *x) { return ad_attention(t, x[0], x[1], x[2], 4); }
static ad_tensor *attention_all(ad_tape *t, ad_tensor *const *x) { return ad_attention_all(t, x[0], x[1], x[2], 4); }
static ad_tensor *swiglu(ad_tape *t, ad_tensor *const *x) { return ad_swiglu(t, x[0], x[1]); }
static ad_tensor *gelu(ad_tape *t, ad_tensor *const *x) { return ad_gelu(t, x[0]); }
static ad_tensor *cross_entropy(ad_tape *t, ad_tensor *const *x) { return ad_cross_entropy(t, x[0], x[1]); }
static ad_tensor *squared_error(ad_tape *t, ad_tensor *const *x) { return ad_squared_error(t, x[0], x[1]); }
static ad_tensor *binary_cross_entropy(ad_tape *t, ad_tensor *const *x) {
  return ad_binary_cross_entropy(t, x[0], x[1]);
}
static ad_tensor *kl_divergence(ad_tape *t, ad_tensor *const *x) { return ad_kl_divergence(t, x[0], x[1]); }
static ad_tensor *softmax(ad_tape *t, ad_tensor *const *x) { return ad_softmax(t, x[0]); }
static ad_tensor *shares(ad_tape *t, ad_tensor *const *x) { return ad_shares(t, x[0]); }
static ad_tensor *sigmoid(ad_tape *t, ad_tensor *const *x) { return ad_sigmoid(t, x[0]); }
static ad_tensor *relu(ad_tape *t, ad_tensor *const *x) { return ad_relu(t, x[0]); }
static ad_tensor *hyperbolic_tangent(ad_tape *t, ad_tensor *const *x) { return ad_tanh(t, x[0]); }
static ad_tensor *exponential(ad_tape *t, ad_tensor *const *x) { return ad_exp(t, x[0]); }
static ad_tensor *logarithm(ad_tape *t, ad_tensor *const *x) { return ad_ln(t, x[0]); }
static ad_tensor *square_root(ad_tape *t, ad_tensor *const *x) { return ad_sqrt(t, x[0]); }
static ad_tensor *to_rows(ad_tape *t, ad_tensor *const *x) { return ad_to_rows(t, x[0]); }
static ad_tensor *rows_and_back(ad_tape *t, ad_tensor *const *x) { return ad_from_rows(t, ad_to_rows(t, x[0]), x[0]); }
static ad_tensor *top_k(ad_tape *t, ad_tensor *const *x) {
  ad_routing *routing;
  return ad_top_k(t, x[0], 2, NULL, &routing);
}

static void operations_on_elements_hold(void **state) {
  CHECK(add, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)));
  CHECK(add_row, SHAPES(SHAPE(3, 2, 5, 4), SHAPE(1, 4)));
  CHECK(multiply, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)));
  CHECK(scale_rows, SHAPES(SHAPE(2, 5, 4), SHAPE(1, 5)));
  CHECK(scale, SHAPES(SHAPE(2, 5, 4)));
  CHECK(scale_by, SHAPES(SHAPE(2, 5, 4), SHAPE(1, 1)));
  CHECK(sum, SHAPES(SHAPE(2, 5, 4)));
  CHECK(swiglu, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)));
  CHECK(gelu, SHAPES(SHAPE(2, 5, 4)));
  CHECK(sigmoid, SHAPES(SHAPE(2, 5, 4)));
  CHECK(relu, SHAPES(SHAPE(2, 5, 4)));
  CHECK(relu, SHAPES(SHAPE(2, 3, 100)));  // more elements than one piece of the kernel
  CHECK(hyperbolic_tangent, SHAPES(SHAPE(2, 5, 4)));
  CHECK(exponential, SHAPES(SHAPE(2, 5, 4)));
  CHECK(logarithm, SHAPES(SHAPE(2, 5, 4)), .least = 0.1, .most = 3);
  CHECK(square_root, SHAPES(SHAPE(2, 5, 4)), .least = 0.1, .most = 3);
  CHECK(softmax, SHAPES(SHAPE(2, 5, 4)));
  CHECK(shares, SHAPES(SHAPE(2, 5, 4)), .least = 0.1, .most = 3);
}

static void products_and_norms_hold(void **state) {
  CHECK(linear, SHAPES(SHAPE(3, 2, 5, 4), SHAPE(2, 4, 3)));
  CHECK(linear_transposed, SHAPES(SHAPE(3, 2, 5, 4), SHAPE(2, 3, 4)));
  CHECK(embedding, SHAPES(SHAPE(2, 7, 4), SHAPE(2, 4, 3)), .below = (const int32_t[]){0, 7});
  CHECK(embedding, SHAPES(SHAPE(2, 1, 4), SHAPE(1, 3)), .below = (const int32_t[]){0, 1}); /* of one row */
  CHECK(rms_norm, SHAPES(SHAPE(2, 5, 4), SHAPE(1, 4)));
  CHECK(rms_norm_unweighted, SHAPES(SHAPE(2, 5, 4)));
  CHECK(layer_norm, SHAPES(SHAPE(2, 5, 4), SHAPE(1, 4), SHAPE(1, 4)));
  CHECK(dropout, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(head_norm, SHAPES(SHAPE(3, 2, 3, 12), SHAPE(1, 4)));
}

static void reductions_hold(void **state) {
  CHECK(sum_over_0, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(sum_over_0, SHAPES(SHAPE(1, 5)));
  CHECK(sum_over_2, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(mean_over_1, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(max_over_0, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(max_over_1, SHAPES(SHAPE(2, 5, 4)));
  CHECK(norm_over_0, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(norm_over_1, SHAPES(SHAPE(2, 5, 4)));
}

static void columns_and_attention_hold(void **state) {
  CHECK(place, SHAPES(SHAPE(3, 4, 5, 3), SHAPE(3, 4, 2, 3)));
  CHECK(concat, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 1), SHAPE(2, 5, 3)));
  CHECK(slice, SHAPES(SHAPE(2, 4, 6)));
  CHECK(concat_along_0, SHAPES(SHAPE(2, 3, 4), SHAPE(2, 2, 4)));
  CHECK(concat_along_1, SHAPES(SHAPE(3, 4, 2, 3), SHAPE(3, 4, 3, 3)));
  CHECK(slice_along_0, SHAPES(SHAPE(2, 5, 4)));
  CHECK(slice_along_1, SHAPES(SHAPE(3, 4, 5, 3)));
  CHECK(transpose_01, SHAPES(SHAPE(2, 5, 4)));
  CHECK(transpose_20, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(transpose_11, SHAPES(SHAPE(3, 5, 4, 3)));
  CHECK(transpose_13, SHAPES(SHAPE(4, 2, 4, 3, 5)));
  CHECK(reshape_split, SHAPES(SHAPE(3, 12, 6, 4)));
  CHECK(reshape_join, SHAPES(SHAPE(3, 12, 6, 4)));
  CHECK(reshape_flat, SHAPES(SHAPE(3, 12, 6, 4)));
  CHECK(reshape_ones, SHAPES(SHAPE(3, 12, 6, 4)));
  CHECK(repeat, SHAPES(SHAPE(2, 3, 4), SHAPE(2, 5, 2)), .below = (const int32_t[]){0, 9});
  CHECK(rotary, SHAPES(SHAPE(3, 2, 5, 12)));
  CHECK(rotary_scaled, SHAPES(SHAPE(3, 2, 5, 12)));
  CHECK(attention, SHAPES(SHAPE(3, 2, 5, 12), SHAPE(3, 2, 5, 12), SHAPE(3, 2, 5, 12)));
  CHECK(attention_all, SHAPES(SHAPE(3, 2, 5, 12), SHAPE(3, 2, 5, 12), SHAPE(3, 2, 5, 12)));
}

static void losses_and_scores_hold(void **state) {
  CHECK(cross_entropy, SHAPES(SHAPE(3, 4, 3, 7), SHAPE(2, 4, 3)), .below = (const int32_t[]){0, 7});
  CHECK(squared_error, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)));
  CHECK(binary_cross_entropy, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)), .constants = 2, .least = 0.1, .most = 0.9);
  CHECK(binary_cross_entropy, SHAPES(SHAPE(2, 3, 100), SHAPE(2, 3, 100)), .constants = 2, .least = 0.1, .most = 0.9);
  CHECK(kl_divergence, SHAPES(SHAPE(2, 5, 4), SHAPE(2, 5, 4)), .constants = 2);
  CHECK(to_rows, SHAPES(SHAPE(3, 2, 5, 4)));
  CHECK(rows_and_back, SHAPES(SHAPE(3, 2, 5, 4)));
  CHECK(top_k, SHAPES(SHAPE(2, 5, 4)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations_on_elements_hold),
      cmocka_unit_test(products_and_norms_hold),
      cmocka_unit_test(reductions_hold),
      cmocka_unit_test(columns_and_attention_hold),
      cmocka_unit_test(losses_and_scores_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
