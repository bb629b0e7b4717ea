/* Tests how a check judges the numbers of one step: each number is moved to just within the bound of
 * core/docs/dtypes.md and to just beyond it, in f64 and in the recipe's own dtypes. The bounds are computed here again
 * from the document. */
#include "world.h"

#include <math.h>

#include "kernels/kernels.h"
#include "check/checker.h"
#include "check/rounding.h"
#include "module/module.h"
#include "program/program.h"
#include "step/run.h"

#define WIDE 1e-12
#define LITTLE 1e-2

/* One real step of one rank and of its reference, whose numbers a test changes and judges again. */
typedef struct scene {
  ad_recipe *recipe;
  ad_comm *comm;
  ad_check_options options;
  ad_check_job job;
  ad_checker checker;
  ad_step_report dist, ref;
  ad_check_result *result;
} scene;

static scene *open_scene(ad_recipe *recipe, int own) {
  scene *s = calloc(1, sizeof *s);
  s->recipe = recipe;
  s->options = (ad_check_options){.size = sizeof s->options, .steps = 2, .recipe_dtype = own};
  must(ad_comm_open_alone(&s->comm));
  must(ad_check_result_create(recipe, &s->result));
  s->job = (ad_check_job){.recipe = recipe, .options = &s->options, .steps = 2, .result = s->result, .quiet = 1};
  must(ad_checker_create(&s->checker, s->comm, &s->job));
  ad_checker_begin(&s->checker);
  must(ad_checker_step(&s->checker, 0, &s->dist));
  s->result->complete = 1;
  assert_true(ad_check_result_passes(s->result, 0));
  s->ref = s->checker.reference_report;
  return s;
}

static void close_scene(scene *s) {
  ad_checker_destroy(&s->checker);
  ad_check_result_destroy(s->result);
  ad_comm_close(s->comm);
  ad_recipe_destroy(s->recipe);
  free(s);
}

/* Judges the step anew with the numbers as they now are; 1 if the check passes. */
static int judge(scene *s) {
  ad_checker_begin(&s->checker);
  ad_checker_judge(&s->checker, &s->dist);
  s->result->complete = 1;
  return ad_check_result_passes(s->result, 0);
}

/* ---- losses and norms of the step ---- */

/* Tests that *dist may differ from `ref` by `bound`, relative to the larger of both, and by no more. */
static void try_reported(scene *s, const char *what, double *dist, double ref, double bound) {
  double kept = *dist;
  for (int side = -1; side <= 1; side += 2) {
    /* the check measures |a-b| / max(|a|,|b|) */
    double within = bound * (1 - LITTLE), beyond = bound * (1 + LITTLE);
    *dist = side > 0 ? ref / (1 - within) : ref * (1 - within);
    if (!judge(s)) fail_msg("%s within %g is refused", what, bound);
    *dist = side > 0 ? ref / (1 - beyond) : ref * (1 - beyond);
    if (judge(s)) fail_msg("%s beyond %g is taken", what, bound);
  }
  *dist = NAN;
  if (judge(s)) fail_msg("%s that is no number is taken", what);
  *dist = kept;
  assert_true(judge(s));
}

static void try_none(scene *s, const char *what, double *dist) {
  *dist = 1e-200;
  if (judge(s)) fail_msg("%s that is something is taken", what);
  *dist = 0;
  assert_true(judge(s));
}

static const ad_program *program_of(const scene *s) { return ad_run_program(s->checker.run); }

static void each_loss_and_norm_is_held_to_1e_12_in_f64(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
  try_reported(s, "the loss", &s->dist.loss, s->ref.loss, WIDE);
  try_reported(s, "the first loss", &s->dist.losses[0], s->ref.losses[0], WIDE);
  for (int i = 1; i < AD_LOSSES_MAX; i++) try_none(s, "a loss of nothing", &s->dist.losses[i]);
  try_reported(s, "the norm", &s->dist.norm, s->ref.norm, WIDE);
  try_reported(s, "a group's norm", &s->dist.norms[0], s->ref.norms[0], WIDE);
  for (int g = 1; g < AD_NORM_GROUPS_MAX; g++) try_none(s, "a norm of nothing", &s->dist.norms[g]);
  close_scene(s);
}

