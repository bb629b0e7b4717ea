/* Tests where backward may start: from several losses, from gradients that arrive from another tape, several times on
 * one tape; and where parameters' gradients then go. On one rank, some on backend dry. */
#include <stdio.h>
#include "says.h"
#include "tensor/tape.h"
#include "ranks.h"
#include "world.h"

enum { ROWS = 3, WIDTH = 4, PARAMS = 4 };

/* A trunk h = gelu(x w0) with two heads: sum(c0 * (h w1)) and sum(c1 * (h w2)); nothing uses w3. */
typedef struct branches {
  world w;
  ad_array x, c[2], param[PARAMS];
  const ad_array *list[PARAMS];
  ad_parameters from;
} branches;

static void open_branches(branches *f) {
  *f = (branches){.w = world_open()};
  f->x = random_array(&f->w, AD_F64, (ad_shape){2, {ROWS, WIDTH}}, 1, 0);
  for (uint64_t i = 0; i < 2; i++) f->c[i] = random_array(&f->w, AD_F64, (ad_shape){2, {ROWS, WIDTH}}, 2 + i, 0);
  for (uint64_t i = 0; i < PARAMS; i++) {
    f->param[i] = random_array(&f->w, AD_F64, (ad_shape){2, {WIDTH, WIDTH}}, 10 + i, 0);
    f->list[i] = &f->param[i];
  }
  f->from = (ad_parameters){.size = sizeof(ad_parameters), .values = f->list, .count = PARAMS};
}

static void close_branches(branches *f) {
  free(f->x.data);
  for (int i = 0; i < 2; i++) free(f->c[i].data);
  for (int i = 0; i < PARAMS; i++) free(f->param[i].data);
  world_close(&f->w);
}

static ad_tensor *trunk(const branches *f, ad_tape *t, ad_tensor *w0) {
  return ad_gelu(t, ad_linear(t, ad_constant(t, &f->x), w0));
}

static ad_tensor *head(const branches *f, ad_tape *t, ad_tensor *h, ad_tensor *w, int i) {
  return ad_sum(t, ad_multiply(t, ad_linear(t, h, w), ad_constant(t, &f->c[i])));
}

typedef struct recorded {
  ad_tensor *p[PARAMS], *h, *loss[2];
} recorded;

static recorded record(const branches *f, ad_tape *t, const ad_parameters *from) {
  recorded r;
  for (size_t i = 0; i < PARAMS; i++) r.p[i] = ad_parameter(t, from, i);
  r.h = trunk(f, t, r.p[0]);
  for (int i = 0; i < 2; i++) r.loss[i] = head(f, t, r.h, r.p[1 + i], i);
  return r;
}

/* What a single backward of the sum of both losses leaves for `param`; *out gets its own memory. */
static void expect(const branches *f, size_t param, ad_array *out) {
  ad_tape *t = open_tape(&f->w, AD_F64);
  ad_parameters alone = {.size = sizeof alone, .values = f->list, .count = PARAMS};
  recorded r = record(f, t, &alone);
  must(ad_backward(t, ad_add(t, r.loss[0], r.loss[1])));
  *out = *ad_grad(r.p[param]);
  out->data = malloc(ad_array_bytes(out));
  memcpy(out->data, ad_grad(r.p[param])->data, ad_array_bytes(out));
  ad_tape_destroy(t);
}

static void near(const ad_array *is, const ad_array *wanted, double bound) {
  assert_non_null(is);
  assert_int_equal(ad_array_numel(is), ad_array_numel(wanted));
  for (size_t i = 0; i < ad_array_numel(is); i++)
    assert_true(fabs(element(is, i) - element(wanted, i)) <= bound * (1 + fabs(element(wanted, i))));
}

static void assert_gradients(const branches *f, const recorded *r, double bound) {
  for (size_t i = 0; i < 3; i++) {
    ad_array wanted;
    expect(f, i, &wanted);
    near(ad_grad(r->p[i]), &wanted, bound);
    free(wanted.data);
  }
}

/* ---- from one tape to another and back ---- */

