/* A mixture of experts, written with the operations of routing.h: each token goes to its two best experts, which are on
 * different ranks, and the sum of their results comes back. An expert takes a limited number of tokens, and a second
 * loss makes the experts get equally many. The gradients must be those of one rank. Starts 3 ranks. */
#include <math.h>
#include <stdio.h>
#include "addend/experts.h"

enum { RANKS = 3, BATCH = 6, SEQ = 4, D = 5, EXPERTS = 6, TOP_K = 2, PARAMS = 2 };
enum { ROUTER, MATRICES };

typedef struct layer {
  ad_comm *comm;
  ad_mesh *mesh, *view;
  ad_tape *tape;
  ad_array x, values[PARAMS];
  ad_tensor *leaves[PARAMS];
  size_t dropped; /* how many of this rank's choices were dropped because the expert was full */
} layer;

/* Fills this rank's part of an array. An element's value depends only on the element's index in the full array, so it
 * is the same on every mesh. */
static void fill(ad_array *array, ad_comm *comm, double scale) {
  ad_span own = {0, 0};
  ad_layout_spans(&array->layout, 0, array->shape.dim[0], ad_comm_rank(comm), &own, 1);
  size_t row = own.count ? ad_array_numel(array) / (size_t)own.count : 0;
  for (size_t i = 0; i < ad_array_numel(array); i++)
    ad_array_set(array, i, scale * sin(1.7 * (double)((size_t)own.first * row + i) + scale));
}

static ad_status create_layer(layer *l, const char *mesh, const char *view) {
  const ad_shape shapes[] = {{3, {BATCH, SEQ, D}}, {2, {D, EXPERTS}}, {3, {EXPERTS, D, D}}};
  ad_layout layouts[3];
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  AD_TRY(ad_mesh_create(mesh, &l->mesh));
  AD_TRY(ad_mesh_create_view(l->mesh, view, &l->view));
  AD_TRY(ad_tape_create(l->comm, l->mesh, &options, &l->tape));
  AD_TRY(ad_layout_parse(l->mesh, "dp_shard=S0", &layouts[0]));
  layouts[1] = ad_layout_all(l->mesh, AD_R);
  AD_TRY(ad_layout_parse(l->view, "ep=S0", &layouts[2]));  // each rank has the matrices of its experts
  ad_array *const arrays[] = {&l->x, &l->values[ROUTER], &l->values[MATRICES]};
  for (int i = 0; i < 3; i++) {
    AD_TRY(ad_array_create(l->comm, AD_F64, &shapes[i], &layouts[i], arrays[i]));
    fill(arrays[i], l->comm, 0.5 + 0.4 * i);
  }
  for (int i = 0; i < PARAMS; i++) l->leaves[i] = ad_input(l->tape, &l->values[i]);
  return AD_OK;
}

static void destroy_layer(layer *l) {
  ad_tape_destroy(l->tape);
  ad_mesh_destroy(l->view);
  ad_mesh_destroy(l->mesh);  // closing the comm frees the arrays
}

/* Computes the layer: x [batch, seq, d] -> the same shape. Sets *balance to the balancing loss of the tokens. */
static ad_tensor *forward(layer *l, ad_tensor *x, ad_tensor **balance) {
  ad_tape *t = l->tape;
  ad_routing *routing = NULL;
  ad_tensor *rows = ad_to_rows(t, x);  // [tokens, d], V on dp_shard: each rank has its own tokens
  ad_tensor *scores = ad_sigmoid(t, ad_linear(t, rows, l->leaves[ROUTER]));
  ad_tensor *chosen = ad_top_k(t, ad_view(t, scores, l->view), TOP_K, NULL, &routing);
  ad_limit(t, routing, 1.25, x, 0);
  ad_tensor *counts = ad_view(t, ad_declare(t, ad_choices(t, routing), "ep", AD_P), l->mesh);
  *balance = ad_balance(t, ad_shares(t, scores), ad_all_reduce(t, counts, "dp_shard", AD_R), TOP_K);
  ad_tensor *slots = ad_to_slots(t, ad_view(t, rows, l->view), routing);
  ad_tensor *made = ad_grouped_linear(t, ad_dispatch(t, slots, routing, "ep"), l->leaves[MATRICES], routing);
  made = ad_scale_rows(t, ad_return(t, made, routing, "ep"), ad_slot_weights(t, chosen, routing));
  l->dropped = ad_routing_dropped(routing);
  return ad_from_rows(t, ad_view(t, ad_from_slots(t, made, routing), l->mesh), x);
}

static ad_status run(layer *l, double *loss_value) {
  ad_tape *t = l->tape;
  ad_tensor *balance, *x = ad_constant(t, &l->x), *y = forward(l, x, &balance);
  ad_tensor *loss = ad_squared_error(t, y, x);  // P on dp_shard
  loss = ad_add(t, loss, ad_scale(t, ad_declare(t, balance, "dp_shard", AD_P), 0.1));
  AD_TRY(ad_tape_status(t));
  AD_TRY(ad_backward(t, loss));
  ad_array sum;
  AD_TRY(ad_array_after(l->comm, ad_tensor_array(loss), AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_SHARD), AD_R, &sum));
  sum.data = loss_value;
  return ad_array_move(l->comm, ad_tensor_array(loss), AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_SHARD), AD_R, AD_F64, &sum);
}

/* Raises *worst to the largest difference between a gradient of the ranks, gathered in full, and that of one rank. */
static ad_status compare(layer *ranks, const layer *one, size_t param, double *worst) {
  double memory[EXPERTS * D * D] = {0};
  ad_array full = {.data = memory};
  AD_TRY(ad_array_full(ranks->comm, ad_grad(ranks->leaves[param]), &full));
  const ad_array *wanted = ad_grad(one->leaves[param]);
  for (size_t i = 0; i < ad_array_numel(wanted); i++) *worst = fmax(*worst, fabs(memory[i] - ad_array_get(wanted, i)));
  return AD_OK;
}

static ad_status compare_all(layer *ranks, layer *one, double *worst) {
  double loss, loss_of_one;
  AD_TRY(create_layer(ranks, "dp_shard=3", "ep=3"));
  AD_TRY(create_layer(one, "dp_shard=1", "ep=1"));
  AD_TRY(run(ranks, &loss));
  AD_TRY(run(one, &loss_of_one));
  *worst = fabs(loss - loss_of_one);
  for (size_t p = 0; p < PARAMS; p++) AD_TRY(compare(ranks, one, p, worst));
  if (!ad_comm_rank(ranks->comm))
    printf("loss %.6f; %d of %d choices found their expert full; gradients as on one rank: %s\n", loss_of_one,
           (int)one->dropped, BATCH * SEQ * TOP_K, *worst < 1e-12 ? "yes" : "NO");
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  ad_comm *alone;
  double worst = 0;
  if (ad_comm_open_alone(&alone)) return 1;
  layer ranks = {.comm = comm}, one = {.comm = alone};
  ad_status status = compare_all(&ranks, &one, &worst);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  destroy_layer(&ranks);
  destroy_layer(&one);
  ad_comm_close(alone);
  return status || worst >= 1e-12;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank};
  ad_launch_result result = {.size = sizeof result};
  return ad_launch(&options, &result) ? fprintf(stderr, "%s\n", ad_last_error()), 1 : 0;
}
