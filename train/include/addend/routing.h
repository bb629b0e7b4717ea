/* For authors of layers and programs: operations that send rows to experts and back. The layer that is made of them is
 * in experts.h. Values here are rows [rows, width]; a routing describes which rows go to which expert. Only one thread
 * at a time may use a tape. */
#ifndef ADDEND_ROUTING_H
#define ADDEND_ROUTING_H
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A routing: which rows go to which expert. Made by ad_top_k, used by the operations below, valid until the tape's
 * reset. Ranks that differ only on axes on which the scores are R or I have the same routing. */
typedef struct ad_routing ad_routing;
/* ad_to_rows turns x [..., d] into rows [n, d]. On axes that shard any dimension but the last, each rank then has
 * its own rows: V. ad_from_rows turns them back into the shape and sharding of `like`, from which they came. */
AD_API ad_tensor *ad_to_rows_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_from_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *like, const char *site);
/* Chooses experts: scores [tokens, experts] -> the scores of each token's k best experts [tokens, k], best first. Among
 * equal scores, that of the expert with the lowest number comes first. Experts are chosen by score + bias (bias is
 * [experts]; NULL: none). Scores that are not chosen get exactly zero gradient. The call sets *routing. So make the
 * call its own statement: as an argument beside another one that reads the routing, it may be evaluated too late. */
AD_API ad_tensor *ad_top_k_at(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, ad_routing **routing,
                              const char *site);
/* Limits each expert to ceil(capacity * choices / experts) choices of all ranks: the choices of the tokens with the
 * lowest numbers. All further choices are dropped and have no slot. A token's number is sample * seq + position in
 * `batch` [samples, seq, ...]. The routed tokens are the rows of `batch` on this rank from index `first` on. Collective
 * over the axes on which the scores are V. Call it after ad_top_k and before slots are made. */
AD_API void ad_limit_at(ad_tape *tape, ad_routing *routing, double capacity, const ad_tensor *batch, size_t first,
                        const char *site);
/* For reading the choices of this rank's tokens, after ad_top_k has run. There are no choices if the routing is NULL or
 * its tape has failed. */
AD_API size_t ad_routing_dropped(const ad_routing *routing); /* returns the number of choices that have no slot */
/* Returns an array [tokens, top_k] with the number of the chosen expert for each choice, in the order of ad_top_k's
 * result, dropped choices included. *count becomes tokens * top_k. Borrowed until the tape's reset. On backend dry
 * tokens are spread evenly. NULL: there are no choices. */
AD_API const int32_t *ad_routing_choices(const ad_routing *routing, size_t *count);
/* Returns the smallest distance, over all tokens, between score + bias of a chosen expert and of one not chosen. It can
 * be below 0 only if choices were given (ad_decisions). INFINITY: every expert was chosen, or there are no choices. A
 * program computes its `choices.margin` from this distance (program.h). */
AD_API double ad_routing_margin(const ad_routing *routing);
/* Choices kept beside a batch [samples, seq, ...] in an order that no mesh changes: numbers of experts [samples * seq,
 * top_k], for ad_experts_forward (experts.h). A program keeps them for its `choices.decisions` (program.h). */
typedef struct ad_decisions {
  int32_t *of; /* choices of the whole batch, borrowed until the tape's reset; NULL: they are not kept */
  int given;   /* 1: tokens use the choices in `of`; 0: each rank writes its tokens' choices to `of` */
} ad_decisions;
/* Returns how many tokens of this rank chose each expert, before any limit: a constant [experts] with the types of the
 * scores. On axes where this constant is V, because ranks route their own tokens, declare it P and sum it. */
AD_API ad_tensor *ad_choices_at(ad_tape *tape, const ad_routing *routing, const char *site);
/* The load-balancing loss of these rows, after Fedus et al. 2021, eq. 4 (for any top_k):
 *   experts * sum over e of (choices_e / sum of choices) * (sum over rows of shares_e / rows of all ranks)
 * It is 1 if everything is even, and 0 if nothing was chosen. shares is [rows, experts], each row with sum 1; choices
 * [experts] are those of all ranks. The whole loss is the sum over the rows of all ranks, so it is V where rows are V.
 */
AD_API ad_tensor *ad_balance_at(ad_tape *tape, ad_tensor *shares, ad_tensor *choices, int64_t top_k, const char *site);
/* Slots are the choices in the order of experts. ad_to_slots copies rows [tokens, d] to a row for each slot;
 * ad_from_slots sums each token's slots; ad_slot_weights gives the chosen scores slot by slot: [slots]. */
AD_API ad_tensor *ad_to_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site);
AD_API ad_tensor *ad_from_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site);
AD_API ad_tensor *ad_slot_weights_at(ad_tape *tape, ad_tensor *chosen, const ad_routing *routing, const char *site);
/* ad_dispatch sends slots, V on `axes`, to the ranks of their experts (sharded over `axes` as S0), where they arrive
 * sorted by expert; ad_return sends them back. all_to_all V->V with the exact counts. */
AD_API ad_tensor *ad_dispatch_at(ad_tape *tape, ad_tensor *x, ad_routing *routing, const char *axes, const char *site);
AD_API ad_tensor *ad_return_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *axes,
                               const char *site);
/* Multiplies each of the dispatched rows [n, k] by the matrix of its expert -> [n, m]. The matrices are [experts, k,
 * m], sharded S0 over the axes of the dispatch. */
AD_API ad_tensor *ad_grouped_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const ad_routing *routing,
                                       const char *site);
#define ad_to_rows(...) ad_to_rows_at(__VA_ARGS__, AD_HERE)
#define ad_from_rows(...) ad_from_rows_at(__VA_ARGS__, AD_HERE)
#define ad_top_k(...) ad_top_k_at(__VA_ARGS__, AD_HERE)
#define ad_limit(...) ad_limit_at(__VA_ARGS__, AD_HERE)
#define ad_choices(...) ad_choices_at(__VA_ARGS__, AD_HERE)
#define ad_balance(...) ad_balance_at(__VA_ARGS__, AD_HERE)
#define ad_to_slots(...) ad_to_slots_at(__VA_ARGS__, AD_HERE)
#define ad_from_slots(...) ad_from_slots_at(__VA_ARGS__, AD_HERE)
#define ad_slot_weights(...) ad_slot_weights_at(__VA_ARGS__, AD_HERE)
#define ad_dispatch(...) ad_dispatch_at(__VA_ARGS__, AD_HERE)
#define ad_return(...) ad_return_at(__VA_ARGS__, AD_HERE)
#define ad_grouped_linear(...) ad_grouped_linear_at(__VA_ARGS__, AD_HERE)

#if defined(__cplusplus)
}
#endif
#endif
