/* 1F1B: each stage first performs one forward for each stage that follows it, then one forward and one backward
 * alternately. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
 * 2021. */
#include "schedule/generate.h"

static ad_status put_row(ad_table *table, const ad_table_shape *shape, int32_t rank) {
  int32_t count = shape->microbatches, ahead = shape->stages - 1 - rank;
  if (ahead > count) ahead = count;
  for (int32_t m = 0; m < count + ahead; m++) {
    if (m < count) AD_TRY(ad_table_put(table, rank, AD_ACTION_F, rank, m));
    if (m >= ahead) AD_TRY(ad_table_put(table, rank, AD_ACTION_B, rank, m - ahead));
  }
  return AD_OK;
}

ad_status ad_table_one_f_one_b(ad_table *table, const ad_table_shape *shape) {
  for (int32_t rank = 0; rank < shape->ranks; rank++) AD_TRY(put_row(table, shape, rank));
  return AD_OK;
}
