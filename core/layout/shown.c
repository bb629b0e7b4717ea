/* Prints layouts for people. text.c prints layouts as strings that can be parsed again. */
#include "layout/shown.h"

#include <string.h>

const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size) {
  ad_layout shown = *layout;
  ad_axes silent = ad_layout_axes_of(layout, AD_I) | ad_layout_axes_of(layout, AD_P) | ad_layout_axes_of(layout, AD_V);
  ad_layout_set(&shown, silent & ~ad_mesh_named(layout->mesh), AD_R);
  return ad_layout_print(&shown, buffer, size);
}

void ad_layouts_shown_apart(const ad_layout *a, const ad_layout *b, char *of_a, char *of_b, size_t size) {
  ad_layout_shown(a, of_a, size);
  ad_layout_shown(b, of_b, size);
  if (strcmp(of_a, of_b) != 0) return;
  ad_layout_print(a, of_a, size);
  ad_layout_print(b, of_b, size);
}
