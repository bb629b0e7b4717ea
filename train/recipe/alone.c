/* Copies a recipe so that every mesh and every view has one rank, or those of one data-parallel position. */
#include "recipe/alone.h"

#include <string.h>
#include "base/memory.h"
#include "base/text.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "recipe/leaves.h"

/* Gives every axis size 1, except those of `keep` and block, and removes no axis: "block=2 dp_replicate=3 cp=2" becomes
 * "block=2 dp_replicate=1 cp=1". So types, names, order and modules stay the same. */
static ad_status shrink(const char *text, ad_axes keep, char **out) {
  ad_mesh *mesh;
  char buffer[256];
  ad_text shrunk = ad_text_on(buffer, sizeof buffer);
  ad_axis axis;
  AD_TRY(ad_mesh_create(text, &mesh));
  for (int i = 0; (axis = ad_mesh_axis_at(mesh, i)) < AD_AXIS_COUNT; i++)
    ad_text_add(&shrunk, "%s%s=%lld", shrunk.used ? " " : "", ad_axis_name(axis),
                (keep | AD_AXES(AD_BLOCK)) & AD_AXES(axis) ? (long long)ad_mesh_axis_size(mesh, axis) : 1);
  ad_mesh_destroy(mesh);
  return ad_copy_string(buffer, out);
}

static ad_status shrink_meshes(const ad_recipe *recipe, ad_axes keep, ad_recipe *alone) {
  AD_TRY(ad_new(recipe->mesh_count, &alone->meshes));
  for (size_t i = 0; i < recipe->mesh_count; i++) {
    alone->meshes[i].module = recipe->meshes[i].module;
    AD_TRY(shrink(recipe->meshes[i].text, keep, &alone->meshes[i].text));
  }
  return AD_OK;
}

/* Returns where the options have the text of key `key`, or NULL if the key is no view. */
static char **view_at(const ad_recipe *recipe, size_t key) {
  const ad_key *of = &recipe->program->keys[key];
  return of->kind == AD_KEY_VIEW ? (char **)((char *)recipe->options + of->offset) : NULL;
}

/* Shrinks a view, a text of the program's options, like the mesh: to the ranks of one data-parallel position if `keep`
 * has any axes, else to one rank. */
static ad_status shrink_view(const ad_recipe *recipe, const char *text, ad_axes keep, char **out) {
  ad_mesh *mesh;
  if (!keep) return shrink(text, 0, out);
  AD_TRY(ad_mesh_create(recipe->meshes[0].text, &mesh));
  ad_status status = ad_leaves_view(mesh, text, out);
  ad_mesh_destroy(mesh);
  return status;
}

/* Copies the program's options, and shrinks their views like the meshes. */
static ad_status shrink_views(const ad_recipe *recipe, ad_axes keep, ad_recipe *alone) {
  const ad_program_kind *program = recipe->program;
  AD_TRY(ad_new_bytes(1, program->options_size, &alone->options));
  memcpy(alone->options, recipe->options, program->options_size);
  for (size_t i = 0; i < program->key_count; i++) {
    char **view = view_at(alone, i);
    if (view) *view = NULL;
  }
  for (size_t i = 0; i < program->key_count; i++) {
    char **view = view_at(alone, i);
    if (view && *view_at(recipe, i)) AD_TRY(shrink_view(recipe, *view_at(recipe, i), keep, view));
  }
  return AD_OK;
}

static char colocated[] = AD_COLOCATED; /* one rank has all modules */

static ad_status shrink_recipe(const ad_recipe *recipe, ad_axes keep, ad_recipe *out) {
  *out = *recipe;
  out->meshes = NULL;
  out->options = NULL;
  out->placement = recipe->placement ? colocated : NULL;
  out->shard.zero = out->shard.outer_zero = 0;
  out->shard.groups = NULL;
  out->shard.group_count = 0;
  out->train.recompute = NULL;
  out->train.recompute_count = 0;
  if (out->train.leaves) ad_recipe_set_rounds(out, 1); /* one position computes all leaves */
  memset(&out->schedule, 0, sizeof out->schedule);
  AD_TRY(shrink_meshes(recipe, keep, out));
  return shrink_views(recipe, keep, out);
}

ad_status ad_alone_create(const ad_recipe *recipe, ad_recipe *out) { return shrink_recipe(recipe, 0, out); }

ad_status ad_alone_create_position(const ad_recipe *recipe, ad_recipe *out) {
  return shrink_recipe(recipe, AD_AXES_ALL & ~AD_AXES_DP & ~AD_AXES(AD_PP), out);
}

void ad_alone_release(ad_recipe *alone) {
  for (size_t i = 0; alone->meshes && i < alone->mesh_count; i++) ad_release(alone->meshes[i].text);
  ad_release(alone->meshes);
  for (size_t i = 0; alone->options && i < alone->program->key_count; i++)
    if (view_at(alone, i)) ad_release(*view_at(alone, i));
  ad_release(alone->options);
}