/* The bound of the norm of all gradients of a norm group (-1: of all): from each gradient's bound and the rounding of
 * its reduction. */
static double allowed_norm(const scene *s, int group) {
  double squares = 0;
  for (size_t i = 0; i < s->checker.param_count; i++) {
    ad_run_param at = ad_run_param_at(s->checker.run, i);
    const double *sizes = s->checker.addends.sizes.full[i].data;
    ad_recipe_sharding sharding = ad_run_sharding(s->checker.run, i);
    ad_allowance each =
        ad_rounding_allowance(s->recipe, &sharding, at.spec, s->checker.gradients[i].dtype, s->dist.loss_scale);
    double reduced = 0;
    if (ad_program_module(program_of(s), at.module)->is_mirror) continue;
    if (group >= 0 && (int)ad_run_norm_group_of(s->checker.run, at.module) != group) continue;
    for (size_t k = 0; k < ad_array_numel(&s->checker.gradients[i]); k++)
      reduced += pow(each.relative * sizes[k] + each.absolute, 2);
    squares += pow(s->checker.computing.allowed[i] + sqrt(reduced), 2);
  }
  return sqrt(squares);
}

/* The relative bound of a loss, from the losses of the draws; loss -1: the total loss. */
static double allowed_loss(const scene *s, double ref, int loss) {
  const ad_step_report *drawn = ad_reference_draws(s->checker.reference)->reports;
  double losses[AD_DRAWS], largest = fabs(s->ref.loss);
  for (int i = 0; i < AD_LOSSES_MAX; i++) largest = fmax(largest, fabs(s->ref.losses[i]));
  for (int d = 0; d < AD_DRAWS; d++) losses[d] = loss < 0 ? drawn[d].loss : drawn[d].losses[loss];
  return ad_computing_of_loss(&s->checker.computing, losses, ref, largest) / fabs(ref);
}

/* A recipe with several modules, each norm group with its own norm. */
static ad_recipe *pools(void) {
  ad_recipe *recipe = NULL;
  const char *sets[] = {"placement=colocated"};
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/pools-1.yaml", sets, 1, &recipe));
  return recipe;
}

/* A loss that the program does not have must be 0; AD_LOSSES_MAX is the size of the array. */
static void try_own_loss(scene *s, int i) {
  if (s->ref.losses[i] != 0)
    try_reported(s, "one of the losses", &s->dist.losses[i], s->ref.losses[i], allowed_loss(s, s->ref.losses[i], i));
  else
    try_none(s, "a loss of nothing", &s->dist.losses[i]);
}

static void try_own_norm(scene *s, int g) {
  if (s->ref.norms[g] != 0)
    try_reported(s, "a group's norm", &s->dist.norms[g], s->ref.norms[g], allowed_norm(s, g) / s->ref.norms[g]);
  else
    try_none(s, "a norm of nothing", &s->dist.norms[g]);
}

static void in_own_dtypes_they_are_held_to_what_all_gradients_may_be_off_by(void **state) {
  ad_recipe *recipes[] = {small_recipe("dp_shard=1", "", ", microbatches: 2}\nprecision: {compute: bf16"), pools()};
  for (int r = 0; r < 2; r++) {
    scene *s = open_scene(recipes[r], 1);
    assert_int_equal(ad_run_norm_group_count(s->checker.run), r ? 3 : 1);
    try_reported(s, "the loss", &s->dist.loss, s->ref.loss, allowed_loss(s, s->ref.loss, -1));
    try_reported(s, "the norm", &s->dist.norm, s->ref.norm, allowed_norm(s, -1) / s->ref.norm);
    for (int i = 0; i < AD_LOSSES_MAX; i++) try_own_loss(s, i);
    for (int g = 0; g < AD_NORM_GROUPS_MAX; g++) try_own_norm(s, g);
    close_scene(s);
  }
}

/* ---- gradients in f64 ---- */

