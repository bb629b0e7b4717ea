/* Tests AdamW against its formula written out in f64, its argument checks and its state; learning rate schedules and
 * clipping. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "addend/optim.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "optim/record.h"
#include "says.h"

enum { NUMEL = 1031, STEPS = 5 };  // NUMEL is odd, and longer than one block of zeros

typedef struct world {
  ad_mesh *mesh;
  ad_layout layout;
} world;

static world open_world(const char *text, ad_type type) {
  world w;
  assert_int_equal(ad_mesh_create(text, &w.mesh), AD_OK);
  w.layout = ad_layout_all(w.mesh, type);
  return w;
}

static ad_array array_of(const world *w, ad_dtype dtype, void *data, int64_t numel) {
  ad_shape shape = {1, {numel}};
  return (ad_array){.dtype = dtype, .shape = shape, .local = shape, .layout = w->layout, .data = data};
}

static void fill(double *out, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++) out[i] = ad_random_normal(3, ad_random_stream(name), i);
}

/* The paper's formula, one element at a time. */
typedef struct reference {
  double param, first, second;
} reference;
static void reference_step(reference *r, double grad, int t, double lr, double decay) {
  r->first = 0.9 * r->first + 0.1 * grad;
  r->second = 0.95 * r->second + 0.05 * grad * grad;
  double first = r->first / (1 - pow(0.9, t)), second = r->second / (1 - pow(0.95, t));
  r->param -= lr * (first / (sqrt(second) + 1e-8) + decay * r->param);
}

static ad_optimizer *optimizer_of(const ad_array *param, double decay) {
  ad_optimizer *optimizer;
  ad_optimizer_options options = {.size = sizeof options, .weight_decay = decay};
  assert_int_equal(ad_optimizer_create(&param, NULL, 1, &options, &optimizer), AD_OK);
  return optimizer;
}

static void step_of(ad_optimizer *optimizer, ad_array *param, const ad_array *grad, double lr, double factor) {
  assert_int_equal(ad_optimizer_step_at(optimizer, &param, &grad, lr, factor, "test.c:1"), AD_OK);
}

