/* Bridges between identical meshes (ad_bridge_options.identical), for bridge.c. */
#ifndef BRIDGE_IDENTICAL_H
#define BRIDGE_IDENTICAL_H
#include "bridge/bridge.h"

/* Checks whether a bridge between identical meshes may join the two sides; their ranks must be the same or disjoint.
 * AD_TYPE and AD_INVALID name the axis and both types, or both meshes. */
ad_status ad_identical_bridge_check(const ad_layout *from, const ad_layout *to,
                                    const ad_bridge_options *options) AD_CHECKED;
/* Sends this rank's part to the rank at the same position of the other mesh, or receives that rank's part. If the two
 * sides have the same ranks this is a copy, otherwise one transfer. If `request` is NULL, returns when complete. `site`
 * is not NULL. */
ad_status ad_identical_bridge_move(ad_bridge *bridge, const ad_bridge_way *way, const char *site,
                                   ad_request *request) AD_CHECKED;

#endif
