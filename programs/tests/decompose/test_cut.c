/* Tests decompose's operations on the parts of a value against the gathered value, and against sums and products:
 * values and gradients on real ranks in f64. Parts are uneven and empty, groups of size 1, 2 and 3. */
#include "../../../train/tests/tensor/parts.h"
#include "decompose/operations.h"

/* ---- operations on single elements ---- */

static ad_tensor *lower(ad_tape *t, ad_tensor *const *x) { return ad_lower(t, x[0], AD_SLOPE_RETURNS); }
static ad_tensor *lower_of_full(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_lower(t, full(t, x[0]), AD_SLOPE_RETURNS));
}
static ad_tensor *plain_lower(ad_tape *t, ad_tensor *const *x) { return ad_lower(t, x[0], AD_SLOPE_PLAIN); }
static ad_tensor *plain_lower_of_full(ad_tape *t, ad_tensor *const *x) {
  return part_of(t, ad_lower(t, full(t, x[0]), AD_SLOPE_PLAIN));
}
static ad_tensor *upper(ad_tape *t, ad_tensor *const *x) { return ad_upper(t, x[0]); }
static ad_tensor *upper_of_full(ad_tape *t, ad_tensor *const *x) { return part_of(t, ad_upper(t, full(t, x[0]))); }
static ad_tensor *mix(ad_tape *t, ad_tensor *const *x) { return ad_mix(t, x[0], x[1]); }
static ad_tensor *mix_of_products(ad_tape *t, ad_tensor *const *x) {
  return difference(t, ad_add(t, x[0], x[1]), ad_multiply(t, x[0], x[1]));
}

static void clamps_of_parts_are_parts_of_the_clamp(void **state) {
  compare_on_all(lower, lower_of_full, both_sharded, 1, 0);
  compare_on_all(plain_lower, plain_lower_of_full, both_sharded, 1, 0);
  compare_on_all(upper, upper_of_full, both_sharded, 1, 0);
}

static void a_mix_is_the_sum_less_the_product(void **state) {
  compare_on_all(mix, mix_of_products, both_sharded, 2, 0);
  compare_on_all(mix, mix_of_products, rows_sharded, 2, 0);
}

/* The gradients from two users, of both signs, are summed before `lower` looks at their sign, also if
 * they are addends. */
static ad_tensor *lower_used_in_parts(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *y = ad_lower(t, x[0], AD_SLOPE_RETURNS), *used = ad_convert(t, y, "tp", AD_R);
  return ad_add(t, ad_all_reduce(t, ad_linear_transposed(t, ad_convert(t, used, "tp", AD_S(1)), x[1]), "tp", AD_I),
                ad_linear_transposed(t, y, x[2]));
}
static ad_tensor *lower_used_full(ad_tape *t, ad_tensor *const *x) {
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
      .composed = lower_used_full};
  compare(c);
  c.mesh = "tp=2";
  compare(c);
  c.mesh = "tp=1";
  compare(c);
}

/* ---- sums over rows ---- */

static ad_tensor *power_sums(ad_tape *t, ad_tensor *x) { return ad_power_sums(t, ad_multiply(t, x, x), 0.1, 1.3); }
static ad_tensor *sums_of_parts(ad_tape *t, ad_tensor *const *x) { return summed(t, power_sums(t, x[0])); }
static ad_tensor *sums_of_full(ad_tape *t, ad_tensor *const *x) {
  return ad_convert(t, power_sums(t, full(t, x[0])), "tp", AD_S(0));
}
/* The sums are all-reduced before their logarithm is taken; each rank of tp then has the logarithms of
 * its own columns. */
static ad_tensor *sparsity(ad_tape *t, ad_tensor *const *x) {
  return ad_all_reduce(t, ad_sparsity(t, summed(t, power_sums(t, x[0])), 0.75), "tp", AD_I);
}
static ad_tensor *sparsity_of_full(ad_tape *t, ad_tensor *const *x) {
  return ad_sparsity(t, power_sums(t, full(t, x[0])), 0.75);
}
/* The same with sums that are replicated (R), of which one copy counts. */
static ad_tensor *sparsity_once(ad_tape *t, ad_tensor *const *x) {
  ad_tensor *sums = ad_all_reduce(t, power_sums(t, x[0]), "dp_shard", AD_R);
  return ad_all_reduce(t, summed(t, ad_once(t, ad_sparsity(t, sums, 0.75), "dp_shard")), "tp", AD_I);
}
static void sums_of_powers_are_those_of_all_rows(void **state) {
  compare_on_all(sums_of_parts, sums_of_full, both_sharded, 1, 0);
}

static void sparsity_is_that_of_all_rows(void **state) {
  compare_on_all(sparsity, sparsity_of_full, both_sharded, 1, 0);
  compare_on_all(sparsity_once, sparsity_of_full, both_sharded, 1, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clamps_of_parts_are_parts_of_the_clamp),
      cmocka_unit_test(a_mix_is_the_sum_less_the_product),
      cmocka_unit_test(the_addends_of_a_gradient_are_added_before_lower),
      cmocka_unit_test(sums_of_powers_are_those_of_all_rows),
      cmocka_unit_test(sparsity_is_that_of_all_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
