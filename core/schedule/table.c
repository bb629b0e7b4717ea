/* Schedule tables: makes, fills and reads them. */
#include "schedule/table.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- creating and destroying a table ---- */

ad_status ad_table_create(int32_t ranks, ad_table **out) {
  ad_table *table;
  AD_NEED(out);
  if (ranks < 1 || ranks > AD_TABLE_RANKS_MAX)
    return ad_fail(AD_INVALID,
                   "a schedule table can have 1 to %d ranks, but %d were requested; choose a number in this range",
                   AD_TABLE_RANKS_MAX, ranks);
  AD_TRY(ad_new(1, &table));
  ad_status status = ad_new((size_t)ranks, &table->rows);
  if (status) {
    ad_release(table);
    return status;
  }
  table->ranks = ranks;
  *out = table;
  return AD_OK;
}

void ad_table_destroy(ad_table *table) {
  if (!table) return;
  for (int32_t r = 0; r < table->ranks; r++) ad_release(table->rows[r].actions);
  ad_release(table->rows);
  ad_release(table->edges);
  ad_release(table);
}

/* ---- adding actions to a table ---- */

static ad_status check_kind(const ad_action *action) {
  if ((unsigned)action->kind < AD_ACTION_COUNT) return AD_OK;
  return ad_fail(AD_INVALID, "the `kind` of an action is %d, but must be a value of ad_action_kind, from 0 to %d",
                 (int)action->kind, AD_ACTION_COUNT - 1);
}

/* Returns AD_INVALID unless `microbatch` is right for the action's kind: a number of a microbatch if the kind has one,
 * else 0. */
static ad_status check_microbatch(const ad_action *action, const char *name) {
  switch (ad_action_record_of(action->kind)->names) {
    case AD_NAMES_MICROBATCH:
      if (action->microbatch >= 0 && action->microbatch < AD_TABLE_CELLS_MAX) return AD_OK;
      return ad_fail(AD_INVALID, "%s of stage %d needs a `microbatch` from 0 to %d, but has %d; set such a microbatch",
                     name, action->stage, AD_TABLE_CELLS_MAX - 1, action->microbatch);
    case AD_NAMES_MAYBE:
      if (action->microbatch >= -1 && action->microbatch < AD_TABLE_CELLS_MAX) return AD_OK;
      return ad_fail(AD_INVALID,
                     "the `microbatch` of %s of stage %d must be the number of a microbatch, or -1 for the last "
                     "reduction of the stage, but is %d",
                     name, action->stage, action->microbatch);
    default:
      if (!action->microbatch) return AD_OK;
      return ad_fail(AD_INVALID,
                     "the `microbatch` of %s must be 0, not %d, because %s is not an action of one microbatch", name,
                     action->microbatch, name);
  }
}

static ad_status check_stage(const ad_action *action, const char *name) {
  int has = ad_action_record_of(action->kind)->names != AD_NAMES_NOTHING;
  if (action->stage >= 0 && action->stage < (has ? AD_TABLE_STAGES_MAX : 1)) return AD_OK;
  return has ? ad_fail(AD_INVALID, "the `stage` of %s must be from 0 to %d, but is %d", name, AD_TABLE_STAGES_MAX - 1,
                       action->stage)
             : ad_fail(AD_INVALID, "the `stage` of %s must be 0, not %d, because %s is not an action of one stage",
                       name, action->stage, name);
}

