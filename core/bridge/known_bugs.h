/* The known mistakes of bridges: ranks that take a wrong slice of the batch, and gradients put together from the wrong
 * slices. */
#ifndef BRIDGE_KNOWN_BUGS_H
#define BRIDGE_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "bridge/bridge.h"
#include "base/internal.h"

AD_INTERNAL const ad_known_bug *ad_bridge_known_bugs(size_t *count);
/* The AD_NEED_... bits of what the mistakes need that is present here: where these routes pass AD_INJECT_ROUTES, a
 * mistake that needs it changes something on some rank. */
AD_INTERNAL ad_needs ad_bridge_known_bugs_show(const ad_route_passing *passing);

#endif
