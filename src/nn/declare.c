/* Building a model's list of parameters. */
#include "nn/declare.h"

#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"

ad_declarations ad_declarations_on(const ad_mesh *mesh) {
  ad_declarations list = {.layout = ad_layout_all(mesh, AD_R)};
  ad_layout_set(&list.layout, ad_mesh_named(mesh) & ~(AD_AXES_DP | AD_AXES(AD_CP)), AD_I);
  return list;
}

void ad_declarations_release(ad_declarations *list) {
  ad_release(list->list);
  list->list = NULL;
  list->count = list->capacity = 0;
}

static ad_status grow(ad_declarations *list) {
  if (list->count < list->capacity) return AD_OK;
  size_t capacity = list->capacity ? 2 * list->capacity : 16;
  AD_TRY(ad_grow(&list->list, list->capacity, capacity));
  list->capacity = capacity;
  return AD_OK;
}

static ad_status set_name(ad_param_declaration *declaration, const char *path, const char *name) {
  int length = snprintf(declaration->name, sizeof declaration->name, "%s.%s", path, name);
  if (length >= 0 && (size_t)length < sizeof declaration->name) return AD_OK;
  return ad_fail(AD_INVALID, "the parameter name %s.%s has %d characters; at most %zu fit", path, name, length,
                 sizeof declaration->name - 1);
}

static ad_status append(ad_declarations *list, const char *path, const char *name, ad_param_declaration declaration) {
  declaration.layout = list->layout;
  declaration.unit = list->unit;
  AD_TRY(set_name(&declaration, path, name));
  AD_TRY(grow(list));
  list->list[list->count] = declaration;
  return AD_OK;
}

static size_t declare(ad_declarations *list, const char *path, const char *name, ad_param_declaration declaration) {
  if (!list->status) list->status = append(list, path, name, declaration);
  return list->status ? 0 : list->count++;
}

size_t ad_declare_matrix(ad_declarations *to, const char *path, const char *name, int64_t rows, int64_t columns,
                         double deviation, int decays) {
  return declare(to, path, name,
                 (ad_param_declaration){.shape = {2, {rows, columns}}, .deviation = deviation, .decays = decays});
}

size_t ad_declare_vector(ad_declarations *to, const char *path, const char *name, int64_t numel, double value) {
  return declare(to, path, name, (ad_param_declaration){.shape = {1, {numel}}, .mean = value});
}
