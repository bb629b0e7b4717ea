/* Bridges: a bridge moves a value that is sharded along the batch dimension from one mesh to another, and its gradient
 * back. The two meshes have the same ranks or none in common. The dimensions after the batch do not matter. Between
 * identical meshes, such as the stages of a pipeline, a bridge moves any value, however it is sharded.
 *
 * For users, and authors of programs. Only one thread at a time may use a bridge and its comm. */
#ifndef ADDEND_BRIDGE_H
#define ADDEND_BRIDGE_H
#include "addend/array.h"
#include "addend/comm.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_bridge ad_bridge;

typedef struct ad_bridge_options {
  size_t size; /* sizeof(ad_bridge_options) */
  /* 1: the parts of the two sides may overlap in any way, and the batch need not be divisible by the numbers of
   * parts */
  int ragged;
  /* 1: both meshes have the same axes with the same sizes in the same order. Each rank's part of the value, however the
   * value is sharded, goes to the rank at the same position of the other mesh; the gradient of the part comes back the
   * same way. */
  int identical;
  /* Distinguishes bridges between the same ranks; 0 to INT64_MAX / 2. Used only by a bridge between identical meshes on
   * disjoint ranks, which moves values with the tag 2 * tag of ad_comm_post_transfer (with ranks of the world as peers)
   * and gradients with 2 * tag + 1. Two bridges from the same ranks to the same ranks need different tags here, and a
   * program's own transfers between those ranks need tags that no bridge uses. */
  int64_t tag;
} ad_bridge_options;

/* Creates a bridge from the layout `from` (the source) to the layout `to` (the destination).
 *
 * For a value with a batch dimension:
 *   from   S0 on dp axes, I on all others. Each replica gets the full gradient; R is refused, because the full gradient
 *          would then count once for each replica.
 *   to     S0 on dp axes, R on cp, I or R on tp and any other axis. On an R axis each rank contributes an addend: the
 *          gradient on the destination is P there and is summed before it goes back.
 * For a value that is not sharded (a weight): I or R on every axis of both sides. On an R axis of `from` the gradient
 * counts once: the first replica gets it and the others get zeros (law 7).
 * AD_TYPE names axis, type and repair. AD_INVALID: the meshes share some of their ranks but not all, a mesh has pp, or
 * (unless ragged) neither side's number of parts divides the other's. Borrows comm and meshes. Collective over the
 * ranks of both meshes.
 *
 * A bridge between identical meshes has other rules. `to` must have the types of `from` on every axis (AD_TYPE names
 * axis and both types): any of R, I, V and S(d), on any axis including pp. The gradient has the dual types. The bridge
 * sums nothing: the gradient of an R value is P on both sides, each rank's addend goes to the rank at the same
 * position, and the program sums the addends where the value was made. P in `from` is AD_TYPE: an addend would take as
 * many bytes as the sum, and by law 6 (like adds to like) could only be added to other addends of that sum. AD_INVALID:
 * the meshes are not identical, or `ragged` is set. */
AD_API AD_CHECKED ad_status ad_bridge_create(ad_comm *comm, const ad_layout *from, const ad_layout *to,
                                             const ad_bridge_options *options, ad_bridge **out);
/* Checks whether ad_bridge_create would succeed, with the same errors and messages, without a comm: a program can check
 * its options with this function before ranks are started. */
AD_API AD_CHECKED ad_status ad_bridge_check(const ad_layout *from, const ad_layout *to,
                                            const ad_bridge_options *options);
/* *out: the number of which a batch's rows must be a multiple so that ad_bridge_describe accepts the batch. This is the
 * number of parts of the side with more parts, or 1 if the bridge is ragged or its meshes are identical. Does not check
 * whether such a bridge is possible (see ad_bridge_check). */
AD_API AD_CHECKED ad_status ad_bridge_rows_multiple(const ad_layout *from, const ad_layout *to,
                                                    const ad_bridge_options *options, int64_t *out);
AD_API void ad_bridge_destroy(ad_bridge *bridge);         /* NULL allowed */
AD_API int ad_bridge_has_source(const ad_bridge *bridge); /* returns 1 if this rank is on the mesh of `from`, else 0 */
AD_API int ad_bridge_has_destination(const ad_bridge *bridge);
AD_API ad_layout ad_bridge_from(const ad_bridge *bridge);
AD_API ad_layout ad_bridge_to(const ad_bridge *bridge);

/* Describes, with data NULL, the arrays on both sides of the bridge for a value of this full shape and dtype
 * (AD_FORWARD) or for its gradient (AD_BACKWARD). Unless the meshes are identical: AD_INVALID for a scalar, and if the
 * bridge is not ragged and a part of one side does not lie inside one part of the other side (the message names batch
 * sizes that would do). */
#define ad_bridge_describe(...) ad_bridge_describe_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_describe_at(const ad_bridge *bridge, ad_dtype dtype, const ad_shape *shape,
                                                  ad_pass pass, ad_array *source, ad_array *destination,
                                                  const char *site);
/* Moves the value from source to destination. `source` is NULL on a rank outside the source, `destination` on a rank
 * outside the destination; unless ad_bridge_is_local, the two need separate memory. AD_TYPE unless their layouts are
 * those of ad_bridge_describe. */
#define ad_bridge_forward(...) ad_bridge_forward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination,
                                                 const char *site);
/* Moves the gradient from destination to source. On axes on which `to` is R, the gradient is summed first, unless the
 * meshes are identical. It is summed in place, or directly into the source's gradient if the sum leaves each rank
 * exactly its rows of the source. The contents of the destination's gradient are undefined afterwards. */
#define ad_bridge_backward(...) ad_bridge_backward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_backward_at(ad_bridge *bridge, ad_array *destination, ad_array *source,
                                                  const char *site);
/* Like ad_bridge_forward and ad_bridge_backward, without waiting, for sides that work at different times. A posted
 * value is in flight until `request` is complete; until then the memory of both arrays must stay valid. Each rank of
 * either side posts, and all ranks post in the same order. Every replica on the destination receives the same value:
 * the value arrives with the layout ad_bridge_arrives, which is `to` with I in place of R. ad_convert I->R makes the
 * value R; the backward of that conversion sums the gradient, which is then I. Between identical meshes a value arrives
 * with the layout `to`, and ranks need no common order of bridges: within one bridge and one direction the source's
 * n-th post matches the destination's n-th post, and each rank may post on other bridges, or in the other direction,
 * between them. Parts without an element are posted, too. */
#define ad_bridge_post_forward(...) ad_bridge_post_forward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_post_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination,
                                                      ad_request *out, const char *site);
#define ad_bridge_post_backward(...) ad_bridge_post_backward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_post_backward_at(ad_bridge *bridge, const ad_array *destination, ad_array *source,
                                                       ad_request *out, const char *site);
/* The layout with which a posted value arrives. */
AD_API ad_layout ad_bridge_arrives(const ad_bridge *bridge);
/* Returns 1 if no rows move, because every rank holds the same rows of a batch of `rows` rows on both sides (always so
 * for identical meshes on the same ranks). Forward and backward then only copy, and source and destination may share
 * memory. */
AD_API int ad_bridge_is_local(const ad_bridge *bridge, int64_t rows);

#if defined(__cplusplus)
}
#endif
#endif