/* Puts the gradient of parameter i at the distance `amount` (a norm) from `from`, spread evenly over the elements. */
static void put_gradient(scene *s, size_t i, const double *from, double amount) {
  ad_array *gradient = &s->checker.gradients[i];
  size_t numel = ad_array_numel(gradient);
  double *values = calloc(numel, sizeof *values);
  for (size_t k = 0; k < numel; k++) values[k] = from[k] + (k % 2 ? amount : -amount) / sqrt((double)numel);
  ad_cast(gradient->data, gradient->dtype, values, AD_F64, numel);
  free(values);
}

/* Sets the distributed gradient to the reference's, with its middle element moved by `amount`. */
static void move_element(scene *s, size_t i, double amount) {
  const ad_array *ref = ad_reference_gradient(s->checker.reference, i);
  double *dist = s->checker.gradients[i].data;
  assert_int_equal(s->checker.gradients[i].dtype, AD_F64);
  memcpy(dist, ref->data, ad_array_bytes(ref));
  dist[ad_array_numel(ref) / 2] += amount;
}

static void every_gradient_is_held_to_1e_12_of_its_largest_element_in_f64(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
  for (size_t i = 0; i < s->checker.param_count; i++) {
    const ad_array *ref = ad_reference_gradient(s->checker.reference, i);
    double bound = WIDE * ad_largest(ref->data, AD_F64, ad_array_numel(ref));
    move_element(s, i, bound * (1 - LITTLE));
    assert_true(judge(s));
    move_element(s, i, -bound * (1 + LITTLE));
    assert_false(judge(s));
    assert_true(s->result->params[i].max_rel_err > s->result->params[i].bound);
    move_element(s, i, NAN);
    assert_false(judge(s));
    move_element(s, i, 0);
    assert_true(judge(s));
  }
  close_scene(s);
}

/* The reference's gradient of parameter 1 is zero, so errors there are relative to a millionth of the model's largest
 * element. */
static void where_the_reference_is_zero_a_millionth_of_the_largest_element_measures(void **state) {
  for (int own = 0; own < 2; own++) {
    scene *s = open_scene(small_recipe("dp_shard=1", "", "}\nprecision: {compute: f64, param: f32"), own);
    const ad_array *ref = ad_reference_gradient(s->checker.reference, 1);
    size_t numel = ad_array_numel(ref);
    double largest = 0, error = 0.75e-6, *zero = calloc(numel, sizeof *zero);
    for (size_t i = 0; i < s->checker.param_count; i++) {
      const ad_array *gradient = ad_reference_gradient(s->checker.reference, i);
      if (i != 1) largest = fmax(largest, ad_largest(gradient->data, AD_F64, ad_array_numel(gradient)));
    }
    memset(ref->data, 0, ad_array_bytes(ref));
    put_gradient(s, 1, zero, error * largest * sqrt((double)numel));
    judge(s);
    assert_true(fabs(s->result->params[1].max_rel_err / (error / 1e-6) - 1) < 1e-3);
    free(zero);
    close_scene(s);
  }
}

/* The gradient is half of the reference's, except for its smallest element, which hardly enters the factor: still a
 * multiple if that element is within 1e-4 of the largest. */
static void a_gradient_is_a_multiple_within_a_ten_thousandth(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ""), 0);
  const ad_array *ref = ad_reference_gradient(s->checker.reference, 1);
  const double *values = ref->data;
  double largest = ad_largest(values, AD_F64, ad_array_numel(ref)), *dist = s->checker.gradients[1].data;
  size_t smallest = 0;
  for (size_t k = 0; k < ad_array_numel(ref); k++)
    if (fabs(values[k]) < fabs(values[smallest])) smallest = k;
  for (int beyond = 0; beyond < 2; beyond++) {
    for (size_t k = 0; k < ad_array_numel(ref); k++) dist[k] = values[k] / 2;
    dist[smallest] += 0.5e-4 * largest * (beyond ? 1.05 : 0.95);
    assert_false(judge(s));
    assert_int_equal(s->result->params[1].causes.list[0].kind, beyond ? AD_CAUSE_MISSING : AD_CAUSE_UNKNOWN);
  }
  close_scene(s);
}

/* ---- gradients in the recipe's own dtypes ---- */

