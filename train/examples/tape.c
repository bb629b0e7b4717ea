/* A tape without recipe, program or layer: an encoder, in which each token attends to all others, predicts each token's
 * successor, on 4 ranks of dp. Its head is on another mesh of the same ranks, dp=2 tp=2; a bridge leads there. Between
 * two values of the tape, one step is computed in plain C. The reducer sums the gradients. One rank alone must get the
 * same gradients.
 *
 * Starts 4 ranks. */
#include <math.h>
#include <stdio.h>
#include "addend/bridge.h"
#include "addend/helpers.h"
#include "addend/tensor.h"

enum { RANKS = 4, BATCH = 8, SEQ = 6, VOCABULARY = 11, D = 8, HEAD_DIM = 4, HIDDEN = 12 };

/* The parameters: first those of the encoder, then the only parameter of the head. */
enum { TABLE, NORM, WQ, WK, WV, WO, HEAD_NORM, W_GATE, W_UP, W_DOWN, ENCODER_PARAMS, W_HEAD = ENCODER_PARAMS, PARAMS };
static const ad_shape shapes[PARAMS] = {[TABLE] = {2, {VOCABULARY, D}},
                                        [NORM] = {1, {D}},
                                        [WQ] = {2, {D, D}},
                                        [WK] = {2, {D, D}},
                                        [WV] = {2, {D, D}},
                                        [WO] = {2, {D, D}},
                                        [HEAD_NORM] = {1, {HEAD_DIM}},
                                        [W_GATE] = {2, {D, HIDDEN}},
                                        [W_UP] = {2, {D, HIDDEN}},
                                        [W_DOWN] = {2, {HIDDEN, D}},
                                        [W_HEAD] = {2, {D, VOCABULARY}}};
static const char *const names[PARAMS] = {"table",     "norm",   "wq",   "wk",     "wv",    "wo",
                                          "head_norm", "w_gate", "w_up", "w_down", "w_head"};

typedef struct model {
  ad_comm *comm;
  ad_mesh *mesh, *head_mesh;
  ad_bridge *bridge;
  ad_tape *tape;
  ad_count *count;
  ad_reducer *reducer;
  ad_param_spec specs[PARAMS];
  ad_array values[PARAMS], tokens, targets;
  const ad_array *pointers[PARAMS];
  ad_parameters parameters;
} model;

/* ---- what the model consists of ---- */

static ad_status create_params(model *m) {
  for (int p = 0; p < PARAMS; p++) {
    ad_layout everywhere = ad_layout_all(p == W_HEAD ? m->head_mesh : m->mesh, AD_R);
    if (p == W_HEAD) ad_layout_set(&everywhere, AD_AXES(AD_TP), AD_I);  // the ranks of tp do the same work
    m->specs[p] = (ad_param_spec){.size = sizeof(ad_param_spec),
                                  .name = names[p],
                                  .shape = shapes[p],
                                  .layout = everywhere,
                                  .storage = everywhere,
                                  .policy = {.param = AD_F64},
                                  .mean = shapes[p].ndim == 1,
                                  .deviation = shapes[p].ndim == 1 ? 0.1 : 0.5};
    AD_TRY(ad_array_create(m->comm, AD_F64, &shapes[p], &everywhere, &m->values[p]));
    AD_TRY(ad_param_initialise(&m->specs[p], 5, ad_comm_rank(m->comm), &m->values[p]));
    m->pointers[p] = &m->values[p];
  }
  AD_TRY(ad_reducer_create(m->comm, m->specs, PARAMS, NULL, &m->reducer));
  m->parameters =
      (ad_parameters){.size = sizeof m->parameters, .values = m->pointers, .count = PARAMS, .reducer = m->reducer};
  return AD_OK;
}

