/* Tests frozen parameters on a tape: they are constants that are acquired like parameters, what lies before the first
 * parameter with a gradient keeps no memory for a backward, and the other gradients keep their bits. */
#include "says.h"
#include "tensor/tape.h"
#include "world.h"

#define SHAPE(n, ...) ((ad_shape){(n), {__VA_ARGS__}})

enum { ROWS = 6, WIDTH = 16, LAYERS = 3, PARAMS = 2 * LAYERS }; /* parameters: gain and weight of each layer */

typedef struct model {
  world w;
  ad_array x, c, param[PARAMS];
  const ad_array *list[PARAMS];
} model;

static void open_model(model *m) {
  *m = (model){.w = world_open()};
  m->x = random_array(&m->w, AD_F64, SHAPE(2, ROWS, WIDTH), 1, 0);
  m->c = random_array(&m->w, AD_F64, SHAPE(2, ROWS, WIDTH), 2, 0);
  for (uint64_t i = 0; i < PARAMS; i++) {
    ad_shape shape = i % 2 ? SHAPE(2, WIDTH, WIDTH) : SHAPE(1, WIDTH);
    m->param[i] = random_array(&m->w, AD_F64, shape, 10 + i, 0);
    m->list[i] = &m->param[i];
  }
}

static void close_model(model *m) {
  free(m->x.data);
  free(m->c.data);
  for (int i = 0; i < PARAMS; i++) free(m->param[i].data);
  world_close(&m->w);
}

/* What a tape did with the parameters. */
typedef struct seen {
  double *gradient[PARAMS]; /* NULL: no gradient came */
  int held[PARAMS], uses[PARAMS];
} seen;

static ad_status acquire(void *context, size_t param) {
  seen *s = context;
  s->held[param]++;
  s->uses[param]++;
  return AD_OK;
}

static void release(void *context, size_t param) { ((seen *)context)->held[param]--; }

static void keep_gradient(void *context, size_t param, const ad_array *gradient) {
  seen *s = context;
  assert_null(s->gradient[param]);
  s->gradient[param] = malloc(ad_array_bytes(gradient));
  memcpy(s->gradient[param], gradient->data, ad_array_bytes(gradient));
}

static ad_parameters parameters_of(const model *m, const unsigned char *frozen, seen *s) {
  return (ad_parameters){.size = sizeof(ad_parameters),
                         .values = m->list,
                         .count = PARAMS,
                         .acquire = acquire,
                         .release = release,
                         .context = s,
                         .gradient = keep_gradient,
                         .gradient_context = s,
                         .frozen = frozen};
}

static ad_tensor *layers(const model *m, ad_tape *t, ad_tensor *const *p) {
  ad_tensor *h = ad_constant(t, &m->x);
  for (int i = 0; i < LAYERS; i++) h = ad_linear(t, ad_rms_norm(t, h, p[2 * i], 1e-5), p[2 * i + 1]);
  return h;
}

static ad_tensor *loss_of(const model *m, ad_tape *t, ad_tensor *const *p) {
  return ad_sum(t, ad_multiply(t, layers(m, t, p), ad_constant(t, &m->c)));
}

static void list_frozen(unsigned bits, unsigned char frozen[PARAMS]) {
  for (int i = 0; i < PARAMS; i++) frozen[i] = bits >> i & 1;
}

static seen run(const model *m, const unsigned char *frozen) {
  seen s = {0};
  ad_parameters from = parameters_of(m, frozen, &s);
  ad_tape *t = open_tape(&m->w, AD_F64);
  ad_tensor *p[PARAMS];
  for (size_t i = 0; i < PARAMS; i++) p[i] = ad_parameter(t, &from, i);
  must(ad_backward(t, loss_of(m, t, p)));
  for (int i = 0; i < PARAMS; i++) assert_int_equal(s.held[i], 0);
  ad_tape_destroy(t);
  return s;
}

static void forget(seen *s) {
  for (int i = 0; i < PARAMS; i++) free(s->gradient[i]);
}

