/* Tests the tape: its memory, its errors, and how it passes gradients to the reducer. On one rank. */
#include <stdio.h>
#include "allocations.h"
#include "base/error.h"
#include "base/memory.h"
#include "rows/rows.h"
#include "says.h"
#include "tensor/tape.h"
#include "world.h"

enum { VOCABULARY = 11, WIDTH = 8, HEAD = 4, HIDDEN = 12, BATCH = 2, SEQ = 5, PARAMS = 8 };

/* A small model with all operations; its head is tied to its embedding. */
typedef struct model {
  world w;
  ad_dtype dtype;
  ad_array param[PARAMS], tokens, targets;
  ad_param_spec specs[PARAMS];
  const ad_array *list[PARAMS];
  ad_parameters from; /* all of `param`, without a reducer */
  ad_count *count;    /* counts the positions */
} model;

static const ad_shape shapes[PARAMS] = {{2, {VOCABULARY, WIDTH}}, {1, {WIDTH}},         {2, {WIDTH, WIDTH}},
                                        {2, {WIDTH, WIDTH}},      {2, {WIDTH, HIDDEN}}, {2, {WIDTH, HIDDEN}},
                                        {2, {HIDDEN, WIDTH}},     {2, {WIDTH, WIDTH}}};
static const char *const names[PARAMS] = {"embedding", "norm", "query", "value", "gate", "up", "down", "unused"};

static void open_model(model *m, ad_dtype dtype) {
  memset(m, 0, sizeof *m);
  m->w = world_open();
  m->dtype = dtype;
  ad_shape indices = {2, {BATCH, SEQ}};
  m->tokens = random_array(&m->w, AD_I32, indices, 50, VOCABULARY);
  m->targets = random_array(&m->w, AD_I32, indices, 51, VOCABULARY);
  for (size_t i = 0; i < PARAMS; i++) {
    m->param[i] = random_array(&m->w, dtype, shapes[i], 60 + i, 0);
    m->specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                                  .name = names[i],
                                  .shape = shapes[i],
                                  .layout = m->w.layout,
                                  .storage = m->w.layout};
    m->specs[i].policy.param = dtype;
    m->list[i] = &m->param[i];
  }
  m->from = (ad_parameters){.size = sizeof(ad_parameters), .values = m->list, .count = PARAMS};
  m->count = summed_count(&m->w, (int64_t)BATCH * SEQ);
}

static void close_model(model *m) {
  for (size_t i = 0; i < PARAMS; i++) free(m->param[i].data);
  free(m->tokens.data);
  free(m->targets.data);
  ad_count_destroy(m->count);
  world_close(&m->w);
}

static ad_tensor *run_with(const model *m, const ad_parameters *from, ad_tape *t, ad_tensor **p) {
  for (size_t i = 0; i < PARAMS; i++) p[i] = ad_parameter(t, from, i);
  ad_tensor *x = ad_embedding(t, p[0], ad_constant(t, &m->tokens)), *h = ad_rms_norm(t, x, p[1], 1e-5);
  ad_tensor *q = ad_rotary(t, ad_linear(t, h, p[2]), HEAD, 10000);
  x = ad_add(t, x, ad_attention(t, q, h, ad_linear(t, h, p[3]), HEAD));
  h = ad_linear(t, ad_swiglu(t, ad_linear(t, x, p[4]), ad_linear(t, x, p[5])), p[6]);
  x = ad_add(t, x, ad_gelu(t, ad_scale(t, h, 0.5)));
  ad_tensor *logits = ad_linear_transposed(t, x, p[0]);
  return ad_divide(t, ad_cross_entropy(t, logits, ad_constant(t, &m->targets)), m->count);
}

static ad_tensor *run_model(const model *m, ad_tape *t, ad_tensor **p) { return run_with(m, &m->from, t, p); }

