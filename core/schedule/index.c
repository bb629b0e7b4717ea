/* Finds actions by their kind, stage and microbatch. */
#include "schedule/index.h"

#include "base/error.h"
#include "base/memory.h"

/* ---- where in the index an action is entered ---- */

/* Returns how many entries `spots` has for a kind; 0 for kinds that are never looked up. */
static size_t cells_of(const ad_table_index *index, ad_action_kind kind) {
  const ad_table *table = index->table;
  if (kind == AD_ACTION_SUMS || kind == AD_ACTION_NORM) return (size_t)table->ranks;
  if (kind == AD_ACTION_REDUCE || kind == AD_ACTION_UPDATE) return (size_t)table->stages;
  if (ad_action_record_of(kind)->names != AD_NAMES_MICROBATCH) return 0;
  size_t rows = ad_action_is_transfer(kind) ? index->edges : (size_t)table->stages;
  return rows * (size_t)table->microbatches;
}

/* Returns the number of an action's entry among the entries of its kind; SIZE_MAX if the kind is never looked up. */
static size_t cell_of(const ad_table_index *index, int32_t rank, const ad_action *action) {
  size_t row = (size_t)action->stage, microbatches = (size_t)index->table->microbatches;
  if (action->kind == AD_ACTION_SUMS || action->kind == AD_ACTION_NORM) return (size_t)rank;
  if (action->kind == AD_ACTION_UPDATE) return row;
  if (action->kind == AD_ACTION_REDUCE) return action->microbatch < 0 ? row : SIZE_MAX;
  if (ad_action_record_of(action->kind)->names != AD_NAMES_MICROBATCH) return SIZE_MAX;
  if (ad_action_is_transfer(action->kind)) row = ad_table_edge_of(index->table, action);
  return row == SIZE_MAX ? SIZE_MAX : row * microbatches + (size_t)action->microbatch;
}

static uint64_t packed(ad_table_spot at) { return ((uint64_t)(at.rank + 1) << 32) | (uint32_t)at.place; }
static ad_table_spot unpacked(uint64_t spot) {
  return (ad_table_spot){(int32_t)(spot >> 32) - 1, spot ? (int32_t)(spot & UINT32_MAX) : -1};
}

/* ---- making the index ---- */

/* Returns the law that an action of this kind breaks if it occurs twice. */
static ad_table_law law_of(ad_action_kind kind) {
  switch (ad_action_record_of(kind)->part) {
    case AD_TABLE_TRANSFERS:
      return AD_TABLE_LAW_PAIRS;
    case AD_TABLE_REDUCTIONS:
      return AD_TABLE_LAW_REDUCED;
    case AD_TABLE_END:
      return AD_TABLE_LAW_END;
    default:
      return AD_TABLE_LAW_ONCE;
  }
}

/* Sets the rank of a stage to the rank that has the stage's first compute action. */
static void put_stage(ad_table_index *index, ad_table_spot at) {
  const ad_action *action = &index->table->rows[at.rank].actions[at.place];
  if (ad_action_record_of(action->kind)->part == AD_TABLE_COMPUTE && index->rank_of[action->stage] < 0)
    index->rank_of[action->stage] = at.rank;
}

/* Enters the position of an action. Adds a fault if the action was entered before, or if it is a transfer between
 * stages without an edge. */
static void put_spot(ad_table_index *index, ad_table_spot at, ad_table_faults *faults) {
  const ad_action *action = &index->table->rows[at.rank].actions[at.place];
  size_t cell = cell_of(index, at.rank, action);
  if (cell == SIZE_MAX && ad_action_is_transfer(action->kind))
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, at,
                      "stages %d and %d are not connected, so nothing is transferred; leave this action out",
                      action->stage, ad_action_peer(action));
  if (cell == SIZE_MAX) return;
  uint64_t *spot = &index->spots[action->kind][cell];
  ad_table_spot before = unpacked(*spot);
  if (*spot)
    ad_table_fault_at(faults, law_of(action->kind), index->table, at,
                      "the same action is also at place %d of rank %d; keep only one of the two", before.place,
                      before.rank);
  else
    *spot = packed(at);
}

