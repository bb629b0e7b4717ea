/* What the parts of a plan's picture share. */
#ifndef PLAN_PICTURE_H
#define PLAN_PICTURE_H
#include <jansson.h>
#include "addend/mesh.h"
#include "files/json.h"
#include "files/svg.h"
#include "plan/exchanges.h"

enum { PICTURE_MARGIN = 24, PICTURE_WIDTH = 1028 };

static inline const json_t *ad_pool_of(const json_t *plan, const json_t *entry) {
  return json_array_get(json_object_get(plan, "pools"), (size_t)ad_integer_of(entry, "pool"));
}
/* Of a pool's ranks: the class of cells "g0" to "g7". */
static inline int ad_picture_colour(const json_t *entry) { return (int)(ad_integer_of(entry, "pool") % 8); }
/* The mesh that an entry names, on the ranks of its pool. */
ad_status ad_picture_mesh(const json_t *plan, const json_t *entry, ad_mesh **out) AD_CHECKED;

/* The axes of more than one rank, slowest first. Returns how many. */
int ad_picture_axes(const ad_mesh *mesh, ad_axis axes[AD_AXIS_COUNT]);
/* From y on; *y: where it ends. Pools side by side and what goes from one to another; nothing where there is one. */
void ad_picture_pools(FILE *file, const json_t *plan, int *y);
/* From y on; *y: where it ends. In the place of pools and bridges where several values go one way. */
void ad_picture_exchanges(FILE *file, const ad_exchanges *exchanges, int *y);
/* A bridge of the document, rank by rank. */
ad_status ad_picture_bridge(FILE *file, const json_t *plan, const json_t *bridge, int *y) AD_CHECKED;

#endif
