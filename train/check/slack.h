/* How far the states of the ranks and of the reference may differ after a step whose gradients are right, if a program
 * changes states by a custom rule (ad_phase_change_states). An example is Adam, which divides by the root of the
 * squares of gradients. If a gradient is zero except for rounding (queries of a token that sees only itself), Adam's
 * step is as large as epsilon permits, and another order of summation gives another step. For each change, the rule
 * reports how large this difference may be (ad_state_rule.off). */
#ifndef CHECK_SLACK_H
#define CHECK_SLACK_H
#include <stddef.h>
#include "addend/array.h"
#include "base/injection.h"

typedef struct ad_slack_of {
  const double *value; /* values of the state, whose address identifies the state */
  double *at;          /* [numel]: how far each element may be off */
  size_t numel;
} ad_slack_of;

typedef struct ad_slack {
  ad_slack_of *list;
  size_t count;
  ad_status status; /* AD_MEMORY if a state has no entry */
} ad_slack;

/* Forgets the slack of earlier changes. From this call on adds the slack of each change, until the injection point is
 * cleared. */
void ad_slack_watch(ad_slack *slack);
void ad_slack_release(ad_slack *slack);
/* Returns the worst element's distance beyond its slack, divided by the largest |ref| (as ad_compare). NaN: a value is
 * not finite. */
double ad_slack_error(const ad_slack *slack, const ad_array *ref, const void *dist);

#endif