/* Checks that the arrays differ by at most `bound` times the largest element. */
static void equal_arrays(const ad_array *a, const ad_array *b, double bound) {
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(ad_array_numel(a), ad_array_numel(b));
  double largest = 0;
  for (size_t i = 0; i < ad_array_numel(b); i++) largest = fmax(largest, fabs(element(b, i)));
  for (size_t i = 0; i < ad_array_numel(a); i++) assert_true(fabs(element(a, i) - element(b, i)) <= bound * largest);
}

/* ---- parameters that exist only while they are used (ZeRO 3) ---- */

/* Each acquire puts the parameter into new memory, and each release overwrites the old memory. */
typedef struct lender {
  model *m;
  ad_array lent[PARAMS]; /* the arrays as the tape gets them */
  const ad_array *list[PARAMS];
  ad_parameters from;
  void *kept[PARAMS]; /* the parameters' elements */
  int held[PARAMS], uses[PARAMS];
  int fails_at; /* the number of the acquire that fails; 0: none fails */
  int acquired;
} lender;

static ad_status lend(void *context, size_t param) {
  lender *l = context;
  if (++l->acquired == l->fails_at) return ad_fail(AD_MEMORY, "nothing to lend");
  l->uses[param]++;
  if (l->held[param]++) return AD_OK;
  size_t bytes = ad_array_bytes(&l->lent[param]);
  l->lent[param].data = malloc(bytes);
  memcpy(l->lent[param].data, l->kept[param], bytes);
  return AD_OK;
}

static void take_back(void *context, size_t param) {
  lender *l = context;
  assert_true(l->held[param] > 0);
  if (--l->held[param]) return;
  memset(l->lent[param].data, 0xff, ad_array_bytes(&l->lent[param]));
  free(l->lent[param].data);
  l->lent[param].data = NULL;
}

static void open_lender(lender *l, model *m) {
  memset(l, 0, sizeof *l);
  l->m = m;
  for (size_t i = 0; i < PARAMS; i++) {
    l->lent[i] = m->param[i];
    l->lent[i].data = NULL;
    l->kept[i] = m->param[i].data;
    l->list[i] = &l->lent[i];
  }
  l->from = (ad_parameters){.size = sizeof(ad_parameters),
                            .values = l->list,
                            .count = PARAMS,
                            .acquire = lend,
                            .release = take_back,
                            .context = l};
}

static void lent_parameters_give_the_same_gradients(void **state) {
  model m;
  lender l;
  ad_tensor *p[PARAMS], *q[PARAMS];
  open_model(&m, AD_F64);
  ad_tape *plain = open_tape(&m.w, AD_F64);
  must(ad_backward(plain, run_model(&m, plain, p)));
  open_lender(&l, &m);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  must(ad_backward(tape, run_with(&m, &l.from, tape, q)));
  for (size_t i = 0; i + 1 < PARAMS; i++) equal_arrays(ad_grad(q[i]), ad_grad(p[i]), 0);
  for (size_t i = 0; i < PARAMS; i++) assert_int_equal(l.held[i], 0);
  // the lookup, the tied head and the head's backward; the lookup's backward does not read the table
  assert_int_equal(l.uses[0], 3);
  assert_int_equal(l.uses[1], 2);
  assert_int_equal(l.uses[7], 0);
  ad_tape_destroy(tape);
  ad_tape_destroy(plain);
  close_model(&m);
}

static void a_moved_parameter_outlives_its_use(void **state) {
  model m;
  lender l;
  open_model(&m, AD_F64);
  open_lender(&l, &m);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  ad_tensor *moved = ad_convert(tape, ad_parameter(tape, &l.from, 1), "tp", AD_R);
  must(ad_tape_status(tape));
  assert_null(l.lent[1].data);
  equal_arrays(ad_tensor_array(moved), &m.param[1], 0);
  ad_tape_destroy(tape);
  close_model(&m);
}

