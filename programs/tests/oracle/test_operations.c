/* Tests attention, the loss and a router, each alone, against PyTorch's own operations (generate_operations.py computes
 * full values): each rank's part of the value and of every gradient is compared with the same part of the full one.
 * Samples, sequence, heads and vocabulary are sharded, unevenly and into more parts than there are elements; scores and
 * logits go up to 5000. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>
#include "bench.h"
#include "addend/routing.h"

typedef struct example {
  const char *fixture, *mesh;
  const char *layout;      /* layout of q, or of the logits */
  const char *keys_layout; /* layout of k and v */
  const char *keys_on_all; /* the axis over which k and v are then brought to R; NULL: none */
  int64_t head_dim;
  int sees_all;
  int uses_sigmoid;
} example;

/* ---- attention ---- */

enum { Q, K, V, INPUTS };

/* Brings k or v to R: on cp they are sharded and gathered; on tp they are I, so no byte moves. */
static ad_tensor *keys(const bench *b, const example *e, ad_tensor *x) {
  const char *axis = e->keys_on_all;
  if (!axis) return x;
  return strcmp(axis, "cp") ? ad_convert(b->tape, x, axis, AD_R) : ad_all_gather(b->tape, x, axis, AD_R);
}

static ad_tensor *attention(const bench *b, const example *e, ad_tensor *q, ad_tensor *k, ad_tensor *v) {
  return e->sees_all ? ad_attention_all(b->tape, q, k, v, e->head_dim) : ad_attention(b->tape, q, k, v, e->head_dim);
}

static int attend(ad_comm *comm, void *context) {
  static const char *const names[INPUTS] = {"q", "k", "v"}, *const gradients[INPUTS] = {"gradient.q", "gradient.k",
                                                                                        "gradient.v"};
  const example *e = context;
  bench b = bench_open(comm, e->fixture, e->mesh);
  ad_layout rows = parsed(&b, e->layout), columns = parsed(&b, e->keys_layout);
  ad_array arrays[INPUTS], slope = part_of(&b, "slope", &rows);
  ad_tensor *x[INPUTS];
  for (int i = 0; i < INPUTS; i++) {
    arrays[i] = part_of(&b, names[i], i == Q ? &rows : &columns);
    x[i] = ad_input(b.tape, &arrays[i]);
  }
  ad_tensor *out = attention(&b, e, x[Q], keys(&b, e, x[K]), keys(&b, e, x[V]));
  ad_tensor *total = ad_sum(b.tape, ad_multiply(b.tape, out, ad_constant(b.tape, &slope)));
  CHECK_OK(ad_backward(b.tape, total));
  judge_part(&b, "out", ad_tensor_array(out));
  for (int i = 0; i < INPUTS; i++) judge_part(&b, gradients[i], ad_grad(x[i]));
  bench_close(&b);
  for (int i = 0; i < INPUTS; i++) free(arrays[i].data);
  free(slope.data);
  return 0;
}

/* ---- the cross-entropy loss ---- */

/* The targets' layout: sharded by rows where the logits are. */
static ad_layout layout_of_targets(const ad_layout *logits) {
  ad_layout layout = *logits;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (layout.type[axis] == AD_S(2)) layout.type[axis] = AD_I;
  return layout;
}

static int lose(ad_comm *comm, void *context) {
  const example *e = context;
  bench b = bench_open(comm, e->fixture, e->mesh);
  ad_layout layout = parsed(&b, e->layout), rows = layout_of_targets(&layout);
  ad_array logits = part_of(&b, "logits", &layout), targets = part_of(&b, "targets", &rows);
  ad_tensor *x = ad_input(b.tape, &logits);
  ad_tensor *loss = ad_cross_entropy(b.tape, x, ad_constant(b.tape, &targets));
  CHECK_OK(ad_backward(b.tape, loss));
  judge_full(&b, "loss", ad_tensor_array(loss));
  judge_part(&b, "gradient.logits", ad_grad(x));
  bench_close(&b);
  free(logits.data);
  free(targets.data);
  return 0;
}

/* ---- a router with limited capacity ---- */

enum { TOP_K = 3 };
static const double capacity = 0.6;

