/* Tests modules (the parameters of one set of ranks, with their store, reducer and optimizer): where each array is
 * found, states, mirror modules, parameters on another view of the mesh, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "addend/module.h"
#include "base/memory.h"
#include "module/module.h"
#include "ranks.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { ROWS = 5, COLUMNS = 4 };

static ad_param_spec matrix(const char *name, const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .shape = {2, {ROWS, COLUMNS}},
                         .layout = layout,
                         .storage = layout,
                         .deviation = 1};
}

/* A module of two parameters on one rank, with its mesh and comm. */
typedef struct fixture {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_param_spec params[2];
  ad_state_spec states[2];
  ad_module_spec spec;
  ad_module *module;
} fixture;

/* Describes the module in *f, whose address must stay the same: the spec points into it. */
static void describe(fixture *f) {
  *f = (fixture){0};
  must(ad_comm_open_alone(&f->comm));
  must(ad_mesh_create("dp_shard=1 tp=1", &f->mesh));
  f->params[0] = matrix("w", f->mesh);
  f->params[1] = matrix("head.w", f->mesh);
  f->params[1].policy = (ad_precision_policy){.param = AD_BF16};
  ad_layout layout = ad_layout_all(f->mesh, AD_R);
  f->states[0] = (ad_state_spec){sizeof(ad_state_spec), "bias", AD_F32, {1, {3}}, layout, 0.5};
  f->states[1] = (ad_state_spec){sizeof(ad_state_spec), "sources", AD_BF16, {1, {7}}, layout, -2};
  f->spec = (ad_module_spec){.size = sizeof(ad_module_spec),
                             .name = "m",
                             .mesh = f->mesh,
                             .params = f->params,
                             .param_count = 2,
                             .states = f->states,
                             .state_count = 2};
}

static void open_module(fixture *f, int is_mirror) {
  describe(f);
  f->spec.is_mirror = is_mirror;
  ad_module_options options = {.size = sizeof options, .seed = 3};
  must(ad_module_create(f->comm, &f->spec, &options, &f->module));
}

static void close_module(fixture *f) {
  ad_module_destroy(f->module);
  ad_mesh_destroy(f->mesh);
  ad_comm_close(f->comm);
}

/* ---- arrays of parameters, by part ---- */

static void every_array_of_a_parameter_is_found_by_its_part(void **state) {
  fixture f;
  open_module(&f, 0);
  ad_module *m = f.module;
  for (size_t i = 0; i < 2; i++) {
    assert_ptr_equal(ad_module_part(m, i, AD_PART_VALUE), ad_store_value(ad_module_store(m), i));
    assert_ptr_equal(ad_module_part(m, i, AD_PART_MASTER), ad_store_master(ad_module_store(m), i));
    assert_ptr_equal(ad_module_part(m, i, AD_PART_STATE), ad_optimizer_state(ad_module_optimizer(m), i, 0));
    assert_ptr_equal(ad_module_part(m, i, AD_PART_STATE + 1), ad_optimizer_state(ad_module_optimizer(m), i, 1));
    assert_ptr_equal(ad_module_part(m, i, AD_PART_GRADIENT), ad_reducer_gradient(ad_module_reducer(m), i));
    assert_ptr_equal(ad_module_parameters(m)->values[i], ad_store_compute(ad_module_store(m), i));
  }
  assert_ptr_equal(ad_module_part(m, 0, AD_PART_MASTER), ad_module_part(m, 0, AD_PART_VALUE));
  assert_ptr_not_equal(ad_module_part(m, 1, AD_PART_MASTER), ad_module_part(m, 1, AD_PART_VALUE));
  assert_int_equal(ad_module_part(m, 1, AD_PART_VALUE)->dtype, AD_BF16);
  assert_int_equal(ad_module_part(m, 1, AD_PART_MASTER)->dtype, AD_F32);
  assert_ptr_equal(ad_module_parameters(m)->reducer, ad_module_reducer(m));
  close_module(&f);
}

