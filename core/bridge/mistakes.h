/* The known mistakes of bridges: ranks that take a wrong slice of the batch, and gradients put together from the wrong
 * slices. */
#ifndef BRIDGE_MISTAKES_H
#define BRIDGE_MISTAKES_H
#include "base/mistakes.h"
#include "bridge/bridge.h"
#include "base/internal.h"

AD_INTERNAL const ad_mistake *ad_bridge_mistakes(size_t *count);
/* The AD_NEED_... bits of what the mistakes need that is present here: where these routes pass AD_SEAM_ROUTES, a
 * mistake that needs it changes something on some rank. */
AD_INTERNAL ad_needs ad_bridge_mistakes_show(const ad_route_passing *passing);

#endif
