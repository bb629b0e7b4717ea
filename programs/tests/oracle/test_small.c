/* Tests small operations against PyTorch (generate_operations.py): each rank's part of the value and of every gradient
 * is compared with the same part of the full one, on one rank and wherever operands are sharded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>
#include "bench.h"

enum { OPERANDS = 3 };

typedef struct small {
  const char *name; /* the operation's name in the fixture */
  ad_tensor *(*f)(ad_tape *tape, ad_tensor *const *x);
  const char *operand[OPERANDS]; /* names of its operands in the fixture */
  const char *layout[OPERANDS];  /* the operands' layouts on the mesh where this is tried */
} small;

typedef struct place {
  const char *mesh;
  const small *of;
  size_t count;
} place;

/* The loss: the sum of the result times the fixture's weights, or the result itself if it is a scalar. */
static ad_tensor *loss_of(const bench *b, const char *name, ad_tensor *out, ad_array *slope) {
  char key[64];
  const ad_array *value = ad_tensor_array(out);
  *slope = (ad_array){.data = NULL};
  if (!value || !value->shape.ndim) return out;
  ad_layout constant = value->layout;
  ad_layout_set(&constant, ad_layout_axes_of(&value->layout, AD_P), AD_R);
  snprintf(key, sizeof key, "%s.slope", name);
  *slope = part_of(b, key, &constant);
  return ad_sum(b->tape, ad_multiply(b->tape, out, ad_constant(b->tape, slope)));
}

/* If every rank has the same sum, one rank's counts. */
static ad_tensor *once(const bench *b, ad_tensor *loss) {
  char axes[128];
  ad_axes same = ad_layout_axes_of(&ad_tensor_array(loss)->layout, AD_R) & ad_mesh_named(b->mesh);
  return same ? ad_once(b->tape, loss, ad_axes_print(same, axes, sizeof axes)) : loss;
}

/* The targets of a loss are constants. */
static int is_target(const char *operand) { return !strcmp(operand, "share"); }

static void judge_small(bench *b, const small *of) {
  char key[64];
  ad_array array[OPERANDS], slope;
  ad_tensor *x[OPERANDS];
  size_t count = 0;
  for (; count < OPERANDS && of->operand[count]; count++) {
    ad_layout layout = parsed(b, of->layout[count]);
    array[count] = part_of(b, of->operand[count], &layout);
    x[count] = is_target(of->operand[count]) ? ad_constant(b->tape, &array[count]) : ad_input(b->tape, &array[count]);
  }
  ad_tensor *out = of->f(b->tape, x);
  CHECK_OK(ad_tape_status(b->tape));
  ad_tensor *loss = loss_of(b, of->name, out, &slope);
  CHECK_OK(ad_tape_status(b->tape));
  CHECK_OK(ad_backward(b->tape, once(b, loss)));
  snprintf(key, sizeof key, "%s.out", of->name);
  judge_full(b, key, ad_tensor_array(out));
  for (size_t i = 0; i < count; i++) {
    snprintf(key, sizeof key, "%s.gradient.%s", of->name, of->operand[i]);
    if (!is_target(of->operand[i])) judge_full(b, key, ad_grad(x[i]));
    free(array[i].data);
  }
  free(slope.data);
}

static int compute(ad_comm *comm, void *context) {
  const place *at = context;
  bench b = bench_open(comm, "small", at->mesh);
  for (size_t i = 0; i < at->count; i++) {
    judge_small(&b, &at->of[i]);
    ad_tape_reset(b.tape);
  }
  bench_close(&b);
  return 0;
}

static void try_at(const char *mesh_text, const small *of, size_t count) {
  ad_mesh *mesh;
  place at = {mesh_text, of, count};
  assert_int_equal(ad_mesh_create(mesh_text, &mesh), AD_OK);
  int64_t ranks = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  run_ranks(ranks, compute, &at);
}
#define TRY_AT(mesh, list) try_at((mesh), (list), sizeof(list) / sizeof *(list))

