/* The order of a program's phases (stages): each microbatch goes forward through all phases and then back. A stage that
 * passes its value to another rank is one microbatch ahead of that rank, so that both ranks work in parallel. If all
 * stages lie on one rank, this order is gradient accumulation. */
#include "schedule/generate.h"

#include "base/error.h"
#include "base/text.h"
#include "base/memory.h"

typedef struct lead_order {
  const int32_t *rank_of;
  int32_t *lead; /* for each stage: number of microbatches by which it is ahead of the last stages */
  int32_t stages, microbatches, most;
} lead_order;

/* Sets the lead of a stage: the largest lead of the stages to which it passes its value, where stages on other ranks
 * count one more. */
static void find_lead(const ad_table *table, lead_order *order, int32_t stage) {
  for (size_t e = 0; e < ad_table_edge_count(table); e++) {
    ad_stage_edge edge = ad_table_edge(table, e);
    if (edge.from != stage) continue;
    int32_t least = order->lead[edge.to] + (order->rank_of[edge.to] != order->rank_of[stage]);
    if (order->lead[stage] < least) order->lead[stage] = least;
  }
  if (order->most < order->lead[stage]) order->most = order->lead[stage];
}

/* Adds the forward of each stage, for microbatch m plus the stage's lead, and then the backwards of microbatch m. */
static ad_status put_microbatch(ad_table *table, const lead_order *order, int32_t m) {
  for (int32_t s = 0; s < order->stages; s++) {
    int32_t own = m + order->lead[s];
    if (own >= 0 && own < order->microbatches) AD_TRY(ad_table_put(table, order->rank_of[s], AD_ACTION_F, s, own));
  }
  for (int32_t s = order->stages; m >= 0 && s-- > 0;) AD_TRY(ad_table_put(table, order->rank_of[s], AD_ACTION_B, s, m));
  return AD_OK;
}

static ad_status put_order(ad_table *table, lead_order *order) {
  for (int32_t s = order->stages; s-- > 0;) find_lead(table, order, s);
  for (int32_t m = -order->most; m < order->microbatches; m++) AD_TRY(put_microbatch(table, order, m));
  return AD_OK;
}

static ad_status check_shape(const ad_table *table, const int32_t *rank_of, int32_t stages, int32_t microbatches) {
  ad_table_shape shape = {sizeof shape, stages, microbatches, table->ranks};
  AD_TRY(ad_table_check_shape(&shape));
  if (table->action_count)
    return ad_fail(
        AD_INVALID,
        "the table already has actions, but schedule 'leads' can only fill an empty table; create a new table");
  if (table->edge_count && table->stages > stages)
    return ad_fail(AD_INVALID,
                   "the table connects stage %d, but 'leads' was called for %d stage%s, counted from 0; call it for at "
                   "least %d stages, or connect no later stage",
                   table->stages - 1, stages, ad_plural(stages), table->stages);
  for (int32_t s = 0; s < stages; s++)
    if (rank_of[s] < 0 || rank_of[s] >= table->ranks)
      return ad_fail(
          AD_INVALID,
          "stage %d must be on one of the ranks 0 to %d, but is on rank %d; give the stage one of these ranks", s,
          table->ranks - 1, rank_of[s]);
  return AD_OK;
}

ad_status ad_table_add_leads(ad_table *table, const int32_t *rank_of, int32_t stages, int32_t microbatches) {
  AD_NEED(table, rank_of);
  AD_TRY(check_shape(table, rank_of, stages, microbatches));
  lead_order order = {rank_of, NULL, stages, microbatches, 0};
  AD_TRY(ad_new((size_t)stages, &order.lead));
  table->stages = stages; /* without declared edges, the stages are a chain of this length */
  ad_status status = put_order(table, &order);
  ad_release(order.lead);
  return status;
}

ad_status ad_table_leads(ad_table *table, const ad_table_shape *shape) {
  int32_t *rank_of;
  AD_TRY(ad_new((size_t)shape->stages, &rank_of));
  for (int32_t s = 0; s < shape->stages; s++) rank_of[s] = s % shape->ranks;
  ad_status status = ad_table_add_leads(table, rank_of, shape->stages, shape->microbatches);
  ad_release(rank_of);
  return status;
}
