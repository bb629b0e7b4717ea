/* A reference's values of one parameter: one tensor with all elements, or the sums of another dump. */
#ifndef DIFF_FULL_H
#define DIFF_FULL_H
#include "read/part.h"

/* The tensors of the reference that together contain the parameter. */
typedef struct ad_full {
  const ad_parts *parts;      /* the parts that are compared with the reference */
  const ad_dump_param *param; /* the reference's parameter; NULL: the reference is a file of full gradients */
  ad_piece *pieces;
  size_t count; /* number of pieces; 0: the reference does not have this parameter */
  ad_sampled_lists sampled;
} ad_full;

/* Finds the reference's tensors of a parameter. *out must be cleared by ad_full_clear, whatever the status. AD_INVALID:
 * the reference has the parameter in another shape. */
ad_status ad_full_find(const ad_parts *parts, const ad_dump *reference, ad_full *out) AD_CHECKED;
void ad_full_clear(ad_full *full);
/* Returns the reference's value of an element of a part, or NaN if the reference does not have the element. */
double ad_full_value(const ad_full *full, const ad_part *part, size_t element);

#endif
