/* Functions and fields of a bridge that are not public, for the tensors of train/tensor and for the known bugs. */
#ifndef BRIDGE_BRIDGE_H
#define BRIDGE_BRIDGE_H
#include "addend/bridge.h"
#include "bridge/route.h"
#include "base/internal.h"

/* The routes of one direction of a bridge for batches of `rows` rows. They are kept until a batch has another number of
 * rows. */
typedef struct ad_known_way {
  int64_t rows;         /* -1: no routes are kept yet */
  int is_local;         /* 1: every rank of the group already has the rows that it needs */
  int is_counted;       /* 1: the arriving gradient counts on this rank; 0: it counts only on another replica (law 7) */
  ad_group group;       /* the ranks that move rows to each other */
  int64_t own;          /* this rank's index in the group */
  ad_route *routes;     /* the sends, then the receives; owned, as are members and messages */
  int64_t *members;     /* for each route, the peer's index in the group */
  ad_message *messages; /* messages of the present call */
  size_t sends, count, capacity;
} ad_known_way;

/* The shapes of a full array and of this rank's part. */
typedef struct ad_sizes {
  ad_shape shape, local;
} ad_sizes;

struct ad_bridge {
  ad_comm *comm;
  ad_layout from, to;
  ad_bridge_options options;
  int64_t rows_multiple; /* a batch's rows must be a multiple of this number (ad_bridge_rows_multiple) */
  int disjoint;
  ad_mesh *both; /* if the two sides have no rank in common, a mesh of all ranks of the two sides; otherwise NULL */
  ad_known_way known[2];  /* forward, backward */
  ad_sizes checked[2][2]; /* [pass][0: sent, 1: received]: shapes of the last array that passed the checks */
  /* number of rows for which `keeps_rows` was computed last (ad_bridge_keeps_rows); -1: not yet */
  int64_t kept_rows;
  int keeps_rows;
};

/* A value or gradient that goes over a bridge in one direction. */
typedef struct ad_bridge_way {
  const ad_layout *from, *to; /* layouts of the sending and the receiving side */
  ad_array in, out;           /* sent and received array; all fields are 0 if this rank is not on the array's side */
} ad_bridge_way;

/* number of elements in one row of this rank's part; 1 for a scalar */
size_t ad_bridge_row_numel(const ad_array *array);

/* Returns 1 if a value that arrives over a bridge counts on this rank, else 0. On axes on which the arriving layout
 * `to` is P (of the gradient of an R) the value counts only on the first replica; all other replicas get zeros. */
int ad_bridge_counts_there(const ad_layout *to, int64_t rank);

/* Like ad_bridge_backward, for transition number `ordinal` of a tape. `site` is not NULL. */
AD_INTERNAL ad_status ad_bridge_backward_numbered(ad_bridge *bridge, ad_array *destination, ad_array *source,
                                                  int ordinal, const char *site) AD_CHECKED;

/* Returns the axes on which `to` is R. On these axes each rank contributes an addend to the gradient of the arrived
 * value. */
AD_INTERNAL ad_axes ad_bridge_added(const ad_bridge *bridge);

/* These functions sum the addends of a destination's gradient, as transition number `ordinal` of a tape:
 * - ad_bridge_sum sums in place: every replica then has the full sum;
 * - ad_bridge_sum_kept writes into the source's gradient, on each rank, only the sum of the rank's own rows of the
 *   source, after which nothing needs to be sent. Only for batches for which ad_bridge_keeps_rows returns 1.
 * `site` is not NULL. */
ad_status ad_bridge_sum(const ad_bridge *bridge, ad_array *gradient, int ordinal, const char *site) AD_CHECKED;
ad_status ad_bridge_sum_kept(const ad_bridge *bridge, const ad_array *gradient, ad_array *source, int ordinal,
                             const char *site) AD_CHECKED;
int ad_bridge_keeps_rows(ad_bridge *bridge, int64_t rows);

/* Checks an array that a caller is about to send from the source: AD_TYPE or AD_INVALID if its layout, number of rows
 * or memory is wrong. */
AD_INTERNAL ad_status ad_bridge_check_source(const ad_bridge *bridge, const ad_array *array,
                                             const char *site) AD_CHECKED;

/* Argument of the injection point AD_INJECT_ROUTES: the rows that this rank is about to send and receive. Between
 * identical meshes these are one send or one receive of the rank's full part, counted in rows of its dimension 0. The
 * known bugs of bridges confuse slices of a batch, and change nothing between identical meshes, where parts are not
 * sliced. */
typedef struct ad_route_passing {
  const ad_bridge *bridge;
  const ad_layout *from, *to; /* layouts of the sending and the receiving side */
  int64_t rows;
  const ad_array *array; /* the array that is sent; on a rank that does not send, the array that is received */
  const ad_array *out;   /* the array that is received; NULL: nothing arrives at this rank */
  const char *site;
  ad_group group;   /* the ranks that move rows to each other */
  ad_route *routes; /* the sends, then the receives */
  size_t sends, count;
} ad_route_passing;

AD_INTERNAL int ad_bridge_is_disjoint(const ad_bridge *bridge);
AD_INTERNAL int ad_bridge_is_identical(const ad_bridge *bridge);

#endif