static double u_of(const scene *s) { return ad_run_compute_dtype(s->checker.run) == AD_F64 ? 0x1p-53 : 0x1p-24; }

/* On one rank with one microbatch, reducing rounds nothing: the sum may differ from its addends by 16 u of their
 * magnitudes. */
static void a_sum_is_held_to_its_addends_by_16_u(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", "}\nprecision: {compute: bf16, param: f32"), 1);
  for (size_t i = 0; i < s->checker.param_count; i++) {
    const double *addends = s->checker.addends.themselves.full[i].data, *sizes = s->checker.addends.sizes.full[i].data;
    double bound = 16 * u_of(s) * ad_norm_of(sizes, ad_array_numel(&s->checker.gradients[i]));
    put_gradient(s, i, addends, bound * (1 - 5 * LITTLE));
    assert_true(judge(s));
    assert_true(s->result->params[i].sum_share < 1 && s->result->params[i].sum_share > 0.9);
    put_gradient(s, i, addends, bound * (1 + 5 * LITTLE));
    assert_false(judge(s));
    assert_true(s->result->params[i].sum_share > 1 && s->result->params[i].sum_share < 1.1);
    put_gradient(s, i, addends, 0);
    assert_true(judge(s));
  }
  close_scene(s);
}

/* A gradient may differ from the reference by computing.allowed, as a norm; the check reports error and bound relative
 * to the gradient's norm. */
static void a_gradient_is_held_to_what_one_process_and_ranks_may_be_off_by(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", "}\nprecision: {compute: bf16, param: f32"), 1);
  for (size_t i = 0; i < s->checker.param_count; i++) {
    const double *ref = ad_reference_gradient(s->checker.reference, i)->data;
    const ad_check_param *param = &s->result->params[i];
    double norm = s->checker.computing.norm[i], bound = s->checker.computing.allowed[i] / norm;
    for (int beyond = 0; beyond < 2; beyond++) {
      double part = beyond ? 1 + LITTLE : 1 - LITTLE;
      put_gradient(s, i, ref, s->checker.computing.allowed[i] * part);
      judge(s);
      assert_true(fabs(param->max_rel_err / (part * bound) - 1) < 1e-3);
      assert_true(fabs(param->bound / bound - 1) < 1e-3);
      assert_int_equal(param->max_rel_err > param->bound, beyond);
    }
    put_gradient(s, i, ref, 0);
    judge(s);
    assert_true(param->max_rel_err < 1e-6);
    assert_true(fabs(param->one_process / (s->checker.computing.spread[i].error / norm) - 1) < 1e-9);
    assert_true(fabs(param->process_share / (s->checker.computing.distance[i] / s->checker.computing.apart[i]) - 1) <
                1e-9);
  }
  double side_by_side = s->checker.computing.all_distance / s->checker.computing.all_apart;
  assert_true(fabs(s->result->process_share / side_by_side - 1) < 1e-9);
  close_scene(s);
}

/* Addends that are NaN fail the check, even if the gradient is right. */
static void addends_that_are_no_numbers_are_beyond_every_bound(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 1);
  for (size_t i = 0; i < s->checker.param_count; i++) {
    double *lists[] = {s->checker.addends.themselves.full[i].data, s->checker.addends.sizes.full[i].data};
    for (int which = 0; which < 2; which++) {
      double kept = lists[which][0];
      lists[which][0] = NAN;
      assert_false(judge(s));
      lists[which][0] = kept;
      assert_true(judge(s));
    }
  }
  close_scene(s);
}

/* ---- what the check reports of a step ---- */

static void what_is_reported_is_what_was_judged_last(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ""), 0);
  s->dist.loss *= 1 + 1e-13;
  s->dist.norm *= 1 - 2e-13;
  assert_true(judge(s));
  assert_true(s->result->loss_dist == s->dist.loss && s->result->loss_ref == s->ref.loss);
  assert_true(s->result->norm_dist == s->dist.norm && s->result->norm_ref == s->ref.norm);
  assert_true(s->result->loss_dist != s->result->loss_ref && s->result->norm_dist != s->result->norm_ref);
  close_scene(s);
}

