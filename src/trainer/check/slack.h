/* How far apart states may be after a step whose gradients are right, where a program changes them by a rule of its own
 * (ad_phase_change_states). Adam divides by the root of what it has seen: where a gradient is zero but for rounding
 * (queries of a token that sees only itself), its step is as large as epsilon lets it be, and no two orders of a sum
 * agree on it. What that allows is taken along with each change. */
#ifndef CHECK_SLACK_H
#define CHECK_SLACK_H
#include <stddef.h>
#include "addend/array.h"
#include "base/seams.h"

typedef struct ad_slack_of {
  const double *value; /* the state */
  double *at;          /* [numel]: what each element may be off by */
  size_t numel;
} ad_slack_of;

typedef struct ad_slack {
  ad_slack_of *list;
  size_t count;
  ad_status status; /* AD_MEMORY: there was none for a state */
} ad_slack;

/* Forgets what earlier changes allowed; from now on those that pass are added, until the seam is lifted. */
void ad_slack_watch(ad_slack *slack);
void ad_slack_release(ad_slack *slack);
/* Of the largest |ref|, as ad_compare: the worst element's distance beyond what it may be off by. NaN: not finite. */
double ad_slack_error(const ad_slack *slack, const ad_array *ref, const void *dist);

#endif
