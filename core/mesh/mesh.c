/* Creates, destroys and checks meshes, and returns their properties. Groups are in group.c, views in view.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "mesh/blocks.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

ad_status ad_mesh_create(const char *text, ad_mesh **out) {
  AD_NEED(text, out);
  return ad_mesh_create_pool(text, 0, out);
}

ad_status ad_mesh_create_pool(const char *text, int64_t first_rank, ad_mesh **out) {
  AD_NEED(text, out);
  ad_mesh parsed, *mesh = NULL;
  AD_TRY(ad_mesh_parse(text, first_rank, &parsed));
  AD_TRY(ad_new(1, &mesh));
  *mesh = parsed;
  *out = mesh;
  return AD_OK;
}

/* Writes the mesh's text without `axis`, which must be the slowest axis if it has several ranks. `part` is the word in
 * messages for the ranks at one position of `axis`. */
static ad_status text_without(const ad_mesh *mesh, ad_axis axis, const char *part, char buffer[AD_MESH_TEXT_MAX]) {
  ad_text text = ad_text_on(buffer, AD_MESH_TEXT_MAX);
  int64_t size = mesh->axis_size[axis];
  if (size > 1 && mesh->stride[axis] * size != mesh->size)
    return ad_fail(AD_INVALID,
                   "mesh \"%s\": write `%s` as the first axis, because the ranks of a %s must be consecutive",
                   mesh->text, ad_axis_name(axis), part);
  for (int i = 0; i < mesh->named_count; i++)
    if (mesh->order[i] != axis)
      ad_text_add(&text, "%s%s=%" PRId64, text.used ? " " : "", ad_axis_name(mesh->order[i]),
                  mesh->axis_size[mesh->order[i]]);
  return AD_OK;
}

ad_status ad_mesh_create_block(const ad_mesh *mesh, int64_t first_rank, ad_mesh **out) {
  AD_NEED(mesh, out);
  char text[AD_MESH_TEXT_MAX];
  AD_TRY(text_without(mesh, AD_BLOCK, "block", text));
  return ad_mesh_create_pool(text, first_rank, out);
}

ad_status ad_mesh_create_stage(const ad_mesh *mesh, int64_t position, ad_mesh **out) {
  AD_NEED(mesh, out);
  char text[AD_MESH_TEXT_MAX];
  int64_t positions = mesh->axis_size[AD_PP];
  if (position < 0 || position >= positions)
    return ad_fail(AD_INVALID, "mesh \"%s\" has no position %" PRId64 " on pp; choose a position from 0 to %" PRId64,
                   mesh->text, position, positions - 1);
  AD_TRY(text_without(mesh, AD_PP, "stage", text));
  return ad_mesh_create_pool(text, mesh->first_rank + position * (mesh->size / positions), out);
}

/* Writes the mesh's text with size 1 for both data-parallel axes. */
static void text_without_data(const ad_mesh *mesh, char buffer[AD_MESH_TEXT_MAX]) {
  ad_text text = ad_text_on(buffer, AD_MESH_TEXT_MAX);
  for (int i = 0; i < mesh->named_count; i++) {
    ad_axis axis = mesh->order[i];
    int64_t size = AD_AXES_DP & AD_AXES(axis) ? 1 : mesh->axis_size[axis];
    ad_text_add(&text, "%s%s=%" PRId64, text.used ? " " : "", ad_axis_name(axis), size);
  }
}

/* Returns an axis with several ranks that is slower than a data-parallel axis with several ranks, or AD_AXIS_COUNT if
 * there is none. */
static ad_axis slower_than_data(const ad_mesh *mesh) {
  ad_axis slowest = AD_AXIS_COUNT;
  for (int i = 0; i < mesh->named_count; i++) {
    ad_axis axis = mesh->order[i];
    int is_data = (AD_AXES_DP & AD_AXES(axis)) != 0;
    if (mesh->axis_size[axis] == 1) continue;
    if (is_data && slowest != AD_AXIS_COUNT) return slowest;
    if (!is_data && slowest == AD_AXIS_COUNT) slowest = axis;
  }
  return AD_AXIS_COUNT;
}

ad_status ad_mesh_create_slice(const ad_mesh *mesh, int64_t rank, ad_mesh **out) {
  AD_NEED(mesh, out);
  char text[AD_MESH_TEXT_MAX];
  ad_axis slower = slower_than_data(mesh);
  if (!ad_mesh_has_rank(mesh, rank))
    return ad_fail(AD_INVALID, "rank %" PRId64 " is not on the mesh \"%s\"; pass a rank of the mesh", rank, mesh->text);
  if (slower < AD_AXIS_COUNT)
    return ad_fail(AD_INVALID,
                   "mesh \"%s\": write the data-parallel axes before `%s`, because the ranks of one data-parallel "
                   "position must be consecutive",
                   mesh->text, ad_axis_name(slower));
  text_without_data(mesh, text);
  return ad_mesh_create_pool(text, ad_mesh_group(mesh, AD_AXES_ALL & ~AD_AXES_DP, rank).base, out);
}

ad_status ad_mesh_create_both(const ad_mesh *a, const ad_mesh *b, ad_mesh **out) {
  AD_NEED(a, b, out);
  const ad_mesh *low = a->first_rank < b->first_rank ? a : b, *high = low == a ? b : a;
  char text[32];
  if (ad_mesh_last_rank(low) >= high->first_rank)
    return ad_fail(AD_INVALID,
                   "the meshes \"%s\" and \"%s\" have ranks in common, but must have none; give the second mesh "
                   "another first rank",
                   a->text, b->text);
  snprintf(text, sizeof text, "dp_shard=%" PRId64, low->size + high->size);
  AD_TRY(ad_mesh_create_pool(text, low->first_rank, out));
  (*out)->head = low->size;
  (*out)->gap = high->first_rank - low->first_rank - low->size;
  return AD_OK;
}

