/* Makes a run's table of actions, and finds out how much memory its lists need. */
#include "step/order.h"

#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"

/* ---- edges: which phase gives values to which other phase ---- */

typedef struct edge {
  int32_t from, to;
  ad_stage_way way;
} edge;

typedef struct edges {
  const ad_program *program;
  edge *list;
  size_t count, capacity;
} edges;

static const ad_mesh *mesh_of(const ad_program *program, size_t phase) {
  return ad_program_mesh(program, program->phases[phase].module);
}

static int have_same_ranks(const ad_program *program, size_t a, size_t b) {
  return ad_mesh_same_ranks(mesh_of(program, a), mesh_of(program, b));
}

static int needs(const ad_program *program, size_t phase, size_t value) {
  return ad_phase_lists(program->phases[phase].needs, program->values[value]);
}

size_t ad_order_first_to_need(const ad_program *program, size_t value, size_t module) {
  size_t p = 0;
  while (p < program->phase_count && !(program->phases[p].module == module && needs(program, p, value))) p++;
  return p;
}

static ad_status add_edge(edges *to, size_t from, size_t phase, ad_stage_way way) {
  if (to->count == to->capacity) {
    size_t capacity = 2 * to->capacity + 8;
    AD_TRY(ad_grow(&to->list, to->capacity, capacity));
    to->capacity = capacity;
  }
  to->list[to->count++] = (edge){(int32_t)from, (int32_t)phase, way};
  return AD_OK;
}

/* Adds the edge along which phase `p` gets a value of phase `giver`. If `giver` runs on other ranks, a module receives
 * the value only once: its first phase that needs the value receives it, and later phases of the module get it from
 * that phase. */
static ad_status add_need(edges *to, size_t giver, size_t value, size_t p) {
  const ad_program *program = to->program;
  size_t module = program->phases[p].module, first = ad_order_first_to_need(program, value, module);
  const ad_transfer_spec *transfer = ad_program_transfer_of(program, value, module);
  ad_stage_way way = transfer && transfer->one_way ? AD_STAGE_ONE_WAY : AD_STAGE_BOTH_WAYS;
  if (first == p || have_same_ranks(program, giver, p)) return add_edge(to, giver, p, way);
  return add_edge(to, first, p, way);
}

static ad_status add_needs_of(edges *to, size_t giver, size_t value) {
  for (size_t p = giver + 1; p < to->program->phase_count; p++)
    if (needs(to->program, p, value)) AD_TRY(add_need(to, giver, value, p));
  return AD_OK;
}

static ad_status find_edges(edges *to) {
  const ad_program *program = to->program;
  for (size_t p = 0; p < program->phase_count; p++)
    for (size_t v = 0; v < program->value_count; v++)
      if (ad_phase_lists(program->phases[p].gives, program->values[v])) AD_TRY(add_needs_of(to, p, v));
  return AD_OK;
}

/* Compares edges by their phases. Of several edges between the same phases, those with a gradient that comes back are
 * sorted first. */
static int by_phases(const void *a, const void *b) {
  const edge *x = a, *y = b;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  return (x->way == AD_STAGE_ONE_WAY) - (y->way == AD_STAGE_ONE_WAY);
}

static ad_status connect_all(const edges *all, ad_table *table) {
  for (size_t i = 0; i < all->count; i++) {
    const edge *e = &all->list[i];
    if (i && e[-1].from == e->from && e[-1].to == e->to) continue;
    AD_TRY(ad_table_connect(table, e->from, e->to, e->way));
  }
  return AD_OK;
}

static ad_status connect(const ad_program *program, ad_table *table) {
  edges all = {.program = program};
  ad_status status = find_edges(&all);
  if (all.count) qsort(all.list, all.count, sizeof *all.list, by_phases);
  if (!status) status = connect_all(&all, table);
  ad_release(all.list);
  return status;
}

/* ---- sets of ranks ---- */

/* Returns the index of the set of ranks on which a phase runs. Sets are numbered in the order of their first phases. */
static int32_t set_of(const ad_program *program, const int32_t *sets, size_t phase, int32_t *count) {
  for (size_t p = 0; p < phase; p++)
    if (have_same_ranks(program, p, phase)) return sets[p];
  return (*count)++;
}

/* Finds the set of ranks of each phase, and the number of sets. *sets must be released. */
static ad_status find_sets(const ad_program *program, int32_t **sets, int32_t *count) {
  *count = 0;
  AD_TRY(ad_new(program->phase_count, sets));
  for (size_t p = 0; p < program->phase_count; p++) (*sets)[p] = set_of(program, *sets, p, count);
  return AD_OK;
}

