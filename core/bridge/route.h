/* Computes which rank sends which rows to which rank, for bridges and for plans of them. Nothing here communicates. */
#ifndef BRIDGE_ROUTE_H
#define BRIDGE_ROUTE_H
#include "addend/layout.h"
#include "base/internal.h"

/* Rows that one rank gives to another; a rank may be its own peer. Rows are numbered within the ranks' parts. */
typedef struct ad_route {
  int64_t peer;
  int64_t here, there, count; /* first row in this rank's part, first row in the peer's part, number of rows */
} ad_route;
/* Lists what `rank` receives, or sends, when a batch of `rows` rows, cut as `from` says (S0), goes to where `to` needs
 * it (S0). Each row comes once. Its sender is the rank of `from`'s mesh that has the receiver's position on all axes
 * that do not cut the batch, so that nothing moves if a rank already has what it needs; if the meshes have no rank in
 * common, the sender is in the copy with the receiver's copy number, counted around. If `to` is P, as the gradient of
 * an R, only the first copy receives. Writes at most `max` routes and returns how many there are. For the gradient's
 * way back exchange `from` and `to`. */
AD_INTERNAL size_t ad_bridge_receives(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                      ad_route *routes, size_t max);
AD_INTERNAL size_t ad_bridge_sends(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                   ad_route *routes, size_t max);
/* 1: the rank holds the same rows of a batch in both layouts; both meshes contain the rank. */
int ad_bridge_same_rows(const ad_layout *a, const ad_layout *b, int64_t rows, int64_t rank);

#endif
