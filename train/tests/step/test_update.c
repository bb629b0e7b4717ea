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

static double expected_lr(double lr, int64_t step) {
  if (step < 3) return lr * (double)(step + 1) / 4;
  double progress = (double)(step - 3) / (7 - 3);  // the last step, 7, has lr times final_lr_fraction
  return lr * 0.3 + lr * 0.7 * 0.5 * (1 + cos(acos(-1) * progress));
}

typedef struct element {
  double value, first, second;
} element;

static element elements[ELEMENTS_MAX];

typedef void (*update_function)(element *e, double grad, double lr, double decay, int64_t step);

/* How parameters are updated: by which formula, with which rate after warm-up, and with which decay. */
typedef struct rule {
  update_function update;
  double lr, decay;
  int decays_all; /* 1: those whose layer declares that they do not decay, too */
} rule;
/* Returns the rule for the parameter with this name. */
typedef rule (*rule_function)(const char *name);

static double beta1; /* of update_by_adamw */

static void update_by_adamw(element *e, double grad, double lr, double decay, int64_t step) {
  double t = (double)step + 1;
  e->first = beta1 * e->first + (1 - beta1) * grad;
  e->second = 0.97 * e->second + (1 - 0.97) * grad * grad;
  double first = e->first / (1 - pow(beta1, t)), second = e->second / (1 - pow(0.97, t));
  e->value -= lr * (first / (sqrt(second) + 1e-3) + decay * e->value);
}

static void update_by_sgd(element *e, double grad, double lr, double decay, int64_t step) {
  double g = grad + decay * e->value;
  e->first = 0.6 * e->first + g;
  e->value -= lr * (g + 0.6 * e->first);
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

static void expect_step(ad_run *run, int64_t step, double factor, rule_function rule_of) {
  size_t at = 0;
  for (size_t p = 0; p < ad_run_param_count(run); p++) {
    const ad_array *gradient = ad_run_part(run, p, AD_PART_GRADIENT);
    const double *data = gradient->data;
    const ad_param_spec *spec = ad_run_param_at(run, p).spec;
    rule by = rule_of(spec->name);
    double lr = expected_lr(by.lr, step), decay = spec->decays || by.decays_all ? by.decay : 0;
    for (int64_t i = 0; i < ad_shape_numel(&gradient->shape); i++)
      by.update(&elements[at++], factor * data[i], lr, decay, step);
  }
}

/* Takes the steps of a recipe with these settings and compares all values with the expected ones. */
static void steps_are_as_expected(const char *settings, rule_function rule_of) {
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
    assert_true(fabs(report.lr - expected_lr(0.02, step)) < 1e-15);
    assert_true(norm > 0.4);  // the norm exceeds `clip`, so gradients are clipped
    expect_step(run, step, 0.4 / norm, rule_of);
    double worst = worst_difference(run, 0);
    if (!(worst < 1e-12)) fail_msg("after step %d a value is off by %g", (int)step, worst);
  }
  ad_run_destroy(run);
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

static rule adamw(const char *name) { return (rule){update_by_adamw, 0.02, 0.2, 0}; }
static rule sgd(const char *name) { return (rule){update_by_sgd, 0.02, 0.2, 0}; }

static void a_step_takes_every_number_of_the_recipe(void **state) {
  beta1 = 0.7;
  steps_are_as_expected(SCHEDULE ", beta1: 0.7, beta2: 0.97, epsilon: 1e-3", adamw);
}

/* 0 in a recipe is 0, and not the default. */
static void a_beta_of_zero_is_taken(void **state) {
  beta1 = 0;
  steps_are_as_expected(SCHEDULE ", beta1: 0, beta2: 0.97, epsilon: 1e-3", adamw);
}

static void sgd_takes_every_number_of_the_recipe(void **state) {
  steps_are_as_expected(SCHEDULE "}\noptimizer: {kind: sgd, momentum: 0.6, nesterov: true", sgd);
}

/* The norms have a decay of their own although their layers declare none; what has a rate of 0 does not move. */
static rule by_group(const char *name) {
  if (strstr(name, "norm")) return (rule){update_by_sgd, 0.05, 0.03, 1};
  if (strstr(name, ".mlp.")) return (rule){update_by_adamw, 0.02, 0, 1};
  if (strstr(name, "embedding")) return (rule){update_by_adamw, 0, 0.2, 0};
  return adamw(name);
}

static void a_group_takes_every_number_of_its_own(void **state) {
  beta1 = 0.7;
  steps_are_as_expected(SCHEDULE
                        ", beta1: 0.7, beta2: 0.97, epsilon: 1e-3}\n"
                        "groups: [{match: \"*norm*\", kind: sgd, lr: 0.05, decay: 0.03}, {match: "
                        "\"*.mlp.*\", decay: 0}, {match: \"embedding.*\", lr: 0}]\n"
                        "optimizer: {momentum: 0.6, nesterov: true",
                        by_group);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_takes_every_number_of_the_recipe), cmocka_unit_test(a_beta_of_zero_is_taken),
      cmocka_unit_test(sgd_takes_every_number_of_the_recipe), cmocka_unit_test(a_group_takes_every_number_of_its_own)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
