/* Who sends which rows to whom: pure arithmetic, for bridges and for plans of them. */
#ifndef BRIDGE_ROUTE_H
#define BRIDGE_ROUTE_H
#include "addend/layout.h"
#include "base/internal.h"

/* Rows that one rank gives another; a rank may be its own peer. Numbers of rows are of the local parts. */
typedef struct ad_route {
  int64_t peer;
  int64_t here, there, count; /* first row in the own part, first row in the peer's, how many */
} ad_route;
/* What `rank` receives where a batch of `rows` rows, cut as `from` says (S0), is brought to where `to` wants it (S0);
 * or what it sends. Each row comes once, from the rank of `from`'s mesh that has the receiver's own position on all
 * axes that do not cut the batch, so that nothing moves where a rank has what it needs; where the meshes have no rank
 * in common, from the copy of the same number, counted around. Where `to` is P, as the gradient of an R, only the first
 * copy receives. Writes at most `max`, returns how many there are. The
 * gradient goes back the same way with `from` and `to` changed over. */
AD_INTERNAL size_t ad_bridge_receives(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                      ad_route *routes, size_t max);
AD_INTERNAL size_t ad_bridge_sends(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank,
                                   ad_route *routes, size_t max);
/* Whether the rank holds the same rows of a batch in both layouts, both of whose meshes have it. */
int ad_bridge_same_rows(const ad_layout *a, const ad_layout *b, int64_t rows, int64_t rank);

#endif
