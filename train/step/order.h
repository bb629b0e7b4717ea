/* The order of a rank's actions in a step: the rank's list in a table (addend/schedule.h). The table's stages are the
 * program's phases; its ranks are the sets of ranks that have the same modules. The list determines how many
 * microbatches need memory at the same time. */
#ifndef TRAIN_ORDER_H
#define TRAIN_ORDER_H
#include <stddef.h>
#include "addend/schedule.h"
#include "program/program.h"

typedef struct ad_order {
  const ad_table *table;
  ad_table *own; /* the table if the order owns it; NULL if it is borrowed */
  int32_t place; /* the index of this rank's list in the table; -1 if this rank runs no phase */
} ad_order;

/* Selects the actions of a list that use one kind of memory. A microbatch needs the memory from its first such action
 * to its last. */
typedef struct ad_order_use {
  int (*uses)(const void *context, const ad_action *action);
  const void *context;
} ad_order_use;

/* Makes the order of this rank. `schedule` is the name of a pipeline schedule (ad_table_make), whose stages are the
 * phases. If it is NULL, each microbatch goes through all phases and back, and ranks that give values are one
 * microbatch ahead of the ranks that need them. Returns AD_INVALID if two modules share some of their ranks but not
 * all. Release with ad_order_release. */
ad_status ad_order_create(const ad_program *program, int64_t rank, size_t microbatches, const char *schedule,
                          ad_order *out) AD_CHECKED;
/* Like ad_order_create, for any rank and with a table that exists already. Borrows the table. */
ad_status ad_order_share(const ad_program *program, int64_t rank, const ad_table *table, ad_order *out) AD_CHECKED;
/* Replaces the order by a table of compute actions (F, B, I, W): inserts transfers and reductions, and checks the laws.
 * On success the order owns the table; on an error it still belongs to the caller. */
ad_status ad_order_take(ad_order *order, const ad_program *program, ad_table *table) AD_CHECKED;
void ad_order_replace(ad_order *order, ad_table *table); /* owns the table and uses it as it is, without checking the
                                                          * laws */
void ad_order_release(ad_order *order);

size_t ad_order_count(const ad_order *order); /* returns the number of actions in this rank's list */
const ad_action *ad_order_at(const ad_order *order, size_t index);
/* Sets *out to the largest number of microbatches that use the memory at the same time, at least 1. Of *out consecutive
 * microbatches each has its own slot: microbatch m can use slot m modulo *out. */
ad_status ad_order_most_at_once(const ad_order *order, ad_order_use use, size_t *out) AD_CHECKED;

/* Returns the first phase of the module that needs the value, or phase_count if none does. This phase receives the
 * value on the module's ranks. Its backward runs after that of all later phases of the module, and sends the gradient
 * back. */
size_t ad_order_first_to_need(const ad_program *program, size_t value, size_t module);

#endif
