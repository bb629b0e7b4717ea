/* What tensor/ and the mistakes know of a bridge besides its public functions. */
#ifndef BRIDGE_BRIDGE_H
#define BRIDGE_BRIDGE_H
#include "addend/bridge.h"
#include "bridge/route.h"
#include "base/internal.h"

/* What a bridge has found out of batches of `rows` rows in one direction. It holds until a batch has other rows. */
typedef struct ad_known_way {
  int64_t rows;         /* -1: nothing is known yet */
  int is_local;         /* on every rank of the group: what it needs is what it has */
  int is_counted;       /* what arrives counts on this rank (law 7) */
  ad_group group;       /* the ranks that move rows among them */
  int64_t own;          /* this rank's index there */
  ad_route *routes;     /* sends, then receives; owned, as are the next two */
  int64_t *members;     /* of each route, its peer's index in the group */
  ad_message *messages; /* of the present call */
  size_t sends, count, capacity;
} ad_known_way;

/* An array's shape and that of the own part. */
typedef struct ad_sizes {
  ad_shape shape, local;
} ad_sizes;

struct ad_bridge {
  ad_comm *comm;
  ad_layout from, to;
  ad_bridge_options options;
  int64_t rows_multiple; /* of a batch: ad_bridge_rows_multiple of these */
  int disjoint;
  ad_mesh *both;          /* the ranks of disjoint sides */
  ad_known_way known[2];  /* forward, backward */
  ad_sizes checked[2][2]; /* [pass][1 where it arrives]: of the last array that was found right there */
  int64_t kept_rows;      /* of the last batch that ad_bridge_keeps_rows was asked of; -1: none yet */
  int keeps_rows;
};

/* What goes over a bridge in one direction. */
typedef struct ad_bridge_way {
  const ad_layout *from, *to; /* of the value, in this direction */
  ad_array in, out;           /* all 0 where this rank is not on that side */
} ad_bridge_way;

size_t ad_bridge_row_numel(const ad_array *array); /* elements of one row of the own part; of a scalar 1 */

/* Of copies on axes on which a layout is P (the gradient of an R) the first gets what comes over a bridge. */
int ad_bridge_counts_there(const ad_layout *to, int64_t rank);

/* As ad_bridge_backward, for transition number `ordinal` of a tape. `site` is not NULL. */
AD_INTERNAL ad_status ad_bridge_backward_numbered(ad_bridge *bridge, ad_array *destination, ad_array *source,
                                                  int ordinal, const char *site) AD_CHECKED;

AD_INTERNAL ad_axes
ad_bridge_added(const ad_bridge *bridge); /* on which users of what arrives leave addends: `to` is R there */

/* The addends of a destination's gradient, transition number `ordinal` of a tape, in one of two ways.
 * ad_bridge_sum: in place, whole on every copy. ad_bridge_sum_kept: each rank gets the sum of those rows alone that are
 * its own in the source, in the source's gradient, and nothing is left to send; for batches of which
 * ad_bridge_keeps_rows says 1. `site` is not NULL. */
ad_status ad_bridge_sum(const ad_bridge *bridge, ad_array *gradient, int ordinal, const char *site) AD_CHECKED;
ad_status ad_bridge_sum_kept(const ad_bridge *bridge, const ad_array *gradient, ad_array *source, int ordinal,
                             const char *site) AD_CHECKED;
int ad_bridge_keeps_rows(ad_bridge *bridge, int64_t rows);

/* AD_TYPE, AD_INVALID unless the array is one that may enter. */
AD_INTERNAL ad_status ad_bridge_check_source(const ad_bridge *bridge, const ad_array *array,
                                             const char *site) AD_CHECKED;

/* What passes the seam AD_SEAM_ROUTES: what this rank is about to send and receive. Of an alike bridge that is one send
 * or one receive of the whole own part, in rows of the part's dimension 0; the known mistakes, which all take slices of
 * a batch for others, find none there and leave it as it is. */
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

AD_INTERNAL int ad_bridge_is_disjoint(const ad_bridge *bridge);
AD_INTERNAL int ad_bridge_is_alike(const ad_bridge *bridge);

#endif