static void a_gradient_that_comes_back_continues_its_tape(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *a = open_tape(&f.w, AD_F64), *b = open_tape(&f.w, AD_F64), *one = open_tape(&f.w, AD_F64);
  ad_tensor *w0 = ad_parameter(a, &f.from, 0), *w1 = ad_parameter(b, &f.from, 1);
  ad_tensor *h = trunk(&f, a, w0), *arrived = ad_input(b, ad_tensor_array(h));
  must(ad_backward(b, head(&f, b, arrived, w1, 0)));
  must(ad_backward_from(a, &h, (const ad_array *[]){ad_grad(arrived)}, 1, AD_LAST_START));
  recorded r = record(&f, one, &f.from);
  must(ad_backward(one, r.loss[0]));
  near(ad_grad(w0), ad_grad(r.p[0]), 0);
  near(ad_grad(w1), ad_grad(r.p[1]), 0);
  ad_tape_destroy(a);
  ad_tape_destroy(b);
  ad_tape_destroy(one);
  close_branches(&f);
}

static void a_start_takes_losses_and_arriving_gradients_together(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *a = open_tape(&f.w, AD_F64), *b = open_tape(&f.w, AD_F64);
  recorded r = {.p = {ad_parameter(a, &f.from, 0), ad_parameter(a, &f.from, 1), ad_parameter(b, &f.from, 2)}};
  r.h = trunk(&f, a, r.p[0]);
  ad_tensor *own = head(&f, a, r.h, r.p[1], 0), *arrived = ad_input(b, ad_tensor_array(r.h));
  must(ad_backward(b, head(&f, b, arrived, r.p[2], 1)));
  ad_tensor *outputs[] = {r.h, own};  // the loss uses the other output
  const ad_array *gradients[] = {ad_grad(arrived), NULL};
  must(ad_backward_from(a, outputs, gradients, 2, AD_LAST_START));
  assert_gradients(&f, &r, 1e-15);
  ad_tape_destroy(a);
  ad_tape_destroy(b);
  close_branches(&f);
}

static void an_output_that_is_listed_twice_counts_twice(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64);
  recorded r = record(&f, t, &f.from);
  ad_tensor *twice[] = {r.loss[0], r.loss[0]};
  must(ad_backward_from(t, twice, NULL, 2, AD_LAST_START));
  ad_tape *once = open_tape(&f.w, AD_F64);
  recorded s = record(&f, once, &f.from);
  must(ad_backward(once, s.loss[0]));
  for (size_t i = 0; i < ad_array_numel(&f.param[1]); i++)
    assert_true(element(ad_grad(r.p[1]), i) == 2 * element(ad_grad(s.p[1]), i));
  ad_tape_destroy(t);
  ad_tape_destroy(once);
  close_branches(&f);
}

/* ---- several starts of backward on one tape ---- */

typedef struct seen {
  int times[PARAMS];
} seen;

static void see(void *context, size_t param, const ad_array *grad) { ((seen *)context)->times[param]++; }

static void two_losses_in_two_starts_are_their_sum(void **state) {
  branches f;
  seen s = {{0}};
  open_branches(&f);
  f.from.gradient = see;
  f.from.gradient_context = &s;
  ad_tape *t = open_tape(&f.w, AD_F64);
  recorded r = record(&f, t, &f.from);
  must(ad_backward_from(t, &r.loss[0], NULL, 1, AD_MORE_STARTS));
  for (int i = 0; i < PARAMS; i++) assert_int_equal(s.times[i], 0);
  must(ad_backward_from(t, &r.loss[1], NULL, 1, AD_LAST_START));
  assert_gradients(&f, &r, 1e-15);
  // the parameters that only the first start reached are submitted too
  for (int i = 0; i < PARAMS; i++) assert_int_equal(s.times[i], i < 3);
  ad_tape_destroy(t);
  close_branches(&f);
}