static void a_parameter_that_cannot_be_had_fails_the_tape_and_holds_none(void **state) {
  model m;
  lender l;
  open_model(&m, AD_F64);
  int fails_at = 1, failed = 1;
  for (; failed; fails_at++) {
    ad_tensor *p[PARAMS];
    open_lender(&l, &m);
    l.fails_at = fails_at;
    ad_tape *tape = open_tape(&m.w, AD_F64);
    failed = ad_backward(tape, run_with(&m, &l.from, tape, p)) != AD_OK;
    if (failed) assert_listed();
    for (size_t i = 0; i < PARAMS; i++) assert_int_equal(l.held[i], 0);
    ad_tape_destroy(tape);
  }
  assert_int_equal(fails_at, 17);  // 8 uses in forward and 7 in backward succeed
  close_model(&m);
}

static void keep_sum(void *context, size_t param, const ad_array *grad) {
  double *sums = context;
  for (size_t i = 0; i < ad_array_numel(grad); i++) sums[param] += element(grad, i);
}

static void a_tape_without_reducer_shows_complete_gradients(void **state) {
  model m;
  ad_tensor *p[PARAMS];
  double sums[PARAMS] = {0}, of_grad[PARAMS] = {0};
  open_model(&m, AD_F64);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  m.from.gradient = keep_sum;
  m.from.gradient_context = sums;
  must(ad_backward(tape, run_model(&m, tape, p)));
  for (size_t i = 0; i + 1 < PARAMS; i++) {
    keep_sum(of_grad, i, ad_grad(p[i]));
    assert_true(sums[i] == of_grad[i] && sums[i] != 0);
  }
  assert_true(sums[7] == 0);
  ad_tape_destroy(tape);
  close_model(&m);
}

/* ---- gradients in the reducer ---- */

/* Makes a reducer, into which the model's gradients go from now on. */
static ad_reducer *open_reducer(model *m) {
  must(ad_reducer_create(m->w.comm, m->specs, PARAMS, NULL, &m->from.reducer));
  return m->from.reducer;
}

static void step(const model *m, ad_tape *tape, ad_reducer *reducer, int microbatches) {
  for (int i = 0; i < microbatches; i++) {
    ad_tensor *p[PARAMS];
    must(ad_reducer_begin_microbatch(reducer, i + 1 < microbatches ? AD_SYNC_NONE : AD_SYNC_ALL));
    ad_tape_reset(tape);
    must(ad_backward(tape, run_model(m, tape, p)));
    must(ad_reducer_end_microbatch(reducer));
  }
  must(ad_reducer_finish(reducer));
}

static void compare_with_tape(const model *m, ad_reducer *reducer, double times, double bound) {
  ad_tape *tape = open_tape(&m->w, m->dtype);
  ad_parameters alone = {.size = sizeof alone, .values = m->list, .count = PARAMS};
  ad_tensor *p[PARAMS];
  must(ad_backward(tape, run_with(m, &alone, tape, p)));
  for (size_t i = 0; i + 1 < PARAMS; i++) {
    ad_array grad = *ad_grad(p[i]);
    for (size_t k = 0; k < ad_array_numel(&grad); k++)
      ad_set_element(grad.dtype, grad.data, k, times * element(&grad, k));
    equal_arrays(ad_reducer_gradient(reducer, i), &grad, bound);
  }
  ad_tape_destroy(tape);
}

static void the_reducer_gets_what_the_tape_would_hold(void **state) {
  model m;
  open_model(&m, AD_F64);
  ad_reducer *reducer = open_reducer(&m);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  step(&m, tape, reducer, 1);
  compare_with_tape(&m, reducer, 1, 0);
  // every gradient adds to those of earlier microbatches, also the two addends of the tied table
  step(&m, tape, reducer, 3);
  compare_with_tape(&m, reducer, 3, 1e-15);
  step(&m, tape, reducer, 1);  // the next step starts from zero
  compare_with_tape(&m, reducer, 1, 0);
  ad_tape_destroy(tape);
  ad_reducer_destroy(reducer);
  close_model(&m);
}