/* ---- the operations ---- */

static ad_tensor *relu(ad_tape *t, ad_tensor *const *x) { return ad_relu(t, x[0]); }
static ad_tensor *hyperbolic_tangent(ad_tape *t, ad_tensor *const *x) { return ad_tanh(t, x[0]); }
static ad_tensor *sigmoid(ad_tape *t, ad_tensor *const *x) { return ad_sigmoid(t, x[0]); }
static ad_tensor *exponential(ad_tape *t, ad_tensor *const *x) { return ad_exp(t, x[0]); }
static ad_tensor *logarithm(ad_tape *t, ad_tensor *const *x) { return ad_ln(t, x[0]); }
static ad_tensor *square_root(ad_tape *t, ad_tensor *const *x) { return ad_sqrt(t, x[0]); }
static ad_tensor *sum_over_0(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 0); }
static ad_tensor *sum_over_1(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 1); }
static ad_tensor *sum_over_2(ad_tape *t, ad_tensor *const *x) { return ad_sum_over(t, x[0], 2); }
static ad_tensor *mean_over_0(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 0); }
static ad_tensor *mean_over_1(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 1); }
static ad_tensor *mean_over_2(ad_tape *t, ad_tensor *const *x) { return ad_mean_over(t, x[0], 2); }
static ad_tensor *max_over_0(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 0); }
static ad_tensor *max_over_1(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 1); }
static ad_tensor *max_over_2(ad_tape *t, ad_tensor *const *x) { return ad_max_over(t, x[0], 2); }
static ad_tensor *norm_over_0(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 0); }
static ad_tensor *norm_over_2(ad_tape *t, ad_tensor *const *x) { return ad_norm_over(t, x[0], 2); }
static ad_tensor *scale_by(ad_tape *t, ad_tensor *const *x) { return ad_scale_by(t, x[0], x[1]); }
static ad_tensor *binary_cross_entropy(ad_tape *t, ad_tensor *const *x) {
  return ad_binary_cross_entropy(t, x[0], x[1]);
}
static ad_tensor *concat_along_0(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 2, 0); }
static ad_tensor *concat_along_1(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 2, 1); }
static ad_tensor *concat_along_2(ad_tape *t, ad_tensor *const *x) { return ad_concat(t, x, 2, 2); }
static ad_tensor *slice_along_0(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], 0, 1, 3); }
static ad_tensor *slice_along_1(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], 1, 2, 3); }
static ad_tensor *slice_along_2(ad_tape *t, ad_tensor *const *x) { return ad_slice(t, x[0], 2, 1, 2); }
static ad_tensor *transpose_01(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 0, 1); }
static ad_tensor *transpose_02(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 0, 2); }
static ad_tensor *transpose_21(ad_tape *t, ad_tensor *const *x) { return ad_transpose(t, x[0], 2, 1); }
static ad_tensor *joined(ad_tape *t, ad_tensor *const *x) { return ad_reshape(t, x[0], &(ad_shape){2, {5, 24}}); }
static ad_tensor *split(ad_tape *t, ad_tensor *const *x) {
  return ad_reshape(t, x[0], &(ad_shape){5, {5, 2, 3, 1, 4}});
}
static ad_tensor *other(ad_tape *t, ad_tensor *const *x) { return ad_reshape(t, x[0], &(ad_shape){3, {3, 8, 5}}); }
static ad_tensor *layer_norm(ad_tape *t, ad_tensor *const *x) { return ad_layer_norm(t, x[0], x[1], x[2], 1e-5); }
static ad_tensor *dropout(ad_tape *t, ad_tensor *const *x) {
  return ad_dropout(t, x[0], 0.3, 7, "small dropout", 3, 0);
}
static ad_tensor *add_row(ad_tape *t, ad_tensor *const *x) { return ad_add_row(t, x[0], x[1]); }
static ad_tensor *squared_error(ad_tape *t, ad_tensor *const *x) { return ad_squared_error(t, x[0], x[1]); }

