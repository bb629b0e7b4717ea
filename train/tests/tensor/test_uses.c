/* Tests that on the tape of one leaf (train.leaves) each use of a parameter gives its share of the gradient as if it were
 * the only use, and that the shares are added in the order in which backward reaches the uses. */
#include "tensor/tape.h"
#include "world.h"

#define SHAPE(n, ...) ((ad_shape){(n), {__VA_ARGS__}})

/* ROWS is more than products sum at a time, so that a product that adds to earlier shares has other bits. */
enum { ROWS = 2000, WIDTH = 24, WORDS = 40 };
enum { TABLE, WEIGHT, GAIN, PARAMS };

/* The uses of parameters in the program, in the order of its formula. */
enum { LOOKED_UP, FIRST, SECOND, THIRD, GAIN_LEFT, GAIN_RIGHT, HEAD, USES };
static const int used[USES] = {TABLE, WEIGHT, WEIGHT, WEIGHT, GAIN, GAIN, TABLE};
/* The same uses as backward reaches them: last to first, and the operands of one operation in their order. */
static const int reached[USES] = {HEAD, GAIN_LEFT, GAIN_RIGHT, THIRD, SECOND, FIRST, LOOKED_UP};

typedef struct program {
  world w;
  ad_comm *comm; /* of the tapes: that of `w`, or a dry one */
  ad_array values[PARAMS], indices, weights;
} program;

static program program_of(ad_dtype dtype) {
  program p = {.w = world_open()};
  p.comm = p.w.comm;
  p.values[TABLE] = random_array(&p.w, dtype, SHAPE(2, WORDS, WIDTH), 1, 0);
  p.values[WEIGHT] = random_array(&p.w, dtype, SHAPE(2, WIDTH, WIDTH), 2, 0);
  p.values[GAIN] = random_array(&p.w, dtype, SHAPE(1, WIDTH), 3, 0);
  // some shares of these elements are -0, which would become 0 if they were added to zeros
  for (size_t i = 0; i < WIDTH / 2; i++) ad_set_element(dtype, p.values[GAIN].data, i, i % 2 ? -0.0 : 0.0);
  p.indices = random_array(&p.w, AD_I32, SHAPE(2, 1, ROWS), 4, WORDS);
  p.weights = random_array(&p.w, dtype, SHAPE(3, 1, ROWS, WORDS), 5, 0);
  return p;
}

/* A parameter in bf16 cannot be an operand of ad_multiply. */
static int has_gain(const program *p) { return p->values[GAIN].dtype != AD_BF16; }

static void end(program *p) {
  for (int i = 0; i < PARAMS; i++) free(p->values[i].data);
  free(p->indices.data);
  free(p->weights.data);
  world_close(&p->w);
}

/* One backward pass: which of the uses are of the parameters (the others are of constants of the same values), on the
 * tape of a leaf or another one; and what came of it. */
typedef struct pass {
  uint32_t uses;
  int of_leaf;
  void *gradients[PARAMS];
  size_t peak;
} pass;

static void keep_gradient(void *context, size_t param, const ad_array *gradient) {
  pass *to = context;
  assert_null(to->gradients[param]);
  to->gradients[param] = malloc(ad_array_bytes(gradient));
  assert_non_null(to->gradients[param]);
  if (gradient->data) memcpy(to->gradients[param], gradient->data, ad_array_bytes(gradient));
}

static ad_tensor *loss_of(const program *p, ad_tape *t, ad_tensor *const *x) {
  ad_tensor *h = ad_embedding(t, x[LOOKED_UP], ad_constant(t, &p->indices));
  for (int use = FIRST; use <= THIRD; use++) h = ad_linear(t, h, x[use]);
  if (has_gain(p)) h = ad_add_row(t, h, ad_multiply(t, x[GAIN_LEFT], x[GAIN_RIGHT]));
  return ad_sum(t, ad_multiply(t, ad_linear_transposed(t, h, x[HEAD]), ad_constant(t, &p->weights)));
}

