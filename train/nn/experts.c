/* The layer of experts (MoE): a router chooses experts for each token; the tokens' rows go to the ranks of these
 * experts and come back. If the router is I on tp, the router or its scores pass a conversion whose backward sums the
 * gradient over tp; if the router is R, the reducer sums its gradient. */
#include "nn/experts.h"

#include <inttypes.h>
#include <stdio.h>
#include "base/error.h"
#include "base/options.h"
#include "tensor/routing.h"
#include "tensor/tape.h"
#include "nn/parallel.h"

/* ---- declaring the experts' parameters ---- */

/* Returns 1 if the ranks of tp split the tokens among them. Returns 0 if etp, which then has the ranks of tp, shards
 * each expert. */
static int splits_tokens(const ad_experts_shape *shape) { return ad_mesh_axis_size(shape->view, AD_ETP) == 1; }

static size_t declare_router(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  ad_param_spec router = {.size = sizeof router,
                          .shape = {2, {shape->d_model, shape->experts}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .wide = 1,
                          .decays = 1,
                          .deviation = ad_deviation_keeping_size(shape->d_model)};
  ad_tp_type(&router.layout, shape->gate_is_summed ? AD_R : AD_I);
  return ad_declare_param(to, path, "router", router);
}

/* Declares the matrices [experts, in, out] of all experts. `etp_type` is the type on etp if etp shards the experts. */
static size_t declare_matrices(ad_declarations *to, const char *path, const char *name, const ad_experts_shape *shape,
                               ad_shape size, ad_type etp_type, double factor) {
  ad_param_spec matrices = {.size = sizeof matrices,
                            .shape = size,
                            .layout = ad_layout_all(shape->view, AD_R),
                            .sharded = AD_AXES(AD_EFSDP),
                            .decays = 1,
                            .deviation = ad_deviation_keeping_size(size.dim[1]) * factor};
  ad_layout_set(&matrices.layout, AD_AXES(AD_EP), AD_S(0));
  if (!splits_tokens(shape)) ad_layout_set(&matrices.layout, AD_AXES(AD_ETP), etp_type);
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

static ad_status check_sizes(const char *path, const ad_experts_shape *shape) {
  int has_width = shape->d_model >= 1 && shape->hidden >= 1 && shape->shared_hidden >= 0;
  if (has_width && shape->top_k >= 1 && shape->top_k <= shape->experts) return AD_OK;
  return ad_fail(AD_INVALID,
                 "experts `%s`: d_model %" PRId64 ", hidden %" PRId64 ", shared_hidden %" PRId64 ", top_k %" PRId64
                 " and experts %" PRId64
                 " are not possible; set d_model, hidden and top_k to at least 1, shared_hidden to at least 0, and "
                 "top_k to at most the number of experts",
                 path, shape->d_model, shape->hidden, shape->shared_hidden, shape->top_k, shape->experts);
}

/* Returns 1 if the ranks of etp are the ranks of tp, in the same order. */
static int etp_is_tp(const ad_mesh *mesh, const ad_mesh *view) {
  ad_axes here[AD_AXIS_COUNT], there[AD_AXIS_COUNT];
  int pairs = ad_mesh_common_sets(mesh, view, here, there);
  for (int i = 0; i < pairs; i++)
    if (here[i] == AD_AXES(AD_TP) && there[i] == AD_AXES(AD_ETP)) return 1;
  return 0;
}

static ad_status check_view(const char *path, const ad_mesh *mesh, const ad_mesh *view) {
  if (!view)
    return ad_fail(AD_INVALID, "experts `%s`: the view of the mesh for the experts is NULL; give a view, such as ep=2",
                   path);
  if (!ad_mesh_same_ranks(mesh, view))
    return ad_fail(AD_INVALID,
                   "experts `%s`: the view \"%s\" has other ranks than the mesh \"%s\"; give a view of the same ranks",
                   path, ad_mesh_text(view), ad_mesh_text(mesh));
  if (ad_mesh_axis_size(view, AD_ETP) == 1 || etp_is_tp(mesh, view)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "experts `%s`: the axis etp of the view \"%s\" is neither 1 nor the same ranks as the axis tp of the mesh "
      "\"%s\"; set etp=1 (each expert is full on its rank) or the ranks of tp (each expert is sharded as the MLP is)",
      path, ad_mesh_text(view), ad_mesh_text(mesh));
}

static ad_status check_declared(const ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  AD_TRY(check_sizes(path, shape));
  return check_view(path, to->replicated.mesh, shape->view);
}

static ad_status take_shape(const ad_declarations *to, const char *path, const ad_experts_shape *given,
                            ad_experts_shape *out) {
  AD_NEED_IN("ad_experts_declare", "path, shape", path, given);
  AD_TRY(ad_options_take(out, sizeof *out, given, "ad_experts_shape"));
  return check_declared(to, path, out);
}

static ad_experts_layer declare(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
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

ad_experts_layer ad_experts_declare(ad_declarations *to, const char *path, const ad_experts_shape *shape) {
  ad_experts_layer none = {0};
  ad_experts_shape own;
  if (ad_need(__func__, "to", (const void *const[]){to}, 1) || to->status) return none;
  to->status = take_shape(to, path, shape, &own);
  return to->status ? none : declare(to, path, &own);
}

/* The values of one forward pass through a layer. */
typedef struct pass {
  ad_tape *t;
  ad_tensor *const *params;
  const ad_experts_layer *layer;
  ad_tensor *x;     /* [batch, seq, d] */
  ad_tensor *batch; /* x, or x after ad_tp_enter if every rank of tp routes all rows */
  const ad_array *bias;
  ad_decisions decisions;
  ad_routing *routing;
  ad_tensor *shares; /* softmax of the logits of the rows whose scores this rank computed */
} pass;

/* ---- the router's scores ---- */

/* Computes the scores [tokens, experts] of these rows in the wide dtype, so that nearly equal scores stay different and
 * the factors of rows are not rounded. */
static ad_tensor *scores_of(pass *at, ad_tensor *rows, ad_tensor *router) {
  const ad_experts_shape *shape = &at->layer->shape;
  ad_tensor *seen = ad_to_dtype(at->t, rows, ad_dtype_wide(ad_tape_dtype(at->t)));
  ad_tensor *logits = ad_linear(at->t, seen, router);  // [tokens, experts]
  ad_tensor *scores = shape->uses_sigmoid ? ad_sigmoid(at->t, logits) : ad_softmax(at->t, logits);
  if (shape->has_balance_loss) at->shares = shape->uses_sigmoid ? ad_softmax(at->t, logits) : scores;
  return scores;
}

#define OF_ROUTER AD_HERE ", " AD_SCORES_BECOME_OWN

/* Computes the scores of this rank's own rows. The router must be R on tp: it is R, or it is converted to R. */
static ad_tensor *own_scores(pass *at, ad_tensor *rows) {
  ad_tensor *router = at->params[at->layer->router];
  return scores_of(at, rows, at->layer->shape.gate_is_summed ? router : ad_tp_use_at(at->t, router, OF_ROUTER));
}

/* Returns 1 if all ranks of tp compute the same scores, of all rows. Each rank then keeps those of its own rows. */
static int scores_are_shared(const pass *at) {
  return ad_tp_is_named(at->x) && !at->layer->shape.gate_is_summed && !at->layer->shape.parallel.sequence;
}

/* ---- the load-balancing loss ---- */

/* Applies the transition `move` from type `from` to type `to` on all axes on which x has type `from`. */
static ad_tensor *moved(ad_tape *t, ad_tensor *x, ad_type from, ad_move move, ad_type to) {
  const ad_array *array = ad_tensor_array(x);
  if (!array) return x;
  ad_axes axes = ad_layout_axes_of(&array->layout, from);
  char text[128];
  return axes ? ad_move_at(t, x, move, ad_axes_print(axes, text, sizeof text), to, AD_HERE) : x;
}

/* Returns how often the tokens of all ranks chose each expert, on the mesh of x. The sum is over one microbatch; with
 * train.leaves that is a leaf, whose tokens are all on the ranks of the tape. */
static ad_tensor *all_choices(pass *at) {
  const ad_array *x = ad_tensor_array(at->x);
  ad_tensor *own = moved(at->t, ad_choices(at->t, at->routing), AD_V, AD_MOVE_DECLARE, AD_P);
  at->t->sums_microbatch = 1;
  own = moved(at->t, ad_view(at->t, own, x ? x->layout.mesh : NULL), AD_P, AD_MOVE_ALL_REDUCE, AD_R);
  at->t->sums_microbatch = 0;
  return own;
}

/* Returns the balancing loss of this rank's scores and all ranks' choices. The loss is an addend if ranks have their
 * own rows. If the ranks of tp have the same rows but each uses the router by itself, only the loss of one rank
 * counts. */
static ad_tensor *balance_of(pass *at) {
  ad_tensor *loss = ad_balance(at->t, at->shares, all_choices(at), at->layer->shape.top_k);
  loss = moved(at->t, loss, AD_V, AD_MOVE_DECLARE, AD_P);
  const ad_array *array = ad_tensor_array(loss);
  int repeats = array && ad_tp_is_named(at->x) && array->layout.type[AD_TP] == AD_R;
  return repeats ? ad_once(at->t, loss, "tp") : loss;
}

/* ---- the experts' forward pass, on their view of the mesh ---- */

static ad_tensor *products(pass *at, ad_tensor *rows) {
  ad_tensor *const *params = at->params;
  ad_tensor *gate = ad_grouped_linear(at->t, rows, params[at->layer->gate], at->routing);  // on etp: R becomes S1
  ad_tensor *up = ad_grouped_linear(at->t, rows, params[at->layer->up], at->routing);
  return ad_grouped_linear(at->t, ad_swiglu(at->t, gate, up), params[at->layer->down], at->routing);  // P on etp
}

/* Chooses each row's experts. `first` is the index, among this rank's rows of the batch, of the first row that is
 * routed. */
static ad_tensor *choose(pass *at, ad_tensor *scores, size_t first) {
  const ad_experts_shape *shape = &at->layer->shape;
  ad_tensor *chosen = ad_top_k_kept(at->t, ad_view(at->t, scores, shape->view), shape->top_k, at->bias, at->batch,
                                    first, at->decisions, &at->routing, AD_HERE);
  if (shape->capacity > 0) ad_limit(at->t, at->routing, shape->capacity, at->batch, first);
  return shape->normalised_scores ? ad_shares(at->t, chosen) : chosen;
}

/* Sends rows [tokens, d] to their experts and sums the returned rows, weighted by scores [tokens, experts]. Rows and
 * scores are V on the view's axes. If etp shards experts, rows and scores are R on etp, and the result is P there. */
static ad_tensor *routed(pass *at, ad_tensor *rows, ad_tensor *scores, size_t first) {
  const ad_experts_shape *shape = &at->layer->shape;
  ad_tape *t = at->t;
  ad_tensor *chosen = choose(at, scores, first);
  ad_tensor *factors = ad_slot_weights(t, chosen, at->routing);
  ad_tensor *slots = ad_to_slots(t, ad_view(t, rows, shape->view), at->routing);
  if (shape->scores_first) slots = ad_scale_rows(t, slots, factors);
  slots = ad_dispatch(t, slots, at->routing, "ep");
  slots = ad_return(t, products(at, slots), at->routing, "ep");
  if (!shape->scores_first) slots = ad_scale_rows(t, slots, factors);
  return ad_from_slots(t, slots, at->routing);
}

/* Calls routed(), and views its result on x's mesh again. */
static ad_tensor *routed_on_mesh(pass *at, ad_tensor *rows, ad_tensor *scores, size_t first) {
  const ad_array *x = ad_tensor_array(at->x);
  return ad_view(at->t, routed(at, rows, scores, first), x ? x->layout.mesh : NULL);
}

/* ---- forward, with tokens split over tp or experts sharded over etp ---- */

/* Splits rows [n, k], which all ranks of tp have, among the ranks: S0 on tp. */
static ad_tensor *split_rows(ad_tape *t, ad_tensor *rows, const char *site) {
  return ad_move_at(t, rows, AD_MOVE_CONVERT, "tp", AD_S(0), site);
}

/* Returns the index of the first row that this rank of tp gets when rows are split. */
static size_t first_row(const ad_tape *t, const ad_tensor *rows) {
  const ad_array *array = ad_tensor_array(rows);
  if (!array) return 0;
  const ad_mesh *mesh = array->layout.mesh;
  int64_t rank = ad_comm_rank(ad_tape_comm(t));
  ad_group group = ad_mesh_group(mesh, AD_AXES(AD_TP), rank);
  return (size_t)ad_cut(array->local.dim[0], ad_group_index(&group, rank), ad_group_size(&group)).first;
}

/* Adds the shared MLP's output, if there is a shared MLP, to y, which is already summed over tp. */
static ad_tensor *with_shared(pass *at, ad_tensor *y) {
  if (!at->layer->shape.shared_hidden) return y;
  return ad_add(at->t, y, ad_mlp_forward(at->t, at->params, &at->layer->shared, at->x));
}

/* Joins the rows that the ranks of tp split. If there is a shared MLP, whose columns are sharded, each rank has an
 * addend of its output. The joined rows then become addends, too (zero where a rank has no rows), so that one sum over
 * tp completes both outputs. */
static ad_tensor *gather_rows(pass *at, ad_tensor *split) {
  ad_tape *t = at->t;
  if (!at->layer->shape.shared_hidden) return ad_from_rows(t, ad_all_gather(t, split, "tp", AD_I), at->x);
  ad_tensor *routed = ad_from_rows(t, ad_convert(t, split, "tp", AD_P), at->x);
  const ad_parallel full = {0};
  ad_tensor *shared = ad_mlp_products(t, at->params, &at->layer->shared, ad_tp_enter(t, at->x, full));
  return ad_tp_leave(t, ad_add(t, routed, shared), full);
}

/* Runs the layer with split tokens: each rank of tp routes its share of the rows. */
static ad_tensor *split_forward(pass *at) {
  ad_tape *t = at->t;
  ad_tensor *full = ad_to_rows(t, at->x);  // V on dp and cp; on tp I, or V if the sequence is sharded
  int splits = ad_tp_is_named(at->x) && !at->layer->shape.parallel.sequence;
  ad_tensor *split = splits ? split_rows(t, full, AD_HERE) : NULL;
  ad_tensor *rows = splits ? ad_to_rows(t, split) : full;
  ad_tensor *scores = scores_are_shared(at)
                          ? ad_to_rows(t, split_rows(t, scores_of(at, full, at->params[at->layer->router]), OF_ROUTER))
                          : own_scores(at, rows);
  ad_tensor *y = routed_on_mesh(at, rows, scores, splits ? first_row(t, full) : 0);
  return splits ? gather_rows(at, ad_from_rows(t, y, split)) : with_shared(at, ad_from_rows(t, y, at->x));
}

/* Runs the layer with sharded experts: each rank of tp routes all rows to its part of every expert. */
static ad_tensor *sharded_forward(pass *at) {
  ad_tape *t = at->t;
  ad_parallel parallel = at->layer->shape.parallel;
  ad_tensor *entered = ad_tp_enter(t, at->x, parallel);  // R on tp
  at->batch = entered;
  ad_tensor *rows = ad_to_rows(t, entered);
  ad_tensor *scores =
      scores_are_shared(at)
          ? ad_tp_use_at(t, scores_of(at, ad_to_rows(t, at->x), at->params[at->layer->router]), OF_ROUTER)
          : own_scores(at, rows);
  ad_tensor *y = ad_from_rows(t, routed_on_mesh(at, rows, scores, 0), entered);  // P on tp
  if (at->layer->shape.shared_hidden) y = ad_add(t, y, ad_mlp_products(t, at->params, &at->layer->shared, entered));
  return ad_tp_leave(t, y, parallel);
}

/* ---- checking a call and running it ---- */

static ad_status check_call(ad_tensor *const *params, const ad_experts_layer *layer, const ad_tensor *x) {
  char shape[96];
  AD_NEED_IN("ad_experts_forward", "params, layer", params, layer);
  if (!layer->shape.view)
    return ad_fail(
        AD_INVALID,
        "ad_experts_forward: `layer` was not made by ad_experts_declare; pass a layer that this function filled");
  const ad_array *array = ad_tensor_array(x);
  if (!array || (array->shape.ndim == 3 && array->shape.dim[2] == layer->shape.d_model)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_experts_forward: x has the shape %s, but must have the shape [batch, seq, %" PRId64 "]",
                 ad_shape_print(&array->shape, shape, sizeof shape), layer->shape.d_model);
}

static ad_tensor *forward(pass *at, ad_experts_notes *notes) {
  ad_tensor *y = splits_tokens(&at->layer->shape) ? split_forward(at) : sharded_forward(at);
  notes->routing = at->routing;
  if (at->layer->shape.has_balance_loss) notes->balance = balance_of(at);
  return y;
}

ad_tensor *ad_experts_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                              const ad_array *bias, ad_decisions decisions, ad_experts_notes *notes) {
  ad_experts_notes own = {0};
  pass at = {.t = t, .params = params, .layer = layer, .x = x, .batch = x, .bias = bias, .decisions = decisions};
  if (notes) *notes = own;
  if (!t) return ad_tape_missing(AD_HERE, "experts");
  if (check_call(params, layer, x)) return ad_tape_fail(t, AD_INVALID);
  ad_tensor *y = forward(&at, &own);
  if (notes) *notes = own;
  return y;
}
