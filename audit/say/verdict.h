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

/* Finds the verdict from the judged parts in `list`. On entry `ranks` ([world] bytes, the caller's memory) marks the
 * ranks, `missing` in number, that have no replica (ad_replicas_missing); on return it marks the ranks that the verdict
 * concerns, and the verdict points to it. ad_verdict_clear releases all other memory of the verdict. */
void ad_verdict_find(const ad_parts *parts, const ad_judged *list, size_t missing, unsigned char *ranks,
                     ad_verdict *out);
void ad_verdict_clear(ad_verdict *verdict);
/* Changes the verdict `right` to `replicas_differ`, since the replicas' parameter values differ along `axes` before the
 * step on the ranks that verdict->ranks marks (verdict_values.c). */
void ad_verdict_of_values(const ad_parts *parts, uint32_t axes, ad_verdict *verdict);

#endif