static void a_number_beyond_the_last_finds_nothing(void **state) {
  fixture f;
  open_module(&f, 0);
  ad_module *m = f.module;
  size_t params = ad_module_param_count(m);
  assert_null(ad_module_part(m, params, AD_PART_VALUE));
  assert_null(ad_module_part(m, 0, AD_PART_COUNT));
  assert_null(ad_module_state(m, ad_module_state_count(m)));
  assert_null(ad_optimizer_state(ad_module_optimizer(m), params, 0));
  assert_null(ad_optimizer_state(ad_module_optimizer(m), 0, AD_OPTIMIZER_STATES_MAX));
  assert_null(ad_param_part_name(AD_ADAMW, AD_PART_COUNT));
  close_module(&f);
}

static void parts_have_the_names_that_checkpoints_use(void **state) {
  static const char *const names[] = {"value", "master", "first_moment", "second_moment", "gradient"};
  for (int part = 0; part < AD_PART_COUNT; part++)
    assert_string_equal(ad_param_part_name(AD_ADAMW, (ad_param_part)part), names[part]);
}

static void a_module_keeps_names_of_its_own(void **state) {
  fixture f;
  char param[] = "w", bias[] = "bias";
  describe(&f);
  f.params[0].name = param;
  f.states[0].name = bias;
  must(ad_module_create(f.comm, &f.spec, NULL, &f.module));
  param[0] = bias[0] = 'x';
  assert_int_equal(ad_module_find(f.module, "w"), 0);
  assert_int_equal(ad_module_find(f.module, "head.w"), 1);
  assert_int_equal(ad_module_find(f.module, "head"), 2);
  assert_int_equal(ad_module_param_count(f.module), 2);
  assert_ptr_equal(ad_module_mesh(f.module), f.mesh);
  close_module(&f);
}

static void masters_are_drawn_and_values_are_what_they_round_to(void **state) {
  fixture f;
  float drawn[ROWS * COLUMNS];
  open_module(&f, 0);
  for (size_t i = 0; i < 2; i++) {
    ad_array full = *ad_module_part(f.module, i, AD_PART_MASTER);
    full.data = drawn;
    must(ad_param_initialise(&f.params[i], 3, 0, &full));
    assert_memory_equal(ad_module_part(f.module, i, AD_PART_MASTER)->data, drawn, sizeof drawn);
    const float *computed = ad_module_parameters(f.module)->values[i]->data;
    for (int e = 0; e < ROWS * COLUMNS; e++) assert_true(fabsf(computed[e] - drawn[e]) <= 0.005f * fabsf(drawn[e]));
  }
  close_module(&f);
}

static void states_begin_with_their_value_in_their_dtype(void **state) {
  fixture f;
  open_module(&f, 0);
  assert_int_equal(ad_module_state_count(f.module), 2);
  const float *bias = ad_module_state(f.module, 0)->data;
  for (int i = 0; i < 3; i++) assert_true(bias[i] == 0.5f);
  const uint16_t *sources = ad_module_state(f.module, 1)->data;
  for (int i = 0; i < 7; i++) assert_int_equal(sources[i], 0xc000);  // -2 as bf16
  close_module(&f);
}

/* ---- gradients, updates, mirrors ---- */

/* One microbatch on a tape: the loss is the sum of 2 w + w^2 over the first parameter. */
static void leave_gradients(fixture *f) {
  ad_tape *t;
  must(ad_tape_create(f->comm, f->mesh, NULL, &t));
  must(ad_reducer_begin_microbatch(ad_module_reducer(f->module), AD_SYNC_ALL));
  must(ad_store_begin_pass(ad_module_store(f->module), AD_FORWARD));
  ad_tensor *w = ad_parameter(t, ad_module_parameters(f->module), 0);
  ad_tensor *loss = ad_sum(t, ad_add(t, ad_scale(t, w, 2), ad_multiply(t, w, w)));
  must(ad_backward(t, ad_once(t, loss, "dp tp")));
  must(ad_store_end_pass(ad_module_store(f->module)));
  must(ad_reducer_end_microbatch(ad_module_reducer(f->module)));
  must(ad_reducer_finish(ad_module_reducer(f->module)));
  ad_tape_destroy(t);
}

