/* The gate (router) of a mixture of experts. All ranks of tp compute the same scores (type I), and each rank uses them
 * for its own share of the experts' work, so each rank's backward has only a part of the gate's gradient. A published
 * bug takes this part for the full gradient: forward is right and the loss falls, but the gate's replicas drift apart.
 * This example shows, for three kinds of layer, that addend refuses the bug, and the repair. */
#include <math.h>
#include <stdio.h>
#include "addend/routing.h"

enum { RANKS = 4, TOKENS = 10, WIDTH = 3, EXPERTS = 4, HIDDEN = 5, TOP_K = 2, LAYERS = 3, GATE = WIDTH * EXPERTS };

/* How the gate's gradient is treated. TAKEN_FOR_FINAL: a rank's part is taken for the full gradient (the bug). SUMMED:
 * the tape sums the parts over tp (the repair). A_PART: the gate is R, so that its gradient is declared to be a part of
 * a sum (P). */
typedef enum gate { TAKEN_FOR_FINAL, SUMMED, A_PART } gate;

static const struct layer {
  const char *words;
  int is_sharded, scores_first;
} layers[LAYERS] = {{"tokens split over tp, scores before experts", 0, 1},
                    {"tokens split over tp, scores after experts", 0, 0},
                    {"experts sharded over tp, scores after experts", 1, 0}};

/* One layer with its weights and its tape: on 4 ranks, or on one rank for comparison. */
typedef struct run {
  const struct layer *layer;
  ad_comm *comm;
  ad_mesh *mesh, *view;
  ad_tape *tape;
  ad_array x, up, down, gate;
} run;

/* Creates an array of this layout. Its numbers depend on `seed` alone; on backend dry it has no data. */
static ad_status make_array(const run *r, const ad_mesh *mesh, const char *text, ad_shape shape, int seed,
                            ad_array *out) {
  ad_layout layout;
  AD_TRY(ad_layout_parse(mesh, text, &layout));
  AD_TRY(ad_array_create(r->comm, AD_F64, &shape, &layout, out));
  for (size_t i = 0; out->data && i < ad_array_numel(out); i++) ((double *)out->data)[i] = sin(seed * (i + 1.0));
  return AD_OK;
}

/* Creates meshes, tape, input and weights. Every rank has all weights in full; the formula in loss_of takes the rank's
 * shards. */
static ad_status prepare(run *r, gate how) {
  int alone = ad_comm_size(r->comm) == 1;
  const char *view = alone ? "efsdp=1 ep=1 etp=1" : r->layer->is_sharded ? "efsdp=1 ep=2 etp=2" : "efsdp=1 ep=4 etp=1";
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  AD_TRY(ad_mesh_create(alone ? "dp_shard=1 tp=1" : "dp_shard=2 tp=2", &r->mesh));
  AD_TRY(ad_mesh_create_view(r->mesh, view, &r->view));
  AD_TRY(make_array(r, r->mesh, "dp_shard=I tp=I", (ad_shape){2, {TOKENS, WIDTH}}, 1, &r->x));
  AD_TRY(make_array(r, r->view, "efsdp=R ep=R etp=R", (ad_shape){3, {EXPERTS, WIDTH, HIDDEN}}, 2, &r->up));
  AD_TRY(make_array(r, r->view, "efsdp=R ep=R etp=R", (ad_shape){3, {EXPERTS, HIDDEN, WIDTH}}, 3, &r->down));
  const char *gate_layout = how == A_PART ? "dp_shard=I tp=R" : "dp_shard=I tp=I";
  AD_TRY(make_array(r, r->mesh, gate_layout, (ad_shape){2, {WIDTH, EXPERTS}}, 4, &r->gate));
  return ad_tape_create(r->comm, r->mesh, &options, &r->tape);
}

/* Converts x for use by this rank's own experts or tokens. The conversion's backward sums the gradients of x over all
 * ranks of tp. */
static ad_tensor *enter(const run *r, ad_tensor *x) {
  ad_tape *t = r->tape;
  return r->layer->is_sharded ? ad_convert(t, x, "tp", AD_R) : ad_to_rows(t, ad_convert(t, x, "tp", AD_S(0)));
}

/* Multiplies rows with the matrices of this rank's experts, taken from `all`. `sharded` is the dimension that etp
 * shards, if etp has several ranks. */
