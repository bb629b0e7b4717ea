/* Known bugs that can be injected into ring attention, into the positions of a sharded sequence, into experts, and into
 * the dtypes of computations. The operations themselves have no code for these bugs. */
#include "tensor/known_bugs.h"

#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "tensor/attention.h"
#include "products/gemm_split.h"
#include "tensor/ring.h"
#include "tensor/routing.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

/* Records that the bug took effect. */
static void fire(void *context) { ((ad_known_bug_scene *)context)->fired = 1; }

/* Leaves out the keys of the last step (`turn`) of the ring. */
static void leave_last_turn(void *context, void *passing) {
  ring_turn_passing *at = passing;
  if (!at->turn || at->turn + 1 != at->ring->members) return;
  at->columns->span_count = 0;
  fire(context);
}

/* Applies the causal mask to keys that arrived from another rank as if these keys had this rank's own positions. */
static void mask_by_own_positions(void *context, void *passing) {
  ring_turn_passing *at = passing;
  if (!at->is_masked || !at->turn || at->own->count != at->columns->count) return;
  *at->columns = *at->own;
  fire(context);
}

/* Overwrites the gradients that other ranks gathered for a block of keys; the right code adds to them. */
static void forget_gathered(void *context, void *passing) {
  *(int *)passing = 0;
  fire(context);
}

/* Makes each rank count its positions of a sharded sequence from 0. */
static void count_from_zero(void *context, void *passing) {
  positions *at = passing;
  int64_t next = 0;
  for (int i = 0; i < at->span_count; i++) {
    if (at->span[i].first != next) fire(context);
    at->span[i].first = next;
    next += at->span[i].count;
  }
}

/* Zeroes the gradient of each score whose expert is on another rank. */
static void drop_others_slots(void *context, void *passing) {
  const slot_scores_passing *at = passing;
  const ad_routing *routing = at->routing;
  for (size_t i = 0; i < routing->slots; i++) {
    size_t expert = (size_t)routing->expert[routing->choice_of_slot[i]];
    if (expert >= routing->own_first && expert < routing->own_first + routing->own_experts) continue;
    ad_set_element(at->grad->dtype, at->grad->data, i, 0);
    fire(context);
  }
}

/* Averages the experts' gradients over their replicas only. With a loss that each rank divides by its own count,
 * gradients are averages over the ranks with tokens; but the gradient that returns to the experts is already a sum over
 * `ep`. In backward, exchanges to the experts and from the experts alternate: the second undoes the factor of the
 * first. */
static void average_over_replicas(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_transit_passing *pass = passing;
  const ad_array *rows = pass->in;
  if (!pass->transit->send_rows || !pass->transit->backward || ad_comm_is_dry(pass->comm)) return;
  double ranks = (double)ad_mesh_ranks_over(rows->layout.mesh, pass->transit->axes);
  double factor = scene->passed++ % 2 ? 1 / ranks : ranks;
  ad_cast_scaled(rows->data, rows->dtype, rows->data, rows->dtype, factor, ad_array_numel(rows));
  scene->ratio = ranks;
  scene->fired = 1;
}

/* ---- sums and statistics in a dtype with too few digits ---- */

/* Computes a product whose partial sums are rounded to bf16 after every few terms. */
static void sum_in_bf16(const gemm_product *of, uint16_t *sums) {
  enum { TERMS = 4 };
  for (int64_t at = 0; at < of->k; at += TERMS)
    ad_gemm(AD_BF16, AD_BF16, of->m, of->n, of->k - at < TERMS ? of->k - at : TERMS, of->factor,
            ad_gemm_from_term(of->a, AD_BF16, at, 0), ad_gemm_from_term(of->b, AD_BF16, at, 1), at > 0, sums, of->n);
}

static void round_within_product(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  gemm_passing *pass = passing;
  const gemm_product *of = pass->product;
  uint16_t *sums;
  if (scene->kept || of->values != AD_BF16 || !of->k || ad_new((size_t)(of->m * of->n), &sums)) return;
  scene->kept = of; /* set first: the smaller products of this computation reach this injection point, too */
  sum_in_bf16(of, sums);
  ad_gemm_write_out(of, sums, AD_BF16);
  scene->kept = NULL;
  ad_release(sums);
  pass->handled = scene->fired = 1;
}