static ad_tensor *moved(ad_tape *t, ad_tensor *x, ad_type from, ad_move move, ad_type to) {
  char axes[128];
  ad_axes own = ad_layout_axes_of(&ad_tensor_array(x)->layout, from);
  return own ? ad_move_at(t, x, move, ad_axes_print(own, axes, sizeof axes), to, AD_HERE) : x;
}

static ad_tensor *choices_of_all(ad_tape *t, const ad_routing *routing) {
  ad_tensor *addends = moved(t, ad_choices(t, routing), AD_V, AD_MOVE_DECLARE, AD_P);
  return moved(t, addends, AD_P, AD_MOVE_ALL_REDUCE, AD_R);
}

/* Multiplies each row of x by the scores of the experts that take it. */
static ad_tensor *scaled_by_scores(ad_tape *t, ad_tensor *x, ad_tensor *chosen, const ad_routing *routing) {
  ad_tensor *slots = ad_to_slots(t, ad_to_rows(t, x), routing);
  slots = ad_scale_rows(t, slots, ad_slot_weights(t, chosen, routing));
  return ad_from_rows(t, ad_from_slots(t, slots, routing), x);
}

static int route(ad_comm *comm, void *context) {
  const example *e = context;
  bench b = bench_open(comm, e->fixture, e->mesh);
  ad_layout rows = parsed(&b, e->layout), everywhere = ad_layout_all(b.mesh, AD_R);
  ad_array x = part_of(&b, "x", &rows), slope = part_of(&b, "slope", &rows), bias = part_of(&b, "bias", &everywhere);
  ad_array array = part_of(&b, "logits", &rows);
  ad_tape *t = b.tape;
  ad_routing *routing;
  ad_tensor *input = ad_input(t, &x), *batch = ad_input(t, &array), *logits = ad_to_rows(t, batch);
  ad_tensor *shares = ad_softmax(t, logits), *scores = e->uses_sigmoid ? ad_sigmoid(t, logits) : shares;
  ad_tensor *chosen = ad_top_k(t, scores, TOP_K, &bias, &routing);
  ad_limit(t, routing, capacity, batch, 0);
  ad_tensor *out = scaled_by_scores(t, input, chosen, routing), *choices = choices_of_all(t, routing);
  ad_tensor *balance = moved(t, ad_balance(t, shares, choices, TOP_K), AD_V, AD_MOVE_DECLARE, AD_P);
  ad_tensor *total = ad_sum(t, ad_multiply(t, out, ad_constant(t, &slope)));
  CHECK_OK(ad_backward(t, ad_add(t, total, balance)));
  judge_part(&b, "out", ad_tensor_array(out));
  judge_part(&b, "choices", ad_tensor_array(choices));
  judge_full(&b, "balance", ad_tensor_array(balance));
  judge_part(&b, "gradient.logits", ad_grad(batch));
  judge_part(&b, "gradient.x", ad_grad(input));
  bench_close(&b);
  free(x.data);
  free(slope.data);
  free(bias.data);
  free(array.data);
  return 0;
}

/* ---- the examples on their meshes ---- */

static void run_example(example e, int (*function)(ad_comm *comm, void *context)) {
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create(e.mesh, &mesh), AD_OK);
  int64_t ranks = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  run_ranks(ranks, function, &e);
}

static void attend_on(example e) {
  static const struct {
    const char *fixture;
    int64_t head_dim;
    int sees_all;
  } fixtures[] = {{"attention", 4, 0},
                  {"attention-high", 16, 0},
                  {"attention-all", 4, 1},
                  {"attention-all-high", 16, 1},
                  {"attention-all-one", 4, 1}};
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
    e.fixture = fixtures[i].fixture, e.head_dim = fixtures[i].head_dim, e.sees_all = fixtures[i].sees_all;
    run_example(e, attend);
  }
}

static void attend_in_parts(const char *mesh, const char *layout) {
  attend_on((example){.mesh = mesh, .layout = layout, .keys_layout = layout});
}

static void attention_of_full_values_is_that_of_pytorch(void **state) { attend_in_parts("cp=1", "cp=I"); }

