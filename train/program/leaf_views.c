/* Views of the mesh in programs with leaves (train.leaves), on which experts lie. A leaf's tape has the ranks of one
 * data-parallel position, so the program sees only the part of a view that lies on these ranks. The parameters on it are
 * stored like all others: on a view of all ranks with the mesh's own data-parallel axes. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "mesh/mesh.h"
#include "program/program.h"

enum { VIEW_TEXT_SIZE = 256 };

/* the axes of a view that may have ranks of several data-parallel positions */
static const ad_axes data_axes = AD_AXES_DP | AD_AXES(AD_EFSDP);

static void add_axis(ad_text *text, ad_axis axis, int64_t size) {
  ad_text_add(text, "%s%s=%lld", text->used ? " " : "", ad_axis_name(axis), (long long)size);
}

/* Adds those of `axes` that the mesh names, in its order. */
static void add_axes(ad_text *text, const ad_mesh *mesh, ad_axes axes) {
  ad_axis axis;
  for (int i = 0; (axis = ad_mesh_axis_at(mesh, i)) < AD_AXIS_COUNT; i++)
    if (axes & AD_AXES(axis)) add_axis(text, axis, ad_mesh_axis_size(mesh, axis));
}

/* ---- the part of a recipe's view that lies on one data-parallel position ---- */

/* Returns 1 if the ranks at one position on the view's data axes are a part of one data-parallel position. */
static int fits_positions(const ad_mesh *view, int64_t positions) {
  ad_axes large = ad_mesh_large(view);
  if (ad_mesh_ranks_over(view, data_axes) % positions) return 0;
  for (int slow = 0; slow < AD_AXIS_COUNT; slow++)
    for (int fast = 0; fast < AD_AXIS_COUNT; fast++)
      if (large & data_axes & AD_AXES(slow) && large & ~data_axes & AD_AXES(fast) &&
          ad_mesh_stride(view, (ad_axis)fast) > ad_mesh_stride(view, (ad_axis)slow))
        return 0;
  return 1;
}

static ad_status check_positions(const ad_mesh *mesh, const ad_mesh *view) {
  int64_t positions = ad_mesh_ranks_over(mesh, AD_AXES_DP);
  long long ranks = ad_mesh_size(mesh) / positions;
  char axes[96];
  if (fits_positions(view, positions)) return AD_OK;
  ad_axes_print(ad_mesh_large(view) & ~data_axes, axes, sizeof axes);
  return ad_fail(
      AD_INVALID,
      "the view \"%s\" of \"%s\" has ranks of several data-parallel positions on %s, but with train.leaves "
      "each leaf is computed on the %lld rank%s of one position; give these axes sizes whose product divides "
      "%lld, after efsdp, such as \"ep=%lld etp=1\", or leave train.leaves out",
      ad_mesh_text(view), ad_mesh_text(mesh), axes, ranks, ad_plural(ranks), ranks, ranks);
}

/* Refuses a text that divides the data-parallel positions into replicas and shards in another way than the mesh. */
static ad_status check_replicas(const ad_mesh *mesh, const ad_mesh *view, ad_axes given) {
  long long replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE), size = ad_mesh_axis_size(view, AD_DP_REPLICATE);
  if (!(given & data_axes)) return AD_OK;
  if (size == replicas && (size == 1 || ad_mesh_stride(view, AD_DP_REPLICATE) == ad_mesh_stride(mesh, AD_DP_REPLICATE)))
    return AD_OK;
  return ad_fail(
      AD_INVALID,
      "the view \"%s\" divides the data-parallel ranks in another way than \"%s\", but with train.leaves "
      "parameters on a view are stored on dp_replicate and dp_shard like all others; write dp_replicate=%lld "
      "before efsdp, or leave both out",
      ad_mesh_text(view), ad_mesh_text(mesh), replicas);
}

