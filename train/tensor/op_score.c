/* Scores of a router: the softmax of its logits (the sigmoid is in op_functions.c); the choice of each token's k
 * best experts; scores divided by their sum. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "tensor/routing.h"
#include "tensor/tape.h"
#include "layout/type.h"

/* ---- operation softmax, over the last dimension ---- */

static ad_status softmax_forward(ad_tape *tape, ad_tensor *out) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++) {
    const void *x = ad_at(out, out->operand[0]->array.data, i * width);
    void *y = ad_at(out, out->array.data, i * width);
    double sum = rows->exp_sum(y, x, rows->max(x, width), width);
    rows->put_divided(y, y, sum, width, 0);
  }
  return AD_OK;
}

/* Computes dx = y (dy - sum(y dy)). */
static ad_status softmax_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_dtype dtype = out->array.dtype;
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++) {
    const void *y = ad_at(out, out->array.data, i * width), *dy = ad_at(out, out->grad.data, i * width);
    double centre = ad_rows(dtype)->dot(y, dy, width);
    for (size_t e = 0; e < width; e++) {
      double slope = ad_element(dtype, y, e) * (ad_element(dtype, dy, e) - centre);
      ad_slot_put(slot, i * width + e, slope);
    }
  }
  return AD_OK;
}

static const ad_operation softmax = {.name = "softmax",
                                     .dims = "...e->...e",
                                     .linearity = AD_NONLINEAR,
                                     .full = "e",
                                     .dtypes = AD_IN_F32_F64,
                                     .forward = softmax_forward,
                                     .backward = softmax_backward};

ad_tensor *ad_softmax_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &softmax, &x, 1, NULL, site);
}

/* ---- shares: scores divided by their sum ---- */

static double sum_of_row(const ad_tensor *out, size_t row) {
  const ad_array *x = &out->operand[0]->array;
  size_t width = ad_columns(out);
  double sum = 0;
  for (size_t i = 0; i < width; i++) sum += ad_element(x->dtype, x->data, row * width + i);
  return sum;
}

static ad_status shares_forward(ad_tape *tape, ad_tensor *out) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++) {
    const void *x = ad_at(out, out->operand[0]->array.data, i * width);
    rows->put_divided(ad_at(out, out->array.data, i * width), x, sum_of_row(out, i), width, 0);
  }
  return AD_OK;
}

/* Computes dx = (dy - sum(y dy)) / sum(x). */
static ad_status shares_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_dtype dtype = out->array.dtype;
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++) {
    const void *y = ad_at(out, out->array.data, i * width), *dy = ad_at(out, out->grad.data, i * width);
    double centre = ad_rows(dtype)->dot(y, dy, width), sum = sum_of_row(out, i);
    for (size_t e = 0; e < width; e++) ad_slot_put(slot, i * width + e, (ad_element(dtype, dy, e) - centre) / sum);
  }
  return AD_OK;
}

static const ad_operation shares = {.name = "shares",
                                    .dims = "...e->...e",
                                    .linearity = AD_NONLINEAR,
                                    .full = "e",
                                    .dtypes = AD_IN_F32_F64,
                                    .forward = shares_forward,
                                    .backward = shares_backward};

ad_tensor *ad_shares_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &shares, &x, 1, NULL, site);
}

/* ---- top_k: the k best experts of each token ---- */

static const choice_numbers *numbers_of(const ad_tensor *out) { return out->own; }

/* Takes memory until the tape's reset. `out` is the address of the pointer to set. */
static ad_status take_scratch(ad_tape *tape, size_t count, size_t size, void *out) {
  void *taken = ad_arena_take_zeroed(tape->own.arena, count * size + 1);
  if (!taken) return AD_MEMORY;
  memcpy(out, &taken, sizeof taken);
  return AD_OK;
}

/* Makes the routing; its memory lasts until the tape's reset. On backend dry it is made too, because plans count its
 * rows. */
static ad_status take_routing(ad_tape *tape, const ad_tensor *out) {
  const ad_tensor *scores = out->operand[0];
  ad_routing *routing = numbers_of(out)->routing;
  *routing = (ad_routing){.tokens = ad_rows_of(scores),
                          .top_k = (size_t)numbers_of(out)->k,
                          .experts = ad_columns(scores),
                          .margin = INFINITY};
  if (routing->tokens > tape->most_routed) tape->most_routed = routing->tokens;
  size_t choices = routing->tokens * routing->top_k;
  AD_TRY(take_scratch(tape, choices, sizeof *routing->expert, &routing->expert));
  AD_TRY(take_scratch(tape, choices, sizeof(size_t), &routing->choice_of_slot));
  AD_TRY(take_scratch(tape, choices, sizeof(size_t), &routing->token_of_slot));
  AD_TRY(take_scratch(tape, routing->experts, sizeof(size_t), &routing->per_expert));
  AD_TRY(take_scratch(tape, routing->experts, sizeof(size_t), &routing->next_slot));
  ad_shape shape = {1, {(int64_t)routing->experts}};
  routing->choices = ad_array_describe(tape->comm, out->array.dtype, &shape, &scores->array.layout);
  return ad_tape_take(tape, ad_array_bytes(&routing->choices), &routing->choices.data);
}

