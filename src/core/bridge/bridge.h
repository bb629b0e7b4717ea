/* What tensor/ and the mistakes know of a bridge besides its public functions. */
#ifndef BRIDGE_BRIDGE_H
#define BRIDGE_BRIDGE_H
#include "addend/bridge.h"
#include "base/internal.h"

struct ad_bridge {
  ad_comm *comm;
  ad_layout from, to;
  ad_bridge_options options;
  int disjoint;
  ad_mesh *both; /* the ranks of disjoint sides */
  /* Of the present call: */
  ad_route *routes;
  ad_message *messages;
  size_t capacity;
};

/* Of copies on axes on which a layout is P (the gradient of an R) the first gets what comes over a bridge. */
int ad_bridge_counts_there(const ad_layout *to, int64_t rank);

/* As ad_bridge_backward, for transition number `ordinal` of a tape. `site` is not NULL. */
AD_INTERNAL ad_status ad_bridge_backward_numbered(ad_bridge *bridge, ad_array *destination, ad_array *source,
                                                  int ordinal, const char *site) AD_CHECKED;

AD_INTERNAL ad_axes
ad_bridge_added(const ad_bridge *bridge); /* on which users of what arrives leave addends: `to` is R there */

/* What ad_bridge_create refuses, before there are ranks; and of what a batch's rows must be a multiple for
 * ad_bridge_describe: the parts of the side that has more, or 1. */
AD_INTERNAL ad_status ad_bridge_check(const ad_layout *from, const ad_layout *to,
                                      const ad_bridge_options *options) AD_CHECKED;
AD_INTERNAL int64_t ad_bridge_rows_multiple(const ad_layout *from, const ad_layout *to,
                                            const ad_bridge_options *options);
/* AD_TYPE, AD_INVALID unless the array is one that may enter. */
AD_INTERNAL ad_status ad_bridge_check_source(const ad_bridge *bridge, const ad_array *array,
                                             const char *site) AD_CHECKED;

/* What passes the seam AD_SEAM_ROUTES: what this rank is about to send and receive. */
typedef struct ad_route_passing {
  const ad_bridge *bridge;
  const ad_layout *from, *to; /* in this direction */
  int64_t rows;
  const ad_array *array; /* what goes over, as it lies on a side that has this rank */
  const ad_array *out;   /* NULL where nothing arrives */
  const char *site;
  ad_group group;   /* of the ranks that move rows among them */
  ad_route *routes; /* sends, then receives */
  size_t sends, count;
} ad_route_passing;

#endif