static void push_parameter(const scene *s, size_t i, double by) {
  double *value = ad_run_part(s->checker.run, i, AD_PART_VALUE)->data;
  double *master = ad_run_part(s->checker.run, i, AD_PART_MASTER)->data;
  value[0] += by;
  if (master != value) master[0] += by;
}

/* The free-running reference never restarts from the ranks' values, so it keeps its distance from a pushed run; the
 * check reports the largest distance over all parameters and steps. */
static void the_farthest_from_a_run_that_never_restarts_is_reported(void **state) {
  for (int last = 0; last < 2; last++) {
    scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
    size_t i = last ? s->checker.param_count - 1 : 0;
    const ad_array *value = ad_run_part(s->checker.run, i, AD_PART_VALUE);
    double push = 1e-5 * ad_largest(value->data, AD_F64, ad_array_numel(value));
    int64_t counted = s->result->counted;
    ad_step_report report;
    push_parameter(s, i, push);
    must(ad_checker_step(&s->checker, 1, &report));
    assert_true(s->result->free_difference > 0.5e-5 && s->result->free_difference < 2e-5);
    assert_true(counted > 0 && s->result->counted == counted + report.count);
    push_parameter(s, i, -push);
    must(ad_checker_step(&s->checker, 2, &report));
    assert_true(s->result->free_difference > 0.5e-5);
    close_scene(s);
  }
}

/* Step 0 must start from the reference's initial values; later references start from the ranks' values. */
static void the_first_step_alone_must_start_from_what_one_process_has(void **state) {
  for (int step = 0; step < 2; step++) {
    scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
    ad_step_report report;
    ad_checker_begin(&s->checker);
    push_parameter(s, 1, 1e-3);
    must(ad_checker_step(&s->checker, step, &report));
    s->result->complete = 1;
    assert_int_equal(s->result->initial_equal, step > 0);
    assert_int_equal(ad_check_result_passes(s->result, 0), step > 0);
    close_scene(s);
  }
}

/* ---- over several steps the worst number counts ---- */

static void judge_again(scene *s, int step) {
  s->dist.step = step;
  ad_checker_judge(&s->checker, &s->dist);
}

/* Judges three steps: the gradient is off by `bad` of its bound in step `when`, and by a tenth in the others. */
static void judge_three(scene *s, size_t i, int when, double bad) {
  const ad_array *ref = ad_reference_gradient(s->checker.reference, i);
  double bound = WIDE * ad_largest(ref->data, AD_F64, ad_array_numel(ref));
  ad_checker_begin(&s->checker);
  for (int step = 0; step < 3; step++) {
    move_element(s, i, bound * (step == when ? bad : 0.1));
    judge_again(s, step);
  }
  s->result->complete = 1;
}

static void the_worst_step_is_kept_whichever_it_is(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
  ad_check_param *param = &s->result->params[1];
  for (int when = 0; when < 3; when++) {
    judge_three(s, 1, when, 3);
    assert_int_equal(param->step, when);
    assert_true(fabs(param->max_rel_err / (3 * WIDE) - 1) < 0.01);
    assert_false(ad_check_result_passes(s->result, 0));
    judge_three(s, 1, when, NAN);
    assert_int_equal(param->step, when);
    assert_true(isnan(param->max_rel_err));
    judge_again(s, 3);
    move_element(s, 1, NAN);
    judge_again(s, 4);
    assert_int_equal(param->step, when); /* the first of the steps whose error is NaN */
    judge_three(s, 1, when, 0.5);
    assert_int_equal(param->step, when);
    assert_true(ad_check_result_passes(s->result, 0));
  }
  close_scene(s);
}

static void replicas_that_differ_outrank_every_error(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ", microbatches: 2"), 0);
  ad_check_param *param = &s->result->params[1];
  ad_replicas *replicas = &s->checker.replicas[AD_PART_MASTER][1];
  for (int when = 0; when < 3; when++) {
    ad_checker_begin(&s->checker);
    for (int step = 0; step < 3; step++) {
      replicas->equal = step != when;
      move_element(s, 1, step == when ? 0 : 1);
      judge_again(s, step);
    }
    assert_int_equal(param->step, when);
    assert_false(param->replicas_equal);
    assert_true(param->max_rel_err < WIDE);
  }
  replicas->equal = 1;
  close_scene(s);
}