/* Checks the balancing bias. Each rank must have the full bias, because each rank reads all of its elements. */
static ad_status check_bias(const ad_tape *tape, const ad_array *bias, int64_t experts, const char *site) {
  char shape[96];
  if (!bias) return AD_OK;
  int is_whole = bias->local.ndim == 1 && bias->local.dim[0] == experts && ad_dtype_is_float(bias->dtype);
  if (is_whole && (bias->data || tape->dry)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the bias of `top_k` has dtype %s and shape %s%s, but must be one float for each of the %" PRId64
                 " experts",
                 site, ad_dtype_name(bias->dtype), ad_shape_print(&bias->local, shape, sizeof shape),
                 bias->data ? "" : " without data", experts);
}

static ad_status choice_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *scores = &out->operand[0]->array;
  const choice_numbers *numbers = numbers_of(out);
  char shape[96];
  if (scores->shape.ndim != 2 || numbers->k < 1 || numbers->k > scores->shape.dim[1])
    return ad_fail(
        AD_INVALID,
        "%s: k of `top_k` is %" PRId64
        ", and the scores have shape %s; give scores of shape [tokens, experts], and k from 1 to the number of experts",
        out->site, numbers->k, ad_shape_print(&scores->shape, shape, sizeof shape));
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_type_is_sharded(scores->layout.type[axis]) || scores->layout.type[axis] == AD_P)
      return ad_fail(AD_TYPE,
                     "%s: the scores of `top_k` are %s on `%s`, but must be R, I or V, because experts are chosen from "
                     "full rows; gather or reduce the scores first",
                     out->site, ad_type_print(scores->layout.type[axis], shape, sizeof shape),
                     ad_axis_name((ad_axis)axis));
  AD_TRY(check_bias(tape, numbers->bias, scores->shape.dim[1], out->site));
  ad_shape chosen = {2, {scores->shape.dim[0], numbers->k}};
  out->array = ad_array_describe(tape->comm, scores->dtype, &chosen, &scores->layout);
  return take_routing(tape, out);
}

/* Returns the number by which a token's experts are chosen: the score plus the balancing bias, which is used for
 * nothing else. */
static double rank_of(const ad_tensor *out, size_t token, size_t expert) {
  const ad_array *bias = numbers_of(out)->bias;
  size_t experts = ad_columns(out->operand[0]);
  double score = ad_element(out->array.dtype, out->operand[0]->array.data, token * experts + expert);
  return score + (bias ? ad_element(bias->dtype, bias->data, expert) : 0);
}

static int is_chosen(const int32_t *chosen, size_t count, size_t expert) {
  for (size_t i = 0; i < count; i++)
    if ((size_t)chosen[i] == expert) return 1;
  return 0;
}

/* Returns the best expert except the `count` chosen ones, the first of equal experts; SIZE_MAX if none is left. */
static size_t best_left(const ad_tensor *out, size_t token, const int32_t *chosen, size_t count) {
  size_t best = SIZE_MAX;
  for (size_t e = 0; e < ad_columns(out->operand[0]); e++)
    if (!is_chosen(chosen, count, e) && (best == SIZE_MAX || rank_of(out, token, e) > rank_of(out, token, best)))
      best = e;
  return best;
}

/* Returns the smallest score + bias (rank_of) of a chosen expert, minus the largest of an expert that was not
 * chosen. */
static double margin_of(const ad_tensor *out, size_t token, const int32_t *chosen) {
  size_t k = ad_columns(out), best = best_left(out, token, chosen, k);
  double worst = INFINITY;
  for (size_t j = 0; j < k; j++) worst = fmin(worst, rank_of(out, token, (size_t)chosen[j]));
  return best == SIZE_MAX ? INFINITY : worst - rank_of(out, token, best);
}

/* Chooses a token's experts, the best first. */
static void choose(const ad_tensor *out, size_t token, int32_t *chosen) {
  for (size_t j = 0; j < ad_columns(out); j++) chosen[j] = (int32_t)best_left(out, token, chosen, j);
}

/* Returns a pointer to a token's experts in the list of decisions. */
static int32_t *decisions_of(const ad_tensor *out, size_t token) {
  return numbers_of(out)->decisions.of + (size_t)numbers_of(out)->routing->number[token] * ad_columns(out);
}

