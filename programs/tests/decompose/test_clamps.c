/* Tests decompose's clamps at their corners and beside them, by their definitions: values, slopes, and a backward that
 * depends on the sign of the gradient. */
#include "../../../train/tests/tensor/world.h"
#include "decompose/operations.h"

typedef struct point {
  double x, gradient; /* gradient: of the result */
  double value, share;
} point;

enum { POINTS_MAX = 20 };

typedef ad_tensor *(*clamp)(ad_tape *t, ad_tensor *x);

static ad_tensor *lower(ad_tape *t, ad_tensor *x) { return ad_lower(t, x, AD_SLOPE_RETURNS); }
static ad_tensor *plain_lower(ad_tape *t, ad_tensor *x) { return ad_lower(t, x, AD_SLOPE_PLAIN); }
static ad_tensor *upper(ad_tape *t, ad_tensor *x) { return ad_upper(t, x); }

static ad_array on(const world *w, double *data, size_t n) {
  ad_array array = ad_array_describe(w->comm, AD_F64, &(ad_shape){1, {(int64_t)n}}, &w->layout);
  array.data = data;
  return array;
}

static int same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* Tests values and gradients at the points; x is used `times` times, so that gradients add up. */
static void hold(clamp f, const point *points, size_t n, int times) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_F64);
  double x[POINTS_MAX], gradient[POINTS_MAX];
  for (size_t i = 0; i < n; i++) x[i] = points[i].x, gradient[i] = points[i].gradient;
  ad_array inputs = on(&w, x, n), arrives = on(&w, gradient, n);
  arrives.layout = ad_layout_dual(&inputs.layout);
  ad_tensor *leaf = ad_input(t, &inputs);
  for (int time = 0; time < times; time++) {
    ad_tensor *y = f(t, leaf);
    must(ad_tape_status(t));
    for (size_t i = 0; i < n; i++) assert_true(same(element(ad_tensor_array(y), i), points[i].value));
    must(ad_backward_from(t, &y, (const ad_array *[]){&arrives}, 1, time == times - 1));
  }
  for (size_t i = 0; i < n; i++) assert_true(same(element(ad_grad(leaf), i), times * points[i].share));
  ad_tape_destroy(t);
  world_close(&w);
}
#define HOLD(f, ...)                      \
  for (int times = 1; times < 3; times++) \
  hold((f), (const point[]){__VA_ARGS__}, sizeof((const point[]){__VA_ARGS__}) / sizeof(point), times)

static void lower_lets_come_back_what_was_pushed_out(void **state) {
  HOLD(lower, {-3, -2, 0, 0.01 * -2}, {-3, 2, 0, 0}, {-1e-300, -2, 0, 0.01 * -2}, {-1e-300, 2, 0, 0}, {-3, 0, 0, 0},
       {0, -2, 0, -2}, {0, 2, 0, 2}, {-0.0, 2, 0, 2}, {0.25, -2, 0.25, -2}, {0.25, 2, 0.25, 2}, {1, -2, 1, -2},
       {1, 2, 1, 2}, {1.5, -2, 1, 0}, {1.5, 2, 1, 0});
}

static void the_plain_slope_of_lower_is_that_of_a_clamp(void **state) {
  HOLD(plain_lower, {-3, -2, 0, 0}, {-3, 2, 0, 0}, {0, -2, 0, -2}, {0, 2, 0, 2}, {0.25, -2, 0.25, -2}, {1, 2, 1, 2},
       {1.5, -2, 1, 0}, {1.5, 2, 1, 0});
}

static void upper_continues_slowly(void **state) {
  HOLD(upper, {-3, -2, 0, 0}, {-3, 2, 0, 0}, {0, -2, 0, -2}, {0, 2, 0, 2}, {0.25, -2, 0.25, -2}, {1, 2, 1, 2},
       {1.5, -2, 1 + 0.01 * 0.5, 0.01 * -2}, {1.5, 2, 1 + 0.01 * 0.5, 0.01 * 2});
}

static void what_is_no_number_stays_none(void **state) {
  HOLD(lower, {NAN, 2, NAN, 2}, {-3, NAN, 0, NAN}, {0.5, NAN, 0.5, NAN});
  HOLD(plain_lower, {NAN, 2, NAN, 2}, {0.5, NAN, 0.5, NAN});
  HOLD(upper, {NAN, NAN, NAN, NAN}, {0.5, NAN, 0.5, NAN}, {1.5, NAN, 1 + 0.01 * 0.5, NAN});
}

/* The gradients of two addends do not sum to the gradient of their sum, which is why a P gradient is refused
 * (test_types.c). */
static void the_backward_of_lower_is_not_linear(void **state) {
  HOLD(lower, {-3, -2 + 1.5, 0, 0.01 * (-2 + 1.5)}, {-3, -2, 0, 0.01 * -2}, {-3, 1.5, 0, 0});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lower_lets_come_back_what_was_pushed_out),
      cmocka_unit_test(the_plain_slope_of_lower_is_that_of_a_clamp),
      cmocka_unit_test(upper_continues_slowly),
      cmocka_unit_test(what_is_no_number_stays_none),
      cmocka_unit_test(the_backward_of_lower_is_not_linear),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
