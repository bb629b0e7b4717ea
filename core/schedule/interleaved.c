/* Interleaved 1F1B, in the order of Megatron-LM (Narayanan et al., 2021). Microbatches form groups of as many as there
 * are ranks; a group goes through all stages of a rank before the next group does. If the last group is not full, the
 * order is made for a full group, and the missing microbatches are left out: a table stays right if all actions of a
 * microbatch are left out. */
#include "schedule/generate.h"

/* What determines the k-th compute action of a rank. Backward goes through the rank's stages in the opposite order. */
typedef struct chunk_order {
  const ad_table_shape *shape;
  int32_t rank, per_rank;
} chunk_order;

static ad_status add_chunk_action(ad_table *table, const chunk_order *order, ad_action_kind kind, int32_t k) {
  int32_t ranks = order->shape->ranks, in_group = k % (ranks * order->per_rank);
  int32_t chunk = in_group / ranks, microbatch = k / (ranks * order->per_rank) * ranks + in_group % ranks;
  if (kind == AD_ACTION_B) chunk = order->per_rank - 1 - chunk;
  if (microbatch >= order->shape->microbatches) return AD_OK;
  return ad_table_put(table, order->rank, kind, chunk * ranks + order->rank, microbatch);
}

/* Adds a rank's actions: `ahead` forwards, then one forward and one backward alternately, then the remaining
 * backwards. */
static ad_status put_row(ad_table *table, const chunk_order *order) {
  int32_t ranks = order->shape->ranks, groups = (order->shape->microbatches + ranks - 1) / ranks;
  int32_t count = groups * ranks * order->per_rank;
  int32_t ahead = 2 * (ranks - 1 - order->rank) + (order->per_rank - 1) * ranks;
  if (ahead > count) ahead = count;
  for (int32_t k = 0; k < count + ahead; k++) {
    if (k < count) AD_TRY(add_chunk_action(table, order, AD_ACTION_F, k));
    if (k >= ahead) AD_TRY(add_chunk_action(table, order, AD_ACTION_B, k - ahead));
  }
  return AD_OK;
}

ad_status ad_table_interleaved(ad_table *table, const ad_table_shape *shape) {
  chunk_order order = {shape, 0, shape->stages / shape->ranks};
  if (order.per_rank == 1) return ad_table_one_f_one_b(table, shape);
  for (; order.rank < shape->ranks; order.rank++) AD_TRY(put_row(table, &order));
  return AD_OK;
}
