/* Computes the layout after a transition, and checks whether law 2 allows the transition from the given layout. The
 * table of transitions is in transition.c. */
#include "base/error.h"
#include "layout/nest.h"
#include "layout/sentences.h"
#include "layout/transition.h"
#include "layout/type.h"
#include "mesh/object.h"

/* Fails with AD_TYPE because the table has no such transition. The message suggests a repair. */
static ad_status no_entry(const char *site, ad_move move, ad_axis axis, ad_type from, ad_type to) {
  char from_text[AD_TYPE_TEXT_MAX], to_text[AD_TYPE_TEXT_MAX], repair[AD_WAY_TEXT_MAX];
  ad_way way = ad_way_find(from, to);
  ad_type_print(from, from_text, sizeof from_text);
  if (from == to)
    return ad_fail(AD_TYPE, "%s: in `%s`, the value is %s on `%s` already" AD_MAY_REPAIR "leave `%s` out of this %s",
                   site, ad_move_name(move), from_text, ad_axis_name(axis), ad_axis_name(axis), ad_move_name(move));
  return ad_fail(AD_TYPE,
                 "%s: in `%s`, the value is %s on `%s`, and no %s leads from %s to %s" AD_MAY_REPAIR
                 "%s%sleave `%s` out of this %s",
                 site, ad_move_name(move), from_text, ad_axis_name(axis), ad_move_name(move), from_text,
                 ad_type_print(to, to_text, sizeof to_text), ad_way_print(&way, repair, sizeof repair),
                 way.count ? ", or " : "", ad_axis_name(axis), ad_move_name(move));
}

/* If the value is sharded on `axis`: fails if another axis, outside `axes`, shards the same dimension further
 * inside. */
static ad_status check_innermost(const ad_layout *layout, const char *site, ad_move move, ad_axes axes, ad_axis axis) {
  int dim = ad_type_dim(layout->type[axis]);
  ad_axes others = dim < 0 ? 0 : ad_layout_axes_sharding(layout, dim) & ~axes;
  char type[AD_TYPE_TEXT_MAX], inner_type[AD_TYPE_TEXT_MAX];
  for (int inner = 0; inner < AD_AXIS_COUNT; inner++) {
    if (!(others & AD_AXES(inner)) || layout->depth[inner] < layout->depth[axis]) continue;
    return ad_fail(AD_TYPE,
                   "%s: in `%s`, the value is %s on `%s` and is sharded further, %s, on `%s`; only the innermost axis "
                   "of a sharded dimension can be changed" AD_MAY_REPAIR
                   "undo `%s` first, or undo the two axes together",
                   site, ad_move_name(move), ad_type_print(layout->type[axis], type, sizeof type), ad_axis_name(axis),
                   ad_type_print(layout->type[inner], inner_type, sizeof inner_type), ad_axis_name((ad_axis)inner),
                   ad_axis_name((ad_axis)inner));
  }
  return AD_OK;
}

static ad_status check_axis(const ad_layout *layout, const char *site, ad_move move, ad_axes axes, ad_axis axis,
                            ad_type to) {
  ad_type from = layout->type[axis];
  int moves_nothing = ad_type_is_sharded(from) && from == to;
  if (!ad_transition_find(move, from, to) || moves_nothing) return no_entry(site, move, axis, from, to);
  return check_innermost(layout, site, move, axes, axis);
}

static ad_status check_call(const char *site, ad_move move, ad_axes axes, ad_type to, int ndim) {
  char type[AD_TYPE_TEXT_MAX];
  if ((unsigned)move >= AD_MOVE_COUNT || !ad_type_is_known(to) || (axes & ~AD_AXES_ALL))
    return ad_fail(AD_INVALID,
                   "%s: there is no transition with move %d, axes 0x%x and type 0x%x; use a value of ad_move, axes of "
                   "ad_axis and a type such as AD_R or AD_S(0)",
                   site, (int)move, axes, to);
  if (ad_type_dim(to) >= ndim)
    return ad_fail(AD_TYPE,
                   "%s: in `%s`, the new type is %s, but the value has only %d dimension%s; choose d in S(d) from 0 to "
                   "the number of dimensions - 1",
                   site, ad_move_name(move), ad_type_print(to, type, sizeof type), ndim, ndim == 1 ? "" : "s");
  return AD_OK;
}

ad_status ad_layout_after_at(const ad_layout *layout, ad_move move, ad_axes axes, ad_type to, int ndim, ad_layout *out,
                             const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(layout, out);
  AD_NEED(layout->mesh);
  AD_TRY(check_call(site, move, axes, to, ndim));
  /* in mesh order, so that an error names an axis of the mesh string if possible */
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = layout->mesh->order[i];
    if (axes & AD_AXES(axis)) AD_TRY(check_axis(layout, site, move, axes, axis, to));
  }
  ad_layout after = *layout;
  ad_layout_set(&after, axes, to);
  *out = after;
  return AD_OK;
}