static void attention_around_the_ring_is_that_of_pytorch(void **state) {
  attend_in_parts("cp=2", "cp=S1z");
  attend_in_parts("cp=3", "cp=S1z");
  attend_in_parts("cp=4", "cp=S1z");
  attend_in_parts("cp=8", "cp=S1z");  // more chunks than positions
  attend_in_parts("cp=2", "cp=S1");
  attend_in_parts("cp=3", "cp=S1");
}

static void attention_with_keys_on_all_ranks_is_that_of_pytorch(void **state) {
  attend_on((example){.mesh = "cp=2", .layout = "cp=S1z", .keys_layout = "cp=S1z", .keys_on_all = "cp"});
  attend_on((example){.mesh = "cp=4", .layout = "cp=S1z", .keys_layout = "cp=S1z", .keys_on_all = "cp"});
  attend_on((example){.mesh = "tp=4", .layout = "tp=S2", .keys_layout = "tp=I", .keys_on_all = "tp"});
  attend_on(
      (example){.mesh = "cp=2 tp=4", .layout = "cp=S1z tp=S2", .keys_layout = "cp=S1z tp=I", .keys_on_all = "tp"});
}

static void attention_of_sharded_heads_and_samples_is_that_of_pytorch(void **state) {
  attend_in_parts("tp=2", "tp=S2");
  attend_in_parts("cp=2 tp=2", "cp=S1z tp=S2");
  attend_in_parts("dp_shard=3 cp=2", "dp_shard=S0 cp=S1z");  // one rank has no sample
}

static void lose_on(const char *mesh, const char *layout) {
  static const char *const fixtures[] = {"loss", "loss-wide", "loss-high"};
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
    run_example((example){.fixture = fixtures[i], .mesh = mesh, .layout = layout}, lose);
}

static void the_loss_of_full_values_is_that_of_pytorch(void **state) { lose_on("tp=1", "tp=I"); }

static void the_loss_of_a_sharded_vocabulary_is_that_of_pytorch(void **state) {
  lose_on("tp=2", "tp=S2");
  lose_on("tp=3", "tp=S2");
  lose_on("tp=4", "tp=S2");
  lose_on("tp=12", "tp=S2");  // one rank has none of the vocabulary
}

static void the_loss_of_sharded_rows_is_that_of_pytorch(void **state) {
  lose_on("dp_shard=2 tp=3", "dp_shard=S0 tp=S2");
  lose_on("cp=2 tp=2", "cp=S1z tp=S2");
  lose_on("dp_shard=3 cp=2", "dp_shard=S0 cp=S1z");
}

static void route_on(const char *mesh, const char *layout) {
  static const char *const fixtures[] = {"router-softmax", "router-softmax-high", "router-sigmoid",
                                         "router-sigmoid-high"};
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
    run_example((example){.fixture = fixtures[i], .mesh = mesh, .layout = layout, .uses_sigmoid = i >= 2}, route);
}

static void a_router_of_full_values_is_that_of_pytorch(void **state) { route_on("tp=2", "tp=I"); }

static void a_router_of_sharded_rows_is_that_of_pytorch(void **state) {
  route_on("dp_shard=2", "dp_shard=S0");
  route_on("cp=3", "cp=S1z");
  route_on("cp=3", "cp=S1");
  route_on("dp_shard=2 tp=2", "dp_shard=S0 tp=S1");
  route_on("dp_shard=3 cp=2", "dp_shard=S0 cp=S1z");  // one rank has no sample
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_of_full_values_is_that_of_pytorch),
      cmocka_unit_test(attention_around_the_ring_is_that_of_pytorch),
      cmocka_unit_test(attention_with_keys_on_all_ranks_is_that_of_pytorch),
      cmocka_unit_test(attention_of_sharded_heads_and_samples_is_that_of_pytorch),
      cmocka_unit_test(the_loss_of_full_values_is_that_of_pytorch),
      cmocka_unit_test(the_loss_of_a_sharded_vocabulary_is_that_of_pytorch),
      cmocka_unit_test(the_loss_of_sharded_rows_is_that_of_pytorch),
      cmocka_unit_test(a_router_of_full_values_is_that_of_pytorch),
      cmocka_unit_test(a_router_of_sharded_rows_is_that_of_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // the fixtures' paths are relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