static ad_status check_hop(const ad_action *action, const char *name) {
  if (!ad_action_is_transfer(action->kind))
    return action->hop ? ad_fail(AD_INVALID,
                                 "the `hop` of %s must be 0, because %s is not a transfer between stages, but is %d",
                                 name, name, action->hop)
                       : AD_OK;
  if (action->hop < -AD_TABLE_STAGES_MAX || action->hop > AD_TABLE_STAGES_MAX)
    return ad_fail(AD_INVALID,
                   "the `hop` of %s of stage %d (the peer's stage minus this stage) is %d, but a table has at most %d "
                   "stages; name a stage of the table",
                   name, action->stage, action->hop, AD_TABLE_STAGES_MAX);
  int32_t peer = ad_action_peer(action);
  if (peer >= 0 && peer < AD_TABLE_STAGES_MAX) return AD_OK;
  return ad_fail(AD_INVALID,
                 "by its `hop` %d, the peer of %s of stage %d is stage %d, but a table has only stages 0 to %d; name a "
                 "stage of the table",
                 action->hop, name, action->stage, peer, AD_TABLE_STAGES_MAX - 1);
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Returns AD_INVALID if there are more (stage, microbatch) or (edge, microbatch) pairs than a table can have. */
static ad_status check_cells(int32_t stages, int32_t microbatches, size_t edges) {
  int64_t most = larger(stages, (int32_t)edges);
  if (most * microbatches <= AD_TABLE_CELLS_MAX) return AD_OK;
  return ad_fail(AD_INVALID,
                 "a table of %d stages and %d microbatches is too large; choose numbers whose product is at most %d",
                 stages, microbatches, AD_TABLE_CELLS_MAX);
}

static ad_status make_row_room(ad_table_row *row) {
  if (row->count < row->capacity) return AD_OK;
  size_t capacity = row->capacity ? 2 * row->capacity : 16;
  AD_TRY(ad_grow(&row->actions, row->capacity, capacity));
  row->capacity = capacity;
  return AD_OK;
}

static int32_t stages_with(const ad_table *table, const ad_action *action) {
  ad_action_names names = ad_action_record_of(action->kind)->names;
  return names == AD_NAMES_NOTHING ? table->stages : larger(table->stages, action->stage + 1);
}

static int32_t microbatches_with(const ad_table *table, const ad_action *action) {
  ad_action_names names = ad_action_record_of(action->kind)->names;
  int has = names == AD_NAMES_MICROBATCH || names == AD_NAMES_MAYBE;
  return has ? larger(table->microbatches, action->microbatch + 1) : table->microbatches;
}

ad_status ad_table_add(ad_table *table, int32_t rank, const ad_action *action) {
  AD_NEED(table, action);
  if (rank < 0 || rank >= table->ranks)
    return ad_fail(AD_INVALID,
                   "the table has ranks 0 to %d, so no action can be added to rank %d; add to a rank of the table",
                   table->ranks - 1, rank);
  AD_TRY(check_kind(action));
  const char *name = ad_action_name(action->kind);
  AD_TRY(check_stage(action, name));
  AD_TRY(check_microbatch(action, name));
  AD_TRY(check_hop(action, name));
  int32_t stages = stages_with(table, action), microbatches = microbatches_with(table, action);
  AD_TRY(check_cells(stages, microbatches, table->edge_count));
  if (table->action_count == AD_TABLE_ACTIONS_MAX)
    return ad_fail(AD_INVALID, "the table is full, because a table can have at most %d actions; make a smaller table",
                   AD_TABLE_ACTIONS_MAX);
  ad_table_row *row = &table->rows[rank];
  AD_TRY(make_row_room(row));
  row->actions[row->count++] = *action;
  table->action_count++;
  table->stages = stages;
  table->microbatches = microbatches;
  table->parts |= ad_action_record_of(action->kind)->part;
  return AD_OK;
}

ad_status ad_table_put(ad_table *table, int32_t rank, ad_action_kind kind, int32_t stage, int32_t microbatch) {
  ad_action action = {.kind = kind, .stage = stage, .microbatch = microbatch};
  return ad_table_add(table, rank, &action);
}

void ad_table_take_row(ad_table *table, int32_t rank, ad_action *actions, size_t count) {
  ad_table_row *row = &table->rows[rank];
  table->action_count += count - row->count;
  ad_release(row->actions);
  *row = (ad_table_row){actions, count, count};
  for (size_t i = 0; i < count; i++) table->parts |= ad_action_record_of(actions[i].kind)->part;
}

int ad_table_line(const ad_table *table, int32_t rank) { return table->is_csv ? rank + 1 : 0; }

static ad_status copy_rows(const ad_table *table, ad_table *to) {
  for (int32_t r = 0; r < table->ranks; r++) {
    const ad_table_row *row = &table->rows[r];
    ad_action *actions;
    AD_TRY(ad_new(row->count, &actions));
    if (row->count) memcpy(actions, row->actions, row->count * sizeof *actions);
    ad_table_take_row(to, r, actions, row->count);
  }
  AD_TRY(ad_new(table->edge_count, &to->edges));
  if (table->edge_count) memcpy(to->edges, table->edges, table->edge_count * sizeof *to->edges);
  to->edge_count = table->edge_count;
  to->stages = table->stages;
  to->microbatches = table->microbatches;
  to->is_csv = table->is_csv;
  return AD_OK;
}

ad_status ad_table_copy(const ad_table *table, ad_table **out) {
  ad_table *copy;
  AD_TRY(ad_table_create(table->ranks, &copy));
  ad_status status = copy_rows(table, copy);
  if (status)
    ad_table_destroy(copy);
  else
    *out = copy;
  return status;
}

/* ---- a table's edges: which stage sends to which ---- */

size_t ad_table_edge_count(const ad_table *table) {
  if (table->edge_count) return table->edge_count;
  return table->stages > 1 ? (size_t)table->stages - 1 : 0;
}

ad_stage_edge ad_table_edge(const ad_table *table, size_t edge) {
  if (table->edge_count) return table->edges[edge];
  return (ad_stage_edge){(int32_t)edge, (int32_t)edge + 1, AD_STAGE_BOTH_WAYS};
}

static int is_before(const ad_stage_edge *edge, int32_t from, int32_t to) {
  return edge->from < from || (edge->from == from && edge->to < to);
}

/* Returns the edge's index in the sorted list, or the index at which it would be inserted. */
static size_t place_of_edge(const ad_table *table, int32_t from, int32_t to) {
  size_t low = 0, high = table->edge_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (is_before(&table->edges[middle], from, to))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

size_t ad_table_find_edge(const ad_table *table, int32_t from, int32_t to) {
  if (!table->edge_count) return to == from + 1 && to < table->stages ? (size_t)from : SIZE_MAX;
  size_t at = place_of_edge(table, from, to);
  int is_there = at < table->edge_count && table->edges[at].from == from && table->edges[at].to == to;
  return is_there ? at : SIZE_MAX;
}

/* Returns the number of a transfer's edge. A value is sent from its edge's first stage, a gradient from the edge's
 * second stage. */
size_t ad_table_edge_of(const ad_table *table, const ad_action *action) {
  int32_t peer = ad_action_peer(action);
  int is_first = ad_action_goes_back(action->kind) == ad_action_is_receive(action->kind);
  return is_first ? ad_table_find_edge(table, action->stage, peer) : ad_table_find_edge(table, peer, action->stage);
}

ad_status ad_table_connect(ad_table *table, int32_t from, int32_t to, ad_stage_way way) {
  AD_NEED(table);
  if (from < 0 || to <= from || to >= AD_TABLE_STAGES_MAX)
    return ad_fail(AD_INVALID,
                   "stage %d cannot be connected to stage %d, because a stage passes its value to a later stage; "
                   "connect the earlier stage to the later one",
                   from, to);
  if (way != AD_STAGE_BOTH_WAYS && way != AD_STAGE_ONE_WAY)
    return ad_fail(AD_INVALID, "`way` must be AD_STAGE_BOTH_WAYS or AD_STAGE_ONE_WAY, not %d", (int)way);
  if (table->edge_count && ad_table_find_edge(table, from, to) != SIZE_MAX)
    return ad_fail(AD_INVALID, "stages %d and %d are connected already; connect the two only once", from, to);
  if (table->edge_count == AD_TABLE_STAGES_MAX)
    return ad_fail(AD_INVALID,
                   "the table is full, because a table can have at most %d pairs of connected stages; connect fewer",
                   AD_TABLE_STAGES_MAX);
  AD_TRY(check_cells(larger(table->stages, to + 1), table->microbatches, table->edge_count + 1));
  AD_TRY(ad_grow(&table->edges, table->edge_count, table->edge_count + 1));
  size_t at = place_of_edge(table, from, to);
  memmove(&table->edges[at + 1], &table->edges[at], (table->edge_count - at) * sizeof *table->edges);
  table->edges[at] = (ad_stage_edge){from, to, way};
  table->edge_count++;
  table->stages = larger(table->stages, to + 1);
  return AD_OK;
}

/* ---- reading a table's actions ---- */

int32_t ad_table_rank_count(const ad_table *table) { return table->ranks; }
int32_t ad_table_stage_count(const ad_table *table) { return table->stages; }
int32_t ad_table_microbatch_count(const ad_table *table) { return table->microbatches; }
unsigned ad_table_parts(const ad_table *table) { return table->parts; }

size_t ad_table_action_count(const ad_table *table, int32_t rank) {
  return ad_has(rank < 0 ? SIZE_MAX : (size_t)rank, (size_t)table->ranks, __func__, "rank") ? table->rows[rank].count
                                                                                            : 0;
}

const ad_action *ad_table_action(const ad_table *table, int32_t rank, size_t place) {
  if (!ad_has(rank < 0 ? SIZE_MAX : (size_t)rank, (size_t)table->ranks, __func__, "rank")) return NULL;
  const ad_table_row *row = &table->rows[rank];
  return ad_has(place, row->count, __func__, "action") ? &row->actions[place] : NULL;
}
