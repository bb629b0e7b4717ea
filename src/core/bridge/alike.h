/* Bridges between alike meshes (ad_bridge_options.alike), for bridge.c. */
#ifndef BRIDGE_ALIKE_H
#define BRIDGE_ALIKE_H
#include "bridge/bridge.h"

/* Whether the sides, whose ranks are the same or disjoint, may be joined by such a bridge; AD_TYPE, AD_INVALID with the
 * axis, both types, or both meshes. */
ad_status ad_alike_check(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options) AD_CHECKED;
/* This rank's part to the rank at the same position of the other mesh, or from it: a copy on the same ranks, else one
 * transfer; `request` NULL: to its end. `site` is not NULL. */
ad_status ad_alike_move(ad_bridge *bridge, const ad_bridge_way *way, const char *site, ad_request *request) AD_CHECKED;

#endif