void ad_mesh_destroy(ad_mesh *mesh) { ad_release(mesh); }

const char *ad_mesh_text(const ad_mesh *mesh) { return mesh->text; }

/* Parses the mesh's text again and compares every field of the result with the mesh. */
ad_status ad_mesh_check(const ad_mesh *mesh) {
  ad_mesh again;
  if (!mesh) return ad_fail(AD_INVALID, "ad_mesh_check: the mesh is NULL; pass a mesh that ad_mesh_create made");
  if (!memchr(mesh->text, 0, sizeof mesh->text))
    return ad_fail(AD_INVALID,
                   "ad_mesh_check: the text of the mesh has no terminating 0; make meshes with ad_mesh_create");
  AD_TRY(ad_mesh_parse(mesh->text, mesh->first_rank, &again));
  if (again.size != mesh->size)
    return ad_fail(AD_INVALID,
                   "ad_mesh_check: by its text the mesh \"%s\" has %" PRId64 " rank%s, but its field `size` is %" PRId64
                   "; make meshes with ad_mesh_create",
                   mesh->text, again.size, ad_plural(again.size), mesh->size);
  if (again.named != mesh->named || again.named_count != mesh->named_count)
    return ad_fail(AD_INVALID,
                   "ad_mesh_check: the text \"%s\" names %d axes (set 0x%x), but in the fields of the mesh there are "
                   "%d (set 0x%x); make meshes with ad_mesh_create",
                   mesh->text, again.named_count, again.named, mesh->named_count, mesh->named);
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    if (again.order[i] != mesh->order[i])
      return ad_fail(AD_INVALID,
                     "ad_mesh_check: axis %d of \"%s\" is `%s` by its text, but `%s` by its fields; make meshes with "
                     "ad_mesh_create",
                     i, mesh->text, ad_axis_name(again.order[i]), ad_axis_name(mesh->order[i]));
    if (again.axis_size[i] != mesh->axis_size[i] || again.stride[i] != mesh->stride[i])
      return ad_fail(AD_INVALID,
                     "ad_mesh_check: by the text, `%s` of \"%s\" has size %" PRId64 " and stride %" PRId64
                     ", but by the fields of the mesh %" PRId64 " and %" PRId64 "; make meshes with ad_mesh_create",
                     ad_axis_name((ad_axis)i), mesh->text, again.axis_size[i], again.stride[i], mesh->axis_size[i],
                     mesh->stride[i]);
  }
  return AD_OK;
}

int64_t ad_mesh_size(const ad_mesh *mesh) { return mesh->size; }
int64_t ad_mesh_first_rank(const ad_mesh *mesh) { return mesh->first_rank; }
int64_t ad_mesh_last_rank(const ad_mesh *mesh) { return mesh->first_rank + mesh->size + mesh->gap - 1; }
ad_axes ad_mesh_large(const ad_mesh *mesh) {
  ad_axes large = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (mesh->axis_size[axis] > 1) large |= AD_AXES(axis);
  return large;
}

int64_t ad_mesh_axis_size(const ad_mesh *mesh, ad_axis axis) {
  return ad_has((size_t)(int)axis, AD_AXIS_COUNT, __func__, "axis") ? mesh->axis_size[axis] : 0;
}
int64_t ad_mesh_stride(const ad_mesh *mesh, ad_axis axis) {
  return ad_has((size_t)(int)axis, AD_AXIS_COUNT, __func__, "axis") ? mesh->stride[axis] : 0;
}
ad_axes ad_mesh_named(const ad_mesh *mesh) { return mesh->named; }
ad_axis ad_mesh_axis_at(const ad_mesh *mesh, int index) {
  return index < mesh->named_count ? mesh->order[index] : AD_AXIS_COUNT;
}

int ad_mesh_has_rank(const ad_mesh *mesh, int64_t rank) {
  int64_t number = rank - mesh->first_rank;
  if (number >= mesh->head) number -= mesh->gap;
  return number >= 0 && number < mesh->size && ad_mesh_numbered(mesh, number) == rank;
}

int ad_mesh_same_ranks(const ad_mesh *a, const ad_mesh *b) {
  return a->first_rank == b->first_rank && a->size == b->size && a->gap == b->gap && (!a->gap || a->head == b->head);
}

int ad_mesh_equal(const ad_mesh *a, const ad_mesh *b) {
  return a == b || (ad_mesh_same_ranks(a, b) && strcmp(a->text, b->text) == 0);
}

int64_t ad_mesh_position(const ad_mesh *mesh, int64_t rank, ad_axis axis) {
  if (!ad_has((size_t)(int)axis, AD_AXIS_COUNT, __func__, "axis")) return -1;
  return ad_mesh_number(mesh, rank) / mesh->stride[axis] % mesh->axis_size[axis];
}

int64_t ad_mesh_rank_at(const ad_mesh *mesh, const int64_t position[AD_AXIS_COUNT]) {
  int64_t number = 0;
  if (ad_need(__func__, "mesh, position", (const void *const[]){mesh, position}, 2)) return -1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!ad_has((size_t)position[axis], (size_t)mesh->axis_size[axis], __func__, "position")) return -1;
    number += position[axis] * mesh->stride[axis];
  }
  return ad_mesh_numbered(mesh, number);
}
