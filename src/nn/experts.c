/* The layer of experts: a router chooses some for each token, their rows go to the ranks that have them and come back.
 * Where the gate is I on tp its scores enter by a conversion whose backward is the sum over tp; where it is R the
 * reducer sums. */
#include <math.h>
#include <stdio.h>
#include "nn/layers.h"
#include "nn/parallel.h"
#include "tensor/routing.h"

/* ---- parameters ---- */

/* Tokens are split over tp; otherwise experts are cut over etp, which has the ranks of tp. */
static int splits_tokens(const ad_experts_shape *shape) { return ad_mesh_axis_size(shape->view, AD_ETP) == 1; }

static size_t declare_router(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  ad_param_spec router = {.shape = {2, {shape->d_model, shape->experts}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .decays = 1,
                          .deviation = ad_deviation_keeping_size(shape->d_model)};
  ad_tp_type(&router.layout, shape->gate_is_summed ? AD_R : AD_I);
  return ad_declare_param(to, path, "router", router);
}

/* Matrices [experts, in, out]; `cut`: what etp cuts. */
static size_t declare_matrices(ad_declarations *to, const char *path, const char *name, const ad_experts_shape *shape,
                               ad_shape size, ad_type cut, double factor) {
  ad_param_spec matrices = {.shape = size,
                            .layout = ad_layout_all(shape->view, AD_R),
                            .sharded = AD_AXES(AD_EFSDP),
                            .decays = 1,
                            .deviation = ad_deviation_keeping_size(size.dim[1]) * factor};
  ad_layout_set(&matrices.layout, AD_AXES(AD_EP), AD_S(0));
  if (!splits_tokens(shape)) ad_layout_set(&matrices.layout, AD_AXES(AD_ETP), cut);
  return ad_declare_param(to, path, name, matrices);
}

static ad_mlp_layer declare_shared(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  char shared[AD_PARAM_NAME_SIZE];
  snprintf(shared, sizeof shared, "%s.shared", path);
  return ad_mlp_declare(to, shared,
                        &(ad_mlp_shape){.d_model = shape->d_model,
                                        .d_hidden = shape->shared_hidden,
                                        .output_factor = shape->output_factor,
                                        .parallel = shape->parallel});
}

ad_experts_layer ad_experts_declare(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  ad_experts_layer layer = {.shape = *shape};
  ad_shape in = {3, {shape->experts, shape->d_model, shape->hidden}};
  ad_shape out = {3, {shape->experts, shape->hidden, shape->d_model}};
  layer.router = declare_router(to, path, shape);
  layer.gate = declare_matrices(to, path, "gate", shape, in, AD_S(2), 1);
  layer.up = declare_matrices(to, path, "up", shape, in, AD_S(2), 1);
  layer.down = declare_matrices(to, path, "down", shape, out, AD_S(1), shape->output_factor);
  if (shape->shared_hidden) layer.shared = declare_shared(to, path, shape);
  return layer;
}

/* ---- scores ---- */

static ad_tensor *scores_of(ad_tape *t, const ad_experts_layer *layer, ad_tensor *rows, ad_tensor *router) {
  ad_tensor *logits = ad_linear(t, rows, router);  // [tokens, experts]
  return layer->shape.uses_sigmoid ? ad_sigmoid(t, logits) : ad_softmax(t, logits);
}

/* Of rows that each rank of tp uses for itself: the router is R there, or becomes it. */
static ad_tensor *own_scores(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *rows) {
  ad_tensor *router = params[layer->router];
  return scores_of(t, layer, rows, layer->shape.gate_is_summed ? router : ad_tp_use(t, router));
}

/* Whether all ranks of tp compute the same scores, which then enter what each does for itself. */
static int scores_are_shared(const ad_experts_layer *layer, const ad_tensor *x) {
  return ad_tp_is_named(x) && !layer->shape.gate_is_summed && !layer->shape.parallel.sequence;
}

/* ---- the experts, on the view ---- */

/* Each rank of ep has experts of its own. */
static ad_tensor *product(ad_tape *t, ad_tensor *rows, ad_tensor *matrices, const ad_routing *routing) {
  return ad_grouped_linear(t, rows, ad_declare(t, matrices, "ep", AD_V), routing);
}

static ad_tensor *products(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *rows,
                           const ad_routing *routing) {
  ad_tensor *gate = product(t, rows, params[layer->gate], routing);  // etp: R to S1
  ad_tensor *up = product(t, rows, params[layer->up], routing);
  return product(t, ad_swiglu(t, gate, up), params[layer->down], routing);  // P
}

/* rows [tokens, d] and scores [tokens, experts]: V on the view's axes; where experts are cut R on etp, and the result
 * is P there. */
static ad_tensor *routed(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *rows,
                         ad_tensor *scores, double *margin) {
  const ad_experts_shape *shape = &layer->shape;
  ad_routing *routing = NULL;
  ad_tensor *chosen = ad_top_k(t, ad_view(t, scores, shape->view), shape->top_k, NULL, &routing);
  if (routing) *margin = fmin(*margin, routing->margin);
  ad_tensor *factors = ad_slot_weights(t, chosen, routing);
  ad_tensor *slots = ad_to_slots(t, ad_view(t, rows, shape->view), routing);
  if (shape->scores_first) slots = ad_scale_rows(t, slots, factors);
  slots = ad_dispatch(t, slots, routing, "ep");
  slots = ad_return(t, products(t, params, layer, slots, routing), routing, "ep");
  if (!shape->scores_first) slots = ad_scale_rows(t, slots, factors);
  return ad_from_slots(t, slots, routing);
}

/* The same seen on the mesh of `like` again. */
static ad_tensor *routed_on(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *rows,
                            ad_tensor *scores, const ad_tensor *like, double *margin) {
  const ad_array *array = ad_tensor_array(like);
  return ad_view(t, routed(t, params, layer, rows, scores, margin), array ? array->layout.mesh : NULL);
}

/* ---- the two layouts ---- */

/* Rows [n, k] that all ranks of tp have: each takes some, S0, and calls them its own, V. */
static ad_tensor *split_rows(ad_tape *t, ad_tensor *rows) { return ad_convert(t, rows, "tp", AD_S(0)); }

static ad_tensor *split_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                                double *margin) {
  ad_tensor *whole = ad_to_rows(t, x);  // V on dp and cp; on tp I, or V of a cut sequence
  int splits = ad_tp_is_named(x) && !layer->shape.parallel.sequence;
  ad_tensor *split = splits ? split_rows(t, whole) : NULL;
  ad_tensor *rows = splits ? ad_to_rows(t, split) : whole;
  ad_tensor *scores = scores_are_shared(layer, x)
                          ? ad_to_rows(t, split_rows(t, scores_of(t, layer, whole, params[layer->router])))
                          : own_scores(t, params, layer, rows);
  ad_tensor *y = routed_on(t, params, layer, rows, scores, x, margin);
  if (splits) y = ad_all_gather(t, ad_from_rows(t, y, split), "tp", AD_I);
  y = ad_from_rows(t, y, x);
  return layer->shape.shared_hidden ? ad_add(t, y, ad_mlp_forward(t, params, &layer->shared, x)) : y;
}

static ad_tensor *cut_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                              double *margin) {
  int sequence = layer->shape.parallel.sequence;
  ad_tensor *entered = ad_tp_enter(t, x, sequence);  // R
  ad_tensor *rows = ad_to_rows(t, entered);
  ad_tensor *scores = scores_are_shared(layer, x)
                          ? ad_convert(t, scores_of(t, layer, ad_to_rows(t, x), params[layer->router]), "tp", AD_R)
                          : own_scores(t, params, layer, rows);
  ad_tensor *y = ad_from_rows(t, routed_on(t, params, layer, rows, scores, x, margin), entered);  // P
  if (layer->shape.shared_hidden) y = ad_add(t, y, ad_mlp_products(t, params, &layer->shared, entered));
  return ad_tp_leave(t, y, sequence);
}

ad_tensor *ad_experts_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                              double *margin) {
  int splits = splits_tokens(&layer->shape);
  return splits ? split_forward(t, params, layer, x, margin) : cut_forward(t, params, layer, x, margin);
}
