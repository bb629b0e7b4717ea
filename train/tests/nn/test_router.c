/* Tests which collectives sum a router's gradient, as the ranks' flight recorders show: with a gate that is I on tp,
 * whose scores are converted, and with a gate that is R, whose gradient stays partial on tp until the
 * reducer sums it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../../core/tests/array/values.h"
#include "addend/experts.h"
#include "ranks.h"

enum { RANKS = 4, BATCH = 4, SEQUENCE = 3, WIDTH = 6, EXPERTS = 5, HIDDEN = 4, PARAMS_MAX = 8 };

typedef struct layer {
  int is_sharded, scores_first, sequence; /* is_sharded: experts, over etp; otherwise tokens, over tp */
  const char *sum;                        /* the collective that sums the gate's gradient */
} layer;

typedef struct world {
  ad_comm *comm;
  const layer *layer;
  ad_mesh *mesh, *view;
  ad_declarations params;
  ad_experts_layer experts;
  ad_array values[PARAMS_MAX], x;
} world;

static ad_array random_array(ad_comm *comm, const ad_shape *shape, const ad_layout *layout, uint64_t stream) {
  ad_array array = {0};
  CHECK_OK(ad_array_create(comm, AD_F64, shape, layout, &array));
  fill_value(comm, &array, stream);
  return array;
}

static void declare(world *w, int gate_is_summed) {
  ad_experts_shape shape = {.size = sizeof shape,
                            .d_model = WIDTH,
                            .experts = EXPERTS,
                            .hidden = HIDDEN,
                            .top_k = 2,
                            .shared_hidden = HIDDEN,
                            .scores_first = w->layer->scores_first,
                            .gate_is_summed = gate_is_summed,
                            .output_factor = 1,
                            .view = w->view,
                            .parallel = {.sequence = w->layer->sequence}};
  w->params = ad_declarations_on(w->mesh);
  w->experts = ad_experts_declare(&w->params, "moe", &shape);
  CHECK_OK(w->params.status);
  CHECK(w->params.count <= PARAMS_MAX);
}

static void open_world(world *w, ad_comm *comm, const layer *of, int gate_is_summed) {
  ad_layout layout;
  *w = (world){.comm = comm, .layer = of};
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=2", &w->mesh));
  CHECK_OK(ad_mesh_create_view(w->mesh, of->is_sharded ? "efsdp=1 ep=2 etp=2" : "efsdp=1 ep=4 etp=1", &w->view));
  declare(w, gate_is_summed);
  for (size_t i = 0; i < w->params.count; i++)
    w->values[i] = random_array(comm, &w->params.list[i].shape, &w->params.list[i].layout, 10 + i);
  CHECK_OK(ad_layout_parse(w->mesh, of->sequence ? "dp_shard=S0 tp=S1" : "dp_shard=S0 tp=I", &layout));
  w->x = random_array(comm, &(ad_shape){3, {BATCH, SEQUENCE, WIDTH}}, &layout, 1);
}

static void close_world(world *w) {
  for (size_t i = 0; i < w->params.count; i++) ad_array_destroy(w->comm, &w->values[i]);
  ad_array_destroy(w->comm, &w->x);
  ad_declarations_release(&w->params);
  ad_mesh_destroy(w->view);
  ad_mesh_destroy(w->mesh);
}

/* ---- reading the flight recorder ---- */

typedef struct counters {
  int all, all_gather, all_reduce;
} counters;

static int count(const char *text, const char *word) {
  int found = 0;
  for (; (text = strstr(text, word)); text++) found++;
  return found;
}

/* The sequence number of this rank's last collective. */
static unsigned long last_call(ad_comm *comm) {
  char *text, *last;
  CHECK_OK(ad_comm_flight_recorder(comm, &text));
  last = strrchr(text, '#');
  unsigned long number = last ? strtoul(last + 1, NULL, 10) : 0;
  free(text);
  return number;
}

