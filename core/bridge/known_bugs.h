/* The known bugs of bridges: ranks that take a wrong slice of the batch, and gradients put together from the wrong
 * slices. */
#ifndef BRIDGE_KNOWN_BUGS_H
#define BRIDGE_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "bridge/bridge.h"
#include "base/internal.h"

AD_INTERNAL const ad_known_bug *ad_bridge_known_bugs(size_t *count);
/* Returns AD_NEED_... bits: the conditions of known bugs that these routes meet. If routes at the injection point
 * AD_INJECT_ROUTES meet a condition, a bug that needs this condition changes a route on some rank. */
AD_INTERNAL ad_needs ad_bridge_known_bugs_show(const ad_route_passing *passing);

#endif
