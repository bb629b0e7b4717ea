/* Interprets a sum once more where the types of some axes are not certain: an assumed or declared I is read as R, and a
 * declared R whose ranks all have the same addends is read as I. */
#ifndef DIFF_ASSUMED_H
#define DIFF_ASSUMED_H
#include "read/part.h"

/* ---- how far the addends of ranks along an axis differ ---- */

typedef enum ad_distance {
  AD_DISTANCE_ALIKE, /* at most the rounding of the same work, in any dtype: 1/16 of the largest element, or less */
  AD_DISTANCE_SAME,  /* at most 64 roundings of a sum, which in a narrow dtype may be more than that */
  AD_DISTANCE_NEAR,  /* by more, but by at most 1/16 of the largest element */
  AD_DISTANCE_APART  /* so clearly that they are different parts of a gradient, or of different data */
} ad_distance;

/* Returns how much addend `a` differs from addend `b`: in the elements of a part of the sum if `local` is 0, else element
 * by element as they lie in memory, whatever their boxes; they must be of one size then. `values` is scratch memory for
 * 2 * AD_ROWS numbers. */
ad_distance ad_addends_distance(const ad_parts *parts, const ad_part *part, const ad_piece *a, const ad_piece *b,
                                int local, double *values);

/* Bit sets of axes, by the largest distance between addends of neighbours along the axis. An axis along which no two
 * addends can be compared is in none. */
typedef struct ad_likeness {
  uint32_t alike, near, apart; /* ALIKE, NEAR, APART */
} ad_likeness;
/* Compares the parameter's addends along `axes`, each of type R or I. */
ad_status ad_likeness_find(const ad_dump *dump, const ad_dump_param *param, uint32_t axes, ad_likeness *out) AD_CHECKED;

/* ---- another interpretation ---- */

typedef enum ad_assumed_kind {
  AD_ASSUMED_NONE,      /* no sum or mean over assumed axes gives the dumped sum */
  AD_ASSUMED_SUM,       /* the dumped sum is the sum over `axes` of addends that differ: these axes are R */
  AD_ASSUMED_MEAN,      /* the mean over `axes` of equal addends, which equals each addend: these axes are I */
  AD_ASSUMED_EITHER,    /* the sum over `axes` of nearly equal addends: R axes, or one gradient counted several times */
  AD_ASSUMED_ESTIMATES, /* the mean over `axes` of addends that differ: estimates of one gradient, or divided too often */
  AD_ASSUMED_UNSUMMED   /* each rank's own addends along `axes`, of declared type R, where all ranks have the same */
} ad_assumed_kind;

typedef struct ad_assumed {
  ad_assumed_kind kind;
  uint32_t axes; /* the axes over which the sum or mean goes, or (UNSUMMED) does not go; 0 for AD_ASSUMED_NONE */
} ad_assumed;

/* Finds another interpretation of a parameter whose sum is wrong by its types, where some of them are assumed or declared.
 */
ad_status ad_assumed_find(const ad_parts *parts, ad_assumed *out) AD_CHECKED;
/* Returns a copy of the parameter with type R on `axes`. */
ad_dump_param ad_assumed_as_summed(const ad_dump_param *param, uint32_t axes);

#endif
