/* The routing of a mixture of experts: which experts each token chose. The routing itself carries no gradient;
 * operations on rows read it (op_rows.c, op_exchange.c, op_grouped.c). It lives until the tape's reset. */
#ifndef TENSOR_ROUTING_H
#define TENSOR_ROUTING_H
#include "addend/routing.h"
#include "array/transit.h"
#include "tensor/operation.h"

/* A slot is one choice of one token that is not dropped. Slots are sorted by expert, and within an expert by token. */
struct ad_routing {
  size_t tokens, top_k, experts; /* tokens on this rank, choices of each token, experts of all ranks */
  int32_t *expert;               /* [tokens, top_k]: index of the chosen expert */
  ad_array choices;       /* [experts], f64 or f32: how many tokens of this rank chose each; no data on backend dry */
  size_t slots;           /* number of choices that were not dropped */
  size_t *choice_of_slot; /* [slots]: token * top_k + index of the choice */
  size_t *token_of_slot;  /* [slots] */
  size_t *per_expert;     /* [experts]: number of slots */
  size_t *next_slot;      /* [experts]: scratch while slots are sorted */
  /* smallest distance between a chosen score and one that was not chosen; negative only for given choices */
  double margin;
  int64_t *number; /* [tokens]: number of each token among those of all ranks; NULL: not asked for yet */
  /* Set when the capacity is limited (ad_limit): */
  int64_t *limit;   /* [experts]: the expert takes only tokens with numbers below this one */
  int64_t capacity; /* number of choices, of all ranks, that each expert takes; 0: no limit */
  /* Set when slots are sent to the ranks of their experts (ad_dispatch): */
  size_t *send_rows, *receive_rows; /* [members]: number of rows sent to, and received from, each member */
  /* number of rows received from all members */
  size_t received;
  size_t own_first, own_experts; /* this rank's experts: own_first .. own_first + own_experts - 1 */
  size_t *rows_of_expert;        /* [own_experts]: number of rows */
  /* order of slots: one run for each expert; order of received rows: for each own expert one run from each member */
  ad_row_order slot_order, expert_order;
};

/* The operation's own struct of `top_k`. */
typedef struct choice_numbers {
  int64_t k;
  const ad_array *bias;
  ad_routing *routing;
  ad_decisions decisions;
  const ad_tensor
      *batch; /* with `decisions`: the batch, of which rows `first`, `first` + 1, ... are scored; else NULL */
  size_t first;
} choice_numbers;

/* Sorts the choices that are not dropped into slots. */
void ad_routing_sort(ad_routing *routing);

/* Like ad_top_k, but also writes the chosen experts to `decisions`, or takes them from there. The tokens are this
 * rank's rows of a batch [samples, seq, ...], from row `first` on. */
ad_tensor *ad_top_k_kept(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, const ad_tensor *batch,
                         size_t first, ad_decisions decisions, ad_routing **routing, const char *site);

/* Sets routing->number: the number of each token of this rank among the tokens of all ranks. The tokens are the rows
 * of `batch` from row `first` on. */
ad_status ad_routing_number(ad_tape *tape, const ad_array *batch, size_t first, ad_routing *routing,
                            const char *site) AD_CHECKED;

/* Argument of functions at the injection point AD_INJECT_SLOT_SCORES: the gradient of the slots' scores. */
typedef struct slot_scores_passing {
  const ad_routing *routing;
  const ad_array *grad; /* [slots]: the gradient of each slot's score */
} slot_scores_passing;

#endif