/* Fills this rank's rows of the tokens; the targets are the tokens that follow. */
static ad_status read_batch(model *m) {
  ad_shape shape = {2, {BATCH, SEQ}};
  ad_layout rows, rows_there;
  AD_TRY(ad_layout_parse(m->mesh, "dp=S0", &rows));
  AD_TRY(ad_layout_parse(m->head_mesh, "dp=S0 tp=I", &rows_there));
  AD_TRY(ad_array_create(m->comm, AD_I32, &shape, &rows, &m->tokens));
  AD_TRY(ad_array_create(m->comm, AD_I32, &shape, &rows_there, &m->targets));
  ad_span own = ad_batch_rows(&rows, ad_comm_rank(m->comm), BATCH, 1, 0);
  for (int64_t i = 0; i < own.count * SEQ; i++)
    ad_array_set(&m->tokens, (size_t)i, (double)((own.first * SEQ + i) * 7 % VOCABULARY));
  ad_span there = ad_batch_rows(&rows_there, ad_comm_rank(m->comm), BATCH, 1, 0);
  for (int64_t i = 0; i < there.count * SEQ; i++)
    ad_array_set(&m->targets, (size_t)i, (double)((there.first * SEQ + i + 1) * 7 % VOCABULARY));
  ad_layout counted = ad_layout_all(m->head_mesh, AD_I);
  ad_layout_set(&counted, AD_AXES_DP, AD_P);  // the ranks of tp count the same targets
  AD_TRY(ad_count_create(m->comm, &counted, 1, &m->count));
  return ad_count_post(m->count, (int64_t[]){there.count * SEQ});
}

static ad_status create_model(model *m, const char *mesh, const char *head_mesh) {
  ad_layout from, to;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  AD_TRY(ad_mesh_create(mesh, &m->mesh));
  AD_TRY(ad_mesh_create(head_mesh, &m->head_mesh));
  AD_TRY(ad_layout_parse(m->mesh, "dp=S0", &from));
  AD_TRY(ad_layout_parse(m->head_mesh, "dp=S0 tp=I", &to));
  AD_TRY(ad_bridge_create(m->comm, &from, &to, NULL, &m->bridge));
  AD_TRY(ad_tape_create(m->comm, m->mesh, &options, &m->tape));
  AD_TRY(create_params(m));
  return read_batch(m);
}

static void destroy_model(model *m) {
  ad_tape_destroy(m->tape);
  ad_reducer_destroy(m->reducer);
  ad_count_destroy(m->count);
  ad_bridge_destroy(m->bridge);
  ad_mesh_destroy(m->head_mesh);
  ad_mesh_destroy(m->mesh);  // closing the comm frees the arrays
}

/* ---- forward ---- */

static ad_tensor *attend(ad_tape *t, ad_tensor *const *w, ad_tensor *x) {
  static const ad_rotary_scaling slower = {.factor = 2, .low_turns = 0.1, .high_turns = 1, .original_positions = SEQ};
  ad_tensor *h = ad_rms_norm(t, x, w[NORM], 1e-5);
  ad_tensor *q = ad_rotary(t, ad_head_norm(t, ad_linear(t, h, w[WQ]), w[HEAD_NORM], 1e-5), HEAD_DIM, 100);
  ad_tensor *k = ad_rotary_scaled(t, ad_linear(t, h, w[WK]), HEAD_DIM, 100, &slower);
  ad_tensor *seen = ad_attention_all(t, q, k, ad_linear(t, h, w[WV]), HEAD_DIM);
  return ad_add(t, x, ad_linear(t, seen, w[WO]));
}

static ad_tensor *encode(const model *m, ad_tensor *const *w) {
  ad_tape *t = m->tape;
  ad_tensor *x = attend(t, w, ad_embedding(t, w[TABLE], ad_constant(t, &m->tokens)));
  ad_tensor *h = ad_swiglu(t, ad_linear(t, x, w[W_GATE]), ad_linear(t, x, w[W_UP]));
  return ad_add(t, x, ad_linear(t, h, w[W_DOWN]));
}

/* Code that knows only local buffers: y = x^2 / 2 + x, and its slope x + 1. */
static double outside(double x) { return x * x / 2 + x; }
static double slope_outside(double x) { return x + 1; }

/* Runs backward in two parts, because the tape does not know the code outside: from the loss to `leaf`, the result of
 * that code; then from `left`, the input of that code, with a gradient that is computed here. Adds to *kept the
 * absolute values of the gradient at the encoder's output. */
