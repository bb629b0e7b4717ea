/* Views, which are other factorisations of a mesh's ranks, and the sets of axes that two views have in common. */
#include <inttypes.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "mesh/object.h"

ad_status ad_mesh_create_view(const ad_mesh *mesh, const char *text, ad_mesh **out) {
  AD_NEED(mesh, text, out);
  ad_mesh parsed, *view = NULL;
  AD_TRY(ad_mesh_parse(text, mesh->first_rank, &parsed));
  if (parsed.size != mesh->size)
    return ad_fail(AD_INVALID,
                   "a view must have as many ranks as its mesh, but view \"%s\" has %" PRId64
                   " rank%s and mesh \"%s\" has %" PRId64 "; choose sizes with this product",
                   parsed.text, parsed.size, ad_plural(parsed.size), mesh->text, mesh->size);
  AD_TRY(ad_new(1, &view));
  *view = parsed;
  *out = view;
  return AD_OK;
}

/* A walk over the axes of one mesh, slowest first. */
typedef struct walk {
  const ad_mesh *mesh;
  int next;
  int64_t product; /* product of the sizes of the axes that were passed since the last common boundary */
  ad_axes axes;    /* the axes that were passed since the last common boundary, except those of size 1 */
} walk;

/* Moves the walk past its next axis. */
static void walk_on(walk *w) {
  ad_axis axis = w->mesh->order[w->next++];
  int64_t size = w->mesh->axis_size[axis];
  w->product *= size;
  if (size > 1) w->axes |= AD_AXES(axis);
}

/* A boundary lies between two neighbouring axes of a mesh; its position is the product of the sizes of all axes before
 * it. Every factor of a group's canonical shape begins and ends at a boundary of the group's mesh, and equal groups
 * have equal canonical shapes. Therefore sets of axes with the same groups in both meshes begin and end at common
 * boundaries, which both meshes have. The smallest such sets lie between two successive common boundaries. */
int ad_mesh_common_sets(const ad_mesh *a, const ad_mesh *b, ad_axes in_a[AD_AXIS_COUNT], ad_axes in_b[AD_AXIS_COUNT]) {
  if (ad_need(__func__, "a, b, in_a, in_b", (const void *const[]){a, b, in_a, in_b}, 4)) return 0;
  if (!ad_mesh_same_ranks(a, b)) return 0;
  walk left = {a, 0, 1, 0}, right = {b, 0, 1, 0};
  int count = 0;
  while (left.next < AD_AXIS_COUNT || right.next < AD_AXIS_COUNT) {
    int left_behind = left.product < right.product || right.next == AD_AXIS_COUNT;
    walk_on(left_behind && left.next < AD_AXIS_COUNT ? &left : &right);
    if (left.product != right.product || left.product == 1) continue;
    in_a[count] = left.axes;
    in_b[count++] = right.axes;
    left.product = right.product = 1;
    left.axes = right.axes = 0;
  }
  return count;
}