static void gradients_of_another_dtype_go_through_the_tapes_memory(void **state) {
  model m;
  open_model(&m, AD_F64);
  for (size_t i = 0; i < PARAMS; i++)
    m.specs[i].policy = (ad_precision_policy){.param = AD_F64, .grad = AD_F32, .reduce = AD_F32};
  ad_reducer *reducer = open_reducer(&m);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  step(&m, tape, reducer, 2);
  compare_with_tape(&m, reducer, 2, 2e-7);
  ad_tape_destroy(tape);
  ad_reducer_destroy(reducer);
  close_model(&m);
}

static void a_parameter_that_nothing_reaches_is_absent(void **state) {
  model m;
  open_model(&m, AD_F32);
  ad_reducer *reducer = open_reducer(&m);
  ad_tape *tape = open_tape(&m.w, AD_F32);
  step(&m, tape, reducer, 1);
  for (size_t i = 0; i < PARAMS; i++) assert_int_equal(ad_reducer_is_absent(reducer, i), i == PARAMS - 1);
  ad_tape_destroy(tape);
  ad_reducer_destroy(reducer);
  close_model(&m);
}

static void a_parameter_used_on_no_rows_is_present(void **state) {
  model m;
  open_model(&m, AD_F32);
  m.tokens.shape.dim[0] = m.tokens.local.dim[0] = m.targets.shape.dim[0] = m.targets.local.dim[0] = 0;
  ad_reducer *reducer = open_reducer(&m);
  ad_tape *tape = open_tape(&m.w, AD_F32);
  step(&m, tape, reducer, 2);
  for (size_t i = 0; i + 1 < PARAMS; i++) {
    const ad_array *grad = ad_reducer_gradient(reducer, i);
    assert_false(ad_reducer_is_absent(reducer, i));
    for (size_t k = 0; k < ad_array_numel(grad); k++) assert_true(element(grad, k) == 0);
  }
  ad_tape_destroy(tape);
  ad_reducer_destroy(reducer);
  close_model(&m);
}

/* ---- errors on the tape ---- */

static void the_first_error_that_a_model_passes_on_stays(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F32);
  assert_ptr_equal(ad_tape_comm(tape), w.comm);
  assert_ptr_equal(ad_tape_mesh(tape), w.mesh);
  ad_tensor *dead = ad_tape_fail(tape, ad_fail(AD_IO, "there is no file"));
  assert_null(ad_tensor_array(ad_tape_fail(tape, ad_fail(AD_MEMORY, "and no memory"))));
  assert_null(ad_tensor_array(ad_add(tape, dead, dead)));
  assert_int_equal(ad_tape_status(tape), AD_IO);
  assert_listed();
  ad_tape_reset(tape);
  must(ad_tape_status(tape));
  ad_tape_destroy(tape);
  world_close(&w);
}

/* ---- memory ---- */

static void an_equal_step_allocates_nothing(void **state) {
  model m;
  open_model(&m, AD_F32);
  ad_reducer *reducer = open_reducer(&m);
  ad_tape *tape = open_tape(&m.w, AD_F32);
  step(&m, tape, reducer, 1);
  ad_tape_reset(tape);
  size_t peak = ad_tape_peak_bytes(tape);
  assert_true(peak > 0);
  ad_memory_fail_at(0);
  step(&m, tape, reducer, 2);
  assert_int_equal(ad_memory_fail_at(0), 0);
  assert_int_equal(ad_tape_peak_bytes(tape), peak);
  ad_tape_destroy(tape);
  ad_reducer_destroy(reducer);
  close_model(&m);
}

