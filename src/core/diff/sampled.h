/* The sampled elements of boxes, each box's list made once. */
#ifndef DIFF_SAMPLED_H
#define DIFF_SAMPLED_H
#include "diff/dump.h"

typedef struct ad_sampled_lists {
  ad_sampled **lists;
  size_t count;
} ad_sampled_lists;

/* The list of this box; NULL where the parameter is not sampled. It lives until clear. */
ad_status ad_sampled_find(ad_sampled_lists *lists, const ad_dump_param *param, const ad_box *box,
                          const ad_sampled **out) AD_CHECKED;
void ad_sampled_clear(ad_sampled_lists *lists);
/* The place of number k in the list, or of the first behind it. */
size_t ad_sample_place(const ad_sampled *list, int64_t k);

#endif
