/* The inside of a mesh, for this folder and for the layout layer, which prints in mesh order. */
#ifndef MESH_OBJECT_H
#define MESH_OBJECT_H
#include "addend/mesh.h"

enum { AD_MESH_TEXT_MAX = 256 }; /* 9 axes, 41 letters of names, sizes whose product stays below 2^40 */
#define AD_MESH_RANKS_MAX ((int64_t)1 << 40)

struct ad_mesh {
  int64_t first_rank, size;
  int64_t head, gap; /* of two pools together: ranks of the first, and those between it and the second; else size, 0 */
  ad_axes named;
  int named_count;
  ad_axis order[AD_AXIS_COUNT]; /* all axes: the named ones as in the text, slowest first, then the others */
  int64_t axis_size[AD_AXIS_COUNT];
  int64_t stride[AD_AXIS_COUNT]; /* ranks between neighbours on an axis: the product of the sizes of all faster axes */
  char text[AD_MESH_TEXT_MAX];
};

/* A rank's number in the mesh, in its order, and back. The rank must be in the mesh. */
static inline int64_t ad_mesh_number(const ad_mesh *mesh, int64_t rank) {
  int64_t number = rank - mesh->first_rank;
  return number < mesh->head ? number : number - mesh->gap;
}
static inline int64_t ad_mesh_numbered(const ad_mesh *mesh, int64_t number) {
  return mesh->first_rank + number + (number < mesh->head ? 0 : mesh->gap);
}

/* Fills *out from its string; see ad_mesh_create_pool for what is refused. Allocates nothing. */
AD_CHECKED ad_status ad_mesh_parse(const char *text, int64_t first_rank, ad_mesh *out);

/* AD_INVALID, naming the field and both numbers, unless the object is what its own string describes. For tests, and for
 * meshes that other code may have damaged. */
AD_CHECKED ad_status ad_mesh_check(const ad_mesh *mesh);

#endif
