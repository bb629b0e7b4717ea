/* Operations on the parts of a value against the same on the whole, gathered, and operations against the sums and
 * products that they are: values and gradients on real ranks in f64. Parts are uneven and empty, groups of size 1, 2
 * and 3. */
#include "two_ways.h"
#include "tensor/explained.h"

typedef ad_tensor *(*formula)(ad_tape *t, ad_tensor *const *x);

enum { SEQ = 5, WIDTH = 7 };

/* Samples over dp_shard and columns over tp, of inputs [batch, SEQ, WIDTH], the last one [batch, SEQ] if
 * `has_numbers`. */
static void compare_on_all(formula fused, formula composed, const char *layout, int inputs, int has_numbers) {
  static const char *const meshes[] = {"dp_shard=1 tp=1", "dp_shard=2 tp=1", "dp_shard=1 tp=3", "dp_shard=3 tp=2"};
  for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
    for (int64_t batch = 2; batch < 5; batch += 2) {  // of three ranks one has no sample, or more than the others
      comparison c = {.mesh = meshes[m], .input_count = inputs, .fused = fused, .composed = composed};
      for (int i = 0; i < inputs; i++) c.inputs[i] = (input){layout, SHAPE(3, batch, SEQ, WIDTH), 0};
      if (has_numbers) c.inputs[inputs - 1] = (input){"dp_shard=S0 tp=I", SHAPE(2, batch, SEQ), 0};
      compare(c);
    }
  }
}

static const char rows_cut[] = "dp_shard=S0 tp=I", both_cut[] = "dp_shard=S0 tp=S2";

static ad_tensor *whole(ad_tape *t, ad_tensor *x) {
  ad_tensor *rows = ad_tensor_array(x)->layout.type[AD_TP] == AD_S(2) ? ad_all_gather(t, x, "tp", AD_I) : x;
  return ad_all_gather(t, rows, "dp_shard", AD_I);
}
static ad_tensor *rows_of(ad_tape *t, ad_tensor *whole_value) {
  return ad_convert(t, whole_value, "dp_shard", AD_S(0));
}
static ad_tensor *part_of(ad_tape *t, ad_tensor *whole_value) {
  return ad_convert(t, rows_of(t, whole_value), "tp", AD_S(2));
}
static ad_tensor *summed(ad_tape *t, ad_tensor *addends) { return ad_all_reduce(t, addends, "dp_shard", AD_I); }
static ad_tensor *summed_of_parts(ad_tape *t, ad_tensor *addends) {
  return ad_all_reduce(t, addends, "dp_shard tp", AD_I);
}
static ad_tensor *difference(ad_tape *t, ad_tensor *a, ad_tensor *b) { return ad_add(t, a, ad_scale(t, b, -1)); }

/* ---- element by element ---- */

static ad_tensor *lower(ad_tape *t, ad_tensor *const *x) { return ad_lower(t, x[0], AD_SLOPE_RETURNS); }
static ad_tensor *lower_of_whole(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_lower(t, whole(t, x[0]), AD_SLOPE_RETURNS));
}
static ad_tensor *plain_lower(ad_tape *t, ad_tensor *const *x) { return ad_lower(t, x[0], AD_SLOPE_PLAIN); }
static ad_tensor *plain_lower_of_whole(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_lower(t, whole(t, x[0]), AD_SLOPE_PLAIN));
}
static ad_tensor *upper(ad_tape *t, ad_tensor *const *x) { return ad_upper(t, x[0]); }
static ad_tensor *upper_of_whole(ad_tape *t, ad_tensor *const *x) { return part_of(t, ad_upper(t, whole(t, x[0]))); }
static ad_tensor *mix(ad_tape *t, ad_tensor *const *x) { return ad_mix(t, x[0], x[1]); }
static ad_tensor *mix_of_products(ad_tape *t, ad_tensor *const *x) {
  return difference(t, ad_add(t, x[0], x[1]), ad_multiply(t, x[0], x[1]));
}

static void clamps_of_parts_are_parts_of_the_clamp(void **state) {
  compare_on_all(lower, lower_of_whole, both_cut, 1, 0);
  compare_on_all(plain_lower, plain_lower_of_whole, both_cut, 1, 0);
  compare_on_all(upper, upper_of_whole, both_cut, 1, 0);
}