static void other_gradients_keep_their_bits(void **state) {
  model m;
  unsigned char frozen[PARAMS];
  open_model(&m);
  seen all = run(&m, NULL);
  for (unsigned bits = 0; bits + 1 < 1u << PARAMS; bits++) {
    list_frozen(bits, frozen);
    seen some = run(&m, frozen);
    for (int i = 0; i < PARAMS; i++) {
      assert_int_equal(some.gradient[i] == NULL, frozen[i]);
      if (!frozen[i]) assert_memory_equal(some.gradient[i], all.gradient[i], ad_array_bytes(&m.param[i]));
    }
    forget(&some);
  }
  forget(&all);
  close_model(&m);
}

/* A frozen parameter is acquired for forward, and for a backward that passes by it to earlier parameters. */
static void a_frozen_parameter_is_acquired_where_it_is_read(void **state) {
  model m;
  unsigned char frozen[PARAMS];
  open_model(&m);
  list_frozen(1u << 1 | 1u << 3, frozen); /* the weights of the first two layers */
  seen s = run(&m, frozen);
  assert_int_equal(s.uses[1], 2);
  assert_int_equal(s.uses[3], 2);
  forget(&s);
  list_frozen(0xf, frozen); /* the first two layers */
  s = run(&m, frozen);
  for (int i = 0; i < 4; i++) assert_int_equal(s.uses[i], 1);
  forget(&s);
  close_model(&m);
}

static void nothing_to_learn_is_refused(void **state) {
  model m;
  unsigned char frozen[PARAMS];
  seen s = {0};
  ad_tensor *p[PARAMS];
  open_model(&m);
  list_frozen((1u << PARAMS) - 1, frozen);
  ad_parameters from = parameters_of(&m, frozen, &s);
  ad_tape *t = open_tape(&m.w, AD_F64);
  for (size_t i = 0; i < PARAMS; i++) p[i] = ad_parameter(t, &from, i);
  assert_int_equal(ad_backward(t, loss_of(&m, t, p)), AD_INVALID);
  assert_says("backward");
  ad_tape_destroy(t);
  close_model(&m);
}

/* ---- types ---- */

/* Returns the type on tp of a product of an I parameter and a constant that is R, and of what is computed from it. */
static ad_type type_of_product(const unsigned char *frozen, int is_constant) {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_tape *t;
  ad_layout replicated, invariant;
  must(ad_comm_open_dry(0, 2, &comm));
  must(ad_mesh_create("tp=2", &mesh));
  must(ad_tape_create(comm, mesh, NULL, &t));
  must(ad_layout_parse(mesh, "tp=R", &replicated));
  must(ad_layout_parse(mesh, "tp=I", &invariant));
  ad_array x = ad_array_describe(comm, AD_F32, &SHAPE(1, 4), &replicated);
  ad_array value = ad_array_describe(comm, AD_F32, &SHAPE(1, 4), &invariant);
  ad_parameters from = {.size = sizeof from, .values = (const ad_array *[]){&value}, .count = 1, .frozen = frozen};
  ad_tensor *p = is_constant ? ad_constant(t, &value) : ad_parameter(t, &from, 0);
  ad_tensor *product = ad_multiply(t, ad_multiply(t, ad_constant(t, &x), p), ad_constant(t, &x));
  must(ad_tape_status(t));
  ad_type type = ad_tensor_array(product)->layout.type[AD_TP];
  ad_tape_destroy(t);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
  return type;
}

static void freezing_a_parameter_changes_no_types(void **state) {
  static const unsigned char frozen[] = {1};
  assert_int_equal(type_of_product(NULL, 0), AD_I);
  assert_int_equal(type_of_product(frozen, 0), AD_I);
  assert_int_equal(type_of_product(NULL, 1), AD_R); /* a constant counts as R or as I */
}

/* ---- memory ---- */

/* Returns the bytes that a tape has taken after the layers' forward and, if `back` is 1, backward. The first
 * `constants` parameters are constants of the tape, not parameters. */
