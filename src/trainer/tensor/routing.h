/* Who goes where in a mixture of experts: the choices that tokens made, as numbers. No gradient passes here; operations
 * on rows follow them (op_rows.c, op_exchange.c, op_grouped.c). Lives on the tape until its reset. */
#ifndef TENSOR_ROUTING_H
#define TENSOR_ROUTING_H
#include "array/transit.h"
#include "tensor/operation.h"

/* A choice of a token is a slot; slots stand in the order of experts, those of one expert in the order of tokens. */
struct ad_routing {
  size_t tokens, top_k, experts; /* tokens here, choices of each, experts of all ranks */
  int32_t *expert;               /* [tokens, top_k] */
  ad_array choices;              /* [experts], f64 or f32: how many tokens here chose each; no data on engine dry */
  size_t slots;                  /* choices that were not dropped */
  size_t *choice_of_slot;        /* [slots]: token * top_k + which */
  size_t *token_of_slot;         /* [slots] */
  size_t *per_expert;            /* [experts] slots of each */
  size_t *next_slot;             /* [experts], while they are sorted */
  double margin;   /* smallest distance between a chosen score and one that was not; below 0 only of given choices */
  int64_t *number; /* [tokens]: of each among the tokens of all ranks; NULL until it is asked for */
  /* Once capacity is limited (ad_limit): */
  int64_t *limit;   /* [experts]: the first number that each does not take */
  int64_t capacity; /* how many choices of all ranks each takes; 0: no limit */
  /* Once experts are spread over ranks (ad_dispatch): */
  size_t *send_rows, *receive_rows; /* for and from each member */
  size_t received;
  size_t own_first, own_experts;         /* experts of this rank: own_first and those that follow it */
  size_t *rows_of_expert;                /* [own_experts] */
  ad_row_order slot_order, expert_order; /* runs of slots, one for each expert; of rows, for each own expert one from
                                            each member */
};

/* Puts the choices that are not dropped in the order of slots. */
void ad_routing_sort(ad_routing *routing);

/* As ad_top_k, of this rank's rows of a batch [samples, seq, ...] from row `first` on. */
ad_tensor *ad_top_k_kept(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, const ad_tensor *batch,
                         size_t first, ad_decisions decisions, ad_routing **routing, const char *site);

/* routing->number of this rank's rows of such a batch. */
ad_status ad_routing_number(ad_tape *tape, const ad_array *batch, size_t first, ad_routing *routing,
                            const char *site) AD_CHECKED;

/* What passes the seam AD_SEAM_SLOT_SCORES. */
typedef struct slot_scores_passing {
  const ad_routing *routing;
  const ad_array *grad; /* [slots] */
} slot_scores_passing;

#endif