/* Rounds to bf16 a statistic by which rows are normalised. */
static void round_statistic(void *context, void *passing) {
  ad_round_to_bf16(passing, AD_F64, 1);
  fire(context);
}

/* Makes the residual stream bf16. */
static void narrow_stream(void *context, void *passing) {
  *(ad_dtype *)passing = AD_BF16;
  fire(context);
}

/* ---- layers that run again ---- */

static int is_of(const ad_rerun_passing *at, const char *name) { return !strcmp(at->out->op->name, name); }

/* Draws other numbers when a layer runs again, as if the state of the generator had not been kept. */
static void draw_again(void *context, void *passing) {
  const ad_rerun_passing *at = passing;
  if (!is_of(at, "dropout")) return;
  ((dropout_numbers *)(uintptr_t)at->out->own)->seed ^= 1;
  fire(context);
}

static ad_routing *routing_again(const ad_rerun_passing *at) {
  return is_of(at, "top_k") ? ((const choice_numbers *)at->out->own)->routing : NULL;
}

/* Returns 1 if one of the first `count` experts is this one. */
static int has(const int32_t *experts, size_t count, int32_t expert) {
  for (size_t i = 0; i < count; i++)
    if (experts[i] == expert) return 1;
  return 0;
}

/* Finds two tokens that can exchange their first experts, so that each expert keeps its number of rows. Returns 0 if
 * there are none, or if there is a limit, which would drop others. */
static int find_exchange(const ad_routing *routing, int32_t **first, int32_t **second) {
  size_t k = routing->top_k;
  for (size_t t = 1; t < routing->tokens && !routing->limit; t++) {
    *first = routing->expert;
    *second = routing->expert + t * k;
    if (!has(*first, k, **second) && !has(*second, k, **first)) return 1;
  }
  return 0;
}

/* Routes again when a layer runs again, with another result for two tokens. */
static void route_again(void *context, void *passing) {
  ad_routing *routing = routing_again(passing);
  int32_t *first, *second;
  if (!routing || !find_exchange(routing, &first, &second)) return;
  int32_t kept = *first;
  *first = *second;
  *second = kept;
  ad_routing_sort(routing);
  fire(context);
}

/* Counts the choices of a layer that runs again a second time, on top of the first. */
static void count_again(void *context, void *passing) {
  const ad_rerun_passing *at = passing;
  if (!is_of(at, "balance") || at->tape->dry) return;
  const ad_array *choices = &at->out->operand[1]->array;
  ad_cast_scaled(choices->data, choices->dtype, choices->data, choices->dtype, 2, ad_array_numel(choices));
  fire(context);
}

/* Corrects the balancing bias again when a layer runs again. */
static void correct_again(void *context, void *passing) {
  const ad_rerun_passing *at = passing;
  const ad_routing *routing = routing_again(at);
  const ad_array *bias = routing ? ((const choice_numbers *)at->out->own)->bias : NULL;
  if (!bias || !bias->data) return;
  double even = (double)routing->slots / (double)routing->experts;
  for (size_t e = 0; e < routing->experts; e++) {
    double count = (double)routing->per_expert[e], sign = (count < even) - (count > even);
    ad_set_element(bias->dtype, bias->data, e, ad_element(bias->dtype, bias->data, e) + 1e-3 * sign);
    if (sign != 0) fire(context);
  }
}

ad_needs ad_rerun_shows(const void *passing) {
  const ad_rerun_passing *at = passing;
  ad_routing *routing = routing_again(at);
  int32_t *first, *second;
  ad_needs shows = is_of(at, "dropout") ? AD_NEED_DROPOUT_AGAIN : is_of(at, "balance") ? AD_NEED_BALANCE_AGAIN : 0;
  if (routing && find_exchange(routing, &first, &second)) shows |= AD_NEED_CHOICES_AGAIN;
  if (routing && ((const choice_numbers *)at->out->own)->bias) shows |= AD_NEED_BIAS_AGAIN;
  return shows;
}