static void the_update_follows_the_formula(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  static double values[NUMEL], grads[NUMEL];
  static reference expected[NUMEL];
  fill(values, NUMEL, "values");
  memset(expected, 0, sizeof expected);
  for (int i = 0; i < NUMEL; i++) expected[i].param = values[i];
  ad_array param = array_of(&w, AD_F64, values, NUMEL), grad = array_of(&w, AD_F64, grads, NUMEL);
  ad_optimizer *optimizer = optimizer_of(&param, 0.1);
  for (int t = 1; t <= STEPS; t++) {
    fill(grads, NUMEL, t % 2 ? "odd" : "even");
    step_of(optimizer, &param, &grad, 0.01, 0.5);
    for (int i = 0; i < NUMEL; i++) reference_step(&expected[i], 0.5 * grads[i], t, 0.01, 0.1);
  }
  for (int i = 0; i < NUMEL; i++) assert_true(fabs(values[i] - expected[i].param) < 1e-13);
  assert_int_equal(ad_optimizer_steps(optimizer), STEPS);
  assert_int_equal(ad_optimizer_bytes(optimizer), 2 * NUMEL * sizeof(double));
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

/* beta1 0 (PyTorch's betas=(0, 0.95)): the moment is the gradient, and the first step's correction is 1. beta2 0: the
 * root is the gradient's own size. */
static void a_beta_of_zero_is_zero(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  const double grads[] = {0.5, -2, 0.25};
  for (int which = 1; which <= 2; which++) {
    double value = 1, grad, first = 0, second = 0, expected = 1;
    ad_array param = array_of(&w, AD_F64, &value, 1), gradient = array_of(&w, AD_F64, &grad, 1);
    const ad_array *params[] = {&param};
    ad_optimizer *optimizer;
    ad_optimizer_options options = {.size = sizeof options};
    *(which == 1 ? &options.beta1 : &options.beta2) = AD_BETA_ZERO;
    assert_int_equal(ad_optimizer_create(params, NULL, 1, &options, &optimizer), AD_OK);
    for (int t = 1; t <= 3; t++) {
      grad = grads[t - 1];
      step_of(optimizer, &param, &gradient, 0.01, 1);
      first = which == 1 ? grad : 0.9 * first + 0.1 * grad;
      second = which == 2 ? grad * grad : 0.95 * second + 0.05 * grad * grad;
      double m = which == 1 ? first : first / (1 - pow(0.9, t)), v = which == 2 ? second : second / (1 - pow(0.95, t));
      expected -= 0.01 * m / (sqrt(v) + 1e-8);
      assert_true(fabs(value - expected) < 1e-14);
    }
    ad_optimizer_destroy(optimizer);
  }
  ad_mesh_destroy(w.mesh);
}

static void f32_follows_f64_within_its_rounding(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  static double wide[NUMEL], wide_grads[NUMEL];
  static float narrow[NUMEL], narrow_grads[NUMEL];
  fill(wide, NUMEL, "values");
  fill(wide_grads, NUMEL, "odd");
  ad_cast(narrow, AD_F32, wide, AD_F64, NUMEL);
  ad_cast(narrow_grads, AD_F32, wide_grads, AD_F64, NUMEL);
  ad_array a = array_of(&w, AD_F64, wide, NUMEL), b = array_of(&w, AD_F32, narrow, NUMEL);
  ad_array a_grad = array_of(&w, AD_F64, wide_grads, NUMEL), b_grad = array_of(&w, AD_F32, narrow_grads, NUMEL);
  ad_optimizer *one = optimizer_of(&a, 0.1), *other = optimizer_of(&b, 0.1);
  for (int t = 0; t < STEPS; t++) {
    step_of(one, &a, &a_grad, 0.01, 1);
    step_of(other, &b, &b_grad, 0.01, 1);
  }
  for (int i = 0; i < NUMEL; i++) assert_true(fabs(wide[i] - narrow[i]) < 1e-6 * (1 + fabs(wide[i])));
  ad_optimizer_destroy(one);
  ad_optimizer_destroy(other);
  ad_mesh_destroy(w.mesh);
}

/* Values after some steps with one vector variant, at an odd offset and length. */
static void run_variant(const world *w, ad_variant variant, ad_dtype dtype, size_t offset, int64_t numel,
                        uint8_t *out) {
  static double values[NUMEL], grads[NUMEL], from[NUMEL];
  fill(from, NUMEL, "values");
  ad_cast(values, dtype, from, AD_F64, NUMEL);
  fill(from, NUMEL, "odd");
  ad_cast(grads, dtype, from, AD_F64, NUMEL);
  size_t size = ad_dtype_size(dtype);
  ad_array param = array_of(w, dtype, (char *)values + offset * size, numel);
  ad_array grad = array_of(w, dtype, (char *)grads + offset * size, numel);
  ad_kernels_choose(variant);
  ad_optimizer *optimizer = optimizer_of(&param, 0.1);
  for (int t = 0; t < STEPS; t++) step_of(optimizer, &param, &grad, 0.01, 0.7);
  memcpy(out, values, NUMEL * size);
  ad_optimizer_destroy(optimizer);
}

static void every_variant_gives_the_same_bits(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  static uint8_t plain[NUMEL * 8], wide[NUMEL * 8];
  const ad_dtype dtypes[] = {AD_F32, AD_F64};
  ad_variant best = ad_kernels_best();
  for (int d = 0; d < 2; d++) {
    for (size_t offset = 0; offset < 9; offset += 4) {
      for (int64_t numel = 1000; numel < 1019; numel++) {
        run_variant(&w, AD_PLAIN, dtypes[d], offset, numel, plain);
        for (int v = AD_PLAIN + 1; v <= (int)best; v++) {
          run_variant(&w, (ad_variant)v, dtypes[d], offset, numel, wide);
          assert_memory_equal(plain, wide, NUMEL * ad_dtype_size(dtypes[d]));
        }
      }
    }
  }
  ad_kernels_choose(best);
  ad_mesh_destroy(w.mesh);
}

static void a_missing_gradient_counts_as_zero(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  static float values[NUMEL], same[NUMEL], zeros[NUMEL], ones[NUMEL];
  for (int i = 0; i < NUMEL; i++) values[i] = same[i] = ones[i] = (float)(i + 1);
  ad_array a = array_of(&w, AD_F32, values, NUMEL), b = array_of(&w, AD_F32, same, NUMEL);
  ad_array zero = array_of(&w, AD_F32, zeros, NUMEL), one = array_of(&w, AD_F32, ones, NUMEL);
  ad_optimizer *with = optimizer_of(&a, 0.1), *without = optimizer_of(&b, 0.1);
  step_of(with, &a, &one, 0.1, 1);
  step_of(without, &b, &one, 0.1, 1);
  step_of(with, &a, &zero, 0.1, 1);
  step_of(without, &b, NULL, 0.1, 1);
  assert_memory_equal(values, same, sizeof values);
  ad_optimizer_destroy(with);
  ad_optimizer_destroy(without);
  ad_mesh_destroy(w.mesh);
}

static void a_gradient_of_another_dtype_is_converted_first(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  static float values[NUMEL], same[NUMEL], grads[NUMEL];
  static double wide[NUMEL];
  fill(wide, NUMEL, "odd");
  ad_cast(grads, AD_F32, wide, AD_F64, NUMEL);
  ad_array a = array_of(&w, AD_F32, values, NUMEL), b = array_of(&w, AD_F32, same, NUMEL);
  ad_array narrow = array_of(&w, AD_F32, grads, NUMEL), wider = array_of(&w, AD_F64, wide, NUMEL);
  ad_optimizer *one = optimizer_of(&a, 0), *other = optimizer_of(&b, 0);
  step_of(one, &a, &narrow, 0.1, 0.5);
  step_of(other, &b, &wider, 0.1, 0.5);
  assert_memory_equal(values, same, sizeof values);
  assert_true(values[NUMEL - 1] != 0);
  ad_optimizer_destroy(one);
  ad_optimizer_destroy(other);
  ad_mesh_destroy(w.mesh);
}

static void decay_applies_only_where_it_is_wanted(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  double decayed[1] = {2}, kept[1] = {2};
  ad_array a = array_of(&w, AD_F64, decayed, 1), b = array_of(&w, AD_F64, kept, 1);
  const ad_array *borrowed[] = {&a, &b}, *grads[] = {NULL, NULL};
  ad_array *params[] = {&a, &b};
  ad_optimizer_options options = {.size = sizeof options, .weight_decay = 0.5};
  ad_optimizer *optimizer;
  const ad_param_spec specs[] = {{.size = sizeof *specs, .decays = 1}, {.size = sizeof *specs, .decays = 0}};
  assert_int_equal(ad_optimizer_create(borrowed, specs, 2, &options, &optimizer), AD_OK);
  assert_int_equal(ad_optimizer_step_at(optimizer, params, grads, 0.1, 1, "test.c:1"), AD_OK);
  assert_true(decayed[0] == 2 - 0.1 * (0.5 * 2));
  assert_true(kept[0] == 2);
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

static void an_empty_shard_is_a_shard(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  float nothing[1] = {0};
  ad_array param = array_of(&w, AD_F32, nothing, 0);
  ad_optimizer *optimizer = optimizer_of(&param, 0);
  step_of(optimizer, &param, &param, 0.1, 1);
  step_of(optimizer, &param, NULL, 0.1, 1);
  assert_int_equal(ad_optimizer_steps(optimizer), 2);
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

static void is_refused(ad_optimizer *optimizer, ad_array *param, const ad_array *grad, ad_status status) {
  float before = *(float *)param->data;
  assert_int_equal(ad_optimizer_step_at(optimizer, &param, &grad, 0.1, 1, "train.c:7"), status);
  assert_true(*(float *)param->data == before);
  assert_int_equal(ad_optimizer_steps(optimizer), 0);
}
#define refused(optimizer, param, grad, status, ...) \
  (is_refused((optimizer), (param), (grad), (status)), assert_says(__VA_ARGS__))

static void what_does_not_fit_updates_nothing(void **state) {
  world w = open_world("dp_replicate=2", AD_R);
  float values[4] = {1, 2, 3, 4}, grads[4] = {1, 1, 1, 1};
  ad_array param = array_of(&w, AD_F32, values, 4), grad = array_of(&w, AD_F32, grads, 4);
  ad_optimizer *optimizer = optimizer_of(&param, 0);
  ad_array partial = grad, scaled = grad, short_one = array_of(&w, AD_F32, grads, 3);
  ad_array whole_numbers = grad, wide = param;
  partial.layout = ad_layout_all(w.mesh, AD_P);
  scaled.scale = 2;
  whole_numbers.dtype = AD_I32;
  wide.dtype = AD_F64;
  ad_array missing = grad, mine = grad;
  missing.data = NULL;
  mine.local = short_one.shape;
  refused(optimizer, &param, &short_one, AD_INVALID, "train.c:7", "AdamW", "gradient 0", "[3]", "[4]");
  refused(optimizer, &param, &mine, AD_INVALID, "train.c:7", "AdamW", "gradient 0", "[3]", "[4]");
  refused(optimizer, &param, &missing, AD_INVALID, "train.c:7", "AdamW", "gradient 0");
  refused(optimizer, &param, &scaled, AD_TYPE, "train.c:7", "AdamW", "gradient 0", "2^-2");
  refused(optimizer, &param, &whole_numbers, AD_TYPE, "train.c:7", "AdamW", "gradient 0", "i32");
  refused(optimizer, &wide, &grad, AD_TYPE, "train.c:7", "AdamW", "parameter 0", "f64", "f32");
  assert_int_equal(
      ad_optimizer_step_at(optimizer, (ad_array *[]){&param}, (const ad_array *[]){&partial}, 0.1, 1, "train.c:7"),
      AD_TYPE);
  assert_says("train.c:7", "AdamW", "gradient 0", "dp_replicate=P", "dp_replicate=R");
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

static void options_that_mean_nothing_are_refused(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  float value = 1;
  ad_array param = array_of(&w, AD_F32, &value, 1), half = array_of(&w, AD_F16, &value, 1), times = param;
  const ad_array *params[] = {&param};
  ad_optimizer *optimizer;
  times.scale = 3;
  static const struct {
    ad_optimizer_options is;
    const char *facts[5];
  } wrong[] = {{{.beta1 = 1}, {"beta1", "beta2", "1", "0.95"}},
               {{.beta1 = -0.1}, {"beta1", "beta2", "-0.1", "0.95"}},
               {{.beta2 = 1}, {"beta1", "beta2", "0.9", "1"}},
               {{.beta2 = -0.1}, {"beta1", "beta2", "0.9", "-0.1"}},
               {{.epsilon = -1}, {"epsilon", "0", "-1"}},
               {{.epsilon = INFINITY}, {"epsilon", "0"}},
               {{.weight_decay = -0.5}, {"weight_decay", "0", "-0.5"}},
               {{.weight_decay = INFINITY}, {"weight_decay", "0"}},
               {{.weight_decay = NAN}, {"weight_decay", "0"}}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_optimizer_options options = wrong[i].is;
    options.size = sizeof options;
    assert_int_equal(ad_optimizer_create(params, NULL, 1, &options, &optimizer), AD_INVALID);
    assert_says_all(wrong[i].facts);
  }
  ad_optimizer_options right = {.size = sizeof right, .beta1 = 0.999, .beta2 = 0.999, .epsilon = 1e-30};
  assert_int_equal(ad_optimizer_create(params, NULL, 1, &right, &optimizer), AD_OK);
  ad_optimizer_destroy(optimizer);
  const ad_array *halves[] = {&param, &half}, *scaled[] = {&param, &times};
  assert_int_equal(ad_optimizer_create(halves, NULL, 2, NULL, &optimizer), AD_INVALID);
  assert_says("AdamW", "parameter 1", "f16", "f32", "f64");
  assert_int_equal(ad_optimizer_create(scaled, NULL, 2, NULL, &optimizer), AD_TYPE);
  assert_says("AdamW", "parameter 1", "2^-3");
  ad_mesh_destroy(w.mesh);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  float value[2] = {1, 2};
  ad_array param = array_of(&w, AD_F32, value, 2);
  const ad_array *params[] = {&param, &param};
  ad_optimizer *optimizer = NULL;
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_memory_fail_at(n);
    status = ad_optimizer_create(params, NULL, 2, NULL, &optimizer);
    assert_true(reports_allocation(n, status));
    if (status) assert_null(optimizer);
    assert_true(n < 100);
  }
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

static double rate_at(const ad_schedule *schedule, int64_t step) {
  double rate = NAN;
  assert_int_equal(ad_schedule_at(schedule, step, &rate), AD_OK);
  return rate;
}

static double clip_of(double norm, double clip) {
  double factor = NAN;
  assert_int_equal(ad_clip_factor(norm, clip, &factor), AD_OK);
  return factor;
}

static void the_schedule_rises_and_falls(void **state) {
  ad_schedule schedule = {.size = sizeof schedule, .lr = 2, .warmup = 3, .steps = 14, .final_fraction = 0.1};
  assert_true(rate_at(&schedule, 0) == 0.5);
  assert_true(rate_at(&schedule, 2) == 1.5);
  assert_true(rate_at(&schedule, 3) == 2);
  assert_true(fabs(rate_at(&schedule, 8) - 1.1) < 1e-15);  // halfway down
  assert_true(rate_at(&schedule, 12) > 0.2);
  assert_true(rate_at(&schedule, 13) == 0.2);  // the last step
  assert_true(rate_at(&schedule, 14) == 0.2);
  assert_true(rate_at(&schedule, 1000) == 0.2);
  for (int64_t step = 3; step < 13; step++) assert_true(rate_at(&schedule, step + 1) < rate_at(&schedule, step));
}

static void a_schedule_without_warm_up_or_without_an_end_to_it(void **state) {
  ad_schedule none = {.size = sizeof none, .lr = 1, .warmup = 0, .steps = 3, .final_fraction = 0};
  assert_true(rate_at(&none, 0) == 1);
  assert_true(fabs(rate_at(&none, 1) - 0.5) < 1e-15);
  assert_true(rate_at(&none, 2) == 0);
  ad_schedule single = {.size = sizeof single, .lr = 1, .warmup = 2, .steps = 3, .final_fraction = 0.5};
  assert_true(rate_at(&single, 2) == 1);
  assert_true(rate_at(&single, 3) == 0.5);
  ad_schedule longer = {.size = sizeof longer, .lr = 1, .warmup = 10, .steps = 4, .final_fraction = 0.5};
  assert_true(rate_at(&longer, 3) < 1);
  assert_true(rate_at(&longer, 10) == 0.5);
}

static void clipping_only_shrinks(void **state) {
  assert_true(clip_of(4, 1) == 0.25);
  assert_true(clip_of(0.5, 1) == 1);
  assert_true(clip_of(1, 1) == 1);
  assert_true(clip_of(0, 1) == 1);
  assert_true(clip_of(1e9, 0) == 1);
}

static void a_loss_scale_falls_on_overflow_and_rises_after_good_steps(void **state) {
  ad_loss_scale scale = {.enabled = 1, .exponent = 10, .growth = 3};
  assert_true(ad_loss_scale_factor(&scale) == 1.0 / 1024);
  assert_false(ad_loss_scale_update(&scale, INFINITY));
  assert_false(ad_loss_scale_update(&scale, NAN));
  assert_int_equal(scale.exponent, 8);
  for (int i = 0; i < 2; i++) assert_true(ad_loss_scale_update(&scale, 1));
  assert_false(ad_loss_scale_update(&scale, INFINITY));  // an overflow starts the count of good steps again
  for (int i = 0; i < 2; i++) assert_true(ad_loss_scale_update(&scale, 1));
  assert_int_equal(scale.exponent, 7);
  assert_true(ad_loss_scale_update(&scale, 1));
  assert_int_equal(scale.exponent, 8);
}

static void a_loss_scale_that_rose_waits_as_long_again(void **state) {
  ad_loss_scale scale = {.enabled = 1, .exponent = 4, .growth = 3};
  for (int step = 1; step <= 12; step++) {
    assert_true(ad_loss_scale_update(&scale, 1));
    assert_int_equal(scale.exponent, 4 + step / 3);
    assert_int_equal(scale.good_steps, step % 3);
  }
}

/* Without a number of good steps, as PyTorch's GradScaler: 2000. */
static void a_loss_scale_that_says_nothing_waits_for_two_thousand_steps(void **state) {
  ad_loss_scale scale = {.enabled = 1, .exponent = 4};
  for (int step = 1; step <= 2000; step++) {
    assert_int_equal(scale.exponent, 4);
    assert_true(ad_loss_scale_update(&scale, 1));
  }
  assert_int_equal(scale.exponent, 5);
}

static void a_loss_scale_that_is_not_enabled_only_judges(void **state) {
  ad_loss_scale scale = {.exponent = 10, .growth = 1};
  assert_true(ad_loss_scale_update(&scale, 1));
  assert_false(ad_loss_scale_update(&scale, NAN));
  assert_int_equal(scale.exponent, 10);
  assert_true(ad_loss_scale_factor(&scale) == 1);
}

static void a_loss_scale_stays_in_its_range(void **state) {
  ad_loss_scale scale = {.enabled = 1, .growth = 1};
  for (int i = 0; i < 100; i++) assert_true(ad_loss_scale_update(&scale, 1));
  assert_true(ad_loss_scale_factor(&scale) == 0x1p-24);
  for (int i = 0; i < 100; i++) assert_false(ad_loss_scale_update(&scale, NAN));
  assert_true(ad_loss_scale_factor(&scale) == 0x1p24);
}

static void a_parameter_without_data_has_state_without_data(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  double data[NUMEL] = {0}, grads[NUMEL] = {1};
  ad_array param = array_of(&w, AD_F64, NULL, NUMEL), grad = array_of(&w, AD_F64, NULL, NUMEL);
  ad_array real = array_of(&w, AD_F64, data, NUMEL), real_grad = array_of(&w, AD_F64, grads, NUMEL);
  ad_optimizer *dry = optimizer_of(&param, 0), *held = optimizer_of(&real, 0);
  assert_null(ad_optimizer_state(dry, 0, 0)->data);
  assert_null(ad_optimizer_state(dry, 0, 1)->data);
  assert_int_equal(ad_optimizer_bytes(dry), ad_optimizer_bytes(held));
  step_of(dry, &param, &grad, 0.1, 1);
  ad_array *late = &real;
  const ad_array *late_grad = &real_grad;
  assert_int_equal(ad_optimizer_step_at(dry, &late, &late_grad, 0.1, 1, "test.c:1"), AD_INVALID);
  ad_optimizer_destroy(dry);
  ad_optimizer_destroy(held);
  ad_mesh_destroy(w.mesh);
}

/* ---- numbers that are not finite change nothing ---- */

static void a_schedule_of_a_number_that_is_not_finite_gives_no_rate(void **state) {
  const ad_schedule right = {.size = sizeof right, .lr = 2, .warmup = 3, .steps = 14, .final_fraction = 0.1};
  static const double wrong[] = {NAN, INFINITY, -INFINITY, -1e-300};
  double rate = 7;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ad_schedule lr = right, fraction = right;
    lr.lr = fraction.final_fraction = wrong[i];
    assert_int_equal(ad_schedule_at(&lr, 0, &rate), AD_INVALID);
    assert_int_equal(ad_schedule_at(&fraction, 0, &rate), AD_INVALID);
  }
  ad_schedule unsized = right, warmup = right, steps = right;
  unsized.size = 0;
  warmup.warmup = steps.steps = -1;
  assert_int_equal(ad_schedule_at(&unsized, 0, &rate), AD_INVALID);
  assert_int_equal(ad_schedule_at(&warmup, 0, &rate), AD_INVALID);
  assert_int_equal(ad_schedule_at(&steps, 0, &rate), AD_INVALID);
  assert_int_equal(ad_schedule_at(&right, -1, &rate), AD_INVALID);
  assert_int_equal(ad_schedule_at(NULL, 0, &rate), AD_INVALID);
  assert_true(rate == 7);
  assert_int_equal(ad_schedule_at(&right, 0, &rate), AD_OK);
  assert_true(rate == 0.5);
}

static void a_norm_or_a_clip_that_is_not_finite_gives_no_factor(void **state) {
  static const double wrong[] = {NAN, INFINITY, -1e-300};
  double factor = 7;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(ad_clip_factor(1, wrong[i], &factor), AD_INVALID);
    assert_int_equal(ad_clip_factor(wrong[i], 1, &factor), AD_NUMBER);
  }
  assert_true(factor == 7);
  assert_int_equal(ad_clip_factor(1, 1, NULL), AD_INVALID);
}

static void a_step_by_a_number_that_is_not_finite_updates_nothing(void **state) {
  static const double wrong[] = {NAN, INFINITY, -INFINITY};
  world w = open_world("dp_shard=1", AD_R);
  float value[2] = {1, 2}, gradient[2] = {3, 4};
  ad_array param = array_of(&w, AD_F32, value, 2), grad = array_of(&w, AD_F32, gradient, 2), *params[] = {&param};
  const ad_array *read[] = {&param}, *grads[] = {&grad};
  ad_optimizer *optimizer;
  assert_int_equal(ad_optimizer_create(read, NULL, 1, NULL, &optimizer), AD_OK);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(ad_optimizer_step(optimizer, params, grads, wrong[i], 1), AD_INVALID);
    assert_int_equal(ad_optimizer_step(optimizer, params, grads, 1, wrong[i]), AD_INVALID);
    const ad_optimizer_options options[] = {{.size = sizeof *options, .beta1 = wrong[i]},
                                            {.size = sizeof *options, .beta2 = wrong[i]},
                                            {.size = sizeof *options, .epsilon = wrong[i]},
                                            {.size = sizeof *options, .weight_decay = wrong[i]}};
    ad_optimizer *none = NULL;
    for (size_t k = 0; k < sizeof options / sizeof *options; k++)
      assert_int_equal(ad_optimizer_create(read, NULL, 1, &options[k], &none), AD_INVALID);
    assert_null(none);
  }
  assert_true(value[0] == 1 && value[1] == 2 && ad_optimizer_steps(optimizer) == 0);
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(w.mesh);
}

/* ---- groups ---- */

/* Three parameters of one element. Parameter 0 and parameter 2 share a group of AdamW; parameter 1 is updated by SGD. */
typedef struct grouped {
  world w;
  double values[3], grads[3];
  ad_array params[3], gradients[3];
  ad_array *write[3];
  const ad_array *read[3], *given[3];
} grouped;

static grouped *open_grouped(void) {
  static grouped g;
  g = (grouped){.w = open_world("dp_shard=1", AD_R), .values = {1, 2, 3}, .grads = {0.5, -2, 0.25}};
  for (int i = 0; i < 3; i++) {
    g.params[i] = array_of(&g.w, AD_F64, &g.values[i], 1);
    g.gradients[i] = array_of(&g.w, AD_F64, &g.grads[i], 1);
    g.read[i] = g.write[i] = &g.params[i];
    g.given[i] = &g.gradients[i];
  }
  return &g;
}

static const ad_optimizer_options two_groups[] = {{.size = sizeof *two_groups, .kind = AD_SGD, .momentum = 0.5},
                                                  {.size = sizeof *two_groups, .weight_decay = 0.5}};
static const size_t group_of[] = {1, 0, 1};

static ad_optimizer *create_grouped(const grouped *g, const ad_param_spec *specs) {
  ad_optimizer_setup setup = {.size = sizeof setup, .groups = two_groups, .group_count = 2, .group_of = group_of};
  ad_optimizer *optimizer;
  assert_int_equal(ad_optimizer_create_groups(g->read, specs, 3, &setup, &optimizer), AD_OK);
  return optimizer;
}

static void each_group_has_its_own_optimizer_and_rate(void **state) {
  grouped *g = open_grouped();
  ad_optimizer *optimizer = create_grouped(g, NULL);
  reference first = {.param = 1}, third = {.param = 3};
  double sgd = 2, momentum = 0;
  for (int t = 1; t <= 3; t++) {
    const double rates[] = {0.125, 0.01 * t};
    assert_int_equal(ad_optimizer_step_rates(optimizer, g->write, g->given, rates, 1), AD_OK);
    reference_step(&first, 0.5, t, rates[1], 0.5);
    reference_step(&third, 0.25, t, rates[1], 0.5);
    momentum = 0.5 * momentum - 2;
    sgd -= rates[0] * momentum;
  }
  assert_true(fabs(g->values[0] - first.param) < 1e-14 && fabs(g->values[2] - third.param) < 1e-14);
  assert_true(g->values[1] == sgd);
  assert_null(ad_optimizer_state(optimizer, 1, 1));
  assert_non_null(ad_optimizer_state(optimizer, 2, 1));
  assert_int_equal(ad_optimizer_bytes(optimizer), 5 * sizeof(double));
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(g->w.mesh);
}

static void a_frozen_parameter_has_no_state_and_stays(void **state) {
  grouped *g = open_grouped();
  ad_param_spec specs[3] = {
      [0] = {.size = sizeof *specs}, [1] = {.size = sizeof *specs}, [2] = {.size = sizeof *specs}};
  specs[0].frozen = 1;
  specs[2].decays = 0;
  ad_optimizer *optimizer = create_grouped(g, specs);
  g->given[0] = NULL;
  g->write[0] = NULL;
  assert_int_equal(ad_optimizer_step(optimizer, g->write, g->given, 0.125, 1), AD_OK);
  reference third = {.param = 3};
  reference_step(&third, 0.25, 1, 0.125, 0);
  assert_true(g->values[0] == 1 && g->values[1] == 2.25 && fabs(g->values[2] - third.param) < 1e-14);
  assert_null(ad_optimizer_state(optimizer, 0, 0));
  assert_int_equal(ad_optimizer_bytes(optimizer), 3 * sizeof(double));
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(g->w.mesh);
}

static void decays_all_means_all(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  for (int all = 0; all < 2; all++) {
    double value = 1;
    ad_array param = array_of(&w, AD_F64, &value, 1);
    const ad_array *read = &param;
    ad_param_spec spec = {.size = sizeof spec, .decays = 0};
    ad_optimizer_options options = {.size = sizeof options, .weight_decay = 0.5, .decays_all = all};
    ad_optimizer *optimizer;
    assert_int_equal(ad_optimizer_create(&read, &spec, 1, &options, &optimizer), AD_OK);
    step_of(optimizer, &param, NULL, 0.5, 1);
    assert_true(value == (all ? 0.75 : 1));
    ad_optimizer_destroy(optimizer);
  }
  ad_mesh_destroy(w.mesh);
}

/* A parameter whose states begin anew after 7 steps takes the steps that a new optimizer would take. */
static void states_that_begin_later_are_corrected_from_there(void **state) {
  world w = open_world("dp_shard=1", AD_R);
  double values[2] = {1, 1}, grad = 0.5;
  ad_array gradient = array_of(&w, AD_F64, &grad, 1);
  for (int late = 0; late < 2; late++) {
    ad_array param = array_of(&w, AD_F64, &values[late], 1);
    ad_optimizer *optimizer = optimizer_of(&param, 0);
    assert_int_equal(ad_optimizer_begin_states(optimizer, 0, 7), AD_INVALID);
    if (late) {
      assert_int_equal(ad_optimizer_set_steps(optimizer, 7), AD_OK);
      assert_int_equal(ad_optimizer_begin_states(optimizer, 0, 7), AD_OK);
      assert_int_equal(ad_optimizer_begin_states(optimizer, 1, 7), AD_INVALID);
    }
    for (int t = 0; t < 3; t++) step_of(optimizer, &param, &gradient, 0.01, 1);
    assert_int_equal(ad_optimizer_steps(optimizer), late ? 10 : 3);
    ad_optimizer_destroy(optimizer);
  }
  assert_true(values[0] == values[1] && values[0] != 1);
  ad_mesh_destroy(w.mesh);
}

static void groups_that_do_not_fit_are_refused(void **state) {
  grouped *g = open_grouped();
  const size_t beyond[] = {1, 2, 0};
  ad_optimizer_setup wrong = {.size = sizeof wrong, .groups = two_groups, .group_count = 2, .group_of = beyond};
  ad_optimizer *none = NULL;
  assert_int_equal(ad_optimizer_create_groups(g->read, NULL, 3, &wrong, &none), AD_INVALID);
  assert_says("parameter 1", "group 2");
  wrong = (ad_optimizer_setup){.size = sizeof wrong, .groups = two_groups};
  assert_int_equal(ad_optimizer_create_groups(g->read, NULL, 3, &wrong, &none), AD_INVALID);
  assert_says("group_count");
  assert_null(none);
  ad_optimizer *optimizer = create_grouped(g, NULL);
  const double rates[] = {0.1, NAN};
  assert_int_equal(ad_optimizer_step_rates(optimizer, g->write, g->given, rates, 1), AD_INVALID);
  assert_says("AdamW", "group 1");
  assert_true(g->values[0] == 1 && g->values[1] == 2 && ad_optimizer_steps(optimizer) == 0);
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(g->w.mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_group_has_its_own_optimizer_and_rate),
      cmocka_unit_test(a_frozen_parameter_has_no_state_and_stays),
      cmocka_unit_test(decays_all_means_all),
      cmocka_unit_test(states_that_begin_later_are_corrected_from_there),
      cmocka_unit_test(groups_that_do_not_fit_are_refused),
      cmocka_unit_test(the_update_follows_the_formula),
      cmocka_unit_test(a_beta_of_zero_is_zero),
      cmocka_unit_test(f32_follows_f64_within_its_rounding),
      cmocka_unit_test(every_variant_gives_the_same_bits),
      cmocka_unit_test(a_missing_gradient_counts_as_zero),
      cmocka_unit_test(a_gradient_of_another_dtype_is_converted_first),
      cmocka_unit_test(decay_applies_only_where_it_is_wanted),
      cmocka_unit_test(an_empty_shard_is_a_shard),
      cmocka_unit_test(what_does_not_fit_updates_nothing),
      cmocka_unit_test(options_that_mean_nothing_are_refused),
      cmocka_unit_test(a_parameter_without_data_has_state_without_data),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
      cmocka_unit_test(the_schedule_rises_and_falls),
      cmocka_unit_test(a_schedule_without_warm_up_or_without_an_end_to_it),
      cmocka_unit_test(clipping_only_shrinks),
      cmocka_unit_test(a_schedule_of_a_number_that_is_not_finite_gives_no_rate),
      cmocka_unit_test(a_norm_or_a_clip_that_is_not_finite_gives_no_factor),
      cmocka_unit_test(a_step_by_a_number_that_is_not_finite_updates_nothing),
      cmocka_unit_test(a_loss_scale_falls_on_overflow_and_rises_after_good_steps),
      cmocka_unit_test(a_loss_scale_that_rose_waits_as_long_again),
      cmocka_unit_test(a_loss_scale_that_says_nothing_waits_for_two_thousand_steps),
      cmocka_unit_test(a_loss_scale_that_is_not_enabled_only_judges),
      cmocka_unit_test(a_loss_scale_stays_in_its_range),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
