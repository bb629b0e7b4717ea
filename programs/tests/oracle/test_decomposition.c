/* Tests a decomposition's losses against PyTorch (generate_operations.py), each alone and all together, with their
 * gradients of components, importance network and adversarial masks. Rows are sharded, also into more parts than there
 * are rows. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <unistd.h>
#include <cmocka.h>
#include "bench.h"
#include "decompose/operations.h"

typedef struct example {
  const char *mesh;
  const char *rows;     /* layout of values of shape [batch, seq, ...] */
  const char *matrices; /* layout of values that all ranks have */
} example;

/* ---- the inputs of a fixture ---- */

enum {
  X = 0,
  MASK,
  DELTA = MASK + 2,
  ADVERSE_MASK = DELTA + 2,
  ADVERSE_DELTA = ADVERSE_MASK + 2,
  NETWORK = ADVERSE_DELTA + 2,
  V,
  U = V + 2,
  W = U + 2,
  INPUTS = W + 2
};

static const char *const names[INPUTS] = {"x",
                                          "mask0",
                                          "mask1",
                                          "delta0",
                                          "delta1",
                                          "adverse_mask0",
                                          "adverse_mask1",
                                          "adverse_delta0",
                                          "adverse_delta1",
                                          "network",
                                          "v0",
                                          "v1",
                                          "u0",
                                          "u1",
                                          "w0",
                                          "w1"};

static int is_learnt(int i) { return i >= ADVERSE_MASK && i < W; }

/* One tape on one rank, with the fixture's inputs. */
typedef struct setting {
  bench b;
  ad_tape *t;
  ad_array array[INPUTS];
  ad_tensor *x[INPUTS];
} setting;

static void take_inputs(setting *s, const example *e) {
  ad_layout rows = parsed(&s->b, e->rows), matrices = parsed(&s->b, e->matrices);
  for (int i = 0; i < INPUTS; i++) {
    s->array[i] = part_of(&s->b, names[i], i < NETWORK ? &rows : &matrices);
    s->x[i] = is_learnt(i) ? ad_input(s->t, &s->array[i]) : ad_constant(s->t, &s->array[i]);
  }
}

/* ---- the losses' formulas ---- */

/* The tensors of a decomposition before any loss. */
typedef struct values {
  ad_tensor *hidden, *target; /* of the target, which is not trained */
  ad_tensor *logits, *kept[2];
} values;

static values values_of(const setting *s) {
  static const int64_t components[] = {4, 3};
  ad_tape *t = s->t;
  values v = {0};
  v.hidden = ad_gelu(t, ad_linear(t, s->x[X], s->x[W]));
  v.target = ad_linear(t, v.hidden, s->x[W + 1]);
  ad_tensor *both[] = {ad_rms_norm_unweighted(t, s->x[X], 1e-5), ad_rms_norm_unweighted(t, v.hidden, 1e-5)};
  v.logits = ad_linear(t, ad_concat(t, both, 2, -1), s->x[NETWORK]);
  ad_tensor *kept = ad_lower(t, v.logits, AD_SLOPE_RETURNS);
  v.kept[0] = ad_slice(t, kept, -1, 0, components[0]);
  v.kept[1] = ad_slice(t, kept, -1, components[0], components[1]);
  return v;
}

static ad_tensor *product(const setting *s, int i) { return ad_linear(s->t, s->x[V + i], s->x[U + i]); }

/* x times matrix i, in which some components are kept in full and the others in part. */
static ad_tensor *masked(const setting *s, const values *v, int i, ad_tensor *x, int mask, int delta) {
  ad_tape *t = s->t;
  ad_tensor *rest = ad_add(t, s->x[W + i], ad_scale(t, product(s, i), -1));
  ad_tensor *used = ad_multiply(t, ad_linear(t, x, s->x[V + i]), ad_mix(t, v->kept[i], s->x[mask + i]));
  return ad_add(t, ad_linear(t, used, s->x[U + i]), ad_scale_rows(t, ad_linear(t, x, rest), s->x[delta + i]));
}

static ad_tensor *moved(ad_tape *t, ad_tensor *x, ad_type from, ad_move move, ad_type to) {
  const ad_array *array = ad_tensor_array(x);
  if (!array) return x;
  char axes[128];
  ad_axes own = ad_layout_axes_of(&array->layout, from) & ad_mesh_named(array->layout.mesh);
  return own ? ad_move_at(t, x, move, ad_axes_print(own, axes, sizeof axes), to, AD_HERE) : x;
}

/* Faithfulness is the same on all ranks, so it counts once. */
static ad_tensor *faithfulness(const setting *s, const values *v) {
  ad_tensor *errors[2];
  for (int i = 0; i < 2; i++) errors[i] = ad_squared_error(s->t, s->x[W + i], product(s, i));
  return moved(s->t, ad_add(s->t, errors[0], errors[1]), AD_R, AD_MOVE_ONCE, AD_P);
}

