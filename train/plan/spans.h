/* Positions on one axis, or on several neighbouring axes, grouped into runs that hold parts of the same sizes. */
#ifndef PLAN_SPANS_H
#define PLAN_SPANS_H
#include "addend/layout.h"

/* A cut of a dimension of n elements along an axis. */
typedef struct ad_cut_asked {
  int64_t n;
  int zigzag;
} ad_cut_asked;

/* Neighbouring positions that hold parts of the same sizes of every cut. Runs of one class hold the same sizes, too. */
typedef struct ad_run_of_positions {
  int64_t first, count, class;
} ad_run_of_positions;
/* All positions of an axis, or of several. */
typedef struct ad_positions {
  int64_t size;              /* number of positions */
  ad_run_of_positions *runs; /* in order, without gaps */
  size_t count;
  int64_t classes; /* number of classes, which count from 0 */
} ad_positions;
void ad_positions_release(ad_positions *positions);

/* Finds the runs of the positions 0 .. size-1 of one axis, given all cuts along it. `apart`: position 0 is a separate
 * class. The work grows with the elements that are cut, not with the positions. AD_INVALID:
 * there are too many runs. */
ad_status ad_positions_of(int64_t size, const ad_cut_asked *cuts, size_t count, int apart,
                          ad_positions *out) AD_CHECKED;
/* *out = the positions of two axes together, numbered (position on slow) * fast->size + (position on fast).
 * Releases `slow` and `fast`. */
ad_status ad_positions_nest(ad_positions *slow, ad_positions *fast, ad_positions *out) AD_CHECKED;
/* *out = the same positions as a's and b's, with classes that differ wherever a's or b's classes differ. Releases `a`
 * and `b`. */
ad_status ad_positions_join(ad_positions *a, ad_positions *b, ad_positions *out) AD_CHECKED;

#endif
