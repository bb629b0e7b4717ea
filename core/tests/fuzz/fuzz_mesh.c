/* Fuzzes mesh strings: what is accepted prints as a string that builds the same mesh again. */
#include <stdlib.h>
#include <string.h>
#include "addend/mesh.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

/* Checks that positions and groups of the mesh's last rank agree. */
static void check_last_rank(const ad_mesh *mesh) {
  int64_t position[AD_AXIS_COUNT], last = ad_mesh_first_rank(mesh) + ad_mesh_size(mesh) - 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) position[axis] = ad_mesh_position(mesh, last, (ad_axis)axis);
  require(ad_mesh_rank_at(mesh, position) == last);
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, last);
  require(ad_group_size(&all) == ad_mesh_size(mesh) && ad_group_index(&all, last) == ad_mesh_size(mesh) - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  ad_mesh *mesh = NULL, *again = NULL;
  memcpy(text, data, size);
  text[size] = 0;
  if (ad_mesh_create(text, &mesh)) {
    require(!mesh && ad_last_error()[0]);
  } else {
    require(!ad_mesh_check(mesh) && !ad_mesh_create(ad_mesh_text(mesh), &again));
    require(ad_mesh_equal(mesh, again) && strcmp(ad_mesh_text(mesh), ad_mesh_text(again)) == 0);
    check_last_rank(mesh);
  }
  ad_mesh_destroy(again);
  ad_mesh_destroy(mesh);
  free(text);
  return 0;
}