static void gradients_are_of(fixture *f, const float *values) {
  const float *gradient = ad_module_part(f->module, 0, AD_PART_GRADIENT)->data;
  for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(fabsf(gradient[i] - (2 + 2 * values[i])) < 1e-5f);
}

static void an_update_moves_masters_values_and_copies(void **state) {
  fixture f;
  float before[ROWS * COLUMNS];
  open_module(&f, 0);
  memcpy(before, ad_module_part(f.module, 0, AD_PART_VALUE)->data, sizeof before);
  leave_gradients(&f);
  gradients_are_of(&f, before);
  must(ad_module_update(f.module, &(const double){0.125}, 1));
  const float *after = ad_module_part(f.module, 0, AD_PART_VALUE)->data;
  // Adam's first step is the learning rate times the sign of the gradient.
  for (int i = 0; i < ROWS * COLUMNS; i++)
    assert_true(fabsf(before[i] - after[i] - (before[i] > -1 ? 0.125f : -0.125f)) < 1e-4f);
  assert_memory_equal(ad_module_parameters(f.module)->values[0]->data, after, sizeof before);
  assert_int_equal(ad_optimizer_steps(ad_module_optimizer(f.module)), 1);
  close_module(&f);
}

static void a_mirror_has_no_optimizer(void **state) {
  fixture f;
  open_module(&f, 1);
  assert_null(ad_module_optimizer(f.module));
  assert_null(ad_module_part(f.module, 0, AD_PART_STATE));
  assert_null(ad_module_part(f.module, 0, AD_PART_STATE + 1));
  assert_non_null(ad_module_part(f.module, 0, AD_PART_VALUE));
  close_module(&f);
}

static void values_arrive_in_a_mirror_and_its_gradients_leave(void **state) {
  fixture f;
  float arrived[ROWS * COLUMNS];
  for (int i = 0; i < ROWS * COLUMNS; i++) arrived[i] = (float)i / 8;
  open_module(&f, 1);
  memcpy(ad_module_part(f.module, 0, AD_PART_VALUE)->data, arrived, sizeof arrived);
  must(ad_module_refresh(f.module, AD_VALUES_WRITTEN));
  leave_gradients(&f);
  gradients_are_of(&f, arrived);
  must(ad_module_update(f.module, &(const double){0.125}, 1));
  assert_memory_equal(ad_module_part(f.module, 0, AD_PART_VALUE)->data, arrived, sizeof arrived);
  assert_memory_equal(ad_module_parameters(f.module)->values[0]->data, arrived, sizeof arrived);
  close_module(&f);
}