static void what_is_recorded_between_two_starts_belongs_to_the_second(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64);
  recorded r = {.h = NULL};
  for (size_t i = 0; i < 3; i++) r.p[i] = ad_parameter(t, &f.from, i);
  r.h = trunk(&f, t, r.p[0]);
  ad_tensor *first = head(&f, t, r.h, r.p[1], 0);
  must(ad_backward_from(t, &first, NULL, 1, AD_MORE_STARTS));
  must(ad_backward(t, head(&f, t, r.h, r.p[2], 1)));
  assert_gradients(&f, &r, 1e-15);
  ad_tape_destroy(t);
  close_branches(&f);
}

static void a_kept_gradient_adds_up_over_the_starts_and_passes_each_on_once(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64), *sum = open_tape(&f.w, AD_F64);
  recorded r = record(&f, t, &f.from), s = record(&f, sum, &f.from);
  ad_keep(r.h);
  ad_keep(s.h);
  for (int last = 0; last < 2; last++) must(ad_backward_from(t, &r.loss[last], NULL, 1, last));
  must(ad_backward(sum, ad_add(sum, s.loss[0], s.loss[1])));
  near(ad_grad(r.h), ad_grad(s.h), 1e-15);
  assert_gradients(&f, &r, 1e-15);
  ad_tape_destroy(t);
  ad_tape_destroy(sum);
  close_branches(&f);
}

static void dry_starts_plan_the_bytes_that_real_ones_take(void **state) {
  branches f;
  size_t peak[2];
  open_branches(&f);
  ad_comm *dry;
  must(ad_comm_open_dry(0, 1, &dry));
  for (int i = 0; i < 2; i++) {
    ad_tape *t;
    ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
    must(ad_tape_create(i ? dry : f.w.comm, f.w.mesh, &options, &t));
    recorded r = record(&f, t, &f.from);
    ad_keep(r.h);
    for (int last = 0; last < 2; last++) must(ad_backward_from(t, &r.loss[last], NULL, 1, last));
    peak[i] = ad_tape_peak_bytes(t);
    ad_tape_destroy(t);
  }
  assert_int_equal(peak[0], peak[1]);
  ad_comm_close(dry);
  close_branches(&f);
}

/* ---- parameters' gradients in reducers ---- */

static ad_reducer *open_reducer(const branches *f, size_t params) {
  static const char *const names[PARAMS] = {"w0", "w1", "w2", "w3"};
  ad_param_spec specs[PARAMS];
  for (size_t i = 0; i < params; i++) {
    specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                               .name = names[i],
                               .shape = f->param[i].shape,
                               .layout = f->w.layout,
                               .storage = f->w.layout};
    specs[i].policy.param = AD_F64;
  }
  ad_reducer *reducer;
  must(ad_reducer_create(f->w.comm, specs, params, NULL, &reducer));
  return reducer;
}

static void assert_reduced(const branches *f, const ad_reducer *reducer, size_t number, size_t param, double times) {
  ad_array wanted;
  expect(f, param, &wanted);
  for (size_t i = 0; i < ad_array_numel(&wanted); i++) ((double *)wanted.data)[i] *= times;
  near(ad_reducer_gradient(reducer, number), &wanted, 1e-15);
  free(wanted.data);
}

/* Two microbatches: the second one's gradients add to the first one's in the buckets. */
static void the_last_start_hands_parameters_to_their_reducer(void **state) {
  branches f;
  open_branches(&f);
  ad_reducer *reducer = f.from.reducer = open_reducer(&f, PARAMS);
  ad_tape *t = open_tape(&f.w, AD_F64);
  for (int m = 0; m < 2; m++) {
    must(ad_reducer_begin_microbatch(reducer, m ? AD_SYNC_ALL : AD_SYNC_NONE));
    ad_tape_reset(t);
    recorded r = record(&f, t, &f.from);
    must(ad_backward_from(t, &r.loss[0], NULL, 1, AD_MORE_STARTS));
    assert_non_null(ad_grad(r.p[1]));
    must(ad_backward_from(t, &r.loss[1], NULL, 1, AD_LAST_START));
    assert_null(ad_grad(r.p[1]));
    must(ad_reducer_end_microbatch(reducer));
  }
  must(ad_reducer_finish(reducer));
  for (size_t i = 0; i < PARAMS; i++) assert_int_equal(ad_reducer_is_absent(reducer, i), i == 3);
  for (size_t i = 0; i < 3; i++) assert_reduced(&f, reducer, i, i, 2);
  ad_tape_destroy(t);
  ad_reducer_destroy(reducer);
  close_branches(&f);
}

