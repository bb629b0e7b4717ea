/* Bridges between alike meshes (ad_bridge_options.alike), for bridge.c. */
#ifndef BRIDGE_IDENTICAL_H
#define BRIDGE_IDENTICAL_H
#include "bridge/bridge.h"

/* Checks whether an alike bridge may join the two sides, whose ranks are the same or disjoint. AD_TYPE and AD_INVALID
 * name the axis and both types, or both meshes. */
ad_status ad_identical_bridge_check(const ad_layout *from, const ad_layout *to,
                                    const ad_bridge_options *options) AD_CHECKED;
/* Moves a part to the rank at the same position of the other mesh, or receives one from it: a copy if the sides have
 * the same ranks, otherwise one transfer. `request` NULL: returns when it is complete. `site` is not NULL. */
ad_status ad_identical_bridge_move(ad_bridge *bridge, const ad_bridge_way *way, const char *site,
                                   ad_request *request) AD_CHECKED;

#endif
