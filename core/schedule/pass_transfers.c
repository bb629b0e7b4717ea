/* The pass that inserts transfers. A SEND comes right after the action that computes the value. Its RECV comes, on the
 * other rank, before the first action that (with the default costs) begins at or after the time when the value has
 * arrived. All transfers are inserted in one order, by time, so that ranks never wait in a circle, even if a SEND waits
 * for its RECV. */
#include <stdlib.h>

#include "base/memory.h"
#include "schedule/passes.h"
#include "schedule/times.h"

/* One end of a transfer, to be inserted into the list of `rank` before the action that is now at position `before`. */
typedef struct arrival {
  ad_action action;
  int32_t rank;
  size_t before;
  double time;
  size_t number; /* number of the transfer, the same for its two ends */
} arrival;

typedef struct arrivals {
  arrival *list;
  size_t count;
  const ad_table_times_of *times;
} arrivals;

/* Returns the position of the first action of `rank` that begins at `time` or later. */
static size_t place_at(const ad_table_times_of *times, int32_t rank, double time) {
  size_t low = 0, high = times->index.table->rows[rank].count;
  const double *begin = times->run.begin + times->index.first[rank];
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (begin[middle] < time)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Adds the two ends of the transfer of a value that the action at `giver` computes. */
static void add_transfer(arrivals *all, ad_table_spot giver, ad_action_kind send, ad_action_kind receive, int32_t from,
                         int32_t to) {
  const ad_table_index *index = &all->times->index;
  int32_t m = index->table->rows[giver.rank].actions[giver.place].microbatch;
  double time = all->times->run.end[ad_table_number(index, giver)];
  size_t number = all->count / 2;
  all->list[all->count++] = (arrival){{send, from, m, to - from}, giver.rank, (size_t)giver.place + 1, time, number};
  int32_t rank = index->rank_of[to];
  all->list[all->count++] =
      (arrival){{receive, to, m, from - to}, rank, place_at(all->times, rank, time), time, number};
}

static void add_edge(arrivals *all, size_t e, int32_t m) {
  const ad_table_index *index = &all->times->index;
  ad_stage_edge edge = ad_table_edge(index->table, e);
  add_transfer(all, ad_table_find(index, AD_ACTION_F, edge.from, m), AD_ACTION_SEND_F, AD_ACTION_RECV_F, edge.from,
               edge.to);
  if (edge.way == AD_STAGE_BOTH_WAYS)
    add_transfer(all, ad_table_find_backward(index, edge.to, m), AD_ACTION_SEND_B, AD_ACTION_RECV_B, edge.to,
                 edge.from);
}

static int by_rank_and_time(const void *a, const void *b) {
  const arrival *x = a, *y = b;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  if (x->before != y->before) return x->before < y->before ? -1 : 1;
  if (x->time != y->time) return x->time < y->time ? -1 : 1;
  return (x->number > y->number) - (x->number < y->number);
}

static ad_status find_all(arrivals *all) {
  const ad_table_index *index = &all->times->index;
  size_t most = 4 * index->edges * (size_t)index->table->microbatches;
  AD_TRY(ad_new(most, &all->list));
  for (size_t e = 0; e < index->edges; e++)
    for (int32_t m = 0; ad_table_edge_crosses(index, e) && m < index->table->microbatches; m++) add_edge(all, e, m);
  qsort(all->list, all->count, sizeof *all->list, by_rank_and_time);
  return AD_OK;
}

/* Writes the rank's new list, with the transfers inserted; *at is the index of the next transfer in `all`. */
static ad_status merge(ad_table *table, int32_t rank, const arrivals *all, size_t *at) {
  const ad_table_row *row = &table->rows[rank];
  ad_table_list list = {0};
  for (size_t i = 0; i <= row->count; i++) {
    for (; *at < all->count && all->list[*at].rank == rank && all->list[*at].before == i; ++*at)
      ad_table_list_add(&list, &all->list[*at].action);
    if (i < row->count) ad_table_list_add(&list, &row->actions[i]);
  }
  return ad_table_list_give(&list, table, rank);
}

ad_status ad_table_insert_transfers(ad_table *table) {
  ad_table_times_of times;
  AD_TRY(ad_table_times_create(table, NULL, &times));
  arrivals all = {.times = &times};
  size_t at = 0;
  ad_status status = find_all(&all);
  for (int32_t r = 0; !status && r < table->ranks; r++) status = merge(table, r, &all, &at);
  ad_table_times_destroy(&times);
  ad_release(all.list);
  return status;
}
