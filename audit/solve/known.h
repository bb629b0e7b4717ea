/* Counts that explained the sums of earlier parameters; they are tried first on later sums. Fitting many addends
 * takes long, so the work of fits is limited. When the limit is reached, sums are only compared with the known counts.
 * Threads may judge parameters at the same time, but use `ad_known` in the parameters' order: a call waits until
 * ad_known_pass was called for every earlier parameter. So the result is the same as with one thread. */
#ifndef DIFF_KNOWN_H
#define DIFF_KNOWN_H
#include <pthread.h>
#include "solve/explain.h"

/* AD_KNOWN_COUNTS: how many explanations are kept. A part of at most AD_KNOWN_MANY addends is always fitted. */
enum { AD_KNOWN_COUNTS = 16, AD_KNOWN_MANY = 64 };
enum { AD_KNOWN_OTHERS = 16 }; /* at most this many counts may differ from `usual` */

/* The counts that explained one part. */
typedef struct ad_known_counts {
  double *counts; /* [rank][microbatch]; NaN: the part has no such addend */
  int64_t holder; /* the rank whose sum these counts explained */
  /* is_plain 1: all counts are `usual`, except counts[others[0]], counts[others[1]], ... */
  int is_plain;
  double usual;
  size_t others[AD_KNOWN_OTHERS], other_count;
} ad_known_counts;

struct ad_known {
  const ad_dump *dump;
  ad_known_counts list[AD_KNOWN_COUNTS]; /* kept counts; those that explained a part most recently come first */
  size_t count;
  int64_t *rank_at;    /* for each position in the mesh, row-major: the rank at this position */
  int alone;           /* 1: while one parameter is judged, other parameters' values must not be read */
  double compared;     /* work spent so far on comparisons with other parameters, in values */
  double fitted, weak; /* multiplications spent so far on fits of wrong parts, and of right parts */
  /* Only one parameter at a time may use the fields above: the first one for which ad_known_pass was not called yet. */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  size_t turn;           /* index of the first parameter for which ad_known_pass was not called yet */
  unsigned char *passed; /* [parameter]: 1 once ad_known_pass was called for it */
};

ad_status ad_known_create(const ad_dump *dump, ad_known *out) AD_CHECKED;
void ad_known_destroy(ad_known *known);
/* Ends the use of `known` for this parameter; no other call for this parameter may follow. A second ad_known_pass does
 * nothing. Every parameter must pass, or later parameters wait forever. */
void ad_known_pass(ad_known *known, const ad_dump_param *param);
/* Which limit on work a fit counts against: that of fits of wrong parts, or that of the weaker fits of right parts. */
typedef enum ad_known_fit { AD_KNOWN_FIT, AD_KNOWN_WEAK_FIT } ad_known_fit;
/* Returns 1 if the limit allows a fit of n addends over `rows` elements, and then counts its work as spent. Fits of at
 * most AD_KNOWN_MANY addends are always allowed. */
int ad_known_affords(ad_known *known, const ad_dump_param *param, ad_known_fit fit, size_t n, size_t rows);
/* Returns 1 if the limit on work allows a comparison of a part with other parameters' values, and then counts its work
 * as spent. */
int ad_known_compares(ad_known *known, const ad_dump_param *param);
/* Tries known counts on a part of more than AD_KNOWN_MANY addends: unchanged, and moved from the position of the rank
 * whose sum they explained to that of this part's holder, since each rank's sum may have its own counts. */
ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) AD_CHECKED;
/* Makes the counts of a part the first of the known counts, if they explain the part exactly. */
ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) AD_CHECKED;

#endif
