/* What the sums of earlier parameters teach about later ones. Counts that explained an earlier sum are tried first.
 * Fitting many addends takes long, so the work of fits is limited; when it is used up, sums are compared with the known
 * counts only. Threads that judge parameters at the same time take turns here in the parameters' order: a call waits
 * until every earlier parameter has passed (ad_known_pass). So the result is that of one thread. */
#ifndef DIFF_KNOWN_H
#define DIFF_KNOWN_H
#include <pthread.h>
#include "solve/explain.h"

/* AD_KNOWN_COUNTS: explanations that are kept. A part of at most AD_KNOWN_MANY addends is always fitted. */
enum { AD_KNOWN_COUNTS = 16, AD_KNOWN_MANY = 64 };
enum { AD_KNOWN_OTHERS = 16 }; /* at most so many counts may differ from the usual one */

/* The counts that explained one part. */
typedef struct ad_known_counts {
  double *counts; /* [rank][microbatch]; NaN: the part has no such addend */
  int64_t holder; /* the rank whose sum these counts explained */
  /* is_plain: all counts are `usual` but those at the indices `others` of `counts`. */
  int is_plain;
  double usual;
  size_t others[AD_KNOWN_OTHERS], other_count;
} ad_known_counts;

struct ad_known {
  const ad_dump *dump;
  ad_known_counts list[AD_KNOWN_COUNTS]; /* the counts that explained a part most recently come first */
  size_t count;
  int64_t *rank_at;    /* [row-major position]: the rank there */
  int alone;           /* 1: while one parameter is judged, other parameters' values must not be read */
  double compared;     /* work spent so far on comparisons with other parameters, in values */
  double fitted, weak; /* multiplications spent so far on fits of parts that fail, and of right parts */
  /* The parameters' turns. Only the parameter whose turn it is may use the fields above. */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  size_t turn;           /* index of the first parameter that has not passed */
  unsigned char *passed; /* [parameter]: 1 once it has passed */
};

ad_status ad_known_create(const ad_dump *dump, ad_known *out) AD_CHECKED;
void ad_known_destroy(ad_known *known);
/* Ends this parameter's turn; no other call for this parameter may follow. A second call does nothing. Every parameter
 * must pass, or later ones wait forever. */
void ad_known_pass(ad_known *known, const ad_dump_param *param);
/* Whose work is counted: that of fits of parts that fail, or of the weaker fits of right parts. */
typedef enum ad_known_fit { AD_KNOWN_FIT, AD_KNOWN_WEAK_FIT } ad_known_fit;
/* Whether the limit allows a fit of n addends over `rows` elements; if so, its work is added to what is spent. Fits of
 * at most AD_KNOWN_MANY addends are always allowed. */
int ad_known_affords(ad_known *known, const ad_dump_param *param, ad_known_fit fit, size_t n, size_t rows);
/* Returns 1 if the limit on work allows comparing a part with other parameters' values, and adds that work. */
int ad_known_compares(ad_known *known, const ad_dump_param *param);
/* Tries known counts on a part of more than AD_KNOWN_MANY addends: as they are, and moved by the offset between the two
 * parts' holders, since each rank's sum may have its own counts. */
ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) AD_CHECKED;
/* Puts the counts of a part that they explain exactly at the front of the known counts. */
ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) AD_CHECKED;

#endif
