/* Finds the position of each action in a table, by kind, stage and microbatch. */
#ifndef SCHEDULE_INDEX_H
#define SCHEDULE_INDEX_H
#include "schedule/faults.h"

typedef struct ad_table_index {
  const ad_table *table;
  size_t edges; /* number of edges; an edge is a pair of stages of which the first passes its value to the second */
  /* The edges that begin at stage s have the numbers from out_first[s] to out_first[s + 1] - 1. The edges that end at
   * stage s have the numbers in[i] for i from in_first[s] to in_first[s + 1] - 1. */
  size_t *out_first, *in_first, *in;
  int32_t *rank_of; /* for each stage: its rank; -1: the stage has no compute actions */
  /* Packed positions of actions; 0: the action is missing from the table. Transfers are stored by edge and microbatch,
   * other kinds by stage and microbatch, by stage, or by rank; see cell_of in index.c. */
  uint64_t *spots[AD_ACTION_COUNT];
  /* [ranks + 1]: number of each rank's first action, counted over the actions of all ranks */
  size_t *first;
} ad_table_index;

/* Makes the index. Adds faults for an action that occurs twice (the index then has its first position), for a transfer
 * over an edge that does not exist, and for a stage without compute actions. */
AD_CHECKED ad_status ad_table_index_create(const ad_table *table, ad_table_index *out, ad_table_faults *faults);
void ad_table_index_destroy(ad_table_index *index);

/* Finds a compute action of a stage and microbatch. The result has rank -1 if the table does not have the action. */
ad_table_spot ad_table_find(const ad_table_index *index, ad_action_kind kind, int32_t stage, int32_t microbatch);
ad_table_spot ad_table_find_transfer(const ad_table_index *index, ad_action_kind kind, size_t edge, int32_t microbatch);
/* Finds the SUMS or NORM of a rank. */
ad_table_spot ad_table_find_on(const ad_table_index *index, ad_action_kind kind, int32_t rank);
/* Finds the last REDUCE, or the UPDATE, of a stage. */
ad_table_spot ad_table_find_stage(const ad_table_index *index, ad_action_kind kind, int32_t stage);
/* Finds the action that computes the gradient of the stage's inputs: B, or I if there is no B. */
ad_table_spot ad_table_find_backward(const ad_table_index *index, int32_t stage, int32_t microbatch);
/* Returns the number of the action at `at`, counted over the actions of all ranks. */
size_t ad_table_number(const ad_table_index *index, ad_table_spot at);
/* Returns 1 if the stages of this edge lie on two ranks and the table has transfers, else 0. */
int ad_table_edge_travels(const ad_table_index *index, size_t edge);
/* returns 1 if the edge's stages lie on two ranks, else 0 */
int ad_table_edge_crosses(const ad_table_index *index, size_t edge);

#endif