/* Without a last start no gradient reaches the reducer. */
static void a_tape_that_is_reset_between_its_starts_leaves_the_reducer_alone(void **state) {
  branches f;
  open_branches(&f);
  ad_reducer *reducer = f.from.reducer = open_reducer(&f, PARAMS);
  ad_tape *t = open_tape(&f.w, AD_F64);
  must(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  for (int again = 0; again < 2; again++) {
    ad_tape_reset(t);
    recorded r = record(&f, t, &f.from);
    must(ad_backward_from(t, &r.loss[0], NULL, 1, AD_MORE_STARTS));
    if (again) must(ad_backward_from(t, &r.loss[1], NULL, 1, AD_LAST_START));
  }
  must(ad_reducer_end_microbatch(reducer));
  must(ad_reducer_finish(reducer));
  for (size_t i = 0; i < 3; i++) assert_reduced(&f, reducer, i, i, 1);
  ad_tape_destroy(t);
  ad_reducer_destroy(reducer);
  close_branches(&f);
}

static void one_tape_feeds_two_reducers(void **state) {
  branches f;
  open_branches(&f);
  // Module 1 has the parameters w0 and w1; module 2 has w2, as its parameter 0.
  ad_parameters first = {.size = sizeof first, .values = f.list, .count = 2, .reducer = open_reducer(&f, 2)};
  ad_parameters second = {.size = sizeof second, .values = &f.list[2], .count = 1, .reducer = open_reducer(&f, 1)};
  ad_tape *t = open_tape(&f.w, AD_F64);
  must(ad_reducer_begin_microbatch(first.reducer, AD_SYNC_ALL));
  must(ad_reducer_begin_microbatch(second.reducer, AD_SYNC_ALL));
  ad_tensor *h = trunk(&f, t, ad_parameter(t, &first, 0));
  ad_tensor *a = head(&f, t, h, ad_parameter(t, &first, 1), 0), *b = head(&f, t, h, ad_parameter(t, &second, 0), 1);
  must(ad_backward(t, ad_add(t, a, b)));
  must(ad_reducer_end_microbatch(first.reducer));
  must(ad_reducer_end_microbatch(second.reducer));
  must(ad_reducer_finish(first.reducer));
  must(ad_reducer_finish(second.reducer));
  assert_reduced(&f, first.reducer, 0, 0, 1);
  assert_reduced(&f, first.reducer, 1, 1, 1);
  assert_reduced(&f, second.reducer, 0, 2, 1);
  ad_tape_destroy(t);
  ad_reducer_destroy(first.reducer);
  ad_reducer_destroy(second.reducer);
  close_branches(&f);
}

/* ---- starts that are refused ---- */

static void a_start_after_the_last_is_refused(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64);
  recorded r = record(&f, t, &f.from);
  must(ad_backward_from(t, &r.loss[0], NULL, 1, AD_LAST_START));
  assert_int_equal(ad_backward_from(t, &r.loss[1], NULL, 1, AD_LAST_START), AD_INVALID);
  assert_says("ad_tape_reset");
  ad_tape_destroy(t);
  close_branches(&f);
}

static void a_start_that_reaches_nothing_is_refused(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64);
  ad_tensor *loss = ad_sum(t, ad_constant(t, &f.x));
  assert_int_equal(ad_backward(t, loss), AD_INVALID);
  assert_says_in("constants alone", ad_last_error(), SAYS_FACTS("backward"));
  ad_tape_reset(t);
  assert_int_equal(ad_backward_from(t, NULL, NULL, 0, AD_LAST_START), AD_INVALID);
  assert_says_in("no outputs", ad_last_error(), SAYS_FACTS("backward"));
  ad_tape_destroy(t);
  close_branches(&f);
}

