/* The verdict on a parameter: a kind, a cause and a sentence, which are derived from the counts of the addends. */
#ifndef DIFF_VERDICT_H
#define DIFF_VERDICT_H
#include <jansson.h>
#include "say/causes.h"
#include "solve/explain.h"

enum { AD_VERDICT_TEXT = 640 };
/* The verdict on one parameter. */
typedef struct ad_verdict {
  ad_cause_kind kind;
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
