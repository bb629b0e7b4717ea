/* The samples in boxes; the list of each box is made once and shared. */
#ifndef DIFF_SAMPLED_H
#define DIFF_SAMPLED_H
#include "read/dump.h"

typedef struct ad_sampled_lists {
  ad_sampled **lists;
  size_t count;
} ad_sampled_lists;

/* The list of this box, which lives until ad_sampled_clear; NULL if the parameter is not sampled. */
ad_status ad_sampled_find(ad_sampled_lists *lists, const ad_dump_param *param, const ad_box *box,
                          const ad_sampled **out) AD_CHECKED;
void ad_sampled_clear(ad_sampled_lists *lists);
/* The index in the list of sample k, or of the first sample after it. */
size_t ad_sample_place(const ad_sampled *list, int64_t k);

#endif
