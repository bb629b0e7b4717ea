/* The order in which a rank takes a step: its list of a table (addend/schedule.h) whose stages are the program's phases
 * and whose ranks are the sets of ranks that modules lie on; and from that list, how many microbatches there must be
 * room for. */
#ifndef TRAIN_ORDER_H
#define TRAIN_ORDER_H
#include <stddef.h>
#include "addend/schedule.h"
#include "program/program.h"

typedef struct ad_order {
  const ad_table *table;
  ad_table *own; /* the same; NULL: it is borrowed */
  int32_t place; /* of this rank's list in the table; -1: it runs no phase */
} ad_order;

/* Which actions of a list one thing needs memory for: from the first of a microbatch to its last. */
typedef struct ad_order_use {
  int (*uses)(const void *context, const ad_action *action);
  const void *context;
} ad_order_use;

/* `schedule`: of a pipeline, whose phases are its stages, by name (ad_table_make). NULL: the program's own order: a
 * microbatch goes through all phases and back, and whoever gives something to other ranks is a microbatch ahead of
 * them. AD_INVALID: modules share some of their ranks but not all. Destroy with ad_order_release. */
ad_status ad_order_create(const ad_program *program, int64_t rank, size_t microbatches, const char *schedule,
                          ad_order *out) AD_CHECKED;
/* The order of another rank, whose table it borrows. */
ad_status ad_order_share(const ad_program *program, int64_t rank, const ad_table *table, ad_order *out) AD_CHECKED;
/* Takes over a table of compute alone (F, B, I, W) in place of that order: inserts transfers and reductions and holds
 * it to the laws. On an error the table still belongs to the caller. */
ad_status ad_order_take(ad_order *order, const ad_program *program, ad_table *table) AD_CHECKED;
void ad_order_replace(ad_order *order, ad_table *table); /* takes it over as it is: no law is asked */
void ad_order_release(ad_order *order);

size_t ad_order_count(const ad_order *order); /* actions of this rank */
const ad_action *ad_order_at(const ad_order *order, size_t index);
/* The most microbatches that are in use at once; those in use lie that close together, so that number m may take place
 * m modulo this. At least 1. */
ad_status ad_order_most_at_once(const ad_order *order, ad_order_use use, size_t *out) AD_CHECKED;

/* Of the phases of one module those that need the value: the first one brings it to the module's ranks, and its
 * backward, which comes last, takes the gradient back. phase_count: none needs it. */
size_t ad_order_first_to_need(const ad_program *program, size_t value, size_t module);

#endif
