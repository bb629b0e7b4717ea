/* The structure of a mesh, for the files of mesh/ and of layout/, which prints axes in mesh order. */
#ifndef MESH_OBJECT_H
#define MESH_OBJECT_H
#include "addend/mesh.h"

enum { AD_MESH_TEXT_MAX = 256 }; /* enough for 9 axes, 41 letters of names, and sizes whose product is at most 2^40 */
#define AD_MESH_RANKS_MAX ((int64_t)1 << 40)

struct ad_mesh {
  int64_t first_rank, size;
  /* for a mesh over two pools: `head` is the number of ranks of the first pool, `gap` the number of ranks between the
   * two pools. For other meshes `head` is `size` and `gap` is 0 */
  int64_t head, gap;
  ad_axes named;
  int named_count;
  ad_axis order[AD_AXIS_COUNT]; /* all axes, slowest first: the named axes in the order of the text, then all others */
  int64_t axis_size[AD_AXIS_COUNT];
  /* distance in ranks between neighbours on an axis: the product of the sizes of all faster axes */
  int64_t stride[AD_AXIS_COUNT];
  char text[AD_MESH_TEXT_MAX];
};

/* ad_mesh_number returns a rank's number within the mesh, ad_mesh_numbered the rank with a number. The rank must be in
 * the mesh. */
static inline int64_t ad_mesh_number(const ad_mesh *mesh, int64_t rank) {
  int64_t number = rank - mesh->first_rank;
  return number < mesh->head ? number : number - mesh->gap;
}
static inline int64_t ad_mesh_numbered(const ad_mesh *mesh, int64_t number) {
  return mesh->first_rank + number + (number < mesh->head ? 0 : mesh->gap);
}

/* Fills *out from a mesh string; AD_INVALID as for ad_mesh_create_pool. Allocates nothing. */
AD_CHECKED ad_status ad_mesh_parse(const char *text, int64_t first_rank, ad_mesh *out);

/* Checks that a mesh is the one that its own string describes; AD_INVALID names the field and both numbers. For tests,
 * and for meshes that other code may have overwritten. */
AD_CHECKED ad_status ad_mesh_check(const ad_mesh *mesh);

#endif