static void operations_of_full_values_are_those_of_pytorch(void **state) {
  static const small list[] = {
      {"relu", relu, {"x"}, {"tp=I"}},
      {"tanh", hyperbolic_tangent, {"x"}, {"tp=I"}},
      {"sigmoid", sigmoid, {"x"}, {"tp=R"}},
      {"exp", exponential, {"x"}, {"tp=I"}},
      {"ln", logarithm, {"positive"}, {"tp=R"}},
      {"sqrt", square_root, {"positive"}, {"tp=I"}},
      {"sum_over.0", sum_over_0, {"x"}, {"tp=I"}},
      {"sum_over.1", sum_over_1, {"x"}, {"tp=I"}},
      {"sum_over.2", sum_over_2, {"x"}, {"tp=I"}},
      {"mean_over.0", mean_over_0, {"x"}, {"tp=I"}},
      {"mean_over.1", mean_over_1, {"x"}, {"tp=I"}},
      {"mean_over.2", mean_over_2, {"x"}, {"tp=I"}},
      {"max_over.0", max_over_0, {"tied"}, {"tp=I"}},
      {"max_over.1", max_over_1, {"tied"}, {"tp=I"}},
      {"max_over.2", max_over_2, {"tied"}, {"tp=I"}},
      {"norm_over.0", norm_over_0, {"x"}, {"tp=I"}},
      {"norm_over.2", norm_over_2, {"x"}, {"tp=I"}},
      {"scale_by", scale_by, {"x", "one"}, {"tp=I", "tp=I"}},
      {"binary_cross_entropy", binary_cross_entropy, {"x", "share"}, {"tp=R", "tp=R"}},
      {"concat_along.0", concat_along_0, {"x", "other"}, {"tp=I", "tp=I"}},
      {"slice_along.0", slice_along_0, {"x"}, {"tp=R"}},
      {"concat_along.1", concat_along_1, {"x", "other"}, {"tp=I", "tp=I"}},
      {"slice_along.1", slice_along_1, {"x"}, {"tp=R"}},
      {"concat_along.2", concat_along_2, {"x", "other"}, {"tp=I", "tp=I"}},
      {"slice_along.2", slice_along_2, {"x"}, {"tp=R"}},
      {"transpose.01", transpose_01, {"x"}, {"tp=I"}},
      {"transpose.02", transpose_02, {"x"}, {"tp=R"}},
      {"transpose.21", transpose_21, {"x"}, {"tp=I"}},
      {"reshape.join", joined, {"x"}, {"tp=I"}},
      {"reshape.split", split, {"x"}, {"tp=R"}},
      {"reshape.other", other, {"x"}, {"tp=I"}},
      {"layer_norm", layer_norm, {"x", "row", "bias"}, {"tp=I", "tp=I", "tp=I"}},
      {"dropout", dropout, {"x"}, {"tp=R"}},
      {"add_row", add_row, {"x", "row"}, {"tp=I", "tp=I"}},
      {"squared_error", squared_error, {"x", "other"}, {"tp=R", "tp=R"}},
  };
  TRY_AT("tp=1", list);
  TRY_AT("tp=2", list);
}

