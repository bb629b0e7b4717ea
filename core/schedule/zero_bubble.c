/* ZB-H1: the order of 1F1B with I in place of B, so that the stage before does not wait for the weights' gradient. Rank
 * r performs the W of a microbatch r microbatches after its I. So rank r performs the last r of its W at the end, at a
 * time when it would wait in 1F1B. Qi et al., Zero Bubble Pipeline Parallelism, 2023. */
#include "schedule/generate.h"

// Adds a rank's actions: F is `ahead` microbatches ahead of I, and W is `rank` microbatches behind I.
static ad_status put_row(ad_table *table, const ad_table_shape *shape, int32_t rank) {
  int32_t count = shape->microbatches, ahead = shape->stages - 1 - rank;
  if (ahead > count) ahead = count;
  int32_t behind = ahead + rank;
  for (int32_t m = 0; m < count + behind; m++) {
    if (m < count) AD_TRY(ad_table_put(table, rank, AD_ACTION_F, rank, m));
    if (m >= ahead && m - ahead < count) AD_TRY(ad_table_put(table, rank, AD_ACTION_I, rank, m - ahead));
    if (m >= behind) AD_TRY(ad_table_put(table, rank, AD_ACTION_W, rank, m - behind));
  }
  return AD_OK;
}

ad_status ad_table_zero_bubble(ad_table *table, const ad_table_shape *shape) {
  for (int32_t rank = 0; rank < shape->ranks; rank++) AD_TRY(put_row(table, shape, rank));
  return AD_OK;
}
