/* Computes which rank sends which rows to which rank. For bridges, and for plans of what bridges will move. Nothing
 * here communicates. */
#ifndef BRIDGE_ROUTE_H
#define BRIDGE_ROUTE_H
#include "addend/layout.h"
#include "base/internal.h"

/* Rows that one rank sends to another; a rank may also send to itself. Rows are numbered within each rank's part. */
typedef struct ad_route {
  int64_t peer;
  int64_t here, there, count; /* first row in this rank's part, first row in the peer's part, number of rows */
} ad_route;
/* These functions list the rows that `rank` receives, or sends, when a batch of `rows` rows moves from layout `from` to
 * layout `to` (both S(0)). Each rank receives each of its rows once. The sender has the receiver's position on all axes
 * of `from`'s mesh that do not shard the batch; so nothing moves if a rank already holds its rows. If the meshes have
 * no rank in common, the sender is in the replica with the receiver's replica number, modulo the number of `from`'s
 * replicas. If `to` is P (the gradient of an R), only the first replica receives. The functions write at most `max`
 * routes and return how many there are. For the gradient, exchange `from` and `to`. */
AD_INTERNAL size_t ad_bridge_receives(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                      ad_route *routes, size_t max);
AD_INTERNAL size_t ad_bridge_sends(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                   ad_route *routes, size_t max);
/* Returns 1 if the rank holds the same rows of a batch in both layouts, else 0. Both meshes must contain the rank. */
int ad_bridge_same_rows(const ad_layout *a, const ad_layout *b, int64_t rows, int64_t rank);

#endif