/* Counts the collectives after call number `before`. */
static counters counters_since(ad_comm *comm, unsigned long before) {
  char *text, first[32];
  CHECK_OK(ad_comm_flight_recorder(comm, &text));
  snprintf(first, sizeof first, "#%lu ", before + 1);
  const char *since = strstr(text, first);
  if (!since) since = "";
  counters found = {count(since, "#"), count(since, " all_gather "), count(since, " all_reduce(sum) ")};
  free(text);
  return found;
}

/* ---- the layer's forward and backward ---- */

typedef struct findings {
  counters forward, backward;
  double gate[WIDTH * EXPERTS]; /* the gate's gradient, summed over dp_shard */
} findings;

static void sum_over(ad_comm *comm, const ad_mesh *mesh, ad_axes axes, double *values) {
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = values, .out = values, .count = WIDTH * EXPERTS, .dtype = AD_F64};
  call.group = ad_mesh_group(mesh, axes, ad_comm_rank(comm));
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(comm, &call));
}

/* The loss is the sum of y. */
static ad_tensor *loss_of(world *w, ad_tape *t, ad_tensor **params) {
  ad_experts_notes notes;
  for (size_t i = 0; i < w->params.count; i++) params[i] = ad_input(t, &w->values[i]);
  ad_tensor *y = ad_experts_forward(t, params, &w->experts, ad_input(t, &w->x), NULL, (ad_decisions){0}, &notes);
  return ad_sum(t, y);
}

static findings run_layer(ad_comm *comm, const layer *of, int gate_is_summed) {
  world w;
  findings found;
  ad_tensor *params[PARAMS_MAX];
  ad_tape *tape;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  open_world(&w, comm, of, gate_is_summed);
  CHECK_OK(ad_tape_create(comm, w.mesh, &options, &tape));
  unsigned long before = last_call(comm);
  ad_tensor *loss = loss_of(&w, tape, params);
  CHECK_OK(ad_tape_status(tape));
  found.forward = counters_since(comm, before);
  before = last_call(comm);
  CHECK_OK(ad_backward(tape, loss));
  found.backward = counters_since(comm, before);
  const ad_array *gate = ad_grad(params[w.experts.router]);
  CHECK(gate->layout.type[AD_TP] == (gate_is_summed ? AD_P : AD_I));
  memcpy(found.gate, gate->data, sizeof found.gate);
  sum_over(comm, w.mesh, AD_AXES(AD_DP_SHARD), found.gate);
  ad_tape_destroy(tape);
  close_world(&w);
  return found;
}

/* ---- a gate typed I, compared with a gate typed R ---- */

static int compare(ad_comm *comm, void *context) {
  const layer *of = context;
  findings with = run_layer(comm, of, 0), without = run_layer(comm, of, 1);
  int gathers = !strcmp(of->sum, "all_gather");
  CHECK(with.forward.all == without.forward.all);
  CHECK(with.backward.all == without.backward.all + 1);
  CHECK(with.backward.all_gather == without.backward.all_gather + gathers);
  CHECK(with.backward.all_reduce == without.backward.all_reduce + !gathers);
  ad_mesh *mesh;
  double differs = 0, part[WIDTH * EXPERTS];
  memcpy(part, without.gate, sizeof part);
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=2", &mesh));
  sum_over(comm, mesh, AD_AXES(AD_TP), without.gate);
  for (int i = 0; i < WIDTH * EXPERTS; i++) {
    CHECK(fabs(with.gate[i] - without.gate[i]) <= 1e-12);
    differs = fmax(differs, fabs(with.gate[i] - part[i]));
  }
  CHECK(differs > 1e-3);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_sum_of_the_gate_is_one_collective_more_and_in_backward_only(void **state) {
  static const layer layers[] = {{0, 1, 0, "all_gather"}, {0, 0, 0, "all_gather"}, {1, 0, 0, "all_reduce"},
                                 {1, 1, 0, "all_reduce"}, {0, 1, 1, "all_reduce"}, {0, 0, 1, "all_reduce"},
                                 {1, 0, 1, "all_reduce"}, {1, 1, 1, "all_reduce"}};
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    layer of = layers[i];
    run_ranks(RANKS, compare, &of);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_sum_of_the_gate_is_one_collective_more_and_in_backward_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
