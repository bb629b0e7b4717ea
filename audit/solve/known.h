/* What the sums of earlier parameters teach about later ones. Counts that explained an earlier sum are tried first.
 * Fitting many addends takes long, so the work of fits is limited; when it is used up, sums are compared with the known
 * counts only. Threads that judge parameters at the same time take turns here in the parameters' order: a call waits
 * until every earlier parameter has passed, so that the result is that of one thread. */
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
  int alone;           /* 1: other parameters' values must not be read when one is judged */
  double compared;     /* values of other parameters with which parts were compared */
  double fitted, weak; /* multiplications spent so far on fits of parts that fail, and of parts that hold */
  /* The turn of the parameters; only the parameter that has it may use the fields above. */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  size_t turn;           /* index of the first parameter that has not passed */
  unsigned char *passed; /* [parameter]: 1 once it has passed */
};

ad_status ad_known_create(const ad_dump *dump, ad_known *out) AD_CHECKED;
void ad_known_destroy(ad_known *known);
/* Ends the turn of this parameter, which asks and adds nothing any more; calling it again does nothing. Every parameter
 * must pass, or others wait forever. */
void ad_known_pass(ad_known *known, const ad_dump_param *param);
/* Which fit's work is counted: the fit of a part that fails its test, or the weaker fit of a part that holds. */
typedef enum ad_known_fit { AD_KNOWN_FIT, AD_KNOWN_WEAK_FIT } ad_known_fit;
/* Whether the limit allows a fit of n addends over `rows` elements; if so, its work is added to what is spent. Fits of
 * at most AD_KNOWN_MANY addends are always allowed. */
int ad_known_affords(ad_known *known, const ad_dump_param *param, ad_known_fit fit, size_t n, size_t rows);
/* Whether the limit on work allows that a part of the parameter is compared with other parameters' values. */
int ad_known_compares(ad_known *known, const ad_dump_param *param);
/* Tries to explain a part that has many addends by known counts: as they are, or, because each rank's sum may have its
 * own, moved by the offset between the two parts' holders. */
ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) AD_CHECKED;
/* Keeps the counts of a part that they explain exactly, in front of those that are known. */
ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) AD_CHECKED;

#endif
