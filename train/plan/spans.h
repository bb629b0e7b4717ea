/* Positions on one axis, or on several neighbouring axes, grouped into runs that have parts of the same sizes. */
#ifndef PLAN_SPANS_H
#define PLAN_SPANS_H
#include "addend/layout.h"

/* How an axis cuts a dimension of n elements into parts. */
typedef struct ad_cut_asked {
  int64_t n;
  int zigzag;
} ad_cut_asked;

/* Neighbouring positions whose parts have the same sizes, for every cut. Runs of the same class have parts of the same
 * sizes. */
typedef struct ad_run_of_positions {
  int64_t first, count, class;
} ad_run_of_positions;
/* All positions of one axis, or of several axes together. */
typedef struct ad_positions {
  int64_t size;              /* number of positions */
  ad_run_of_positions *runs; /* in order, without gaps */
  size_t count;
  int64_t classes; /* number of classes; they are numbered from 0 */
} ad_positions;
void ad_positions_release(ad_positions *positions);

/* Finds the runs of positions 0 to size - 1 of one axis; `cuts` are all cuts along it. With `apart`, position 0 is a
 * class of its own. The work grows with the elements that are cut, not with the positions. Returns AD_INVALID if there
 * are too many runs. */
ad_status ad_positions_of(int64_t size, const ad_cut_asked *cuts, size_t count, int apart,
                          ad_positions *out) AD_CHECKED;
/* Sets *out to the positions of two axes together, numbered (position on slow) * fast->size + (position on fast).
 * Releases `slow` and `fast`. */
ad_status ad_positions_nest(ad_positions *slow, ad_positions *fast, ad_positions *out) AD_CHECKED;
/* Sets *out to the positions that a and b both describe. In *out two positions are in different classes if their
 * classes in a or in b differ. Releases `a` and `b`. */
ad_status ad_positions_join(ad_positions *a, ad_positions *b, ad_positions *out) AD_CHECKED;

#endif
