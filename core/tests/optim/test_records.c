/* Tests that a record alone is enough to add an optimizer: the test adds one that updates by the sign of the gradient.
 * It is created, steps, keeps its states and has the known bugs. Also tests what every record must have, and SGD
 * against its formula. Tests records.c and known_bugs.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/helpers.h"
#include "optim/known_bugs.h"
#include "optim/record.h"
#include "says.h"

enum { SIGN = AD_OPTIMIZER_COUNT, NUMEL = 1031, STEPS = 5 };

/* ---- an optimizer of the test's own ---- */

/* The added optimizer's update: by the sign of states[0] ("memory"), a decaying sum of the gradients. states[1] counts
 * steps, if the option `epsilon` is set. */
#define SIGN_LOOP(name, type)                                                                                  \
  static void name(const ad_update *update, type *param, void *const *states, const type *grad, size_t n) {    \
    type *memory = states[0], *count = states[1];                                                              \
    for (size_t i = 0; i < n; i++) {                                                                           \
      memory[i] = (type)(update->options->momentum * memory[i] + update->factor * grad[i]);                    \
      if (count) count[i] += 1;                                                                                \
      param[i] -= (type)(update->derived[0] * ((memory[i] > 0) - (memory[i] < 0)) + update->decay * param[i]); \
    }                                                                                                          \
  }
SIGN_LOOP(sign_f32, float)
SIGN_LOOP(sign_f64, double)
static const ad_update_kernels sign_kernels = {.f32 = sign_f32, .f64 = sign_f64};

static ad_status check_sign(const ad_optimizer_options *options) { return options->momentum < 1 ? AD_OK : AD_INVALID; }

static void prepare_sign(ad_update *update) { update->derived[0] = update->lr / (double)update->step; }

#define AT(field) offsetof(ad_optimizer_options, field)
static const ad_optimizer_record sign = {
    .name = "Sign",
    .options = {{.name = "momentum", .offset = AT(momentum), .fallback = 0.5},
                {.name = "epsilon", .offset = AT(epsilon)},
                {.name = "nesterov", .offset = AT(nesterov), .is_int = 1, .needs = AT(epsilon)},
                {.name = "weight_decay", .offset = AT(weight_decay)}},
    .states = {{.name = "memory"}, {.name = "count", .needs = AT(epsilon)}},
    .check = check_sign,
    .prepare = prepare_sign,
    .kernels = {&sign_kernels, &sign_kernels, &sign_kernels, &sign_kernels}};

const ad_optimizer_record *__real_ad_optimizer_record_of(ad_optimizer_kind kind);
const ad_optimizer_record *__wrap_ad_optimizer_record_of(ad_optimizer_kind kind);
const ad_optimizer_record *__wrap_ad_optimizer_record_of(ad_optimizer_kind kind) {
  return (int)kind == SIGN ? &sign : __real_ad_optimizer_record_of(kind);
}

/* ---- one parameter and its optimizer ---- */

static ad_mesh *mesh;
static ad_comm *comm;

static int open_mesh(void **state) {
  return ad_mesh_create("dp_shard=1", &mesh) != AD_OK || ad_comm_open_alone(&comm) != AD_OK;
}
static int close_mesh(void **state) {
  ad_comm_close(comm);
  ad_mesh_destroy(mesh);
  return 0;
}

static ad_array array_of(ad_dtype dtype, void *data, int64_t numel) {
  ad_shape shape = {1, {numel}};
  return (ad_array){.dtype = dtype, .shape = shape, .local = shape, .layout = ad_layout_all(mesh, AD_R), .data = data};
}

static ad_optimizer *optimizer_of(const ad_array *param, ad_optimizer_options options) {
  ad_optimizer *optimizer;
  options.size = sizeof options;
  assert_int_equal(ad_optimizer_create(&param, NULL, 1, &options, &optimizer), AD_OK);
  return optimizer;
}

/* An optimizer of a matrix, for every kind. */
static ad_optimizer *optimizer_of_matrix(const ad_array *param, ad_optimizer_options options) {
  ad_optimizer *optimizer;
  options.size = sizeof options;
  const ad_optimizer_setup setup = {.size = sizeof setup, .groups = &options, .group_count = 1, .comm = comm};
  assert_int_equal(ad_optimizer_create_groups(&param, NULL, 1, &setup, &optimizer), AD_OK);
  return optimizer;
}

