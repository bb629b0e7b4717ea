/* Builds a model's list of parameters and states. */
#include "addend/layers.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

ad_declarations ad_declarations_on(const ad_mesh *mesh) {
  ad_declarations list = {.replicated = ad_layout_all(mesh, AD_R)};
  ad_layout_set(&list.replicated, ad_mesh_named(mesh) & ~(AD_AXES_DP | AD_AXES(AD_CP)), AD_I);
  return list;
}

void ad_declarations_release(ad_declarations *list) {
  if (!list) return;
  for (size_t i = 0; i < list->count; i++) ad_release((char *)(uintptr_t)list->list[i].name);
  for (size_t i = 0; i < list->state_count; i++) ad_release((char *)(uintptr_t)list->states[i].name);
  ad_release(list->list);
  ad_release(list->states);
  list->list = NULL;
  list->states = NULL;
  list->count = list->capacity = list->state_count = 0;
}

static ad_status grow(ad_declarations *list) {
  if (list->count < list->capacity) return AD_OK;
  size_t capacity = list->capacity ? 2 * list->capacity : 16;
  AD_TRY(ad_grow(&list->list, list->capacity, capacity));
  list->capacity = capacity;
  return AD_OK;
}

static ad_status make_name(const char *path, const char *name, char **out) {
  size_t size = strlen(path) + 1 + strlen(name) + 1;
  if (size > AD_PARAM_NAME_SIZE) {
    return ad_fail(AD_INVALID,
                   "the parameter name `%s.%s` has %zu characters, but at most %d are allowed; choose a shorter name",
                   path, name, size - 1, AD_PARAM_NAME_SIZE - 1);
  }
  AD_TRY(ad_new(size, out));
  snprintf(*out, size, "%s.%s", path, name);
  return AD_OK;
}

static ad_status append(ad_declarations *list, const char *path, const char *name, ad_param_spec spec) {
  char *own_name;
  AD_TRY(grow(list));
  AD_TRY(make_name(path, name, &own_name));
  spec.name = own_name;
  spec.storage = spec.layout;
  spec.unit = list->unit;
  list->list[list->count] = spec;
  return AD_OK;
}

size_t ad_declare_param(ad_declarations *to, const char *path, const char *name, ad_param_spec spec) {
  if (!to->status) to->status = append(to, path, name, spec);
  return to->status ? 0 : to->count++;
}

static ad_status append_state(ad_declarations *list, const char *path, const char *name, ad_state_spec spec) {
  char *own_name;
  AD_TRY(ad_grow(&list->states, list->state_count, list->state_count + 1));
  AD_TRY(make_name(path, name, &own_name));
  spec.name = own_name;
  list->states[list->state_count] = spec;
  return AD_OK;
}

size_t ad_declare_state(ad_declarations *to, const char *path, const char *name, ad_state_spec spec) {
  if (!to->status) to->status = append_state(to, path, name, spec);
  return to->status ? 0 : to->state_count++;
}
