/* Declarations for the files that draw a plan. */
#ifndef PLAN_PICTURE_H
#define PLAN_PICTURE_H
#include <jansson.h>
#include "addend/mesh.h"
#include "files/json.h"
#include "files/svg.h"
#include "plan/exchanges.h"

enum { PICTURE_MARGIN = 24, PICTURE_WIDTH = 1028 };

/* Returns the pool that an entry of the document names. */
static inline const json_t *ad_pool_of(const json_t *plan, const json_t *entry) {
  return json_array_get(json_object_get(plan, "pools"), (size_t)ad_integer_of(entry, "pool"));
}
/* Returns the number n of the CSS class "gN" that colours the ranks of an entry's pool. */
static inline int ad_picture_colour(const json_t *entry) { return (int)(ad_integer_of(entry, "pool") % 8); }
/* Makes the mesh that an entry names, on the ranks of the entry's pool. */
ad_status ad_picture_mesh(const json_t *plan, const json_t *entry, ad_mesh **out) AD_CHECKED;

/* Lists the axes that have more than one rank, slowest first. Returns how many. */
int ad_picture_axes(const ad_mesh *mesh, ad_axis axes[AD_AXIS_COUNT]);
/* Draws the pools side by side, and the values between them. *y is the top of the drawing and becomes its end. Draws
 * nothing if there is one pool. */
void ad_picture_pools(FILE *file, const json_t *plan, int *y);
/* Draws exchanges in place of pools and bridges. *y is the top of the drawing and becomes its end. */
void ad_picture_exchanges(FILE *file, const ad_exchanges *exchanges, int *y);
/* Draws one bridge of the document, rank by rank. *y is the top of the drawing and becomes its end. */
ad_status ad_picture_bridge(FILE *file, const json_t *plan, const json_t *bridge, int *y) AD_CHECKED;

#endif