static void what_an_earlier_step_left_in_memory_is_never_read(void **state) {
  model m;
  open_model(&m, AD_F64);
  ad_tape *tape = open_tape(&m.w, AD_F64);
  ad_tensor *p[PARAMS];
  must(ad_backward(tape, run_model(&m, tape, p)));
  ad_array before[PARAMS];
  for (size_t i = 0; i + 1 < PARAMS; i++) {
    before[i] = *ad_grad(p[i]);
    before[i].data = malloc(ad_array_bytes(&before[i]));
    memcpy(before[i].data, ad_grad(p[i])->data, ad_array_bytes(&before[i]));
  }
  double first = element(&m.param[0], 0);
  for (size_t i = 0; i < ad_array_numel(&m.param[0]); i++) ((double *)m.param[0].data)[i] *= NAN;
  ad_tape_reset(tape);
  must(ad_backward(tape, run_model(&m, tape, p)));
  assert_true(isnan(element(ad_grad(p[0]), 0)));
  free(m.param[0].data);
  m.param[0] = random_array(&m.w, AD_F64, shapes[0], 60, 0);
  assert_true(element(&m.param[0], 0) == first);
  ad_tape_reset(tape);
  must(ad_backward(tape, run_model(&m, tape, p)));
  for (size_t i = 0; i + 1 < PARAMS; i++) {
    equal_arrays(ad_grad(p[i]), &before[i], 0);
    free(before[i].data);
  }
  ad_tape_destroy(tape);
  close_model(&m);
}

static void any_failed_allocation_is_an_error_and_leaves_nothing(void **state) {
  model m;
  open_model(&m, AD_F32);
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_tape *tape = NULL;
    ad_tape_options options = {.size = sizeof options};
    ad_tensor *p[PARAMS];
    ad_memory_fail_at(n);
    status = ad_tape_create(m.w.comm, m.w.mesh, &options, &tape);
    if (!status) status = ad_backward(tape, run_model(&m, tape, p));
    assert_true(reports_allocation(n, status));
    if (tape) {
      ad_tape_reset(tape);  // a tape that ran out of memory can be reset and used again
      must(ad_backward(tape, run_model(&m, tape, p)));
    }
    ad_tape_destroy(tape);
  }
  close_model(&m);
}

static void dry_tapes_plan_the_bytes_that_real_ones_take(void **state) {
  model m;
  open_model(&m, AD_F32);
  ad_tape *tape = open_tape(&m.w, AD_F32), *dry_tape;
  ad_tensor *p[PARAMS];
  must(ad_backward(tape, run_model(&m, tape, p)));
  ad_comm *dry;
  must(ad_comm_open_dry(0, 1, &dry));
  must(ad_tape_create(dry, m.w.mesh, NULL, &dry_tape));
  must(ad_backward(dry_tape, run_model(&m, dry_tape, p)));
  assert_int_equal(ad_tape_peak_bytes(dry_tape), ad_tape_peak_bytes(tape));
  ad_tape_destroy(tape);
  ad_tape_destroy(dry_tape);
  ad_comm_close(dry);
  close_model(&m);
}

/* ---- errors in values ---- */

static void an_index_outside_its_table_is_named(void **state) {
  model m;
  open_model(&m, AD_F32);
  ad_tape *tape = open_tape(&m.w, AD_F32);
  ad_tensor *p[PARAMS];
  ((int32_t *)m.tokens.data)[3] = VOCABULARY;
  assert_int_equal(ad_backward(tape, run_model(&m, tape, p)), AD_INVALID);
  assert_says("11", "3");
  ((int32_t *)m.tokens.data)[3] = 0;
  ((int32_t *)m.targets.data)[4] = 100;
  ad_tape_reset(tape);
  assert_int_equal(ad_backward(tape, run_model(&m, tape, p)), AD_INVALID);
  assert_says("100", "4");
  ad_tape_destroy(tape);
  close_model(&m);
}

