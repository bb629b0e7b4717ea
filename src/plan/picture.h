/* What the two halves of a plan's picture share. */
#ifndef PLAN_PICTURE_H
#define PLAN_PICTURE_H
#include <jansson.h>
#include "addend/mesh.h"
#include "plan/svg.h"

enum { PICTURE_MARGIN = 24, PICTURE_WIDTH = 1028 };

static inline const char *ad_text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}
static inline json_int_t ad_integer_of(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

/* The axes of more than one rank, slowest first. Returns how many. */
int ad_picture_axes(const ad_mesh *mesh, ad_axis axes[AD_AXIS_COUNT]);
/* A bridge of the document from y on; *y: where it ends. */
ad_status ad_picture_bridge(FILE *file, const json_t *bridge, int *y) AD_CHECKED;

#endif