static void of_losses_and_norms_the_worst_step_is_kept(void **state) {
  scene *s = open_scene(small_recipe("dp_shard=1", "", ""), 0);
  double loss = s->ref.loss, norm = s->ref.norms[0];
  for (int when = 0; when < 3; when++) {
    ad_checker_begin(&s->checker);
    for (int step = 0; step < 3; step++) {
      s->dist.loss = loss * (1 + WIDE * (step == when ? 7 : 0.3));
      s->dist.norms[0] = norm * (1 + WIDE * (step == when ? 5 : 0.3));
      judge_again(s, step);
    }
    assert_true(fabs(s->result->loss_err / (7 * WIDE) - 1) < 0.01 && s->result->loss_bound == WIDE);
    assert_true(fabs(s->result->norm_err / (5 * WIDE) - 1) < 0.01 && s->result->norm_bound == WIDE);
  }
  close_scene(s);
}

/* ---- what a program measures, and its discrete choices (top-k) ---- */

static ad_program_kind kind;
static double margins[2], measured[2][3];
static int measures;

static double own_margin(const void *own) { return margins[0]; }

/* Returns the distributed run's numbers to the first call and the reference's to the second. */
static const double *own_measured(const void *own, size_t index, const char **name, size_t *count) {
  *name = "measured";
  *count = 3;
  return index ? NULL : measured[measures++ % 2];
}

static ad_recipe *recipe_of_kind(void) {
  ad_recipe *recipe = small_recipe("dp_shard=1", "", "");
  kind = *recipe->program;
  recipe->program = &kind;
  margins[0] = INFINITY;
  for (int i = 0; i < 3; i++) measured[0][i] = measured[1][i] = i + 2;
  measures = 0;
  return recipe;
}

/* A choice may be worse than the best alternative by twice the bound of all gradients together, relative
 * to their norm. */
static void a_choice_may_be_worse_by_twice_what_gradients_may_be_off_by(void **state) {
  ad_recipe *recipe = recipe_of_kind();
  kind.choices.margin = own_margin;
  scene *s = open_scene(recipe, 1);
  double allowed = 0, norms = 0;
  for (size_t i = 0; i < s->checker.param_count; i++) {
    allowed += pow(s->checker.computing.allowed[i], 2);
    norms += pow(s->checker.computing.norm[i], 2);
  }
  double bound = 2 * sqrt(allowed / norms);
  assert_true(s->result->margin == INFINITY && s->result->choice_error == 0);
  const struct {
    double margin;
    int holds;
  } tries[] = {{1, 1}, {0, 1}, {-bound * (1 - LITTLE), 1}, {-bound * (1 + LITTLE), 0}, {-1, 0}};
  for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
    margins[0] = tries[i].margin;
    assert_int_equal(judge(s), tries[i].holds);
    assert_true(s->result->margin == margins[0] && s->result->choice_error == fmax(0, -margins[0]));
    assert_true(fabs(s->result->choice_bound / bound - 1) < 1e-9);
  }
  for (int when = 0; when < 3; when++) { /* the wrong choice is in step `when` of three */
    ad_checker_begin(&s->checker);
    for (int step = 0; step < 3; step++) {
      margins[0] = step == when ? -2 * bound : bound;
      judge_again(s, step);
    }
    assert_true(s->result->margin == -2 * bound && s->result->choice_error == 2 * bound);
  }
  close_scene(s);
}

/* In f64 the reference makes its own choices, so a margin is reported but not judged. */
static void in_f64_a_margin_is_reported_and_not_judged(void **state) {
  ad_recipe *recipe = recipe_of_kind();
  kind.choices.margin = own_margin;
  scene *s = open_scene(recipe, 0);
  margins[0] = -1;
  assert_true(judge(s));
  assert_true(s->result->margin == -1 && s->result->choice_error == 0);
  close_scene(s);
}