static const ad_known_bug bugs[] = {
    {.name = "ring-without-last-turn",
     .words = "the last block of keys that comes around the ring is not attended",
     .needs = AD_NEED_TOKENS | AD_NEED_RING,
     .at = {{AD_INJECT_RING_TURN, leave_last_turn}}},
    {.name = "ring-masked-by-own-positions",
     .words = "a block of keys that arrived is masked by the positions of the rank's own keys",
     .needs = AD_NEED_TOKENS | AD_NEED_RING | AD_NEED_MASKED_RING,
     .at = {{AD_INJECT_RING_TURN, mask_by_own_positions}}},
    {.name = "ring-gradients-overwritten",
     .catalogue = 5,
     .words = "the gradient of the keys holds the addend of one rank only",
     .needs = AD_NEED_TOKENS | AD_NEED_RING | AD_NEED_RING_GRADIENTS,
     .at = {{AD_INJECT_RING_GATHERED, forget_gathered}}},
    {.name = "positions-from-zero",
     .words = "each rank of a sharded sequence counts its positions from 0",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_SEQUENCE,
     .at = {{AD_INJECT_POSITIONS, count_from_zero}}},
    {.name = "scores-of-other-ranks-slots-dropped",
     .catalogue = 4,
     .words = "a score whose expert is on another rank gets no gradient",
     .needs = AD_NEED_TOKENS | AD_NEED_SPREAD_EXPERTS,
     .at = {{AD_INJECT_SLOT_SCORES, drop_others_slots}}},
    {.name = "experts-averaged-over-replicas",
     .catalogue = 13,
     .words =
         "gradients that the backward of an exchange summed over ep are averaged over the replicas of the experts only",
     .needs = AD_NEED_TOKENS | AD_NEED_SPREAD_EXPERTS,
     .at = {{AD_INJECT_TRANSIT, average_over_replicas}}},
    {.name = "recomputed-dropout-drawn-again",
     .words = "a layer that runs again in backward draws other numbers for its dropout",
     .needs = AD_NEED_TOKENS | AD_NEED_DROPOUT_AGAIN,
     .at = {{AD_INJECT_RERUN, draw_again}}},
    {.name = "recomputed-tokens-routed-again",
     .words = "a layer that runs again in backward sends two tokens to each other's experts",
     .needs = AD_NEED_TOKENS | AD_NEED_CHOICES_AGAIN,
     .at = {{AD_INJECT_RERUN, route_again}}},
    {.name = "recomputed-choices-counted-again",
     .words = "the choices that the balancing loss reads are counted again when a layer runs again in backward",
     .needs = AD_NEED_TOKENS | AD_NEED_BALANCE_AGAIN,
     .at = {{AD_INJECT_RERUN, count_again}}},
    {.name = "recomputed-bias-corrected-again",
     .words = "the balancing bias is corrected again when a layer runs again in backward",
     .needs = AD_NEED_TOKENS | AD_NEED_BIAS_AGAIN,
     .at = {{AD_INJECT_RERUN, correct_again}}},
    {.name = "product-sums-in-bf16",
     .words = "matrix products of bf16 operands accumulate in bf16",
     .needs = AD_NEED_TOKENS | AD_NEED_NARROW_PRODUCTS | AD_NEED_FULL_FORMULAS,
     .of_dtype = 1,
     .rounds = 1,
     .at = {{AD_INJECT_PRODUCT, round_within_product}}},
    {.name = "statistics-in-bf16",
     .words = "the statistics by which rows are normalised are bf16",
     .needs = AD_NEED_TOKENS | AD_NEED_NARROW_PRODUCTS | AD_NEED_FULL_FORMULAS,
     .of_dtype = 1,
     .rounds = 1,
     .at = {{AD_INJECT_STATISTIC, round_statistic}}},
    {.name = "residual-in-bf16",
     .words = "the residual stream is bf16 where the recipe promises f32",
     .needs = AD_NEED_TOKENS | AD_NEED_WIDE_STREAM | AD_NEED_FULL_FORMULAS,
     .of_dtype = 1,
     .rounds = 1,
     .at = {{AD_INJECT_RESIDUAL, narrow_stream}}},
};

const ad_known_bug *ad_tensor_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
