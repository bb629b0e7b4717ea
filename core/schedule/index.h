/* Finds the place of each action in a table, by kind, stage and microbatch. */
#ifndef SCHEDULE_INDEX_H
#define SCHEDULE_INDEX_H
#include "schedule/faults.h"

typedef struct ad_table_index {
  const ad_table *table;
  size_t edges; /* number of edges: pairs of stages where the first passes its value to the second */
  /* Edges from stage s have the numbers out_first[s] to before out_first[s + 1]. The numbers of edges to stage s are
   * in[in_first[s]] to before in[in_first[s + 1]]. */
  size_t *out_first, *in_first, *in;
  int32_t *rank_of; /* for each stage: its rank; -1: the stage has no compute */
  /* Packed places of actions; 0: the action is missing from the table. Transfers are by edge and microbatch, other
   * kinds by stage and microbatch, by stage, or by rank; see cell_of in index.c. */
  uint64_t *spots[AD_ACTION_COUNT];
  size_t *first; /* for each rank, and one more: the number of its first action among all actions */
} ad_table_index;

/* Makes the index. Faults: an action that occurs twice (the index has its first place), a transfer over an edge that
 * does not exist, a stage without compute. */
AD_CHECKED ad_status ad_table_index_create(const ad_table *table, ad_table_index *out, ad_table_faults *faults);
void ad_table_index_destroy(ad_table_index *index);

/* Finds an action that names a microbatch and is no transfer. Rank -1: the table does not have it. */
ad_table_spot ad_table_find(const ad_table_index *index, ad_action_kind kind, int32_t stage, int32_t microbatch);
ad_table_spot ad_table_find_transfer(const ad_table_index *index, ad_action_kind kind, size_t edge, int32_t microbatch);
/* Finds SUMS or NORM of a rank. */
ad_table_spot ad_table_find_on(const ad_table_index *index, ad_action_kind kind, int32_t rank);
/* Finds the last REDUCE, or the UPDATE, of a stage. */
ad_table_spot ad_table_find_stage(const ad_table_index *index, ad_action_kind kind, int32_t stage);
/* Finds the action that computes the inputs' gradient: B, or I if there is no B. */
ad_table_spot ad_table_find_backward(const ad_table_index *index, int32_t stage, int32_t microbatch);
/* The number of the action at `at` among all actions of the table. */
size_t ad_table_number(const ad_table_index *index, ad_table_spot at);
/* Returns 1 if the stages of this edge lie on two ranks, and the table has transfers. */
int ad_table_edge_travels(const ad_table_index *index, size_t edge);
int ad_table_edge_crosses(const ad_table_index *index, size_t edge); /* 1: the edge's stages lie on two ranks */

#endif