static void step_of(ad_optimizer *optimizer, ad_array *param, const ad_array *grad, double lr, double factor) {
  assert_int_equal(ad_optimizer_step(optimizer, &param, &grad, lr, factor), AD_OK);
}

static void fill(double *out, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++) out[i] = ad_random_normal(3, ad_random_stream(name), i);
}

static void refused_options(ad_optimizer_options options) {
  float value = 1;
  ad_array array = array_of(AD_F32, &value, 1);
  const ad_array *param = &array;
  ad_optimizer *none = NULL;
  options.size = sizeof options;
  assert_int_equal(ad_optimizer_create(&param, NULL, 1, &options, &none), AD_INVALID);
  assert_null(none);
}

/* ---- the added optimizer ---- */

static void an_optimizer_is_added_by_its_record_alone(void **state) {
  double value[3] = {8, 8, 8}, gradient[3] = {2, -3, 0};
  ad_array param = array_of(AD_F64, value, 3), grad = array_of(AD_F64, gradient, 3);
  ad_optimizer *optimizer =
      optimizer_of(&param, (ad_optimizer_options){.kind = (ad_optimizer_kind)SIGN, .epsilon = 1, .weight_decay = 0.5});
  step_of(optimizer, &param, &grad, 0.25, 2);
  assert_true(value[0] == 8 - (0.25 + 4) && value[1] == 8 - (-0.25 + 4) && value[2] == 4);
  step_of(optimizer, &param, NULL, 0.25, 1);  // the sum in "memory" keeps its sign; `prepare` halves the rate
  assert_true(value[0] == 3.75 - (0.125 + 3.75 / 2) && value[2] == 2);
  const double *memory = ad_optimizer_state(optimizer, 0, 0)->data, *count = ad_optimizer_state(optimizer, 0, 1)->data;
  assert_true(memory[0] == 2 && memory[1] == -3 && count[2] == 2);
  assert_int_equal(ad_optimizer_bytes(optimizer), 2 * sizeof value);
  assert_string_equal(ad_optimizer_state_name((ad_optimizer_kind)SIGN, 0), "memory");
  assert_string_equal(ad_optimizer_state_name((ad_optimizer_kind)SIGN, 1), "count");
  ad_optimizer_destroy(optimizer);
}

static void a_state_without_its_option_is_not_kept(void **state) {
  float value[3] = {8, 8, 8}, gradient[3] = {2, -3, 0};
  ad_array param = array_of(AD_F32, value, 3), grad = array_of(AD_F32, gradient, 3);
  ad_optimizer *optimizer = optimizer_of(&param, (ad_optimizer_options){.kind = (ad_optimizer_kind)SIGN});
  step_of(optimizer, &param, &grad, 0.25, 2);
  assert_true(value[0] == 7.75f && value[1] == 8.25f && value[2] == 8);
  assert_non_null(ad_optimizer_state(optimizer, 0, 0));
  assert_null(ad_optimizer_state(optimizer, 0, 1));
  assert_int_equal(ad_optimizer_bytes(optimizer), sizeof value);
  ad_optimizer_destroy(optimizer);
}

static void an_added_optimizer_refuses_what_its_record_refuses(void **state) {
  refused_options((ad_optimizer_options){.kind = (ad_optimizer_kind)SIGN, .momentum = 1});
  refused_options((ad_optimizer_options){.kind = (ad_optimizer_kind)SIGN, .nesterov = 1});
  assert_facts(ad_last_error(), "Sign", "nesterov", "epsilon");
  refused_options((ad_optimizer_options){.kind = (ad_optimizer_kind)(SIGN + 1)});
  assert_facts(ad_last_error(), "kind", "4");
}

/* ---- known bugs, of an added optimizer as of the others ---- */

/* The value after two steps with a known bug of this name; NULL: without one. */
static double after_two_steps(ad_optimizer_options options, const char *name, int *fired) {
  double value = 8, gradient = 2;
  ad_array param = array_of(AD_F64, &value, 1), grad = array_of(AD_F64, &gradient, 1);
  param.shape = param.local = grad.shape = grad.local = (ad_shape){2, {1, 1}};
  ad_known_bug_scene scene = {0};
  size_t count;
  const ad_known_bug *bugs = ad_optim_known_bugs(&count);
  ad_optimizer *optimizer = optimizer_of_matrix(&param, options);
  for (size_t i = 0; i < count && name; i++)
    if (!strcmp(bugs[i].name, name)) ad_known_bug_inject(&bugs[i], &scene);
  step_of(optimizer, &param, &grad, 0.25, 1);
  gradient = -0.125;
  step_of(optimizer, &param, &grad, 0.25, 1);
  ad_injections_clear();
  ad_optimizer_destroy(optimizer);
  *fired = scene.fired;
  return value;
}