static ad_status find_place(const ad_program *program, const int32_t *sets, int64_t rank, int32_t *out) {
  *out = -1;
  for (size_t p = 0; p < program->phase_count; p++) {
    if (!ad_mesh_has_rank(mesh_of(program, p), rank)) continue;
    if (*out >= 0 && *out != sets[p])
      return ad_fail(AD_INVALID,
                     "phase `%s` and an earlier phase share rank %lld, but not all their ranks; give the modules of "
                     "two phases the same ranks, or none in common",
                     program->phases[p].name, (long long)rank);
    *out = sets[p];
  }
  return AD_OK;
}

/* ---- creating the run's table of actions ---- */

static ad_status lower(ad_table *table) {
  ad_table_lowering lowering = {
      .size = sizeof lowering, .parts = AD_TABLE_TRANSFERS | AD_TABLE_REDUCTIONS, .reduces_each = 1};
  return ad_table_lower(table, &lowering);
}

static ad_status make_leads(const ad_program *program, const int32_t *sets, int32_t count, size_t microbatches,
                            ad_table **out) {
  AD_TRY(ad_table_create(count, out));
  AD_TRY(connect(program, *out));
  AD_TRY(ad_table_add_leads(*out, sets, (int32_t)program->phase_count, (int32_t)microbatches));
  return lower(*out);
}

/* Makes the table of a pipeline: phase s is stage s, and runs on set s modulo the number of sets. */
static ad_status make_schedule(const ad_program *program, const char *schedule, int32_t count, size_t microbatches,
                               ad_table **out) {
  ad_table_shape shape = {sizeof shape, (int32_t)program->phase_count, (int32_t)microbatches, count};
  AD_TRY(ad_table_make(schedule, &shape, out));
  AD_TRY(connect(program, *out));
  return lower(*out);
}

ad_status ad_order_create(const ad_program *program, int64_t rank, size_t microbatches, const char *schedule,
                          ad_order *out) {
  int32_t *sets, count;
  *out = (ad_order){.place = -1};
  AD_TRY(find_sets(program, &sets, &count));
  ad_status status = find_place(program, sets, rank, &out->place);
  if (!status && schedule) status = make_schedule(program, schedule, count, microbatches, &out->own);
  if (!status && !schedule) status = make_leads(program, sets, count, microbatches, &out->own);
  ad_release(sets);
  out->table = out->own;
  if (status) ad_order_release(out);
  return status;
}

ad_status ad_order_share(const ad_program *program, int64_t rank, const ad_table *table, ad_order *out) {
  int32_t *sets, count;
  *out = (ad_order){.table = table, .place = -1};
  AD_TRY(find_sets(program, &sets, &count));
  ad_status status = find_place(program, sets, rank, &out->place);
  ad_release(sets);
  return status;
}

ad_status ad_order_take(ad_order *order, const ad_program *program, ad_table *table) {
  AD_TRY(connect(program, table));
  AD_TRY(lower(table));
  ad_order_replace(order, table);
  return AD_OK;
}

void ad_order_replace(ad_order *order, ad_table *table) {
  ad_table_destroy(order->own);
  order->table = order->own = table;
}

void ad_order_release(ad_order *order) {
  ad_table_destroy(order->own);
  *order = (ad_order){.place = -1};
}

/* ---- reading this rank's list of actions ---- */

size_t ad_order_count(const ad_order *order) {
  return order->place < 0 ? 0 : ad_table_action_count(order->table, order->place);
}

const ad_action *ad_order_at(const ad_order *order, size_t index) {
  return ad_table_action(order->table, order->place, index);
}

/* Sets ends[m] to the index after the last action that uses the memory of microbatch m. */
static void find_ends(const ad_order *order, ad_order_use use, size_t *ends) {
  for (size_t i = 0; i < ad_order_count(order); i++) {
    const ad_action *action = ad_order_at(order, i);
    if (action->microbatch >= 0 && use.uses(use.context, action)) ends[action->microbatch] = i + 1;
  }
}

static size_t most_at_once(const ad_order *order, ad_order_use use, const size_t *ends) {
  size_t most = 1, oldest = 0, newest = 0;
  for (size_t i = 0; i < ad_order_count(order); i++) {
    const ad_action *action = ad_order_at(order, i);
    if (action->microbatch < 0 || !use.uses(use.context, action)) continue;
    if (newest < (size_t)action->microbatch) newest = (size_t)action->microbatch;
    while (oldest < newest && ends[oldest] <= i) oldest++;
    if (most < newest - oldest + 1) most = newest - oldest + 1;
  }
  return most;
}

ad_status ad_order_most_at_once(const ad_order *order, ad_order_use use, size_t *out) {
  size_t *ends;
  AD_TRY(ad_new((size_t)ad_table_microbatch_count(order->table), &ends));
  find_ends(order, use, ends);
  *out = most_at_once(order, use, ends);
  ad_release(ends);
  return AD_OK;
}