static ad_status run_backward(const model *m, ad_tensor *encoded, ad_tensor *left, ad_tensor *leaf, ad_tensor *loss,
                              double *kept) {
  ad_array gradient = *ad_tensor_array(left);
  gradient.layout = ad_layout_dual(&gradient.layout);
  size_t n = ad_array_numel(&gradient);
  AD_TRY(ad_backward_from(m->tape, &loss, NULL, 1, AD_MORE_STARTS));
  double *slopes;
  AD_TRY(ad_new(n, &slopes));
  for (size_t i = 0; i < n; i++)
    slopes[i] = ad_array_get(ad_grad(leaf), i) * slope_outside(ad_array_get(ad_tensor_array(left), i));
  gradient.data = slopes;
  ad_status status = ad_backward_from(m->tape, &left, (const ad_array *[]){&gradient}, 1, AD_LAST_START);
  ad_release(slopes);
  for (size_t i = 0; !status && i < n; i++) *kept += fabs(ad_array_get(ad_grad(encoded), i));
  return status;
}

/* One step: forward through the encoder, the code outside the tape, the bridge and the head to the loss, and then
 * backward. */
static ad_status step(model *m, double *loss_value, double *kept) {
  ad_tape *t = m->tape;
  ad_tensor *w[PARAMS], *leaf;
  AD_TRY(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (size_t p = 0; p < PARAMS; p++) w[p] = ad_parameter(t, &m->parameters, p);
  ad_tensor *encoded = encode(m, w);
  ad_keep(encoded);  // its gradient is read after backward
  ad_tensor *left = ad_to_local(t, encoded, NULL);
  AD_TRY(ad_tape_status(t));
  ad_array made = *ad_tensor_array(left);
  AD_TRY(ad_array_create(m->comm, AD_F64, &made.shape, &made.layout, &made));
  for (size_t i = 0; i < ad_array_numel(&made); i++)
    ad_array_set(&made, i, outside(ad_array_get(ad_tensor_array(left), i)));
  ad_tensor *back = ad_from_local(t, &made, "dp=S0", &leaf);
  ad_tensor *logits = ad_linear(t, ad_transfer_tensor(t, back, m->bridge), w[W_HEAD]);
  ad_tensor *loss = ad_divide(t, ad_cross_entropy(t, logits, ad_constant(t, &m->targets)), m->count);
  *loss_value = ad_tensor_scalar(loss);
  AD_TRY(run_backward(m, encoded, left, leaf, loss, kept));
  AD_TRY(ad_reducer_end_microbatch(m->reducer));
  return ad_reducer_finish(m->reducer);
}

/* ---- comparing with one rank ---- */

/* Returns the largest difference between the two models' summed gradients. */
static double worst_of(const model *a, const model *b) {
  double worst = 0;
  for (size_t p = 0; p < PARAMS; p++) {
    const ad_array *x = ad_reducer_gradient(a->reducer, p), *y = ad_reducer_gradient(b->reducer, p);
    for (size_t i = 0; i < ad_array_numel(x); i++) worst = fmax(worst, fabs(ad_array_get(x, i) - ad_array_get(y, i)));
  }
  return worst;
}

static ad_status compare(ad_comm *comm, ad_comm *alone, model *ranks, model *one, int *holds) {
  double loss, loss_of_one, kept = 0, kept_of_one = 0;
  *ranks = (model){.comm = comm};
  *one = (model){.comm = alone};
  AD_TRY(create_model(ranks, "dp=4", "dp=2 tp=2"));
  AD_TRY(create_model(one, "dp=1", "dp=1 tp=1"));
  AD_TRY(step(ranks, &loss, &kept));
  AD_TRY(step(one, &loss_of_one, &kept_of_one));
  double worst = worst_of(ranks, one);
  *holds = worst < 1e-13 && kept > 0 && kept <= kept_of_one;
  if (!ad_comm_rank(comm))
    printf("loss of one rank %.6f; all %d gradients are those of one rank: %s\n", loss_of_one, PARAMS,
           *holds ? "yes" : "NO");
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  model ranks = {0}, one = {0};
  ad_comm *alone;
  int holds = 0;
  if (ad_comm_open_alone(&alone)) return 1;
  ad_status status = compare(comm, alone, &ranks, &one, &holds);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  destroy_model(&ranks);
  destroy_model(&one);
  ad_comm_close(alone);
  return status || !holds;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank};
  ad_launch_result result = {.size = sizeof result};
  return ad_launch(&options, &result) ? fprintf(stderr, "%s\n", ad_last_error()), 1 : 0;
}