static void every_optimizer_has_the_known_bugs_of_updates(void **state) {
  static const char *const names[] = {"update-applied-twice", "momentum-forgotten", "decay-missing"};
  for (int kind = 0; kind <= SIGN; kind++) {
    ad_optimizer_options options = {.kind = (ad_optimizer_kind)kind, .weight_decay = 0.125};
    if (kind != AD_ADAMW && kind != AD_MUON) options.momentum = 0.75;
    int fired;
    double right = after_two_steps(options, NULL, &fired);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      double wrong = after_two_steps(options, names[i], &fired);
      if (wrong == right || !fired) fail_msg("%s changes nothing of optimizer %d", names[i], kind);
    }
    options.weight_decay = 0;
    right = after_two_steps(options, NULL, &fired);
    assert_true(after_two_steps(options, "decay-missing", &fired) == right && !fired);
  }
}

static void what_has_no_state_forgets_none(void **state) {
  int fired;
  ad_optimizer_options options = {.kind = AD_SGD};
  double right = after_two_steps(options, NULL, &fired);
  assert_true(right == 8 - 0.25 * 2 + 0.25 * 0.125);
  assert_true(after_two_steps(options, "momentum-forgotten", &fired) == right && !fired);
  assert_true(after_two_steps(options, "update-applied-twice", &fired) == 8 - 2 * (0.25 * 2 - 0.25 * 0.125) && fired);
}

/* ---- what every record must hold ---- */

static void check_needs(const ad_optimizer_record *record, size_t needs) {
  if (needs) assert_non_null(ad_optimizer_option_at(record, needs));
}

static void check_kernels(const ad_optimizer_record *record, const ad_update_kernels *kernels) {
  assert_non_null(kernels);
  if (!kernels) return;
  int whole = record->whole != NULL, elements = !whole;
  assert_true((kernels->f32 != NULL) == elements && (kernels->f64 != NULL) == elements);
  assert_true((kernels->direct_f32 != NULL) == whole && (kernels->direct_f64 != NULL) == whole);
  assert_true((kernels->apply_f32 != NULL) == whole && (kernels->apply_f64 != NULL) == whole);
}

/* Two optimizers with a state of one name could load each other's checkpoints. */
static void states_of_different_optimizers_have_different_names(void **state) {
  for (int one = 0; one < AD_OPTIMIZER_COUNT; one++)
    for (int other = 0; other < one; other++)
      for (size_t i = 0; ad_optimizer_state_name((ad_optimizer_kind)one, i); i++)
        for (size_t j = 0; ad_optimizer_state_name((ad_optimizer_kind)other, j); j++)
          assert_string_not_equal(ad_optimizer_state_name((ad_optimizer_kind)one, i),
                                  ad_optimizer_state_name((ad_optimizer_kind)other, j));
}

static void every_record_is_whole(void **state) {
  for (int kind = 0; kind <= SIGN; kind++) {
    const ad_optimizer_record *record = __wrap_ad_optimizer_record_of((ad_optimizer_kind)kind);
    assert_non_null(record);
    if (!record) return;
    assert_true(record->name && record->name[0] && record->check);
    size_t options = 0, states = 0;
    for (const ad_option_record *option = record->options; option->name; option++, options++) {
      assert_true(option->offset > AT(kind) && option->offset < sizeof(ad_optimizer_options));
      assert_ptr_equal(ad_optimizer_option_at(record, option->offset), option);
      if (option->zero != 0) assert_true(option->fallback != 0);
      check_needs(record, option->needs);
    }
    assert_true(options <= AD_OPTIMIZER_OPTIONS_MAX && ad_optimizer_option_at(record, AT(weight_decay)));
    for (const ad_state_record *s = record->states; s->name; s++, states++) {
      assert_in_range(strlen(s->name), 1, AD_STATE_NAME_MAX);
      assert_true(strcmp(s->name, "value") && strcmp(s->name, "master") && strcmp(s->name, "state"));
      for (const ad_state_record *t = record->states; t < s; t++) assert_string_not_equal(s->name, t->name);
      check_needs(record, s->needs);
    }
    assert_true(states <= AD_OPTIMIZER_STATES_MAX);
    for (int v = AD_PLAIN; v <= AD_AVX512FP16; v++) check_kernels(record, record->kernels[v]);
    if (record->whole) {
      assert_true(record->whole->transform && record->whole->scratch_bytes);
      assert_true(record->whole->operations && record->whole->rate_factor);
    }
  }
  assert_null(ad_optimizer_record_of((ad_optimizer_kind)(SIGN + 1)));
  assert_null(ad_optimizer_record_of((ad_optimizer_kind)-1));
}

