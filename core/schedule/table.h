/* A schedule table as a structure, for the files of schedule/: for each rank a list of actions. */
#ifndef SCHEDULE_TABLE_H
#define SCHEDULE_TABLE_H
#include "addend/schedule.h"

/* The list of actions of one rank. */
typedef struct ad_table_row {
  ad_action *actions;
  size_t count, capacity;
} ad_table_row;

/* An edge: stage `from` passes its value to stage `to`. */
typedef struct ad_stage_edge {
  int32_t from, to;
  ad_stage_way way;
} ad_stage_edge;

struct ad_table {
  ad_table_row *rows;
  /* the edges that ad_table_connect declared, sorted; if there are none, the stages are a chain */
  ad_stage_edge *edges;
  size_t edge_count, action_count;
  int32_t ranks, stages, microbatches;
  unsigned parts;
  int is_csv; /* 1: the table was read from a CSV, as PyTorch dumps it, with one line for each rank */
};

/* One kind of action: its names, its part, and which of the fields stage and microbatch it uses. */
typedef struct ad_action_record {
  const char *name, *torch_name; /* torch_name NULL: PyTorch has no such action */
  ad_table_part part;
  ad_action_names names;
} ad_action_record;
const ad_action_record *ad_action_record_of(ad_action_kind kind);

int ad_action_is_transfer(ad_action_kind kind);
/* returns 1 if this kind of transfer sends or receives a gradient, else 0 */
int ad_action_goes_back(ad_action_kind kind);
/* returns 1 if this kind of transfer is a receive (RECV_F, RECV_B), else 0 */
int ad_action_is_receive(ad_action_kind kind);
/* returns 1 if this kind computes an addend of the weights' gradient (B, W), else 0 */
int ad_action_is_addend(ad_action_kind kind);
/* returns 1 if this kind computes the inputs' gradient (B, I), else 0 */
int ad_action_is_backward(ad_action_kind kind);

/* ad_table_edge_count returns the number of the table's edges, of the declared ones or of the chain; ad_table_edge
 * returns edge number `edge`. */
size_t ad_table_edge_count(const ad_table *table);
ad_stage_edge ad_table_edge(const ad_table *table, size_t edge);
/* Returns the number of the edge between two stages; SIZE_MAX if there is none. */
size_t ad_table_find_edge(const ad_table *table, int32_t from, int32_t to);
/* Returns the number of a transfer's edge; SIZE_MAX if there is none. */
size_t ad_table_edge_of(const ad_table *table, const ad_action *action);

/* Returns the line of the rank, from 1, in the CSV from which the table was read; 0 if it was not read from a CSV. */
int ad_table_line(const ad_table *table, int32_t rank);

/* Makes `actions`, an array of `count` actions, the rank's list; the table then owns the array. */
void ad_table_take_row(ad_table *table, int32_t rank, ad_action *actions, size_t count);
AD_CHECKED ad_status ad_table_copy(const ad_table *table, ad_table **out);
/* Adds a compute action with ad_table_add, for generators. */
AD_CHECKED ad_status ad_table_put(ad_table *table, int32_t rank, ad_action_kind kind, int32_t stage,
                                  int32_t microbatch);
/* Returns AD_INVALID unless stages, microbatches and ranks are within the limits of a table. */
AD_CHECKED ad_status ad_table_check_shape(const ad_table_shape *shape);

#endif