static void a_measured_number_is_held_to_1e_12_of_the_largest(void **state) {
  for (int own = 0; own < 2; own++) {
    ad_recipe *recipe = recipe_of_kind();
    kind.account.measured = own_measured;
    scene *s = open_scene(recipe, own);
    assert_int_equal(s->result->judges_states, !own);
    for (int k = 0; k < 3 && !own; k++) {
      const struct {
        double off;
        int holds;
      } tries[] = {{4 * WIDE * (1 - LITTLE), 1}, {4 * WIDE * (1 + LITTLE), 0}, {-4 * WIDE * (1 + LITTLE), 0}, {NAN, 0}};
      for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        ad_step_report report;
        ad_checker_begin(&s->checker);
        measured[0][k] = measured[1][k] + tries[i].off;
        must(ad_checker_step(&s->checker, 1, &report));
        measured[0][k] = measured[1][k];
        must(ad_checker_step(&s->checker, 2, &report)); /* the worst of both steps counts */
        s->result->complete = 1;
        assert_int_equal(ad_check_result_passes(s->result, 0), tries[i].holds);
      }
    }
    close_scene(s);
  }
}

/* A byte whose lowest bit is flipped when the distributed run's step ends; that step is taken
 * before the reference's. */
static char *flipped_bit;

static ad_status flip_a_bit(void *own, ad_step_outcome outcome) {
  if (flipped_bit) *flipped_bit ^= 1;
  flipped_bit = NULL;
  return AD_OK;
}

static void one_bit_of_a_value_a_master_or_a_moment_decides(void **state) {
  for (int part = 0; part < AD_PART_KEPT; part++) {
    ad_recipe *recipe = small_recipe("dp_shard=1", "", "}\nprecision: {param: bf16");
    kind = *recipe->program;
    kind.course.after_step = flip_a_bit;
    recipe->program = &kind;
    scene *s = open_scene(recipe, 1);
    for (size_t i = 0; i < s->checker.param_count; i++) {
      ad_step_report report;
      ad_checker_begin(&s->checker);
      must(ad_checker_step(&s->checker, 1, &report));
      assert_true(s->result->updates_equal);
      flipped_bit = ad_run_part(s->checker.run, i, (ad_param_part)part)->data;
      assert_non_null(flipped_bit);
      must(ad_checker_step(&s->checker, 2, &report));
      s->result->complete = 1;
      assert_null(flipped_bit);
      assert_false(s->result->updates_equal || s->result->params[i].update_equal ||
                   ad_check_result_passes(s->result, 0));
    }
    close_scene(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_loss_and_norm_is_held_to_1e_12_in_f64),
      cmocka_unit_test(in_own_dtypes_they_are_held_to_what_all_gradients_may_be_off_by),
      cmocka_unit_test(every_gradient_is_held_to_1e_12_of_its_largest_element_in_f64),
      cmocka_unit_test(where_the_reference_is_zero_a_millionth_of_the_largest_element_measures),
      cmocka_unit_test(a_gradient_is_a_multiple_within_a_ten_thousandth),
      cmocka_unit_test(a_sum_is_held_to_its_addends_by_16_u),
      cmocka_unit_test(a_gradient_is_held_to_what_one_process_and_ranks_may_be_off_by),
      cmocka_unit_test(addends_that_are_no_numbers_are_beyond_every_bound),
      cmocka_unit_test(what_is_reported_is_what_was_judged_last),
      cmocka_unit_test(the_farthest_from_a_run_that_never_restarts_is_reported),
      cmocka_unit_test(the_first_step_alone_must_start_from_what_one_process_has),
      cmocka_unit_test(the_worst_step_is_kept_whichever_it_is),
      cmocka_unit_test(replicas_that_differ_outrank_every_error),
      cmocka_unit_test(of_losses_and_norms_the_worst_step_is_kept),
      cmocka_unit_test(a_choice_may_be_worse_by_twice_what_gradients_may_be_off_by),
      cmocka_unit_test(in_f64_a_margin_is_reported_and_not_judged),
      cmocka_unit_test(a_measured_number_is_held_to_1e_12_of_the_largest),
      cmocka_unit_test(one_bit_of_a_value_a_master_or_a_moment_decides),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