/* Checkpoints have states under these names: with other names, old checkpoints could not be loaded. */
static void states_have_the_names_that_checkpoints_use(void **state) {
  assert_string_equal(ad_optimizer_state_name(AD_ADAMW, 0), "first_moment");
  assert_string_equal(ad_optimizer_state_name(AD_ADAMW, 1), "second_moment");
  assert_string_equal(ad_optimizer_state_name(AD_SGD, 0), "momentum");
  assert_null(ad_optimizer_state_name(AD_SGD, 1));
  assert_string_equal(ad_optimizer_state_name(AD_MUON, 0), "average_gradient");
  assert_null(ad_optimizer_state_name(AD_ADAMW, AD_OPTIMIZER_STATES_MAX));
  assert_null(ad_optimizer_state_name((ad_optimizer_kind)(SIGN + 1), 0));
}

/* ---- SGD ---- */

/* One element by the formula of optim.h. */
static double sgd(double *buffer, double param, double grad, const ad_optimizer_options *options, double lr) {
  double g = grad + options->weight_decay * param;
  *buffer = options->momentum * *buffer + g;
  if (!options->momentum) return param - lr * g;
  return param - lr * (options->nesterov ? g + options->momentum * *buffer : *buffer);
}

static const ad_optimizer_options sgds[] = {
    {.kind = AD_SGD},
    {.kind = AD_SGD, .weight_decay = 0.1},
    {.kind = AD_SGD, .momentum = 0.9},
    {.kind = AD_SGD, .momentum = 0.7, .weight_decay = 0.2},
    {.kind = AD_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.1},
};
enum { SGDS = sizeof sgds / sizeof *sgds };

static void sgd_follows_its_formula(void **state) {
  static double values[NUMEL], grads[NUMEL], expected[NUMEL], buffers[NUMEL];
  for (int c = 0; c < SGDS; c++) {
    fill(values, NUMEL, "values");
    memcpy(expected, values, sizeof values);
    memset(buffers, 0, sizeof buffers);
    ad_array param = array_of(AD_F64, values, NUMEL), grad = array_of(AD_F64, grads, NUMEL);
    ad_optimizer *optimizer = optimizer_of(&param, sgds[c]);
    for (int t = 0; t < STEPS; t++) {
      fill(grads, NUMEL, t % 2 ? "odd" : "even");
      step_of(optimizer, &param, &grad, 0.01, 0.5);
      for (int i = 0; i < NUMEL; i++) expected[i] = sgd(&buffers[i], expected[i], 0.5 * grads[i], &sgds[c], 0.01);
    }
    for (int i = 0; i < NUMEL; i++) assert_true(fabs(values[i] - expected[i]) < 1e-14);
    const ad_array *buffer = ad_optimizer_state(optimizer, 0, 0);
    assert_true((buffer != NULL) == (sgds[c].momentum > 0));
    for (int i = 0; i < NUMEL && buffer; i++) assert_true(fabs(((double *)buffer->data)[i] - buffers[i]) < 1e-14);
    assert_int_equal(ad_optimizer_bytes(optimizer), buffer ? sizeof values : 0);
    ad_optimizer_destroy(optimizer);
  }
}

/* Values and buffers after some steps of a shard: elements [first, first + numel). */
static void run_shard(const ad_optimizer_options *options, ad_dtype dtype, size_t first, size_t numel, double *values,
                      double *buffers) {
  static double from[NUMEL], grads[NUMEL];
  size_t size = ad_dtype_size(dtype);
  fill(from, NUMEL, "values");
  ad_cast((char *)values + first * size, dtype, from + first, AD_F64, numel);
  fill(from, NUMEL, "odd");
  ad_cast(grads, dtype, from, AD_F64, NUMEL);
  ad_array param = array_of(dtype, (char *)values + first * size, (int64_t)numel);
  ad_array grad = array_of(dtype, (char *)grads + first * size, (int64_t)numel);
  ad_optimizer *optimizer = optimizer_of(&param, *options);
  for (int t = 0; t < STEPS; t++) step_of(optimizer, &param, &grad, 0.01, 0.7);
  const ad_array *buffer = ad_optimizer_state(optimizer, 0, 0);
  if (buffer) memcpy((char *)buffers + first * size, buffer->data, numel * size);
  ad_optimizer_destroy(optimizer);
}