static void a_mix_is_the_sum_less_the_product(void **state) {
  compare_on_all(mix, mix_of_products, both_cut, 2, 0);
  compare_on_all(mix, mix_of_products, rows_cut, 2, 0);
}

/* Gradients of both signs from two users are added before lower looks at them, also where each user has an addend. */
static ad_tensor *lower_used_in_parts(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *y = ad_lower(t, x[0], AD_SLOPE_RETURNS), *used = ad_convert(t, y, "tp", AD_R);
  return ad_add(t, ad_all_reduce(t, ad_linear_transposed(t, ad_convert(t, used, "tp", AD_S(1)), x[1]), "tp", AD_I),
                ad_linear_transposed(t, y, x[2]));
}
static ad_tensor *lower_used_whole(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *y = ad_lower(t, x[0], AD_SLOPE_RETURNS);
  ad_tensor *weights = ad_add(t, ad_all_gather(t, x[1], "tp", AD_I), x[2]);
  return ad_linear_transposed(t, y, weights);
}

static void the_addends_of_a_gradient_are_added_before_lower(void **state) {
  comparison c = {
      .mesh = "tp=3",
      .inputs = {{"tp=I", SHAPE(2, 4, WIDTH), 0}, {"tp=S1", SHAPE(2, 3, WIDTH), 0}, {"tp=I", SHAPE(2, 3, WIDTH), 0}},
      .input_count = 3,
      .fused = lower_used_in_parts,
      .composed = lower_used_whole};
  compare(c);
  c.mesh = "tp=2";
  compare(c);
  c.mesh = "tp=1";
  compare(c);
}

/* ---- rows ---- */

static ad_tensor *scale_rows(ad_tape *t, ad_tensor *const *x) {
  return ad_scale_rows(t, x[0], ad_convert(t, x[1], "tp", AD_R));
}
static ad_tensor *scale_rows_of_whole(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_scale_rows(t, whole(t, x[0]), whole(t, x[1])));
}
static ad_tensor *norm(ad_tape *t, ad_tensor *const *x) { return ad_rms_norm_unweighted(t, x[0], 1e-5); }
static ad_tensor *norm_of_whole(ad_tape *t, ad_tensor *const *x) {
  return rows_of(t, ad_rms_norm_unweighted(t, whole(t, x[0]), 1e-5));
}

static void factors_of_cut_rows_are_those_of_the_whole(void **state) {
  compare_on_all(scale_rows, scale_rows_of_whole, both_cut, 2, 1);
}

static void norms_of_cut_rows_are_those_of_the_whole(void **state) {
  compare_on_all(norm, norm_of_whole, rows_cut, 1, 0);
}

/* ---- columns ---- */

/* x W^T where both are concatenated is the sum of the products of the parts. */
static ad_tensor *joined_product(ad_tape *t, ad_tensor *const *x) {
  return ad_linear_transposed(t, ad_concat(t, x, 2), x[2]);
}
static ad_tensor *sum_of_products(ad_tape *t, ad_tensor *const *x) {
  return ad_add(t, ad_linear_transposed(t, x[0], ad_slice(t, x[2], 0, WIDTH)),
                ad_linear_transposed(t, x[1], ad_slice(t, x[2], WIDTH, 2)));
}
/* Columns of what is still to be summed. */
static ad_tensor *joined_before_the_sum(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *joined = ad_concat(t, (ad_tensor *[]){x[0], x[1]}, 2);
  return ad_linear_transposed(t, ad_all_reduce(t, joined, "tp", AD_I), x[2]);
}
static ad_tensor *joined_after_the_sum(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *a = ad_all_reduce(t, x[0], "tp", AD_I), *b = ad_all_reduce(t, x[1], "tp", AD_I);
  return ad_linear_transposed(t, ad_concat(t, (ad_tensor *[]){a, b}, 2), x[2]);
}