/* Copies a token's experts from the given decisions, and checks them. */
static ad_status take_given(const ad_tensor *out, size_t token, int32_t *chosen) {
  size_t k = ad_columns(out), experts = ad_columns(out->operand[0]);
  memcpy(chosen, decisions_of(out, token), k * sizeof *chosen);
  for (size_t j = 0; j < k; j++)
    if ((size_t)chosen[j] >= experts || is_chosen(chosen, j, (size_t)chosen[j]))
      return ad_fail(AD_INVALID,
                     "%s: choice %zu (from 0) of token %zu in `top_k` is expert %d, but must be one of the %zu "
                     "experts, numbered from 0, and differ from the earlier choices of this token",
                     out->site, j, token, (int)chosen[j], experts);
  return AD_OK;
}

/* Takes a token's experts from the decisions if they are given. Otherwise chooses the experts, and writes them to the
 * decisions if there are any. */
static ad_status decide(const ad_tensor *out, size_t token, int32_t *chosen) {
  ad_decisions decisions = numbers_of(out)->decisions;
  if (decisions.of && decisions.given) return take_given(out, token, chosen);
  choose(out, token, chosen);
  if (decisions.of) memcpy(decisions_of(out, token), chosen, ad_columns(out) * sizeof *chosen);
  return AD_OK;
}

/* Spreads the tokens evenly over the experts, on backend dry, where there are no scores. */
static void spread_evenly(ad_routing *routing) {
  for (size_t i = 0; i < routing->tokens * routing->top_k; i++) routing->expert[i] = (int32_t)(i % routing->experts);
}

static ad_status choose_all(ad_tape *tape, const ad_tensor *out) {
  const choice_numbers *numbers = numbers_of(out);
  ad_routing *routing = numbers->routing;
  if (tape->dry) {
    spread_evenly(routing);
    return AD_OK;
  }
  if (numbers->decisions.of)
    AD_TRY(ad_routing_number(tape, &numbers->batch->array, numbers->first, routing, out->site));
  for (size_t t = 0; t < routing->tokens; t++) {
    int32_t *chosen = routing->expert + t * routing->top_k;
    AD_TRY(decide(out, t, chosen));
    routing->margin = fmin(routing->margin, margin_of(out, t, chosen));
  }
  return AD_OK;
}

/* Writes how many tokens of this rank chose each expert to an array for ad_choices. */
static void count_choices(const ad_tape *tape, ad_routing *routing) {
  const ad_array *choices = &routing->choices;
  for (size_t e = 0; e < routing->experts && !tape->dry; e++)
    ad_set_element(choices->dtype, choices->data, e, (double)routing->per_expert[e]);
}

static ad_status choice_forward(ad_tape *tape, ad_tensor *out) {
  ad_routing *routing = numbers_of(out)->routing;
  AD_TRY(choose_all(tape, out));
  ad_routing_sort(routing);
  count_choices(tape, routing);
  for (size_t i = 0; i < ad_numel(out) && !tape->dry; i++)
    ad_set_element(out->array.dtype, out->array.data, i,
                   ad_element(out->array.dtype, out->operand[0]->array.data,
                              i / routing->top_k * routing->experts + (size_t)routing->expert[i]));
  return AD_OK;
}

/* Computes the gradient of the scores: chosen scores get the arriving gradient, all others exactly zero. */
static ad_status choice_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_routing *routing = numbers_of(out)->routing;
  ad_dtype dtype = out->array.dtype;
  if (tape->dry) return AD_OK;
  if (!slot[0].adds) memset(slot[0].data, 0, ad_array_bytes(&out->operand[0]->array));
  for (size_t i = 0; i < routing->tokens * routing->top_k; i++) {
    size_t at = i / routing->top_k * routing->experts + (size_t)routing->expert[i];
    ad_set_element(dtype, slot[0].data, at, ad_element(dtype, slot[0].data, at) + ad_element(dtype, out->grad.data, i));
  }
  return AD_OK;
}

static const ad_operation choice = {.name = "top_k",
                                    .dtypes = AD_IN_F32_F64,
                                    .own_size = sizeof(choice_numbers),
                                    .runs_dry = 1,
                                    .keeps = 1,
                                    .describe = choice_describe,
                                    .forward = choice_forward,
                                    .backward = choice_backward};

static ad_tensor *apply_choice(ad_tape *tape, ad_tensor *scores, choice_numbers numbers, ad_routing **routing,
                               const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, choice.name);
  numbers.routing = ad_arena_take_zeroed(tape->own.arena, sizeof *numbers.routing);
  if (!numbers.routing) return ad_tape_fail(tape, AD_MEMORY);
  if (routing) *routing = numbers.routing;
  return ad_tape_apply(tape, &choice, &scores, 1, &numbers, site);
}

ad_tensor *ad_top_k_at(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, ad_routing **routing,
                       const char *site) {
  return apply_choice(tape, scores, (choice_numbers){.k = k, .bias = bias}, routing, site);
}

ad_tensor *ad_top_k_kept(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, const ad_tensor *batch,
                         size_t first, ad_decisions decisions, ad_routing **routing, const char *site) {
  choice_numbers numbers = {.k = k, .bias = bias, .decisions = decisions, .batch = batch, .first = first};
  return apply_choice(tape, scores, numbers, routing, site);
}