/* Every instruction set and every division into shards gives the same bits. */
static void sgd_has_the_same_bits_in_shards_and_variants(void **state) {
  static double full[2][NUMEL], parts[2][NUMEL];
  ad_variant best = ad_kernels_best();
  for (int c = 0; c < 2 * SGDS; c++) {
    ad_dtype dtype = c % 2 ? AD_F32 : AD_F64;
    memset(full, 0, sizeof full);
    ad_kernels_choose(AD_PLAIN);
    run_shard(&sgds[c / 2], dtype, 0, NUMEL, full[0], full[1]);
    for (int v = AD_PLAIN; v <= (int)best; v++) {
      memset(parts, 0, sizeof parts);
      ad_kernels_choose((ad_variant)v);
      run_shard(&sgds[c / 2], dtype, 0, 515, parts[0], parts[1]);
      run_shard(&sgds[c / 2], dtype, 515, 0, parts[0], parts[1]);
      run_shard(&sgds[c / 2], dtype, 515, NUMEL - 515, parts[0], parts[1]);
      assert_memory_equal(parts, full, sizeof full);
    }
  }
  ad_kernels_choose(best);
}

static void sgd_refuses_what_means_nothing(void **state) {
  refused_options((ad_optimizer_options){.kind = AD_SGD, .momentum = 1});
  assert_says("SGD", "momentum", "1");
  refused_options((ad_optimizer_options){.kind = AD_SGD, .momentum = -0.5});
  assert_says("SGD", "momentum", "-0.5");
  refused_options((ad_optimizer_options){.kind = AD_SGD, .momentum = NAN});
  refused_options((ad_optimizer_options){.kind = AD_SGD, .weight_decay = -1});
  assert_says("SGD", "weight_decay", "-1");
  refused_options((ad_optimizer_options){.kind = AD_SGD, .nesterov = 1});
  assert_says("SGD", "nesterov", "momentum");
  refused_options((ad_optimizer_options){.kind = AD_SGD, .momentum = 0.5, .nesterov = 2});
  assert_facts(ad_last_error(), "SGD", "nesterov", "2");
  refused_options((ad_optimizer_options){.kind = AD_SGD, .beta1 = 0.8});
  assert_facts(ad_last_error(), "SGD", "beta1", "AdamW");
  refused_options((ad_optimizer_options){.momentum = 0.9});
  assert_facts(ad_last_error(), "AdamW", "momentum", "SGD");
}

/* The shape and layout of a parameter without a state are checked like those of any other parameter. */
static void sgd_without_a_state_checks_its_parameters(void **state) {
  float values[4] = {1, 2, 3, 4}, grads[4] = {1, 1, 1, 1};
  ad_array param = array_of(AD_F32, values, 4), *params[] = {&param};
  ad_array grad = array_of(AD_F32, grads, 3);
  const ad_array *given[] = {&grad};
  ad_optimizer *optimizer = optimizer_of(&param, (ad_optimizer_options){.kind = AD_SGD});
  assert_int_equal(ad_optimizer_step(optimizer, params, given, 0.1, 1), AD_INVALID);
  assert_says("SGD", "gradient 0", "[3]", "[4]");
  assert_true(values[0] == 1 && ad_optimizer_steps(optimizer) == 0);
  ad_optimizer_destroy(optimizer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_optimizer_is_added_by_its_record_alone),
      cmocka_unit_test(a_state_without_its_option_is_not_kept),
      cmocka_unit_test(an_added_optimizer_refuses_what_its_record_refuses),
      cmocka_unit_test(every_optimizer_has_the_known_bugs_of_updates),
      cmocka_unit_test(what_has_no_state_forgets_none),
      cmocka_unit_test(every_record_is_whole),
      cmocka_unit_test(states_of_different_optimizers_have_different_names),
      cmocka_unit_test(states_have_the_names_that_checkpoints_use),
      cmocka_unit_test(sgd_follows_its_formula),
      cmocka_unit_test(sgd_has_the_same_bits_in_shards_and_variants),
      cmocka_unit_test(sgd_refuses_what_means_nothing),
      cmocka_unit_test(sgd_without_a_state_checks_its_parameters),
  };
  return cmocka_run_group_tests(tests, open_mesh, close_mesh);
}
