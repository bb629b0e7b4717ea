/* Bridges: a value that is cut by batch, brought from one mesh to another and its gradient back. The two meshes have
 * the same ranks or none in common. What lies behind the batch dimension is nobody's business here. Between alike
 * meshes, as the stages of a pipeline have them, any value goes over, however it is cut. */
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
  int ragged;  /* 1: parts of the two sides may overlap in any way, and the batch need not divide */
  /* 1: both meshes have the same axes and sizes in the same order. Each rank's part goes, however it is cut, to the
   * rank at the same position of the other mesh, and its gradient comes back the same way. */
  int alike;
  /* Only an alike bridge on disjoint ranks reads it; 0 to INT64_MAX / 2. Such a bridge moves values under the tag
   * 2 * tag of ad_comm_post_transfer (ranks of the world) and gradients under 2 * tag + 1. Two bridges from the same
   * ranks to the same ranks need different tags here, and a program's own transfers between those ranks need tags that
   * no bridge uses. */
  int64_t tag;
} ad_bridge_options;

/* Of a batch. `from`: cut by S0 on dp axes and I on all others: each copy gets the whole gradient, so an R, whose
 * gradient would count once for each copy, is refused. `to`: cut by S0 on dp axes, R on cp, I or R on tp and any other;
 * where it is R, users leave addends: the gradient that comes back is P there and is summed first. Of a value that is
 * not cut (a weight): I or R on every axis of both sides. Where `from` is R its gradient counts once: the first copy
 * gets it, the others zeros (law 7). AD_TYPE names axis, type and repair; AD_INVALID: meshes that share some of their
 * ranks but not all, pp, or, unless ragged, numbers of parts neither of which divides the other. Borrows comm and
 * meshes. Collective over the ranks of both meshes.
 *
 * An alike bridge has other rules. `to` has the types of `from` on every axis (AD_TYPE names axis and both types), any
 * of R, I, V and cuts, on any axes, pp too; the gradient is of the dual types. Nothing is summed on the way: of an R
 * the gradient is P and comes back as P, each rank's addend to the rank at its position, to be summed where the value
 * was made. P in `from` is AD_TYPE: it takes as many bytes as its sum, and law 6 would let nothing but other addends of
 * that sum meet it. AD_INVALID: meshes that are not alike, `ragged`. */
AD_API AD_CHECKED ad_status ad_bridge_create(ad_comm *comm, const ad_layout *from, const ad_layout *to,
                                             const ad_bridge_options *options, ad_bridge **out);
/* Whether ad_bridge_create would make one, with its words where not, before there are ranks: what a program says of its
 * options. */
AD_API AD_CHECKED ad_status ad_bridge_check(const ad_layout *from, const ad_layout *to,
                                            const ad_bridge_options *options);
/* The number of rows that a batch of ad_bridge_describe must be a multiple of: the parts of the side that has more, or
 * 1 where the bridge is ragged or alike. Looks at the layouts' cuts alone: ad_bridge_check says whether there can be
 * such a bridge. */
AD_API AD_CHECKED ad_status ad_bridge_rows_multiple(const ad_layout *from, const ad_layout *to,
                                                    const ad_bridge_options *options, int64_t *out);
AD_API void ad_bridge_destroy(ad_bridge *bridge);         /* NULL allowed */
AD_API int ad_bridge_has_source(const ad_bridge *bridge); /* this rank is one of `from`'s */
AD_API int ad_bridge_has_destination(const ad_bridge *bridge);
AD_API ad_layout ad_bridge_from(const ad_bridge *bridge);
AD_API ad_layout ad_bridge_to(const ad_bridge *bridge);

/* Describes, data NULL, what a value of this whole shape and dtype (AD_FORWARD), or its gradient (AD_BACKWARD), is on
 * either side. AD_INVALID if the bridge is not ragged and the parts of the sides do not lie inside each other, with the
 * sizes that would do, and of a scalar, unless the bridge is alike. */
#define ad_bridge_describe(...) ad_bridge_describe_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_describe_at(const ad_bridge *bridge, ad_dtype dtype, const ad_shape *shape,
                                                  ad_pass pass, ad_array *source, ad_array *destination,
                                                  const char *site);
/* source -> destination. Either is NULL where this rank is not on that side; both have memory of their own where rows
 * move. AD_TYPE unless they lie as `describe` says. */
#define ad_bridge_forward(...) ad_bridge_forward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination,
                                                 const char *site);
/* destination's gradient -> source's. Where the bridge's `to` is R, and it is not alike, the gradient is summed first,
 * in place or, where that leaves each rank the rows that are its own in the source, straight into the source's
 * gradient: what the destination's gradient holds afterwards is not defined. */
#define ad_bridge_backward(...) ad_bridge_backward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_backward_at(ad_bridge *bridge, ad_array *destination, ad_array *source,
                                                  const char *site);
/* The same without waiting, for sides that work at different times: what is posted travels until `request` is waited
 * for, and all memory stays till then. Each rank of either side posts, in one order. What arrives is the same on every
 * copy: `to` with I where that is R (ad_bridge_arrives). ad_convert I->R uses it, and leaves its gradient summed: I.
 * Over an alike bridge a value arrives as `to`, and no common order is needed: of one bridge in one direction the n-th
 * post of the source is the n-th of the destination, and posts of other bridges or of the other direction may stand
 * anywhere between them, on each rank elsewhere. Parts without an element are posted too. */
#define ad_bridge_post_forward(...) ad_bridge_post_forward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_post_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination,
                                                      ad_request *out, const char *site);
#define ad_bridge_post_backward(...) ad_bridge_post_backward_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_bridge_post_backward_at(ad_bridge *bridge, const ad_array *destination, ad_array *source,
                                                       ad_request *out, const char *site);
AD_API ad_layout ad_bridge_arrives(const ad_bridge *bridge);
/* 1: every rank's rows are its own on both sides, as they always are on the same ranks if the bridge is alike; forward
 * and backward then only copy, and the two may share memory. */
AD_API int ad_bridge_is_local(const ad_bridge *bridge, int64_t rows);

#if defined(__cplusplus)
}
#endif
#endif
