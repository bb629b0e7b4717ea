/* Meshes: ranks laid out on named axes. Pure arithmetic: nothing here communicates, and a mesh of a million ranks takes
 * as much time and memory as a mesh of two. A mesh is built from a string, and printed as the same string.
 *
 * For users. Any number of threads may read a mesh at a time; create and destroy it on one. */
#ifndef ADDEND_MESH_H
#define ADDEND_MESH_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* All axes: X(code, name). Meshes use the axes pp to block; the views of a mesh that experts are sharded on use efsdp
 * to etp. Every mesh has all axes; the axes that its string does not name have size 1. */
#define AD_AXIS_LIST(X)              \
  X(AD_PP, "pp")                     \
  X(AD_DP_REPLICATE, "dp_replicate") \
  X(AD_DP_SHARD, "dp_shard")         \
  X(AD_CP, "cp")                     \
  X(AD_TP, "tp")                     \
  X(AD_BLOCK, "block")               \
  X(AD_EFSDP, "efsdp")               \
  X(AD_EP, "ep")                     \
  X(AD_ETP, "etp")

typedef enum ad_axis {
#define AD_AXIS_CODE(code, name) code,
  AD_AXIS_LIST(AD_AXIS_CODE)
#undef AD_AXIS_CODE
      AD_AXIS_COUNT
} ad_axis;

/* A set of axes: bit a is axis a. */
typedef uint32_t ad_axes;
#define AD_AXES(axis) ((ad_axes)1 << (axis))
#define AD_AXES_DP (AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD))
#define AD_AXES_ALL (AD_AXES(AD_AXIS_COUNT) - 1)

AD_API const char *ad_axis_name(ad_axis axis);
/* Reads a set of axes such as "tp" or "dp_replicate,dp_shard" (commas or spaces between names). "dp" means both dp
 * axes, "" the empty set. If a name is unknown: AD_INVALID lists the known axes, and *out is unchanged. */
AD_API AD_CHECKED ad_status ad_axes_parse(const char *text, ad_axes *out);
/* Writes a set of axes such as "dp_replicate,dp_shard". Text longer than `size` is truncated, and the final 0 is always
 * written. Returns buffer. */
AD_API const char *ad_axes_print(ad_axes axes, char *buffer, size_t size);

typedef struct ad_mesh ad_mesh;

/* Creates a mesh from a string such as "pp=1 dp_replicate=2 dp_shard=2 cp=2 tp=2": row-major, the last axis is the
 * fastest; dp is short for dp_shard here. AD_INVALID: an unknown or repeated axis, a size below 1, more than 2^40
 * ranks. The ranks are consecutive; they start at 0, and those of a pool at first_rank. */
AD_API AD_CHECKED ad_status ad_mesh_create(const char *text, ad_mesh **out);
AD_API AD_CHECKED ad_status ad_mesh_create_pool(const char *text, int64_t first_rank, ad_mesh **out);
/* Creates a view: another factorisation of the mesh's ranks. AD_INVALID, with both numbers of ranks in the message, if
 * the numbers differ. The view does not need the mesh afterwards. */
AD_API AD_CHECKED ad_status ad_mesh_create_view(const ad_mesh *mesh, const char *text, ad_mesh **out);
/* Creates the mesh of one block from a mesh whose slowest axis is `block`: the new mesh has the other axes, and its
 * ranks start at first_rank. AD_INVALID if `block` has more than one rank and another axis is slower. The new mesh does
 * not need the old one afterwards. */
AD_API AD_CHECKED ad_status ad_mesh_create_block(const ad_mesh *mesh, int64_t first_rank, ad_mesh **out);
AD_API void ad_mesh_destroy(ad_mesh *mesh);
/* The string from which the mesh was built, normalised ("dp_replicate=2 dp_shard=2"). Owned by the mesh. */
AD_API const char *ad_mesh_text(const ad_mesh *mesh);

AD_API int64_t ad_mesh_size(const ad_mesh *mesh);       /* number of ranks */
AD_API int64_t ad_mesh_first_rank(const ad_mesh *mesh); /* first rank of the pool; 0 for a mesh that is no pool */
AD_API int64_t ad_mesh_axis_size(const ad_mesh *mesh, ad_axis axis);
AD_API ad_axes ad_mesh_named(const ad_mesh *mesh); /* the axes that the mesh's string names */
AD_API int ad_mesh_has_rank(const ad_mesh *mesh, int64_t rank);
AD_API int ad_mesh_same_ranks(const ad_mesh *a, const ad_mesh *b);
/* The position of a rank on one axis: 0 .. size-1. The rank must be in the mesh. */
AD_API int64_t ad_mesh_position(const ad_mesh *mesh, int64_t rank, ad_axis axis);
/* Returns the rank at these positions, one position for each axis (0 for an axis of size 1); -1 if a position lies
 * outside its axis. */
AD_API int64_t ad_mesh_rank_at(const ad_mesh *mesh, const int64_t position[AD_AXIS_COUNT]);

/* A group: the ranks that have the same positions as a given rank on all axes but `axes`, in mesh order. With no axes
 * the group is that rank alone. A plain struct: copy it freely. It borrows the mesh. */
typedef struct ad_group {
  const ad_mesh *mesh;
  ad_axes axes;
  int64_t base; /* the rank of the member whose position is 0 on all of `axes` */
} ad_group;

/* The group over `axes` that contains `rank`, which must be in the mesh. */
AD_API ad_group ad_mesh_group(const ad_mesh *mesh, ad_axes axes, int64_t rank);
AD_API int64_t ad_group_size(const ad_group *group);
AD_API int64_t ad_group_rank(const ad_group *group, int64_t index); /* the rank of the member with this index */
/* the index of `rank` in the group; -1 if `rank` is no member */
AD_API int64_t ad_group_index(const ad_group *group, int64_t rank);

/* Finds sets of axes of two views of the same ranks that have the same groups: the set in_a[i] of `a` divides the ranks
 * into the same groups as the set in_b[i] of `b`. Each set is as small as possible. For example "dp_shard=2 tp=2" and
 * "efsdp=1 ep=2 etp=2" have two pairs: dp_shard and ep, tp and etp. Returns the number of pairs, at most AD_AXIS_COUNT,
 * slowest axes first; 0 if the meshes do not have the same ranks, or an argument is NULL. Axes of size 1 are in no
 * set. */
AD_API int ad_mesh_common_sets(const ad_mesh *a, const ad_mesh *b, ad_axes in_a[AD_AXIS_COUNT],
                               ad_axes in_b[AD_AXIS_COUNT]);

#if defined(__cplusplus)
}
#endif
#endif
