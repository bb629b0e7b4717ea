/* Layouts as people need them. The strings that can be read back are in text.c. */
#include "layout/shown.h"

const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size) {
  ad_layout shown = *layout;
  ad_axes silent = ad_layout_axes_of(layout, AD_I) | ad_layout_axes_of(layout, AD_P);
  ad_layout_set(&shown, silent & ~ad_mesh_named(layout->mesh), AD_R);
  return ad_layout_print(&shown, buffer, size);
}
