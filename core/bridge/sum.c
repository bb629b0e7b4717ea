/* Sums gradients that go back over a bridge. On an axis on which the bridge's `to` is R, each rank has contributed an
 * addend to the gradient; the addends are summed before rows are sent. */
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "bridge/bridge.h"
#include "layout/sentences.h"
#include "mesh/mesh.h"

/* Returns the axes over which the gradient must be summed. An axis of size 1 counts only if the mesh names it. */
static ad_axes summed_axes(const ad_layout *gradient) {
  return ad_layout_axes_of(gradient, AD_P) & (ad_mesh_named(gradient->mesh) | ad_mesh_large(gradient->mesh));
}

/* Returns AD_TYPE if the gradient is still P after its sum. Only a mutation can cause that. */
static ad_status check_summed(const ad_layout *after, ad_axes axes, const char *site) {
  ad_axes partial = ad_layout_axes_of(after, AD_P) & axes;
  char text[128];
  if (!partial) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the gradient that goes back over the bridge is P on `%s`, but a bridge does not sum" AD_MAY_REPAIR
                 "all_reduce P->I before the bridge",
                 site, ad_axes_print(partial, text, sizeof text));
}

/* ---- summing all rows on every replica ---- */

ad_status ad_bridge_sum(const ad_bridge *bridge, ad_array *gradient, int ordinal, const char *site) {
  ad_layout summed = gradient->layout;
  ad_axes axes = summed_axes(&summed);
  ad_layout_set(&summed, ad_layout_axes_of(&summed, AD_P), AD_I);
  if (axes) {
    ad_transit transit = {
        .move = AD_MOVE_ALL_REDUCE, .axes = axes, .to = AD_I, .site = site, .ordinal = ordinal, .backward = 1};
    ad_array after = *gradient;
    ad_layout_set(&after.layout, axes, AD_I);
    AD_TRY(ad_transit_run(bridge->comm, &transit, gradient, &after));
    AD_TRY(check_summed(&after.layout, axes, site));
  }
  gradient->layout = summed;
  return AD_OK;
}

/* ---- each rank sums only the rows that it keeps ---- */

/* Returns the layout of the destination's gradient after a reduce_scatter over the summed axes, which leaves each rank
 * the sum of another part of the rows. */
static ad_layout kept_of(const ad_layout *gradient) {
  ad_layout kept = *gradient;
  ad_layout_set(&kept, summed_axes(gradient), AD_S(0));
  return kept;
}

/* Returns 1 if ad_bridge_sum_kept leaves every rank exactly its rows of the source, else 0. Examines all ranks of the
 * reduce_scatter and of the axes that shard the batch, so that all these ranks get the same answer. */
static int find_whether_kept(const ad_bridge *bridge, int64_t rows) {
  ad_layout gradient = ad_layout_dual(&bridge->to), kept = kept_of(&gradient);
  if (bridge->disjoint || !ad_layout_sharded_axes(&gradient)) return 0;
  if (!(summed_axes(&gradient) & ad_mesh_large(gradient.mesh))) return 0;
  ad_group group = ad_mesh_group(kept.mesh, ad_layout_sharded_axes(&kept), ad_comm_rank(bridge->comm));
  for (int64_t i = 0; i < ad_group_size(&group); i++)
    if (!ad_bridge_same_rows(&kept, &bridge->from, rows, ad_group_rank(&group, i))) return 0;
  return 1;
}

int ad_bridge_keeps_rows(ad_bridge *bridge, int64_t rows) {
  if (bridge->kept_rows != rows) bridge->keeps_rows = find_whether_kept(bridge, rows);
  bridge->kept_rows = rows;
  return bridge->keeps_rows;
}

ad_status ad_bridge_sum_kept(const ad_bridge *bridge, const ad_array *gradient, ad_array *source, int ordinal,
                             const char *site) {
  ad_transit transit = {.move = AD_MOVE_REDUCE_SCATTER,
                        .axes = summed_axes(&gradient->layout),
                        .to = AD_S(0),
                        .site = site,
                        .ordinal = ordinal,
                        .backward = 1};
  ad_array kept;
  AD_TRY(ad_array_after_at(bridge->comm, gradient, transit.move, transit.axes, transit.to, &kept, site));
  kept.data = source->data;
  AD_TRY(ad_transit_run(bridge->comm, &transit, gradient, &kept));
  return check_summed(&kept.layout, transit.axes, site);
}