static size_t bytes_of(const model *m, ad_comm *comm, const unsigned char *frozen, size_t constants, int back) {
  seen s = {0};
  ad_tape *t;
  ad_tensor *p[PARAMS];
  ad_parameters from = parameters_of(m, frozen, &s);
  from.gradient = NULL;
  must(ad_tape_create(comm, m->w.mesh, &(ad_tape_options){.size = sizeof(ad_tape_options), .dtype = AD_F64}, &t));
  for (size_t i = 0; i < PARAMS; i++) p[i] = i < constants ? ad_constant(t, m->list[i]) : ad_parameter(t, &from, i);
  ad_tensor *loss = back ? loss_of(m, t, p) : layers(m, t, p);
  if (back) must(ad_backward(t, loss));
  must(ad_tape_status(t));
  size_t bytes = ad_tape_peak_bytes(t);
  ad_tape_destroy(t);
  return bytes;
}

static void check_bytes(const model *m, ad_comm *comm) {
  enum { SAVED = 64 }; /* an inverse root for each row, rounded up to a block */
  unsigned char frozen[PARAMS];
  for (size_t first = 0; first < PARAMS; first++) {
    list_frozen((1u << first) - 1, frozen);
    assert_int_equal(bytes_of(m, comm, frozen, 0, 1), bytes_of(m, comm, NULL, first, 1));
  }
  list_frozen((1u << PARAMS) - 1, frozen);
  assert_int_equal(bytes_of(m, comm, NULL, 0, 0) - bytes_of(m, comm, frozen, 0, 0), LAYERS * SAVED);
}

static void frozen_layers_before_all_others_keep_nothing_for_a_backward(void **state) {
  model m;
  ad_comm *dry;
  open_model(&m);
  check_bytes(&m, m.w.comm);
  must(ad_comm_open_dry(0, 1, &dry));
  check_bytes(&m, dry);
  ad_comm_close(dry);
  close_model(&m);
}

/* ---- values that are used no more ---- */

enum { DEEP = 12 };

/* A tape whose memory is a pool's. */
typedef struct pooled {
  ad_tape_pool *pool;
  ad_tape *tape;
} pooled;

static pooled open_pooled(const model *m, ad_comm *comm) {
  pooled p;
  must(ad_tape_pool_create(ad_comm_is_dry(comm), &p.pool));
  must(ad_tape_create(comm, m->w.mesh, &(ad_tape_options){.size = sizeof(ad_tape_options), .dtype = AD_F64}, &p.tape));
  ad_tape_share(p.tape, p.pool);
  return p;
}

static void close_pooled(pooled *p) {
  ad_tape_destroy(p->tape);
  ad_tape_pool_destroy(p->pool);
}

/* x + its norm times a matrix, through a view of it. */
static ad_tensor *block(const model *m, ad_tape *t, ad_tensor *x, ad_tensor *gain, ad_tensor *weight) {
  ad_tensor *h = ad_view(t, ad_rms_norm(t, x, gain, 1e-5), m->w.mesh);
  return ad_add(t, x, ad_linear(t, h, weight));
}

/* Runs blocks of frozen parameters; the result is in *out. Returns the pool's bytes. */
static size_t run_blocks(const model *m, ad_comm *comm, int blocks, int forgets, double *out) {
  pooled p = open_pooled(m, comm);
  seen s = {0};
  unsigned char frozen[PARAMS];
  list_frozen(3, frozen);
  ad_parameters from = parameters_of(m, frozen, &s);
  ad_tensor *first = ad_constant(p.tape, &m->x), *x = first;
  ad_tensor *gain = ad_parameter(p.tape, &from, 0), *weight = ad_parameter(p.tape, &from, 1);
  for (int i = 0; i < blocks; i++) {
    x = block(m, p.tape, x, gain, weight);
    if (forgets) ad_forget(first, x);
  }
  must(ad_tape_status(p.tape));
  if (ad_tensor_array(x)->data) memcpy(out, ad_tensor_array(x)->data, ad_array_bytes(ad_tensor_array(x)));
  size_t bytes = ad_tape_pool_peak_bytes(p.pool);
  close_pooled(&p);
  return bytes;
}

