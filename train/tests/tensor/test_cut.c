/* Tests operations on the parts of a value against the gathered value, and composed operations against the sums and
 * products that define them: values and gradients on real ranks in f64. Parts are uneven and empty, groups of size 1, 2
 * and 3. */
#include "parts.h"

/* ---- operations on rows ---- */

static ad_tensor *scale_rows(ad_tape *t, ad_tensor *const *x) {
  return ad_scale_rows(t, x[0], ad_convert(t, x[1], "tp", AD_R));
}
static ad_tensor *scale_rows_of_full(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_scale_rows(t, full(t, x[0]), full(t, x[1])));
}
static ad_tensor *norm(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm_unweighted(t, x[0], 1e-5); }
static ad_tensor *norm_of_full(ad_tape *t, ad_tensor *const *x) {
  return rows_of(t, ad_rms_norm_unweighted(t, full(t, x[0]), 1e-5));
}

static void factors_of_sharded_rows_are_those_of_the_full_ones(void **state) {
  compare_on_all(scale_rows, scale_rows_of_full, both_sharded, 2, 1);
}

static void norms_of_sharded_rows_are_those_of_the_full_ones(void **state) {
  compare_on_all(norm, norm_of_full, rows_sharded, 1, 0);
}

/* ---- operations that join and split columns ---- */

/* x W^T with concatenated x and W is the sum of the products of their parts. */
static ad_tensor *joined_product(ad_tape *t, ad_tensor *const *x) {
  return ad_linear_transposed(t, ad_concat(t, x, 2, -1), x[2]);
}
static ad_tensor *sum_of_products(ad_tape *t, ad_tensor *const *x) {
  return ad_add(t, ad_linear_transposed(t, x[0], ad_slice(t, x[2], -1, 0, WIDTH)),
                ad_linear_transposed(t, x[1], ad_slice(t, x[2], -1, WIDTH, 2)));
}
/* Joining columns of partial values and summing gives the same as summing first. */
static ad_tensor *joined_before_the_sum(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *joined = ad_concat(t, (ad_tensor *[]){x[0], x[1]}, 2, -1);
  return ad_linear_transposed(t, ad_all_reduce(t, joined, "tp", AD_I), x[2]);
}
static ad_tensor *joined_after_the_sum(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *a = ad_all_reduce(t, x[0], "tp", AD_I), *b = ad_all_reduce(t, x[1], "tp", AD_I);
  return ad_linear_transposed(t, ad_concat(t, (ad_tensor *[]){a, b}, 2, -1), x[2]);
}

static void compare_columns(const char *mesh, const char *layout, const char *full_layout, formula a, formula b) {
  compare((comparison){.mesh = mesh,
                       .inputs = {{layout, SHAPE(3, 4, SEQ, WIDTH), 0},
                                  {layout, SHAPE(3, 4, SEQ, 2), 0},
                                  {full_layout, SHAPE(2, 3, WIDTH + 2), 0}},
                       .input_count = 3,
                       .fused = a,
                       .composed = b});
}

static void a_product_of_joined_columns_is_the_sum_of_products(void **state) {
  compare_columns("dp_shard=1", "dp_shard=S0", "dp_shard=R", joined_product, sum_of_products);
  compare_columns("dp_shard=2", "dp_shard=S0", "dp_shard=R", joined_product, sum_of_products);
  compare_columns("dp_shard=3", "dp_shard=S0", "dp_shard=R", joined_product, sum_of_products);
  compare_columns("tp=1", "tp=P", "tp=I", joined_before_the_sum, joined_after_the_sum);
  compare_columns("tp=3", "tp=P", "tp=I", joined_before_the_sum, joined_after_the_sum);
}

/* ---- losses ---- */

static ad_tensor *squared_error(ad_tape *t, ad_tensor *const *x) {
  return summed_of_parts(t, ad_squared_error(t, x[0], x[1]));
}
static ad_tensor *sum_of_squares(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *d = difference(t, full(t, x[0]), full(t, x[1]));
  return ad_sum(t, ad_multiply(t, d, d));
}
/* The target carries no gradient in the loss; ad_sum(x[1]) gives it one, so that all leaves have a gradient. */
static ad_tensor *divergence(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *loss = ad_kl_divergence(t, x[0], ad_constant(t, ad_tensor_array(x[1])));
  return summed(t, ad_add(t, loss, ad_sum(t, x[1])));
}
static ad_tensor *divergence_of_full(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *target = full(t, x[1]);
  ad_tensor *loss = ad_kl_divergence(t, full(t, x[0]), ad_constant(t, ad_tensor_array(target)));
  return ad_add(t, loss, ad_sum(t, target));
}

static void a_squared_error_is_the_sum_of_squares(void **state) {
  compare_on_all(squared_error, sum_of_squares, both_sharded, 2, 0);
  // rows longer than the piece that the kernel handles at the same time
  const input long_one = {both_sharded, SHAPE(3, 3, 4, 300), 0};
  compare((comparison){.mesh = "dp_shard=2 tp=1",
                       .inputs = {long_one, long_one},
                       .input_count = 2,
                       .fused = squared_error,
                       .composed = sum_of_squares});
}

static void a_divergence_is_the_sum_over_all_rows(void **state) {
  compare_on_all(divergence, divergence_of_full, rows_sharded, 2, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(factors_of_sharded_rows_are_those_of_the_full_ones),
      cmocka_unit_test(norms_of_sharded_rows_are_those_of_the_full_ones),
      cmocka_unit_test(a_product_of_joined_columns_is_the_sum_of_products),
      cmocka_unit_test(a_squared_error_is_the_sum_of_squares),
      cmocka_unit_test(a_divergence_is_the_sum_over_all_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