/* Enters all actions of the table; adds a fault for each stage without compute actions. */
static void put_all(ad_table_index *index, ad_table_faults *faults) {
  const ad_table *table = index->table;
  for (int32_t s = 0; s < table->stages; s++) index->rank_of[s] = -1;
  for (int32_t r = 0; r < table->ranks; r++) {
    index->first[r + 1] = index->first[r] + table->rows[r].count;
    for (size_t i = 0; i < table->rows[r].count; i++) {
      ad_table_spot at = {r, (int32_t)i};
      put_stage(index, at);
      put_spot(index, at, faults);
    }
  }
  for (int32_t s = 0; s < table->stages; s++)
    if (index->rank_of[s] < 0)
      ad_table_fault_of(
          faults, AD_TABLE_LAW_STAGES, -1, s, -1,
          "no rank computes stage %d, but the table has %d stages; add the F and B of this stage to a rank's list", s,
          table->stages);
}

/* Lists the edges from and to each stage. Edges are sorted by their first stage. */
static void put_edges(ad_table_index *index) {
  size_t stages = (size_t)index->table->stages;
  for (size_t e = 0; e < index->edges; e++) {
    ad_stage_edge edge = ad_table_edge(index->table, e);
    index->out_first[edge.from + 1]++;
    index->in_first[edge.to + 1]++;
  }
  for (size_t s = 0; s < stages; s++) {
    index->out_first[s + 1] += index->out_first[s];
    index->in_first[s + 1] += index->in_first[s];
  }
  for (size_t e = index->edges; e-- > 0;) index->in[--index->in_first[ad_table_edge(index->table, e).to + 1]] = e;
  for (size_t s = 0; s < stages; s++) index->in_first[s] = index->in_first[s + 1];
  index->in_first[stages] = index->edges;
}

static ad_status allocate(ad_table_index *index) {
  size_t stages = (size_t)index->table->stages;
  AD_TRY(ad_new(stages + 1, &index->out_first));
  AD_TRY(ad_new(stages + 1, &index->in_first));
  AD_TRY(ad_new(index->edges, &index->in));
  AD_TRY(ad_new((size_t)index->table->stages, &index->rank_of));
  AD_TRY(ad_new((size_t)index->table->ranks + 1, &index->first));
  for (int kind = 0; kind < AD_ACTION_COUNT; kind++)
    AD_TRY(ad_new(cells_of(index, (ad_action_kind)kind), &index->spots[kind]));
  return AD_OK;
}

ad_status ad_table_index_create(const ad_table *table, ad_table_index *out, ad_table_faults *faults) {
  *out = (ad_table_index){.table = table, .edges = ad_table_edge_count(table)};
  ad_status status = allocate(out);
  if (status) {
    ad_table_index_destroy(out);
    return status;
  }
  put_edges(out);
  put_all(out, faults);
  return AD_OK;
}

void ad_table_index_destroy(ad_table_index *index) {
  for (int kind = 0; kind < AD_ACTION_COUNT; kind++) ad_release(index->spots[kind]);
  ad_release(index->out_first);
  ad_release(index->in_first);
  ad_release(index->in);
  ad_release(index->rank_of);
  ad_release(index->first);
  *index = (ad_table_index){0};
}

/* ---- finding actions in the index ---- */

ad_table_spot ad_table_find(const ad_table_index *index, ad_action_kind kind, int32_t stage, int32_t microbatch) {
  return unpacked(index->spots[kind][(size_t)stage * (size_t)index->table->microbatches + (size_t)microbatch]);
}

ad_table_spot ad_table_find_transfer(const ad_table_index *index, ad_action_kind kind, size_t edge,
                                     int32_t microbatch) {
  return unpacked(index->spots[kind][edge * (size_t)index->table->microbatches + (size_t)microbatch]);
}

ad_table_spot ad_table_find_on(const ad_table_index *index, ad_action_kind kind, int32_t rank) {
  return unpacked(index->spots[kind][rank]);
}

ad_table_spot ad_table_find_stage(const ad_table_index *index, ad_action_kind kind, int32_t stage) {
  return unpacked(index->spots[kind][stage]);
}

ad_table_spot ad_table_find_backward(const ad_table_index *index, int32_t stage, int32_t microbatch) {
  ad_table_spot whole = ad_table_find(index, AD_ACTION_B, stage, microbatch);
  return whole.rank < 0 ? ad_table_find(index, AD_ACTION_I, stage, microbatch) : whole;
}

size_t ad_table_number(const ad_table_index *index, ad_table_spot at) {
  return index->first[at.rank] + (size_t)at.place;
}

int ad_table_edge_crosses(const ad_table_index *index, size_t edge) {
  ad_stage_edge at = ad_table_edge(index->table, edge);
  return index->rank_of[at.from] != index->rank_of[at.to];
}

int ad_table_edge_travels(const ad_table_index *index, size_t edge) {
  return (index->table->parts & AD_TABLE_TRANSFERS) && ad_table_edge_crosses(index, edge);
}