static void operations_of_sharded_values_are_those_of_pytorch(void **state) {
  static const small list[] = {
      {"relu", relu, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"tanh", hyperbolic_tangent, {"x"}, {"dp_shard=S1z tp=S0"}},
      {"sigmoid", sigmoid, {"x"}, {"dp_shard=S2 tp=S1"}},
      {"exp", exponential, {"x"}, {"dp_shard=S0 tp=S0"}},
      {"ln", logarithm, {"positive"}, {"dp_shard=S0 tp=R"}},
      {"sqrt", square_root, {"positive"}, {"dp_shard=S0 tp=S1"}},
      {"sum_over.0", sum_over_0, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"sum_over.1", sum_over_1, {"x"}, {"dp_shard=S0 tp=S1z"}},
      {"sum_over.2", sum_over_2, {"x"}, {"dp_shard=S1 tp=S1"}},
      {"mean_over.0", mean_over_0, {"x"}, {"dp_shard=S0 tp=S0"}},
      {"mean_over.1", mean_over_1, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"mean_over.2", mean_over_2, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"max_over.0", max_over_0, {"tied"}, {"dp_shard=S1 tp=S2"}},
      {"max_over.1", max_over_1, {"tied"}, {"dp_shard=S0 tp=S2"}},
      {"max_over.2", max_over_2, {"tied"}, {"dp_shard=S0 tp=S1z"}},
      {"norm_over.0", norm_over_0, {"x"}, {"dp_shard=S1 tp=S2"}},
      {"norm_over.2", norm_over_2, {"x"}, {"dp_shard=S0 tp=S1z"}},
      {"scale_by", scale_by, {"x", "one"}, {"dp_shard=S0 tp=S2", "dp_shard=R tp=R"}},
      {"scale_by", scale_by, {"x", "one"}, {"dp_shard=S1z tp=I", "dp_shard=R tp=I"}},
      {"binary_cross_entropy", binary_cross_entropy, {"x", "share"}, {"dp_shard=S0 tp=S2", "dp_shard=S0 tp=S2"}},
      {"concat_along.0", concat_along_0, {"x", "other"}, {"dp_shard=S1 tp=S2", "dp_shard=S1 tp=S2"}},
      {"slice_along.0", slice_along_0, {"x"}, {"dp_shard=S1 tp=S2"}},
      {"concat_along.1", concat_along_1, {"x", "other"}, {"dp_shard=S0 tp=S2", "dp_shard=S0 tp=S2"}},
      {"slice_along.1", slice_along_1, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"concat_along.2", concat_along_2, {"x", "other"}, {"dp_shard=S0 tp=S1z", "dp_shard=S0 tp=S1z"}},
      {"slice_along.2", slice_along_2, {"x"}, {"dp_shard=S0 tp=S1z"}},
      {"transpose.01", transpose_01, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"transpose.02", transpose_02, {"x"}, {"dp_shard=S0 tp=S1z"}},
      {"transpose.21", transpose_21, {"x"}, {"dp_shard=S2 tp=S1"}},
      {"reshape.join", joined, {"x"}, {"dp_shard=S0 tp=S0"}},
      {"reshape.split", split, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"layer_norm", layer_norm, {"x", "row", "bias"}, {"dp_shard=S0 tp=S1z", "dp_shard=R tp=R", "dp_shard=R tp=R"}},
      {"layer_norm", layer_norm, {"x", "row", "bias"}, {"dp_shard=S1 tp=I", "dp_shard=R tp=I", "dp_shard=R tp=I"}},
      {"dropout", dropout, {"x"}, {"dp_shard=S0 tp=S2"}},
      {"dropout", dropout, {"x"}, {"dp_shard=S1z tp=S0"}},
      {"add_row", add_row, {"x", "row"}, {"dp_shard=S0 tp=S2", "dp_shard=R tp=S0"}},
      {"add_row", add_row, {"x", "row"}, {"dp_shard=S1 tp=I", "dp_shard=R tp=I"}},
      {"squared_error", squared_error, {"x", "other"}, {"dp_shard=S0 tp=S2", "dp_shard=S0 tp=S2"}},
  };
  TRY_AT("dp_shard=3 tp=2", list);
  TRY_AT("dp_shard=1 tp=5", list);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations_of_full_values_are_those_of_pytorch),
      cmocka_unit_test(operations_of_sharded_values_are_those_of_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // the fixtures' paths are relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