static void outputs_belong_to_their_tape(void **state) {
  branches f;
  open_branches(&f);
  ad_tape *t = open_tape(&f.w, AD_F64), *other = open_tape(&f.w, AD_F64);
  ad_tensor *x = ad_input(other, &f.x);
  const ad_array *grad = &f.c[0];
  assert_int_equal(ad_backward_from(t, &x, &grad, 1, AD_LAST_START), AD_INVALID);
  assert_says_in("a tensor of another tape", ad_last_error(), SAYS_FACTS("backward", "output 0"));
  ad_tape_reset(t);
  assert_int_equal(ad_backward_from(t, (ad_tensor *[]){NULL}, &grad, 1, AD_LAST_START), AD_INVALID);
  assert_says("backward", "output 0", "NULL");
  ad_tape_destroy(t);
  ad_tape_destroy(other);
  close_branches(&f);
}

static ad_array dual_of(ad_array array) {
  array.layout = ad_layout_dual(&array.layout);
  return array;
}

/* Starts backward with `grad` on an output of shape [ROWS, WIDTH] in f64. */
static ad_status start_with(const branches *f, const ad_array *grad) {
  ad_tape *t = open_tape(&f->w, AD_F64);
  ad_tensor *x = ad_input(t, &f->x), *y = ad_gelu(t, x);
  ad_status status = ad_backward_from(t, &y, &grad, 1, AD_LAST_START);
  ad_tape_destroy(t);
  return status;
}

static void a_gradient_has_the_shape_and_dtype_of_its_output(void **state) {
  branches f;
  open_branches(&f);
  ad_array right = dual_of(f.c[0]), wrong = right, larger = dual_of(f.param[0]);
  must(start_with(&f, &right));
  wrong.data = NULL;
  assert_int_equal(start_with(&f, &wrong), AD_INVALID);
  assert_says_in("no data", ad_last_error(), SAYS_FACTS("backward", "[3, 4]"));
  wrong = right;
  wrong.scale = 3;
  assert_int_equal(start_with(&f, &wrong), AD_TYPE);
  assert_says("backward", "output 0", "2^-3");
  wrong = right;
  wrong.layout.mesh = NULL;
  assert_int_equal(start_with(&f, &wrong), AD_INVALID);
  assert_says_in("no mesh", ad_last_error(), SAYS_FACTS("backward", "output 0"));
  wrong = right;
  wrong.dtype = AD_F32;
  assert_int_equal(start_with(&f, &wrong), AD_INVALID);
  assert_says("backward", "output 0", "f32", "f64");
  assert_int_equal(start_with(&f, &larger), AD_INVALID);
  assert_says("backward", "output 0", "[4, 4]", "[3, 4]");
  close_branches(&f);
}

typedef struct dry_world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *tape;
} dry_world;

static dry_world open_dry(void) {
  dry_world d;
  must(ad_comm_open_dry(1, 6, &d.comm));
  must(ad_mesh_create("dp_shard=3 tp=2", &d.mesh));
  must(ad_tape_create(d.comm, d.mesh, NULL, &d.tape));
  return d;
}

static void close_dry(dry_world *d) {
  ad_tape_destroy(d->tape);
  ad_mesh_destroy(d->mesh);
  ad_comm_close(d->comm);
}

static ad_array described(const dry_world *d, const char *layout_text, ad_shape shape) {
  ad_layout layout;
  must(ad_layout_parse(d->mesh, layout_text, &layout));
  return ad_array_describe(d->comm, AD_F32, &shape, &layout);
}

static void a_gradient_that_is_not_the_dual_of_its_output_is_refused(void **state) {
  dry_world d = open_dry();
  ad_shape shape = {2, {6, 8}};
  ad_array x = described(&d, "dp_shard=S0 tp=R", shape), right = dual_of(x);
  const ad_array *grad = &right;
  ad_tensor *output = ad_input(d.tape, &x);
  must(ad_backward_from(d.tape, &output, &grad, 1, AD_LAST_START));
  ad_tape_reset(d.tape);
  grad = &x;
  output = ad_input(d.tape, &x);
  assert_int_equal(ad_backward_from(d.tape, &output, &grad, 1, AD_LAST_START), AD_TYPE);
  assert_says("backward", "output 0", "dp_shard=S0 tp=R", "dp_shard=S0 tp=P");
  close_dry(&d);
}

