/* The verdict on a parameter: a kind, a cause and a sentence, which are derived from the counts of the addends. */
#ifndef DIFF_VERDICT_H
#define DIFF_VERDICT_H
#include <jansson.h>
#include "solve/explain.h"

/* The kinds of verdict: X(code, name). All kinds mean a wrong sum, except `right`, `identical_addends` (only the total
 * of the counts is known, and it is right), `not_observed` (all addends are zero) and `not_judged`. */
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
  X(AD_VERDICT_NOT_OBSERVED, "not_observed")                    \
  X(AD_VERDICT_NO_SUM, "no_sum")                                \
  X(AD_VERDICT_NOT_JUDGED, "not_judged")                        \
  X(AD_VERDICT_OTHER_OPERATION, "other_operation")              \
  X(AD_VERDICT_SHIFTED, "shifted")                              \
  X(AD_VERDICT_OTHER_PARAMETERS, "other_parameters")            \
  X(AD_VERDICT_OTHER_ROWS, "other_rows")                        \
  X(AD_VERDICT_ONE_RANK, "one_rank")                            \
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
/* The verdict on one parameter. */
typedef struct ad_verdict {
  ad_verdict_kind kind;
  uint32_t axes;          /* bit set of the axes concerned; 0: no axis, or it is not certain which axes */
  double factor;          /* measured factor on the expected sum; NaN: no single factor */
  unsigned char *ranks;   /* [world], the caller's memory: 1 for each rank concerned */
  const ad_judged *shown; /* the part whose counts the document shows; NULL: none */
  char text[AD_VERDICT_TEXT];
  /* JSON documents of the causes that fit, the simplest first; empty if the sum is right or cannot be judged */
  json_t *causes;
} ad_verdict;

/* Finds the verdict. `list` has the judged parts. `ranks` ([world] bytes) is the caller's memory; the verdict is
 * written to it and points to it. ad_verdict_clear releases all other memory of the verdict. */
void ad_verdict_find(const ad_parts *parts, const ad_judged *list, unsigned char *ranks, ad_verdict *out);
void ad_verdict_clear(ad_verdict *verdict);
/* Changes the verdict `right` to `replicas_differ` if the replicas' parameter values differ before the step
 * (verdict_values.c). A verdict other than `right` stays, and *also is set to the axes along which the values differ;
 * otherwise *also is 0. */
ad_status ad_values_hold(const ad_parts *parts, ad_verdict *verdict, uint32_t *also) AD_CHECKED;

#endif
