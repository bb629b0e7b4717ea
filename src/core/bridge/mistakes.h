/* The list of known mistakes on a bridge: which slice a rank takes, whose slices come together again. */
#ifndef BRIDGE_MISTAKES_H
#define BRIDGE_MISTAKES_H
#include "base/mistakes.h"
#include "bridge/bridge.h"
#include "base/internal.h"

AD_INTERNAL const ad_mistake *ad_bridge_mistakes(size_t *count);
/* AD_NEED_...: which of them change something on some rank where this passes AD_SEAM_ROUTES. */
AD_INTERNAL ad_needs ad_bridge_mistakes_show(const ad_route_passing *passing);

#endif