static void compare_columns(const char *mesh, const char *layout, const char *whole_layout, formula a, formula b) {
  compare((comparison){.mesh = mesh,
                       .inputs = {{layout, SHAPE(3, 4, SEQ, WIDTH), 0},
                                  {layout, SHAPE(3, 4, SEQ, 2), 0},
                                  {whole_layout, SHAPE(2, 3, WIDTH + 2), 0}},
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
  ad_tensor *d = difference(t, whole(t, x[0]), whole(t, x[1]));
  return ad_sum(t, ad_multiply(t, d, d));
}
static ad_tensor *power_sums(ad_tape *t, ad_tensor *x) { return ad_power_sums(t, ad_multiply(t, x, x), 0.1, 1.3); }
static ad_tensor *sums_of_parts(ad_tape *t, ad_tensor *const *x) { return summed(t, power_sums(t, x[0])); }
static ad_tensor *sums_of_whole(ad_tape *t, ad_tensor *const *x) {
  return ad_convert(t, power_sums(t, whole(t, x[0])), "tp", AD_S(0));
}
/* The sums are of all ranks before their logarithm is taken; what each then does with them is its own. */
static ad_tensor *sparsity(ad_tape *t, ad_tensor *const *x) {
  return ad_all_reduce(t, ad_sparsity(t, summed(t, power_sums(t, x[0])), 0.75), "tp", AD_I);
}
static ad_tensor *sparsity_of_whole(ad_tape *t, ad_tensor *const *x) {
  return ad_sparsity(t, power_sums(t, whole(t, x[0])), 0.75);
}
/* The same by copies of the sums that are R, of which one counts. */
static ad_tensor *sparsity_once(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *sums = ad_all_reduce(t, power_sums(t, x[0]), "dp_shard", AD_R);
  return ad_all_reduce(t, summed(t, ad_once(t, ad_sparsity(t, sums, 0.75), "dp_shard")), "tp", AD_I);
}
/* The sum of x[1] gives it a gradient: the target has none. */
static ad_tensor *divergence(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *loss = ad_kl_divergence(t, x[0], ad_constant(t, ad_tensor_array(x[1])));
  return summed(t, ad_add(t, loss, ad_sum(t, x[1])));
}
static ad_tensor *divergence_of_whole(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *target = whole(t, x[1]);
  ad_tensor *loss = ad_kl_divergence(t, whole(t, x[0]), ad_constant(t, ad_tensor_array(target)));
  return ad_add(t, loss, ad_sum(t, target));
}

static void a_squared_error_is_the_sum_of_squares(void **state) {
  compare_on_all(squared_error, sum_of_squares, both_cut, 2, 0);
  const input long_one = {both_cut, SHAPE(3, 3, 4, 300), 0};  // more than is looked at in one piece
  compare((comparison){.mesh = "dp_shard=2 tp=1",
                       .inputs = {long_one, long_one},
                       .input_count = 2,
                       .fused = squared_error,
                       .composed = sum_of_squares});
}

static void sums_of_powers_are_those_of_all_rows(void **state) {
  compare_on_all(sums_of_parts, sums_of_whole, both_cut, 1, 0);
}

static void sparsity_is_that_of_all_rows(void **state) {
  compare_on_all(sparsity, sparsity_of_whole, both_cut, 1, 0);
  compare_on_all(sparsity_once, sparsity_of_whole, both_cut, 1, 0);
}

static void a_divergence_is_the_sum_over_all_rows(void **state) {
  compare_on_all(divergence, divergence_of_whole, rows_cut, 2, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clamps_of_parts_are_parts_of_the_clamp),
      cmocka_unit_test(a_mix_is_the_sum_less_the_product),
      cmocka_unit_test(the_addends_of_a_gradient_are_added_before_lower),
      cmocka_unit_test(factors_of_cut_rows_are_those_of_the_whole),
      cmocka_unit_test(norms_of_cut_rows_are_those_of_the_whole),
      cmocka_unit_test(a_product_of_joined_columns_is_the_sum_of_products),
      cmocka_unit_test(a_squared_error_is_the_sum_of_squares),
      cmocka_unit_test(sums_of_powers_are_those_of_all_rows),
      cmocka_unit_test(sparsity_is_that_of_all_rows),
      cmocka_unit_test(a_divergence_is_the_sum_over_all_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
