/* The order in which a rank takes a step: its list of a table (addend/schedule.h). The table's stages are the program's
 * phases; its ranks are the sets of ranks that have the same modules. The number of microbatches that need memory
 * follows from the list. */
#ifndef TRAIN_ORDER_H
#define TRAIN_ORDER_H
#include <stddef.h>
#include "addend/schedule.h"
#include "program/program.h"

typedef struct ad_order {
  const ad_table *table;
  ad_table *own; /* the table, if this order owns it; NULL: it is borrowed */
  int32_t place; /* the index of this rank's list in the table; -1: this rank runs no phase */
} ad_order;

/* Selects the actions of a list that use one kind of memory. A microbatch needs this memory from its first such action
 * to its last. */
typedef struct ad_order_use {
  int (*uses)(const void *context, const ad_action *action);
  const void *context;
} ad_order_use;

/* schedule: the name of a pipeline schedule (ad_table_make), whose stages are the phases. NULL: the program's own
 * order: each microbatch goes through all phases and back; ranks that give values run one microbatch ahead of the ranks
 * that take them. AD_INVALID: two modules share some of their ranks but not all. Destroy with ad_order_release. */
ad_status ad_order_create(const ad_program *program, int64_t rank, size_t microbatches, const char *schedule,
                          ad_order *out) AD_CHECKED;
/* Makes the order of another rank; borrows the table. */
ad_status ad_order_share(const ad_program *program, int64_t rank, const ad_table *table, ad_order *out) AD_CHECKED;
/* Replaces the order by a table of compute actions (F, B, I, W): inserts transfers and reductions and checks the laws.
 * Takes over the table; on an error it still belongs to the caller. */
ad_status ad_order_take(ad_order *order, const ad_program *program, ad_table *table) AD_CHECKED;
void ad_order_replace(ad_order *order, ad_table *table); /* takes over the table as it is, without checking laws */
void ad_order_release(ad_order *order);

size_t ad_order_count(const ad_order *order); /* actions in this rank's list */
const ad_action *ad_order_at(const ad_order *order, size_t index);
/* *out: the largest number of microbatches that use the memory at the same time, at least 1. Microbatches in use have
 * numbers so close together that microbatch m can use place m modulo *out. */
ad_status ad_order_most_at_once(const ad_order *order, ad_order_use use, size_t *out) AD_CHECKED;

/* Returns the first phase of the module that needs the value, or phase_count if none does. This phase brings the value
 * to the module's ranks. Its backward, the last of the module's, takes the gradient back. */
size_t ad_order_first_to_need(const ad_program *program, size_t value, size_t module);

#endif
