/* From counts to words: what probably went wrong with a parameter's sum. */
#ifndef DIFF_VERDICT_H
#define DIFF_VERDICT_H
#include <jansson.h>
#include "diff/explain.h"

/* The only list of what a sum may hold: X(code, name). Of `identical` addends only the sum of their counts is known,
 * and it is right; what is neither that nor right is wrong. */
#define AD_VERDICT_LIST(X)                                      \
  X(AD_VERDICT_RIGHT, "right")                                  \
  X(AD_VERDICT_AVERAGED, "averaged")                            \
  X(AD_VERDICT_MISSING, "missing")                              \
  X(AD_VERDICT_DOUBLED, "doubled")                              \
  X(AD_VERDICT_PARTIAL, "partial")                              \
  X(AD_VERDICT_WRONG_GROUP, "wrong_group")                      \
  X(AD_VERDICT_LAST_MICROBATCH, "last_microbatch")              \
  X(AD_VERDICT_EARLIER_DIVIDED, "earlier_microbatches_divided") \
  X(AD_VERDICT_OWN_ONLY, "own_only")                            \
  X(AD_VERDICT_REPLICAS_DIFFER, "replicas_differ")              \
  X(AD_VERDICT_OTHER_BATCHES, "other_batches")                  \
  X(AD_VERDICT_OWN_COUNT, "divided_by_own_count")               \
  X(AD_VERDICT_FACTOR, "factor")                                \
  X(AD_VERDICT_NOT_DISTINGUISHABLE, "not_distinguishable")      \
  X(AD_VERDICT_IDENTICAL, "identical_addends")                  \
  X(AD_VERDICT_NO_SUM, "no_sum")                                \
  X(AD_VERDICT_NOT_JUDGED, "not_judged")                        \
  X(AD_VERDICT_UNEXPLAINED, "unexplained")                      \
  X(AD_VERDICT_NOT_FITTED, "not_fitted")                        \
  X(AD_VERDICT_ROUNDING, "rounding")

typedef enum ad_verdict_kind {
#define AD_VERDICT_CODE(code, name) code,
  AD_VERDICT_LIST(AD_VERDICT_CODE)
#undef AD_VERDICT_CODE
      AD_VERDICT_COUNT
} ad_verdict_kind;
const char *ad_verdict_name(ad_verdict_kind kind);

enum { AD_VERDICT_TEXT = 640 };
typedef struct ad_verdict {
  ad_verdict_kind kind;
  uint32_t axes;          /* 0: none, or none that is sure */
  double factor;          /* measured, on what was expected; NaN: there is no single one */
  unsigned char *ranks;   /* 1 for those that it is about; the mesh's world of them, the caller's */
  const ad_judged *shown; /* the part whose counts are shown; NULL: none */
  char text[AD_VERDICT_TEXT];
  json_t *causes; /* documents of those that fit, the simplest first; none: it is right, or cannot be told */
} ad_verdict;

/* `ranks`: world bytes. The verdict is for ad_verdict_clear. */
void ad_verdict_find(const ad_parts *parts, const ad_judged *list, unsigned char *ranks, ad_verdict *out);
void ad_verdict_clear(ad_verdict *verdict);
/* verdict_values.c: a right verdict becomes another one where replicas' values differ before the step. *also: the axes
 * along which they do where it was wrong already; else 0. */
ad_status ad_values_hold(const ad_parts *parts, ad_verdict *verdict, uint32_t *also) AD_CHECKED;

#endif
