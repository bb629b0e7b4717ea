/* Where each action of a table stands, by what it names. */
#ifndef SCHEDULE_INDEX_H
#define SCHEDULE_INDEX_H
#include "schedule/faults.h"

typedef struct ad_table_index {
  const ad_table *table;
  size_t edges;
  size_t *out_first, *in_first, *in; /* the edges from stage s: out_first[s] to out_first[s + 1]; those to it: the same
                                        of in_first, numbers of places in `in` */
  int32_t *rank_of;                  /* of each stage; -1: it has no compute */
  uint64_t *spots[AD_ACTION_COUNT];  /* 0: nowhere; of a transfer by edge and microbatch, else by stage and microbatch,
                                        by stage, or by rank; see ad_table_cell */
  size_t *first;                     /* of each rank and one more: the number of its first action among all */
} ad_table_index;

/* Makes it. What stands twice, or over an edge that there is not, is a fault, and only its first place is known. A
 * stage without compute is a fault too. */
AD_CHECKED ad_status ad_table_index_create(const ad_table *table, ad_table_index *out, ad_table_faults *faults);
void ad_table_index_destroy(ad_table_index *index);

/* Of a kind that names a microbatch and is no transfer; rank -1: nowhere. */
ad_table_spot ad_table_find(const ad_table_index *index, ad_action_kind kind, int32_t stage, int32_t microbatch);
ad_table_spot ad_table_find_transfer(const ad_table_index *index, ad_action_kind kind, size_t edge, int32_t microbatch);
/* Of SUMS and NORM. */
ad_table_spot ad_table_find_on(const ad_table_index *index, ad_action_kind kind, int32_t rank);
/* The last REDUCE, UPDATE of a stage. */
ad_table_spot ad_table_find_stage(const ad_table_index *index, ad_action_kind kind, int32_t stage);
/* B, or I where there is no B; what gives the inputs' gradient. */
ad_table_spot ad_table_find_backward(const ad_table_index *index, int32_t stage, int32_t microbatch);
/* The number of the action there among all. */
size_t ad_table_number(const ad_table_index *index, ad_table_spot at);
/* 1: the stages of this edge lie on two ranks, and transfers are a part of the table. */
int ad_table_edge_travels(const ad_table_index *index, size_t edge);
int ad_table_edge_crosses(const ad_table_index *index, size_t edge); /* on two ranks */

#endif
