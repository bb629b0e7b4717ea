/* A schedule table as the files of this folder see it: for each rank a list of actions. */
#ifndef SCHEDULE_TABLE_H
#define SCHEDULE_TABLE_H
#include "addend/schedule.h"

/* The list of one rank. */
typedef struct ad_table_row {
  ad_action *actions;
  size_t count, capacity;
} ad_table_row;

/* Stage `from` passes its value to stage `to`. */
typedef struct ad_stage_edge {
  int32_t from, to;
  ad_stage_way way;
} ad_stage_edge;

struct ad_table {
  ad_table_row *rows;
  ad_stage_edge *edges; /* the edges that the caller gave, sorted; if there are none, the stages are a chain */
  size_t edge_count, action_count;
  int32_t ranks, stages, microbatches;
  unsigned parts;
  int is_csv; /* 1: read from a CSV, in which each rank has a line, as PyTorch dumps tables */
};

/* One kind of action: its names, its part, and whether it names a stage and a microbatch. */
typedef struct ad_action_record {
  const char *name, *torch_name; /* torch_name NULL: PyTorch has no such action */
  ad_table_part part;
  ad_action_names names;
} ad_action_record;
const ad_action_record *ad_action_record_of(ad_action_kind kind);

int ad_action_is_transfer(ad_action_kind kind);
int ad_action_goes_back(ad_action_kind kind);   /* 1: this transfer carries a gradient */
int ad_action_is_receive(ad_action_kind kind);  /* 1: this transfer arrives at its `stage` */
int ad_action_is_addend(ad_action_kind kind);   /* 1: this action leaves an addend of the weights' gradient: B, W */
int ad_action_is_backward(ad_action_kind kind); /* 1: this action gives the inputs' gradient: B, I */

/* The number of a table's edges (of the caller or of the chain); edge number `edge`. */
size_t ad_table_edge_count(const ad_table *table);
ad_stage_edge ad_table_edge(const ad_table *table, size_t edge);
/* Returns the number of the edge between two stages, or SIZE_MAX if there is none. */
size_t ad_table_find_edge(const ad_table *table, int32_t from, int32_t to);
/* Returns the number of a transfer's edge, or SIZE_MAX if there is none. */
size_t ad_table_edge_of(const ad_table *table, const ad_action *action);

/* Returns the line, from 1, of the rank in the CSV from which the table was read, or 0 if it was not read from one. */
int ad_table_line(const ad_table *table, int32_t rank);

/* Makes `actions`, an array of `count` actions, the rank's list; the table becomes its owner. */
void ad_table_take_row(ad_table *table, int32_t rank, ad_action *actions, size_t count);
AD_CHECKED ad_status ad_table_copy(const ad_table *table, ad_table **out);
/* Adds a compute action, as ad_table_add does, for generators. */
AD_CHECKED ad_status ad_table_put(ad_table *table, int32_t rank, ad_action_kind kind, int32_t stage,
                                  int32_t microbatch);
/* AD_INVALID unless stages, microbatches and ranks are in the limits of a table. */
AD_CHECKED ad_status ad_table_check_shape(const ad_table_shape *shape);

#endif
