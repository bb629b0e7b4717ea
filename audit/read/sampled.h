/* Lists of the samples that lie in boxes. The list of each box is made once and shared by all tensors with this box. */
#ifndef DIFF_SAMPLED_H
#define DIFF_SAMPLED_H
#include "read/dump.h"

typedef struct ad_sampled_lists {
  ad_sampled **lists;
  size_t count;
} ad_sampled_lists;

/* Sets *out to the list of this box, which lives until ad_sampled_clear, or to NULL if the parameter is not sampled. */
ad_status ad_sampled_find(ad_sampled_lists *lists, const ad_dump_param *param, const ad_box *box,
                          const ad_sampled **out) AD_CHECKED;
void ad_sampled_clear(ad_sampled_lists *lists);
/* Returns the index in the list of sample k or, if the list does not have it, of the first sample after k. */
size_t ad_sample_place(const ad_sampled *list, int64_t k);

#endif
