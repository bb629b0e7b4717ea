/* A limit on the tokens of an expert: the expert takes the tokens with the lowest numbers (sample * seq + position) of
 * all ranks, and drops all others. If the numbers of tokens do not depend on the mesh, the dropped tokens do not
 * either. */
#include <math.h>
#include "array/array.h"
#include "tensor/routing.h"
#include "tensor/tape.h"

static ad_status take_indices(ad_tape *tape, size_t count, int64_t **out) {
  *out = ad_arena_take_zeroed(tape->own.arena, count * sizeof **out + 1);
  return *out ? AD_OK : AD_MEMORY;
}

/* ---- numbering the tokens over all ranks ---- */

enum { SPANS = 16 };

static int spans_of(const ad_tape *tape, const ad_array *array, int dim, ad_span *spans) {
  return ad_layout_spans(&array->layout, dim, array->shape.dim[dim], ad_comm_rank(tape->comm), spans, SPANS);
}

/* Sets routing->number: the number of each token of this rank among the tokens of all ranks, sample * seq +
 * position. The tokens are this rank's rows of a batch [samples, seq, ...], in memory order, from row `first` on. */
ad_status ad_routing_number(ad_tape *tape, const ad_array *batch, size_t first, ad_routing *routing, const char *site) {
  ad_span samples[SPANS], positions[SPANS];
  AD_TRY(take_indices(tape, routing->tokens, &routing->number));
  int sample_spans = spans_of(tape, batch, 0, samples), position_spans = spans_of(tape, batch, 1, positions);
  size_t row = 0;
  if (sample_spans > SPANS || position_spans > SPANS)
    return ad_fail(AD_INVALID,
                   "%s: on this rank the batch of `limit` has more than %d separate pieces, the most that are "
                   "supported; shard the batch over fewer axes",
                   site, SPANS);
  for (int i = 0; i < sample_spans; i++)
    for (int64_t s = 0; s < samples[i].count; s++)
      for (int j = 0; j < position_spans; j++)
        for (int64_t p = 0; p < positions[j].count; p++, row++)
          if (row >= first && row < first + routing->tokens)
            routing->number[row - first] = (samples[i].first + s) * batch->shape.dim[1] + positions[j].first + p;
  if (row >= first + routing->tokens) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `limit` got a routing of %zu tokens from row %zu on, but this rank has only %zu rows of the "
                 "batch; give `limit` the batch that was routed",
                 site, routing->tokens, first, row);
}

/* ---- counting the choices of all ranks ---- */

/* Returns the group of ranks that have different tokens. */
static ad_group everyone(const ad_tape *tape, const ad_routing *routing) {
  const ad_array *choices = &routing->choices;
  return ad_array_group(tape->comm, choices, ad_layout_axes_of(&choices->layout, AD_V));
}

/* Sums counts over the ranks that have different tokens. Backend dry assumes that all these ranks have this rank's
 * counts. */
static ad_status sum_counts(ad_tape *tape, const ad_routing *routing, int64_t *counts, size_t n, const char *site) {
  ad_group group = everyone(tape, routing);
  for (size_t i = 0; i < n && tape->dry; i++) counts[i] *= ad_group_size(&group);
  if (tape->dry) return AD_OK;
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = group,
                        .in = counts,
                        .out = counts,
                        .count = n,
                        .dtype = AD_I64,
                        .reduction = AD_SUM,
                        .site = site};
  return ad_comm_run(tape->comm, &call);
}

/* ---- finding the limit of each expert ---- */

/* Number of pivots whose counts are summed in one all-reduce. Bisection would take one all-reduce for each bit of a
 * token's number; 15 pivots divide the range by 16, so a quarter as many all-reduces suffice. */
enum { PIVOTS = 15 };

/* The search for the limits of all experts. */
typedef struct search {
  int64_t capacity;
  /* [experts]: the expert can take all its tokens with numbers below `low`, but not all with numbers below `high` */
  int64_t *low, *high;
  int64_t *below; /* [experts, PIVOTS]: how many tokens that chose the expert have numbers below each pivot */
} search;

static int64_t pivot(const search *s, size_t expert, int i) {
  return s->low[expert] + (s->high[expert] - s->low[expert]) * (i + 1) / (PIVOTS + 1);
}

static void count_below(const ad_routing *routing, search *s) {
  for (size_t i = 0; i < routing->experts * PIVOTS; i++) s->below[i] = 0;
  for (size_t i = 0; i < routing->tokens * routing->top_k; i++) {
    size_t expert = (size_t)routing->expert[i];
    for (int p = 0; p < PIVOTS; p++)
      s->below[expert * PIVOTS + (size_t)p] += routing->number[i / routing->top_k] < pivot(s, expert, p);
  }
}

