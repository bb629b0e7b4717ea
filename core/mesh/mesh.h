/* Functions on meshes that are not public. */
#ifndef MESH_MESH_H
#define MESH_MESH_H
#include "addend/mesh.h"
#include "base/internal.h"

/* Creates the mesh of one pipeline stage from a mesh whose slowest axis is `pp`: the new mesh has the other axes, and
 * its ranks are those at this position of pp. AD_INVALID if pp has more than one rank and another axis is slower, or if
 * pp has no such position. The new mesh does not need the old one afterwards. */
AD_INTERNAL AD_CHECKED ad_status ad_mesh_create_stage(const ad_mesh *mesh, int64_t position, ad_mesh **out);
/* Creates the mesh of one data-parallel position: the ranks that have the same positions as `rank` on dp_replicate and
 * dp_shard. The new mesh has the same axes, those two with size 1. AD_INVALID if these ranks are not consecutive,
 * because another axis with several ranks is slower than a data-parallel one, or if the mesh does not have the rank.
 * The new mesh does not need the old one afterwards. */
AD_INTERNAL AD_CHECKED ad_status ad_mesh_create_slice(const ad_mesh *mesh, int64_t rank, ad_mesh **out);
AD_INTERNAL int64_t ad_mesh_last_rank(const ad_mesh *mesh);
/* The distance in ranks between neighbours on the axis: the product of the sizes of all faster axes. */
AD_INTERNAL int64_t ad_mesh_stride(const ad_mesh *mesh, ad_axis axis);
/* The number of ranks in each group over `axes`: the product of the axes' sizes. */
AD_INTERNAL int64_t ad_mesh_ranks_over(const ad_mesh *mesh, ad_axes axes);
/* Returns the axis at index `index` of the mesh's text, slowest first; AD_AXIS_COUNT after the last. */
AD_INTERNAL ad_axis ad_mesh_axis_at(const ad_mesh *mesh, int index);
AD_INTERNAL ad_axes ad_mesh_large(const ad_mesh *mesh); /* the axes with more than one rank */
/* Returns 1 if both meshes have the same axes in the same order on the same ranks, else 0. */
AD_INTERNAL int ad_mesh_equal(const ad_mesh *a, const ad_mesh *b);

#endif
