/* Meshes made of others: one block of one, and two that have no rank in common together. */
#ifndef MESH_BLOCKS_H
#define MESH_BLOCKS_H
#include "addend/mesh.h"
#include "base/internal.h"

/* Of a mesh whose slowest axis is `block`: one block of it, with the other axes, from `first_rank` on. AD_INVALID where
 * `block` has more than one rank and another axis is slower. */
AD_INTERNAL AD_CHECKED ad_status ad_mesh_create_block(const ad_mesh *mesh, int64_t first_rank, ad_mesh **out);
/* One axis dp_shard over the ranks of two meshes that have none in common, those of the lower ranks first. */
AD_CHECKED ad_status ad_mesh_create_both(const ad_mesh *a, const ad_mesh *b, ad_mesh **out);

#endif