static void f16_gradients_are_found_by_the_whole_policy(void **state) {
  static const struct {
    ad_precision_policy policy;
    int has;
  } cases[] = {{{.param = AD_F32}, 0},
               {{.param = AD_F16}, 1},
               {{.param = AD_F32, .grad = AD_F16}, 1},
               {{.param = AD_F32, .reduce = AD_F16}, 1},
               {{.param = AD_F16, .grad = AD_F32}, 0},
               {{.param = AD_BF16}, 0},
               {{.raw = 1, .grad = AD_F32, .reduce = AD_F32}, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fixture f;
    describe(&f);
    f.params[1].policy = cases[i].policy;
    must(ad_module_create(f.comm, &f.spec, NULL, &f.module));
    int has;
    must(ad_module_needs_loss_scale(&f.spec, &has));
    assert_int_equal(has, cases[i].has);
    close_module(&f);
  }
}

/* ---- parameters on a view of the mesh ---- */

static int on_a_view(ad_comm *comm, void *context) {
  ad_mesh *mesh, *view;
  ad_module *module;
  int64_t rank = ad_comm_rank(comm);
  CHECK_OK(ad_mesh_create("dp_replicate=2 dp_shard=3", &mesh));
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=3", &view));
  ad_param_spec params[] = {matrix("w", mesh), matrix("u", view)};
  ad_layout_set(&params[0].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_layout_set(&params[1].layout, AD_AXES(AD_TP), AD_S(1));
  params[1].storage = params[1].layout;
  ad_layout_set(&params[1].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_state_spec sharded = {sizeof sharded, "cut", AD_F64, {1, {7}}, ad_layout_all(view, AD_R), 1};
  ad_layout_set(&sharded.layout, AD_AXES(AD_TP), AD_S(0));
  ad_module_spec spec = {.size = sizeof spec,
                         .name = "m",
                         .mesh = mesh,
                         .params = params,
                         .param_count = 2,
                         .states = &sharded,
                         .state_count = 1};
  ad_module_options options = {.size = sizeof options, .seed = 5};
  CHECK_OK(ad_module_create(comm, &spec, &options, &module));
  CHECK(ad_array_numel(ad_module_state(module, 0)) == (size_t)ad_cut(7, rank % 3, 3).count);
  const ad_shape *value = &ad_module_part(module, 1, AD_PART_VALUE)->local;
  CHECK(value->dim[0] == ad_cut(ROWS, rank / 3, 2).count && value->dim[1] == ad_cut(COLUMNS, rank % 3, 3).count);

  // Each rank's gradient is 1 + rank: every part of `w` gets the sum over all ranks, `u` that over the ranks that hold
  // it.
  float ones[ROWS * COLUMNS];
  CHECK_OK(ad_reducer_begin_microbatch(ad_module_reducer(module), AD_SYNC_ALL));
  for (size_t i = 0; i < 2; i++) {
    ad_layout dual = ad_layout_dual(&params[i].layout);
    ad_array grad = ad_array_describe(comm, AD_F32, &params[i].shape, &dual);
    for (size_t e = 0; e < ad_array_numel(&grad); e++) ones[e] = (float)(1 + rank);
    grad.data = ones;
    CHECK_OK(ad_reducer_add(ad_module_reducer(module), i, &grad));
  }
  CHECK_OK(ad_reducer_end_microbatch(ad_module_reducer(module)));
  CHECK_OK(ad_reducer_finish(ad_module_reducer(module)));
  double sums[] = {1 + 2 + 3 + 4 + 5 + 6, (double)((1 + rank % 3) + (4 + rank % 3))};
  for (size_t i = 0; i < 2; i++) {
    const ad_array *gradient = ad_module_part(module, i, AD_PART_GRADIENT);
    const ad_array *master = ad_module_part(module, i, AD_PART_MASTER);
    CHECK(ad_layout_equal(&gradient->layout, &master->layout));
    for (size_t e = 0; e < ad_array_numel(gradient); e++) CHECK(((float *)gradient->data)[e] == (float)sums[i]);
  }
  CHECK_OK(ad_module_update(module, &(const double){0.1}, 1));
  ad_module_destroy(module);
  ad_mesh_destroy(mesh);
  ad_mesh_destroy(view);
  return 0;
}

static void parameters_may_lie_on_any_view_of_the_mesh(void **state) { run_ranks(6, on_a_view, NULL); }

/* ---- what is refused ---- */

/* The module is refused with these facts; the sentence is in the list of the case. */
static void refused(const char *name, fixture *f, ad_status status, const char *const *facts) {
  assert_int_equal(ad_module_create(f->comm, &f->spec, NULL, &f->module), status);
  assert_null(f->module);
  assert_says_in(name, ad_last_error(), facts);
  close_module(f);
}

static void what_is_not_on_the_modules_ranks_is_refused(void **state) {
  fixture f;
  ad_mesh *other;
  must(ad_mesh_create("dp=3", &other));
  describe(&f);
  f.params[1] = matrix("far", other);
  refused("a parameter elsewhere", &f, AD_INVALID, SAYS_FACTS("far", "dp_shard=3"));
  describe(&f);
  f.states[1].layout = ad_layout_all(other, AD_R);
  refused("a state elsewhere", &f, AD_INVALID, SAYS_FACTS("sources", "dp_shard=3"));
  ad_mesh_destroy(other);
}

static void a_state_is_a_value_with_a_name_of_its_own(void **state) {
  fixture f;
  describe(&f);
  f.states[1].name = "bias";
  refused("another state's name", &f, AD_INVALID, SAYS_FACTS("bias"));
  describe(&f);
  f.states[1].name = "head.w";
  refused("a parameter's name", &f, AD_INVALID, SAYS_FACTS("head.w"));
  describe(&f);
  ad_layout_set(&f.states[0].layout, AD_AXES(AD_TP), AD_P);
  refused("a state that is a partial", &f, AD_TYPE, SAYS_FACTS("bias", "P", "V", "tp"));
  describe(&f);
  f.states[0].name = NULL;
  refused("a state without a name", &f, AD_INVALID, SAYS_FACTS("state 0"));
}

static void a_policy_that_means_nothing_is_refused_by_name(void **state) {
  fixture f;
  describe(&f);
  f.params[1].policy = (ad_precision_policy){.raw = 1};
  refused("a raw contract", &f, AD_INVALID, SAYS_FACTS("head.w"));
  describe(&f);
  f.params[1].name = NULL;
  refused("a parameter without a name", &f, AD_INVALID, SAYS_FACTS("parameter 1"));
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  for (int is_mirror = 0; is_mirror <= 1; is_mirror++) {
    fixture f;
    long n = 1;
    describe(&f);
    f.spec.is_mirror = is_mirror;
    for (;; n++) {
      ad_memory_fail_at(n);
      ad_status status = ad_module_create(f.comm, &f.spec, NULL, &f.module);
      assert_true(reports_allocation(n, status));
      if (!status) break;
      assert_null(f.module);
    }
    assert_true(n > 20);
    close_module(&f);
  }
}

static void a_module_without_parameters_takes_its_steps(void **state) {
  fixture f;
  describe(&f);
  f.spec.param_count = f.spec.state_count = 0;
  must(ad_module_create(f.comm, &f.spec, NULL, &f.module));
  must(ad_module_refresh(f.module, AD_MASTERS_WRITTEN));
  must(ad_module_update(f.module, &(const double){1}, 1));
  int has = 1;
  must(ad_module_needs_loss_scale(&f.spec, &has));
  assert_false(has);
  close_module(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_array_of_a_parameter_is_found_by_its_part),
      cmocka_unit_test(a_number_beyond_the_last_finds_nothing),
      cmocka_unit_test(parts_have_the_names_that_checkpoints_use),
      cmocka_unit_test(a_module_keeps_names_of_its_own),
      cmocka_unit_test(masters_are_drawn_and_values_are_what_they_round_to),
      cmocka_unit_test(states_begin_with_their_value_in_their_dtype),
      cmocka_unit_test(an_update_moves_masters_values_and_copies),
      cmocka_unit_test(a_mirror_has_no_optimizer),
      cmocka_unit_test(values_arrive_in_a_mirror_and_its_gradients_leave),
      cmocka_unit_test(f16_gradients_are_found_by_the_whole_policy),
      cmocka_unit_test(parameters_may_lie_on_any_view_of_the_mesh),
      cmocka_unit_test(what_is_not_on_the_modules_ranks_is_refused),
      cmocka_unit_test(a_state_is_a_value_with_a_name_of_its_own),
      cmocka_unit_test(a_policy_that_means_nothing_is_refused_by_name),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
      cmocka_unit_test(a_module_without_parameters_takes_its_steps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
