/* Positions on an axis, or on several neighbouring axes, in runs that hold parts of the same sizes. */
#ifndef PLAN_SPANS_H
#define PLAN_SPANS_H
#include "addend/layout.h"

/* A cut of n elements along an axis. */
typedef struct ad_cut_asked {
  int64_t n;
  int zigzag;
} ad_cut_asked;

/* Neighbouring positions that no cut tells apart. Positions of one class, wherever they lie, hold as much. */
typedef struct ad_run_of_positions {
  int64_t first, count, class;
} ad_run_of_positions;
typedef struct ad_positions {
  int64_t size;              /* positions */
  ad_run_of_positions *runs; /* in order, without gaps */
  size_t count;
  int64_t classes; /* numbered from 0 */
} ad_positions;
void ad_positions_release(ad_positions *positions);

/* The positions 0 .. size-1 of one axis by what they hold of all the cuts; `apart`: position 0 is a class of its own.
 * The work grows with the elements that are cut, not with the positions. AD_INVALID where there are more runs than a
 * plan can look at. */
ad_status ad_positions_of(int64_t size, const ad_cut_asked *cuts, size_t count, int apart,
                          ad_positions *out) AD_CHECKED;
/* Takes `slow` and `fast` and gives the positions of both axes together: position of slow * fast->size + of fast. */
ad_status ad_positions_nest(ad_positions *slow, ad_positions *fast, ad_positions *out) AD_CHECKED;
/* Takes two ways to tell the same positions apart and gives their common one. */
ad_status ad_positions_join(ad_positions *a, ad_positions *b, ad_positions *out) AD_CHECKED;

#endif
