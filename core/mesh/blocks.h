/* A mesh of the ranks of two meshes that have no rank in common. */
#ifndef MESH_BLOCKS_H
#define MESH_BLOCKS_H
#include "addend/mesh.h"
#include "base/internal.h"

/* Creates a mesh with the single axis dp_shard over the ranks of both meshes, lower ranks first. */
AD_CHECKED ad_status ad_mesh_create_both(const ad_mesh *a, const ad_mesh *b, ad_mesh **out);

#endif
