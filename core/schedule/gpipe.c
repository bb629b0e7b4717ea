/* GPipe: all forwards, then all backwards. Huang et al., GPipe, 2018. If a rank has several stages, it runs all
 * microbatches through one stage before the next stage, as in Lamy-Poirier, Breadth-First Pipeline Parallelism,
 * 2022. */
#include "schedule/generate.h"

static ad_status put_row(ad_table *table, const ad_table_shape *shape, int32_t rank) {
  int32_t last = shape->stages - shape->ranks + rank;
  for (int32_t stage = rank; stage <= last; stage += shape->ranks)
    for (int32_t m = 0; m < shape->microbatches; m++) AD_TRY(ad_table_put(table, rank, AD_ACTION_F, stage, m));
  for (int32_t stage = last; stage >= rank; stage -= shape->ranks)
    for (int32_t m = 0; m < shape->microbatches; m++) AD_TRY(ad_table_put(table, rank, AD_ACTION_B, stage, m));
  return AD_OK;
}

ad_status ad_table_gpipe(ad_table *table, const ad_table_shape *shape) {
  for (int32_t rank = 0; rank < shape->ranks; rank++) AD_TRY(put_row(table, shape, rank));
  return AD_OK;
}