/* Law 5: a loss that starts backward is P or I, even if other outputs start with it. */
static void a_loss_among_the_outputs_keeps_the_seed_rule(void **state) {
  dry_world d = open_dry();
  ad_array partial = described(&d, "dp=P tp=I", (ad_shape){0, {0}});
  ad_array same = described(&d, "dp=R tp=I", (ad_shape){0, {0}}), dual = dual_of(same);
  ad_tensor *outputs[] = {ad_input(d.tape, &partial), ad_input(d.tape, &same)};
  must(ad_backward_from(d.tape, outputs, NULL, 1, AD_MORE_STARTS));
  assert_int_equal(ad_backward_from(d.tape, outputs, NULL, 2, AD_LAST_START), AD_TYPE);
  assert_says("backward", "R->P");
  ad_tape_reset(d.tape);
  outputs[1] = ad_input(d.tape, &same);  // an R output takes the gradient that arrives, which is its dual P
  must(ad_backward_from(d.tape, &outputs[1], (const ad_array *[]){&dual}, 1, AD_LAST_START));
  close_dry(&d);
}

/* Rank 1's second start is refused after the first was accepted; rank 0 meanwhile waits in an all-reduce. */
static int fail_later(ad_comm *comm, void *context) {
  double one = 1, sum;
  ad_mesh *mesh;
  ad_tape *t;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array x = ad_array_describe(comm, AD_F64, &(ad_shape){0, {0}}, &layout);
  x.data = &one;
  CHECK_OK(ad_tape_create(comm, mesh, &options, &t));
  ad_tensor *loss = ad_input(t, &x);
  CHECK_OK(ad_backward_from(t, &loss, NULL, 1, AD_MORE_STARTS));
  if (ad_comm_rank(comm) == 1) {
    CHECK_STATUS(ad_backward_from(t, NULL, NULL, 0, AD_LAST_START), AD_INVALID);
  } else {
    ad_collective call = {.size = sizeof call,
                          .op = AD_ALL_REDUCE,
                          .group = ad_mesh_group(mesh, AD_AXES_ALL, 0),
                          .in = &one,
                          .out = &sum,
                          .count = 1,
                          .dtype = AD_F64,
                          .reduction = AD_SUM,
                          .site = AD_HERE};
    CHECK(ad_comm_run(comm, &call));
    CHECK_LISTED();
  }
  ad_tape_destroy(t);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_start_that_is_refused_after_a_good_one_is_reported_to_the_others(void **state) {
  run_ranks(2, fail_later, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_gradient_that_comes_back_continues_its_tape),
      cmocka_unit_test(a_start_takes_losses_and_arriving_gradients_together),
      cmocka_unit_test(an_output_that_is_listed_twice_counts_twice),
      cmocka_unit_test(two_losses_in_two_starts_are_their_sum),
      cmocka_unit_test(what_is_recorded_between_two_starts_belongs_to_the_second),
      cmocka_unit_test(a_kept_gradient_adds_up_over_the_starts_and_passes_each_on_once),
      cmocka_unit_test(dry_starts_plan_the_bytes_that_real_ones_take),
      cmocka_unit_test(the_last_start_hands_parameters_to_their_reducer),
      cmocka_unit_test(a_tape_that_is_reset_between_its_starts_leaves_the_reducer_alone),
      cmocka_unit_test(one_tape_feeds_two_reducers),
      cmocka_unit_test(a_start_after_the_last_is_refused),
      cmocka_unit_test(a_start_that_reaches_nothing_is_refused),
      cmocka_unit_test(outputs_belong_to_their_tape),
      cmocka_unit_test(a_gradient_has_the_shape_and_dtype_of_its_output),
      cmocka_unit_test(a_gradient_that_is_not_the_dual_of_its_output_is_refused),
      cmocka_unit_test(a_loss_among_the_outputs_keeps_the_seed_rule),
      cmocka_unit_test(a_start_that_is_refused_after_a_good_one_is_reported_to_the_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