/* Narrows one expert's range by the counts at its pivots. */
static void narrow(search *s, size_t expert) {
  int64_t low = s->low[expert], high = s->high[expert];
  for (int p = 0; p < PIVOTS && high == s->high[expert]; p++) {
    int64_t at = pivot(s, expert, p);
    if (s->below[expert * PIVOTS + (size_t)p] <= s->capacity)
      low = at;
    else
      high = at;
  }
  s->low[expert] = low;
  s->high[expert] = high;
}

/* Returns 1 if the limit of some expert is not found yet. */
static int is_open(const ad_routing *routing, const search *s) {
  for (size_t e = 0; e < routing->experts; e++)
    if (s->high[e] - s->low[e] > 1) return 1;
  return 0;
}

/* Finds the limits. All ranks see the same sums, so all of them call the same number of all-reduces. */
static ad_status find_limits(ad_tape *tape, ad_routing *routing, search *s, int64_t tokens, const char *site) {
  for (size_t e = 0; e < routing->experts; e++) s->high[e] = tokens + 1;  // one above the largest possible limit
  while (is_open(routing, s)) {
    count_below(routing, s);
    AD_TRY(sum_counts(tape, routing, s->below, routing->experts * PIVOTS, site));
    for (size_t e = 0; e < routing->experts; e++) narrow(s, e);
  }
  routing->limit = s->low;
  return AD_OK;
}

/* ---- applying the limit ---- */

static ad_status take_memory(ad_tape *tape, const ad_routing *routing, search *s) {
  AD_TRY(take_indices(tape, routing->experts, &s->low));
  AD_TRY(take_indices(tape, routing->experts, &s->high));
  return take_indices(tape, routing->experts * PIVOTS, &s->below);
}

/* Returns the number of choices of all ranks. For the worst case of a plan, assumes that each other rank has `crowd`
 * tokens. */
static int64_t count_all_choices(const ad_tape *tape, const ad_routing *routing, const search *s) {
  ad_group group = everyone(tape, routing);
  size_t crowd = tape->options.crowd, others = (size_t)ad_group_size(&group) - 1;
  int64_t sum = 0;
  if (crowd) return (int64_t)((routing->tokens + others * crowd) * routing->top_k);
  for (size_t e = 0; e < routing->experts; e++) sum += s->below[e];
  return sum;
}

/* Sets *overflows if some expert was chosen more often than its capacity. */
static ad_status find_capacity(ad_tape *tape, ad_routing *routing, double capacity, search *s, int *overflows,
                               const char *site) {
  for (size_t e = 0; e < routing->experts; e++) s->below[e] = (int64_t)routing->per_expert[e];
  AD_TRY(sum_counts(tape, routing, s->below, routing->experts, site));
  double sum = (double)count_all_choices(tape, routing, s);
  s->capacity = routing->capacity = (int64_t)fmin(ceil(capacity * sum / (double)routing->experts), 0x1p62);
  for (size_t e = 0; e < routing->experts; e++) *overflows |= s->below[e] > s->capacity;
  return AD_OK;
}

static ad_status limit(ad_tape *tape, ad_routing *routing, double capacity, const ad_array *batch, size_t first,
                       const char *site) {
  search s = {0};
  int overflows = 0;
  if (!(capacity > 0))
    return ad_fail(AD_INVALID, "%s: the capacity of `limit` is %g, but must be above 0; set a larger capacity", site,
                   capacity);
  if (batch->shape.ndim < 2)
    return ad_fail(AD_INVALID, "%s: the batch of `limit` must have at least the two dimensions [samples, seq, ...]",
                   site);
  AD_TRY(take_memory(tape, routing, &s));
  AD_TRY(ad_routing_number(tape, batch, first, routing, site));
  AD_TRY(find_capacity(tape, routing, capacity, &s, &overflows, site));
  // in the worst case of a plan only choices of other ranks are dropped, so this rank needs no limits
  if (!overflows || tape->options.crowd) return AD_OK;
  AD_TRY(find_limits(tape, routing, &s, batch->shape.dim[0] * batch->shape.dim[1], site));
  ad_routing_sort(routing);
  return AD_OK;
}

void ad_limit_at(ad_tape *tape, ad_routing *routing, double capacity, const ad_tensor *batch, size_t first,
                 const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape || ad_tape_failed(tape)) return;
  ad_status status = ad_tape_owns(tape, batch)
                         ? limit(tape, routing, capacity, &batch->array, first, site)
                         : ad_fail(AD_INVALID, "%s: the batch of `limit` is %s; give a tensor of this tape", site,
                                   ad_tape_foreigner(batch));
  if (!status) return;
  ad_tape_fail(tape, status);
  ad_tape_report_error(tape);  // other ranks may wait in the all-reduces of the limit
}