static void values_that_are_forgotten_leave_their_memory_to_later_ones(void **state) {
  double with[ROWS * WIDTH], without[ROWS * WIDTH];
  model m;
  ad_comm *dry;
  open_model(&m);
  must(ad_comm_open_dry(0, 1, &dry));
  for (int is_dry = 0; is_dry < 2; is_dry++) {
    ad_comm *comm = is_dry ? dry : m.w.comm;
    size_t bytes = run_blocks(&m, comm, 4, 1, with);
    assert_int_equal(run_blocks(&m, comm, DEEP, 1, with), bytes);
    assert_true(run_blocks(&m, comm, DEEP, 0, without) > 2 * bytes);
    if (!is_dry) assert_memory_equal(with, without, sizeof with);
  }
  ad_comm_close(dry);
  close_model(&m);
}

static void a_value_that_was_forgotten_is_refused(void **state) {
  model m;
  open_model(&m);
  pooled p = open_pooled(&m, m.w.comm);
  for (int is_view = 0; is_view < 2; is_view++) {
    ad_tensor *first = ad_frozen_input(p.tape, &m.x, AD_HERE), *h = ad_scale(p.tape, first, 2);
    ad_tensor *view = ad_view(p.tape, h, m.w.mesh), *sum = ad_sum(p.tape, h), *last = ad_scale(p.tape, h, 3);
    ad_forget(first, last);
    assert_null(ad_tensor_array(h)->data);
    assert_null(ad_tensor_array(view)->data);
    ad_scale(p.tape, sum, 2);
    ad_add(p.tape, first, last);
    must(ad_tape_status(p.tape)); /* scalars, the first and the last value stay */
    ad_scale(p.tape, is_view ? view : h, 2);
    assert_int_equal(ad_tape_status(p.tape), AD_INVALID);
    assert_says("test_frozen.c", "ad_forget", "operand 1", "scale");
    ad_tape_reset(p.tape);
  }
  close_pooled(&p);
  close_model(&m);
}

/* The last value is a view of another, and a value with a gradient was computed from a third. */
static void what_is_still_read_is_not_forgotten(void **state) {
  model m;
  seen s = {0};
  open_model(&m);
  pooled p = open_pooled(&m, m.w.comm);
  ad_parameters from = parameters_of(&m, NULL, &s);
  ad_tensor *first = ad_frozen_input(p.tape, &m.x, AD_HERE), *h = ad_scale(p.tape, first, 2);
  ad_tensor *learned = ad_linear(p.tape, h, ad_parameter(p.tape, &from, 1));
  ad_tensor *made = ad_scale(p.tape, h, 3), *last = ad_view(p.tape, made, m.w.mesh);
  ad_tensor *side = ad_sum(p.tape, learned);
  ad_forget(first, side); /* does nothing, because the sum has a gradient */
  assert_non_null(ad_tensor_array(made)->data);
  ad_forget(first, last);
  assert_non_null(ad_tensor_array(h)->data);
  assert_non_null(ad_tensor_array(learned)->data);
  assert_ptr_equal(ad_tensor_array(made)->data, ad_tensor_array(last)->data);
  assert_non_null(ad_tensor_array(last)->data);
  must(ad_backward(p.tape, side));
  assert_non_null(s.gradient[1]);
  forget(&s);
  close_pooled(&p);
  close_model(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(other_gradients_keep_their_bits),
      cmocka_unit_test(a_frozen_parameter_is_acquired_where_it_is_read),
      cmocka_unit_test(nothing_to_learn_is_refused),
      cmocka_unit_test(freezing_a_parameter_changes_no_types),
      cmocka_unit_test(frozen_layers_before_all_others_keep_nothing_for_a_backward),
      cmocka_unit_test(values_that_are_forgotten_leave_their_memory_to_later_ones),
      cmocka_unit_test(a_value_that_was_forgotten_is_refused),
      cmocka_unit_test(what_is_still_read_is_not_forgotten),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
