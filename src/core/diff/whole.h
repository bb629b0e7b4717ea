/* A reference's values of one parameter: one tensor that is the whole, or the sums of another dump put together. */
#ifndef DIFF_WHOLE_H
#define DIFF_WHOLE_H
#include "diff/part.h"

typedef struct ad_whole {
  const ad_parts *parts;      /* of the dump that is compared */
  const ad_dump_param *param; /* the reference's; NULL: one tensor that is the whole */
  ad_piece *pieces;
  size_t count; /* 0: the reference has not this parameter */
  ad_sampled_lists sampled;
} ad_whole;

/* *out is for ad_whole_clear, whatever the status. AD_INVALID: the reference has it in another shape. */
ad_status ad_whole_find(const ad_parts *parts, const ad_dump *reference, ad_whole *out) AD_CHECKED;
void ad_whole_clear(ad_whole *whole);
/* The reference's value of an element of a part; NaN: it has none. */
double ad_whole_value(const ad_whole *whole, const ad_part *part, size_t element);
/* Whether no earlier part has the same elements: of copies the first is compared. */
int ad_is_first_of_its_box(const ad_parts *parts, size_t index);

#endif