static ad_tensor *product(const run *r, ad_tensor *rows, const ad_array *all, ad_type sharded,
                          const ad_routing *routing) {
  ad_tape *t = r->tape;
  // The matrices of this rank's experts.
  ad_tensor *w = ad_declare(t, ad_convert(t, ad_constant(t, all), "ep", AD_S(0)), "ep", AD_V);
  return ad_grouped_linear(t, rows, r->layer->is_sharded ? ad_convert(t, w, "etp", sharded) : w, routing);
}

/* Computes the layer and its loss, the sum of all outputs. */
static ad_tensor *loss_of(const run *r, ad_tensor *gate_matrix, gate how) {
  ad_tape *t = r->tape;
  ad_tensor *x = ad_to_rows(t, ad_convert(t, ad_constant(t, &r->x), "dp_shard", AD_S(0)));  // V on dp_shard, I on tp
  ad_tensor *rows = enter(r, x), *scores = ad_softmax(t, ad_linear(t, how == A_PART ? rows : x, gate_matrix));
  if (how == SUMMED) scores = enter(r, scores);  // this is the repair
  ad_routing *routing = NULL;
  ad_tensor *chosen = ad_top_k(t, ad_view(t, scores, r->view), TOP_K, NULL, &routing);
  ad_tensor *factors = ad_slot_weights(t, chosen, routing), *slots = ad_to_slots(t, ad_view(t, rows, r->view), routing);
  if (r->layer->scores_first) slots = ad_scale_rows(t, slots, factors);
  slots = ad_gelu(t, product(r, ad_dispatch(t, slots, routing, "ep"), &r->up, AD_S(2), routing));
  // P on etp if etp shards the matrices of experts.
  slots = ad_return(t, product(r, slots, &r->down, AD_S(1), routing), routing, "ep");
  if (!r->layer->scores_first) slots = ad_scale_rows(t, slots, factors);
  return ad_sum(t, ad_declare(t, slots, r->layer->is_sharded ? "efsdp,ep" : "efsdp,ep,etp", AD_P));
}

/* Runs the layer forward and backward. If `grad` is not NULL, copies this rank's gradient of the gate to it. */
static ad_status gradient_of(ad_comm *comm, const struct layer *layer, gate how, double grad[GATE]) {
  run r = {.layer = layer, .comm = comm};
  ad_status status = prepare(&r, how);
  ad_tensor *leaf = status ? NULL : ad_input(r.tape, &r.gate);
  if (!status) status = ad_backward(r.tape, loss_of(&r, ad_convert(r.tape, leaf, "dp_shard", AD_R), how));
  for (int i = 0; !status && grad && i < GATE; i++) grad[i] = ((const double *)ad_grad(leaf)->data)[i];
  ad_tape_destroy(r.tape);
  ad_mesh_destroy(r.view);
  ad_mesh_destroy(r.mesh);
  return status;  // closing the comm frees the arrays
}

/* Runs on each rank: compares the repaired gradient with that of one process. Rank 0 prints its part of the
 * gradient. */
static int compare_gradients(ad_comm *comm, void *context) {
  double full[GATE], sum[GATE], part[GATE], worst = 0;
  ad_comm *alone;
  if (ad_comm_open_alone(&alone)) return 1;
  for (const struct layer *l = layers; l < layers + LAYERS; l++) {
    if (gradient_of(alone, l, SUMMED, full) || gradient_of(comm, l, SUMMED, sum) || gradient_of(comm, l, A_PART, part))
      return fprintf(stderr, "%s\n", ad_last_error()), 1;
    for (int i = 0; i < GATE; i++) worst = fmax(worst, fabs(sum[i] - full[i]));
    if (ad_comm_rank(comm) != 0) continue;
    printf("%s\n  repaired: %.6f, on one rank %.6f: %s; this rank's part is %.6f\n", l->words, sum[0], full[0],
           worst < 1e-12 ? "right" : "WRONG", part[0]);
  }
  ad_comm_close(alone);
  return worst >= 1e-12;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = compare_gradients};
  ad_launch_result result = {.size = sizeof result};
  ad_comm *dry;  // backend dry moves no data, so types are checked without other ranks
  if (ad_comm_open_dry(0, RANKS, &dry)) return 1;
  for (const struct layer *l = layers; l < layers + LAYERS; l++) {
    if (gradient_of(dry, l, TAKEN_FOR_FINAL, NULL) != AD_TYPE) return 1;
    printf("%s\n  refused: %s\n", l->words, ad_last_error());
  }
  ad_comm_close(dry);
  fflush(stdout);
  return ad_launch(&options, &result) ? fprintf(stderr, "%s\n", ad_last_error()), 1 : 0;
}
