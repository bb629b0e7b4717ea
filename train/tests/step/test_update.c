/* Tests the way from a recipe's numbers to the values after some steps: every optimizer setting arrives where it
 * belongs. Expected values are computed here, from the recipe's own text, by the formulas of the manual. */
#include "module/module.h"
#include "world.h"
#include "step/run.h"

#include <math.h>

/* Every setting differs from its default and from the others, so that two settings that change places are noticed. */
#define SCHEDULE \
  ", global_batch: 4, steps: 8, lr: 0.02, warmup: 3, final_lr_fraction: 0.3, clip: 0.4, weight_decay: 0.2"
enum { STEPS = 6, ELEMENTS_MAX = 1 << 14 };

static double expected_lr(int64_t step) {
  if (step < 3) return 0.02 * (double)(step + 1) / 4;
  double progress = (double)(step - 3) / (7 - 3);  // the last step, 7, has lr times final_lr_fraction
  return 0.02 * 0.3 + 0.02 * 0.7 * 0.5 * (1 + cos(acos(-1) * progress));
}

typedef struct element {
  double value, first, second;
} element;

static element elements[ELEMENTS_MAX];

typedef void (*update_function)(element *e, double grad, int64_t step, int decays);

static double beta1; /* of update_by_adamw */

static void update_by_adamw(element *e, double grad, int64_t step, int decays) {
  double t = (double)step + 1;
  e->first = beta1 * e->first + (1 - beta1) * grad;
  e->second = 0.97 * e->second + (1 - 0.97) * grad * grad;
  double first = e->first / (1 - pow(beta1, t)), second = e->second / (1 - pow(0.97, t));
  e->value -= expected_lr(step) * (first / (sqrt(second) + 1e-3) + (decays ? 0.2 : 0) * e->value);
}

static void update_by_sgd(element *e, double grad, int64_t step, int decays) {
  double g = grad + (decays ? 0.2 : 0) * e->value;
  e->first = 0.6 * e->first + g;
  e->value -= expected_lr(step) * (g + 0.6 * e->first);
}

static double square_sum(ad_run *run) {
  double sum = 0;
  for (size_t p = 0; p < ad_run_param_count(run); p++) {
    const ad_array *gradient = ad_run_part(run, p, AD_PART_GRADIENT);
    const double *data = gradient->data;
    for (int64_t i = 0; i < ad_shape_numel(&gradient->shape); i++) sum += data[i] * data[i];
  }
  return sum;
}

/* `starts`: takes the run's values as the expected ones; otherwise returns the largest difference from the expected
 * ones. */
static double worst_difference(ad_run *run, int starts) {
  double worst = 0;
  size_t at = 0;
  for (size_t p = 0; p < ad_run_param_count(run); p++) {
    const ad_array *value = ad_run_part(run, p, AD_PART_VALUE);
    const double *data = value->data;
    for (int64_t i = 0; i < ad_shape_numel(&value->shape); i++, at++) {
      assert_true(at < ELEMENTS_MAX);
      if (starts) elements[at] = (element){.value = data[i]};
      worst = fmax(worst, fabs(data[i] - elements[at].value));
    }
  }
  return worst;
}

static void expect_step(ad_run *run, int64_t step, double factor, update_function update) {
  size_t at = 0;
  for (size_t p = 0; p < ad_run_param_count(run); p++) {
    const ad_array *gradient = ad_run_part(run, p, AD_PART_GRADIENT);
    const double *data = gradient->data;
    int decays = ad_run_param_at(run, p).spec->decays;
    for (int64_t i = 0; i < ad_shape_numel(&gradient->shape); i++)
      update(&elements[at++], factor * data[i], step, decays);
  }
}

/* Takes the steps of a recipe with these settings and compares all values with the expected ones. */
static void steps_are_as_expected(const char *settings, update_function update) {
  ad_recipe *recipe = tiny_recipe("dp=1", "", settings);
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_comm *comm;
  ad_run *run;
  must(ad_comm_open_alone(&comm));
  must(ad_run_create(comm, recipe, &options, &run));
  worst_difference(run, 1);
  for (int64_t step = 0; step < STEPS; step++) {
    ad_step_report report;
    must(ad_run_step(run, step, &report));
    double norm = sqrt(square_sum(run));
    assert_true(fabs(report.norm - norm) < 1e-12 * norm);
    assert_true(fabs(report.lr - expected_lr(step)) < 1e-15);
    assert_true(norm > 0.4);  // the norm exceeds `clip`, so gradients are clipped
    expect_step(run, step, 0.4 / norm, update);
    double worst = worst_difference(run, 0);
    if (!(worst < 1e-12)) fail_msg("after step %d a value is off by %g", (int)step, worst);
  }
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static void a_step_takes_every_number_of_the_recipe(void **state) {
  beta1 = 0.7;
  steps_are_as_expected(SCHEDULE ", beta1: 0.7, beta2: 0.97, epsilon: 1e-3", update_by_adamw);
}

/* 0 in a recipe is 0, and not the default. */
static void a_beta_of_zero_is_taken(void **state) {
  beta1 = 0;
  steps_are_as_expected(SCHEDULE ", beta1: 0, beta2: 0.97, epsilon: 1e-3", update_by_adamw);
}

static void sgd_takes_every_number_of_the_recipe(void **state) {
  steps_are_as_expected(SCHEDULE "}\noptimizer: {kind: sgd, momentum: 0.6, nesterov: true", update_by_sgd);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_takes_every_number_of_the_recipe),
                                     cmocka_unit_test(a_beta_of_zero_is_taken),
                                     cmocka_unit_test(sgd_takes_every_number_of_the_recipe)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