static void a_kept_value_keeps_its_gradient(void **state) {
  world w = world_open();
  ad_tape *tape = open_tape(&w, AD_F64);
  ad_array x = random_array(&w, AD_F64, (ad_shape){1, {4}}, 1, 0);
  ad_tensor *a = ad_scale(tape, ad_input(tape, &x), 2), *b = ad_add(tape, a, a), *c = ad_add(tape, b, a);
  ad_keep(b);
  ad_keep(c);
  must(ad_backward(tape, ad_sum(tape, ad_scale(tape, c, 3))));
  assert_null(ad_grad(a));
  for (size_t i = 0; i < 4; i++) {
    assert_true(element(ad_grad(b), i) == 3);
    assert_true(element(ad_grad(c), i) == 3);
  }
  free(x.data);
  ad_tape_destroy(tape);
  world_close(&w);
}

/* ---- dtypes of gradients, and tracing ---- */

/* On a bf16 tape the gradient of an input can be asked for in f32: it is not rounded before it is summed elsewhere. */
static void an_input_has_its_gradient_in_the_dtype_that_is_asked_for(void **state) {
  world w = world_open();
  ad_tape *t = open_tape(&w, AD_BF16);
  ad_array x = random_array(&w, AD_BF16, (ad_shape){1, {3}}, 1, 0);
  ad_tensor *narrow = ad_input(t, &x), *wide = ad_input_with(t, &x, AD_F32, AD_HERE);
  must(ad_backward(t, ad_sum(t, ad_add(t, narrow, wide))));
  assert_int_equal(ad_grad(narrow)->dtype, AD_BF16);
  assert_int_equal(ad_grad(wide)->dtype, AD_F32);
  assert_true(element(ad_grad(wide), 2) == 1);
  free(x.data);
  ad_tape_destroy(t);
  world_close(&w);
}

static void note(void *context, ad_pass pass, ad_edge edge) {
  strcat(context, edge == AD_BEGINS ? "<" : "/");
  strcat(context, pass == AD_FORWARD ? "forward" : "backward");
}

static void forward_and_backward_are_traced(void **state) {
  model m;
  open_model(&m, AD_F32);
  char notes[128] = "";
  ad_tape *tape;
  ad_tape_options options = {.size = sizeof options, .trace = note, .trace_context = notes};
  must(ad_tape_create(m.w.comm, m.w.mesh, &options, &tape));
  ad_tensor *p[PARAMS];
  for (int i = 0; i < 2; i++) {
    ad_tape_reset(tape);
    must(ad_backward(tape, run_model(&m, tape, p)));
  }
  assert_string_equal(notes, "<forward/forward<backward/backward<forward/forward<backward/backward");
  ad_tape_destroy(tape);
  close_model(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lent_parameters_give_the_same_gradients),
      cmocka_unit_test(a_moved_parameter_outlives_its_use),
      cmocka_unit_test(a_parameter_that_cannot_be_had_fails_the_tape_and_holds_none),
      cmocka_unit_test(a_tape_without_reducer_shows_complete_gradients),
      cmocka_unit_test(the_reducer_gets_what_the_tape_would_hold),
      cmocka_unit_test(gradients_of_another_dtype_go_through_the_tapes_memory),
      cmocka_unit_test(a_parameter_that_nothing_reaches_is_absent),
      cmocka_unit_test(a_parameter_used_on_no_rows_is_present),
      cmocka_unit_test(the_first_error_that_a_model_passes_on_stays),
      cmocka_unit_test(an_equal_step_allocates_nothing),
      cmocka_unit_test(what_an_earlier_step_left_in_memory_is_never_read),
      cmocka_unit_test(any_failed_allocation_is_an_error_and_leaves_nothing),
      cmocka_unit_test(dry_tapes_plan_the_bytes_that_real_ones_take),
      cmocka_unit_test(an_index_outside_its_table_is_named),
      cmocka_unit_test(a_kept_value_keeps_its_gradient),
      cmocka_unit_test(an_input_has_its_gradient_in_the_dtype_that_is_asked_for),
      cmocka_unit_test(forward_and_backward_are_traced),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