static ad_tensor *squares(const setting *s, const values *v) {
  ad_tensor *hidden = ad_gelu(s->t, masked(s, v, 0, s->x[X], MASK, DELTA));
  return ad_squared_error(s->t, ad_linear(s->t, hidden, s->x[W + 1]), v->target);
}

static ad_tensor *divergence(const setting *s, const values *v) {
  return ad_kl_divergence(s->t, masked(s, v, 1, v->hidden, MASK, DELTA), v->target);
}

/* The logarithm is taken of the sum over all ranks; each rank then has the full loss. */
static ad_tensor *sparsity(const setting *s, const values *v) {
  ad_tensor *sums = ad_power_sums(s->t, ad_upper(s->t, v->logits), 0.01, 0.9);
  return ad_sparsity(s->t, moved(s->t, sums, AD_P, AD_MOVE_ALL_REDUCE, AD_I), 0.75);
}

static ad_tensor *adversarial(const setting *s, const values *v) {
  ad_tensor *hidden = ad_gelu(s->t, masked(s, v, 0, s->x[X], ADVERSE_MASK, ADVERSE_DELTA));
  return ad_kl_divergence(s->t, masked(s, v, 1, hidden, ADVERSE_MASK, ADVERSE_DELTA), v->target);
}

enum { LOSSES = 5 };
static const struct {
  const char *name;
  ad_tensor *(*formula)(const setting *s, const values *v);
  double weight; /* the loss's weight in the total */
} losses[LOSSES] = {{"faithfulness", faithfulness, 0.5},
                    {"squares", squares, 0.05},
                    {"divergence", divergence, 0.6},
                    {"sparsity", sparsity, 0.003},
                    {"adversarial", adversarial, 0.4}};

/* The losses have different types; each is brought to a sum that all ranks have, and these are added. */
static ad_tensor *total(const setting *s, const values *v) {
  ad_tensor *sum = NULL;
  for (int i = 0; i < LOSSES; i++) {
    ad_tensor *part = moved(s->t, losses[i].formula(s, v), AD_P, AD_MOVE_ALL_REDUCE, AD_I);
    part = ad_scale(s->t, part, losses[i].weight);
    sum = sum ? ad_add(s->t, sum, part) : part;
  }
  return sum;
}

/* ---- comparing with the fixture ---- */

static void judge_gradients(setting *s, const char *loss) {
  char name[64];
  for (int i = 0; i < INPUTS; i++) {
    snprintf(name, sizeof name, "%s.gradient.%s", loss, names[i]);
    const ad_array *found = ad_grad(s->x[i]);
    CHECK(!found == !ad_safetensors_find(s->b.file, name));
    if (found) judge_full(&s->b, name, found);
  }
}

static void judge_loss(ad_comm *comm, const example *e, const char *name,
                       ad_tensor *(*formula)(const setting *s, const values *v)) {
  setting s = {.b = bench_open(comm, "decomposition", e->mesh)};
  s.t = s.b.tape;
  take_inputs(&s, e);
  values v = values_of(&s);
  ad_tensor *loss = formula(&s, &v);
  CHECK_OK(ad_backward(s.t, loss));
  judge_full(&s.b, name, ad_tensor_array(loss));
  judge_gradients(&s, name);
  bench_close(&s.b);
  for (int i = 0; i < INPUTS; i++) free(s.array[i].data);
}

static int lose(ad_comm *comm, void *context) {
  for (int i = 0; i < LOSSES; i++) judge_loss(comm, context, losses[i].name, losses[i].formula);
  judge_loss(comm, context, "total", total);
  return 0;
}

static void lose_on(const char *mesh, const char *rows, const char *matrices) {
  ad_mesh *m;
  assert_int_equal(ad_mesh_create(mesh, &m), AD_OK);
  int64_t ranks = ad_mesh_size(m);
  ad_mesh_destroy(m);
  run_ranks(ranks, lose, &((example){.mesh = mesh, .rows = rows, .matrices = matrices}));
}

static void the_losses_of_full_values_are_those_of_pytorch(void **state) {
  lose_on("dp_shard=1", "dp_shard=S0", "dp_shard=R");
  lose_on("tp=2", "tp=I", "tp=I");
}

static void the_losses_of_sharded_rows_are_those_of_pytorch(void **state) {
  lose_on("dp_shard=2", "dp_shard=S0", "dp_shard=R");
  lose_on("dp_shard=3 tp=2", "dp_shard=S0 tp=I", "dp_shard=R tp=I");  // one rank has no sample
  lose_on("cp=3", "cp=S1z", "cp=R");
  lose_on("dp_replicate=2 cp=2", "dp_replicate=S0 cp=S1", "dp_replicate=R cp=R");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_losses_of_full_values_are_those_of_pytorch),
      cmocka_unit_test(the_losses_of_sharded_rows_are_those_of_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // the fixtures' paths are relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