static pass run(const program *p, uint32_t uses, int of_leaf) {
  ad_tape *t;
  pass done = {.uses = uses, .of_leaf = of_leaf};
  const ad_array *values[PARAMS] = {&p->values[TABLE], &p->values[WEIGHT], &p->values[GAIN]};
  ad_parameters from = {
      .size = sizeof from, .values = values, .count = PARAMS, .gradient = keep_gradient, .gradient_context = &done};
  must(ad_tape_create(p->comm, p->w.mesh,
                      &(ad_tape_options){.size = sizeof(ad_tape_options), .dtype = values[0]->dtype}, &t));
  const ad_leaf_mesh mesh = {p->w.mesh, p->w.mesh};
  if (of_leaf) ad_tape_take_leaf(t, &mesh, 1);
  ad_tensor *params[PARAMS], *x[USES];
  for (size_t i = 0; i < PARAMS; i++) params[i] = ad_parameter(t, &from, i);
  for (int i = 0; i < USES; i++) x[i] = uses >> i & 1 ? params[used[i]] : ad_constant(t, values[used[i]]);
  if (ad_backward(t, loss_of(p, t, x))) fail_msg("%s", ad_last_error());
  done.peak = ad_tape_peak_bytes(t);
  ad_tape_destroy(t);
  return done;
}

static void release(pass *of) {
  for (int i = 0; i < PARAMS; i++) free(of->gradients[i]);
}

/* Adds a share, or begins the sum with it, element by element in the gradient's dtype. */
static void add(ad_dtype dtype, void **sum, const void *share, size_t n) {
  size_t bytes = n * ad_dtype_size(dtype);
  if (!*sum) {
    *sum = malloc(bytes);
    assert_non_null(*sum);
    memcpy(*sum, share, bytes);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    if (dtype == AD_F64) ((double *)*sum)[i] += ((const double *)share)[i];
    if (dtype == AD_F32) ((float *)*sum)[i] += ((const float *)share)[i];
  }
}

static void check_shares(ad_dtype dtype) {
  program p = program_of(dtype);
  ad_dtype wide = ad_dtype_wide(dtype);
  pass all = run(&p, (1u << USES) - 1, 1);
  void *sums[PARAMS] = {NULL};
  for (int i = 0; i < USES; i++) {
    int param = used[reached[i]];
    if (param == GAIN && !has_gain(&p)) continue;
    pass single = run(&p, 1u << reached[i], 1);
    assert_non_null(single.gradients[param]);
    add(wide, &sums[param], single.gradients[param], ad_array_numel(&p.values[param]));
    release(&single);
  }
  for (int i = 0; i < PARAMS; i++) {
    if (i == GAIN && !has_gain(&p)) continue;
    assert_memory_equal(all.gradients[i], sums[i], ad_array_numel(&p.values[i]) * ad_dtype_size(wide));
    free(sums[i]);
  }
  release(&all);
  end(&p);
}

static void shares_are_those_of_single_uses_added_as_backward_reaches_them(void **state) {
  check_shares(AD_F32);
  check_shares(AD_F64);
  check_shares(AD_BF16);
}

/* The bytes of a value in an arena, and of a record of them as a spare block. */
static size_t kept(const ad_array *value) { return (ad_array_bytes(value) + 63) / 64 * 64 + 64; }

/* A share's memory is given back after it was added, so that the next share of the same size has it. */
static void a_tape_holds_one_more_share_of_each_size(void **state) {
  program p = program_of(AD_F32);
  pass leaf = run(&p, (1u << USES) - 1, 1), other = run(&p, (1u << USES) - 1, 0);
  size_t most = kept(&p.values[TABLE]) + kept(&p.values[WEIGHT]) + kept(&p.values[GAIN]);
  assert_true(leaf.peak > other.peak && leaf.peak <= other.peak + most);
  release(&leaf);
  release(&other);
  end(&p);
}

static void on_backend_dry_the_same_bytes_are_counted(void **state) {
  program p = program_of(AD_F32);
  pass real = run(&p, (1u << USES) - 1, 1);
  must(ad_comm_open_dry(0, 1, &p.comm));
  pass dry = run(&p, (1u << USES) - 1, 1);
  assert_int_equal(dry.peak, real.peak);
  ad_comm_close(p.comm);
  release(&dry);
  release(&real);
  end(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shares_are_those_of_single_uses_added_as_backward_reaches_them),
      cmocka_unit_test(a_tape_holds_one_more_share_of_each_size),
      cmocka_unit_test(on_backend_dry_the_same_bytes_are_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