static ad_status write_position(const ad_mesh *mesh, const ad_mesh *view, char **out) {
  char buffer[VIEW_TEXT_SIZE];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  int64_t positions = ad_mesh_ranks_over(mesh, AD_AXES_DP);
  if (ad_mesh_named(view) & AD_AXES(AD_DP_REPLICATE)) add_axis(&text, AD_DP_REPLICATE, 1);
  add_axis(&text, AD_EFSDP, ad_mesh_ranks_over(view, data_axes) / positions);
  add_axes(&text, view, ~data_axes);
  return ad_copy_string(buffer, out);
}

static ad_status find_given(const char *text, ad_axes *given) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create(text, &mesh));
  *given = ad_mesh_named(mesh);
  ad_mesh_destroy(mesh);
  return AD_OK;
}

ad_status ad_leaves_view(const ad_mesh *mesh, const char *text, char **out) {
  ad_mesh *view;
  ad_axes given;
  AD_TRY(find_given(text, &given));
  AD_TRY(ad_key_view(mesh, text, &view));
  ad_status status = check_positions(mesh, view);
  if (!status) status = check_replicas(mesh, view, given);
  if (!status) status = write_position(mesh, view, out);
  ad_mesh_destroy(view);
  return status;
}

/* ---- the program's options with views of one position ---- */

static char **view_in(const ad_program_kind *kind, void *options, size_t key) {
  const ad_key *of = &kind->keys[key];
  return of->kind == AD_KEY_VIEW ? (char **)((char *)options + of->offset) : NULL;
}

static int has_views(const ad_program_kind *kind, const void *options) {
  for (size_t i = 0; i < kind->key_count; i++) {
    char *const *view = view_in(kind, (void *)(uintptr_t)options, i);
    if (view && *view) return 1;
  }
  return 0;
}

ad_status ad_leaves_take_views(ad_program *program) {
  const ad_program_kind *kind = program->kind;
  const void *given = program->options;
  if (!has_views(kind, given)) return AD_OK;
  AD_TRY(ad_new_bytes(1, kind->options_size, &program->own_options));
  memcpy(program->own_options, given, kind->options_size);
  for (size_t i = 0; i < kind->key_count; i++)
    if (view_in(kind, program->own_options, i)) *view_in(kind, program->own_options, i) = NULL;
  program->options = program->own_options;
  for (size_t i = 0; i < kind->key_count; i++) {
    char **view = view_in(kind, program->own_options, i);
    const char *text = view ? *view_in(kind, (void *)(uintptr_t)given, i) : NULL;
    if (text) AD_TRY(ad_leaves_view(program->full_mesh, text, view));
  }
  return AD_OK;
}

void ad_leaves_release_views(ad_program *program) {
  for (size_t i = 1; i < program->leaf_mesh_count; i++)
    ad_mesh_destroy((ad_mesh *)(uintptr_t)program->leaf_meshes[i].full);
  ad_release(program->leaf_meshes);
  for (size_t i = 0; program->own_options && i < program->kind->key_count; i++)
    if (view_in(program->kind, program->own_options, i)) ad_release(*view_in(program->kind, program->own_options, i));
  ad_release(program->own_options);
}

/* ---- the view of all ranks on which a view's parameters are stored ---- */

static ad_status create_full(const ad_program *program, const ad_mesh *own, ad_mesh **out) {
  char buffer[VIEW_TEXT_SIZE];
  ad_text text = ad_text_on(buffer, sizeof buffer);
  add_axes(&text, program->full_mesh, AD_AXES_DP);
  add_axes(&text, own, ~AD_AXES_DP);
  return ad_mesh_create_view(program->full_mesh, buffer, out);
}

ad_status ad_leaves_full_view(ad_program *program, const ad_mesh *own, const ad_mesh **out) {
  ad_mesh *full;
  for (size_t i = 0; i < program->leaf_mesh_count; i++)
    if (ad_mesh_equal(program->leaf_meshes[i].own, own)) return *out = program->leaf_meshes[i].full, AD_OK;
  AD_TRY(ad_grow(&program->leaf_meshes, program->leaf_mesh_count, program->leaf_mesh_count + 1));
  AD_TRY(create_full(program, own, &full));
  program->leaf_meshes[program->leaf_mesh_count++] = (ad_leaf_mesh){full, own};
  *out = full;
  return AD_OK;
}
