/* Leaving the type rules and coming back. Code between ad_to_local and ad_from_local sees only local buffers, so the
 * caller states the layouts of the value and of its gradient. The dual of the stated gradient layout is the type with
 * which the code uses the value; transitions of law 2 that move no bytes bring the value to that type. If the value has
 * that type already, no transition is needed. */
#include "array/array.h"
#include "layout/sentences.h"
#include "layout/transition.h"
#include "tensor/tape.h"
#include "layout/type.h"

/* Returns a transition from one type to another that moves no bytes and keeps each rank's local part: a conversion or a
 * declaration. Returns AD_MOVE_COUNT if there is none. */
static ad_move entry_between(ad_type from, ad_type to) {
  static const ad_move moves[] = {AD_MOVE_CONVERT, AD_MOVE_DECLARE};
  for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
    int keeps_part = moves[i] == AD_MOVE_DECLARE || (!ad_type_is_sharded(from) && !ad_type_is_sharded(to));
    if (keeps_part && ad_transition_find(moves[i], from, to)) return moves[i];
  }
  return AD_MOVE_COUNT;
}

static ad_status refuse_gradient_type(const char *name, const char *site, ad_axis axis, ad_type value, ad_type gradient,
                                      ad_type wanted) {
  char is[16], stated[16], dual[16], text[AD_WAY_TEXT_MAX];
  ad_way way = {0};
  if (value != wanted) way = ad_way_find(value, wanted); /* equal types need no conversion */
  return ad_fail(AD_TYPE,
                 "%s: `%s` got a value that is %s on `%s` with a gradient stated as %s, but the gradient of a value of "
                 "type %s is %s, and no conversion without communication makes the stated type" AD_MAY_REPAIR
                 "%s%sstate "
                 "%s",
                 site, name, ad_type_print(value, is, sizeof is), ad_axis_name(axis),
                 ad_type_print(gradient, stated, sizeof stated), is,
                 ad_type_print(ad_type_dual(value), dual, sizeof dual), ad_way_print(&way, text, sizeof text),
                 way.count ? ", or " : "", dual);
}

/* Converts x to the layout `to`, axis by axis. `value` and `gradient`, the layouts that the caller stated, are for
 * messages. */
static ad_tensor *bring(ad_tape *tape, ad_tensor *x, const ad_layout *to, const ad_layout *value,
                        const ad_layout *gradient, const char *name, const char *site) {
  for (int i = 0; i < AD_AXIS_COUNT && ad_tape_owns(tape, x); i++) {
    ad_axis axis = (ad_axis)i;
    ad_type is = x->array.layout.type[axis], wanted = to->type[axis];
    if (is == wanted) continue;
    ad_move move = entry_between(is, wanted);
    if (move == AD_MOVE_COUNT)
      return ad_tape_fail(tape,
                          refuse_gradient_type(name, site, axis, value->type[axis], gradient->type[axis], wanted));
    x = ad_move_at(tape, x, move, ad_axis_name(axis), wanted, site);
  }
  return x;
}

/* Parses the stated layout of the gradient. On axes that the mesh does not name there is only one rank, and nothing
 * is stated: the gradient gets the dual of the value's type. */
static ad_status stated_gradient(const ad_layout *value, const char *text, const char *name, const char *site,
                                 ad_layout *gradient) {
  ad_layout stated, dual = ad_layout_dual(value);
  ad_status status = ad_layout_parse(value->mesh, text, &stated);
  if (status) return ad_fail_in(status, "%s: `%s` got a wrong layout for the gradient", site, name);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (!(ad_mesh_named(value->mesh) & AD_AXES(axis))) stated.type[axis] = dual.type[axis];
  *gradient = stated;
  return AD_OK;
}

/* ---- to_local: leaving the types ---- */

/* Refuses a Partial (P) value for whose gradient no layout is stated. */
static ad_status unstated(const ad_tensor *x, const char *site) {
  ad_axes partial = ad_layout_axes_of(&x->array.layout, AD_P);
  char axes[96];
  if (!partial) return AD_OK;
  return ad_fail(
      AD_TYPE,
      "%s: `to_local` got a value that is Partial (P) on %s, but no layout for its gradient" AD_MAY_REPAIR
      "sum the value first, or state its gradient's layout (R on that axis: each rank has the gradient of the sum)",
      site, ad_axes_print(partial, axes, sizeof axes));
}

static ad_status gradient_of_leaving(const ad_tensor *x, const char *text, const char *site, ad_layout *gradient) {
  if (text) return stated_gradient(&x->array.layout, text, "to_local", site, gradient);
  *gradient = ad_layout_dual(&x->array.layout);
  return unstated(x, site);
}

ad_tensor *ad_to_local_at(ad_tape *tape, ad_tensor *x, const char *gradient, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "to_local");
  if (ad_tape_failed(tape)) return ad_tape_fail(tape, AD_OK);
  if (!ad_tape_owns(tape, x))
    return ad_tape_fail(tape, ad_fail(AD_INVALID, "%s: the operand of `to_local` is %s; give a tensor of this tape",
                                      site, ad_tape_foreigner(x)));
  ad_layout stated;
  ad_status status = gradient_of_leaving(x, gradient, site, &stated);
  if (status) return ad_tape_fail(tape, status);
  ad_layout used = ad_layout_dual(&stated), own = x->array.layout;
  x = bring(tape, x, &used, &own, &stated, "to_local", site);
  if (ad_tape_owns(tape, x)) ad_tape_lend(x);  // the caller may read the value until the tape's reset
  return x;
}

/* ---- from_local: coming back ---- */

static ad_status check_whole(const ad_tensor *x, const ad_array *value, const char *site) {
  char is[96], wanted[96];
  if (ad_shape_equal(&x->array.shape, &value->shape)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: `from_local` got a layout of the gradient with which the full gradient would have shape %s, but the value "
      "has shape %s, since the parts of the ranks are not of equal size; give the gradient the sharding of the value",
      site, ad_shape_print(&x->array.shape, is, sizeof is), ad_shape_print(&value->shape, wanted, sizeof wanted));
}

/* Describes the value with the dual of the stated gradient's type. On an axis where that dual is V and the value is
 * sharded, each rank's part counts as a full value of its own. */
static ad_status describe_arrival(const ad_tape *tape, const ad_array *value, const ad_layout *stated, const char *site,
                                  ad_array *out) {
  ad_layout made = ad_layout_dual(stated);
  ad_axes parts = ad_layout_axes_of(&made, AD_V) & ad_layout_sharded_axes(&value->layout);
  *out = *value;
  if (parts) AD_TRY(ad_array_after_at(tape->comm, value, AD_MOVE_DECLARE, parts, AD_V, out, site));
  out->layout = made;
  out->data = value->data;
  return AD_OK;
}

ad_tensor *ad_from_local_at(ad_tape *tape, const ad_array *value, const char *gradient, ad_tensor **leaf,
                            const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, "from_local");
  if (leaf) *leaf = &tape->dead;
  if (ad_tape_failed(tape)) return ad_tape_fail(tape, AD_OK);
  if (!value || !value->layout.mesh || !gradient)
    return ad_tape_fail(tape, ad_fail(AD_INVALID,
                                      "%s: `from_local` needs an array with a layout and the layout of its gradient, "
                                      "but one of the two is NULL; give both",
                                      site));
  ad_layout stated;
  ad_status status = stated_gradient(&value->layout, gradient, "from_local", site, &stated);
  if (status) return ad_tape_fail(tape, status);
  ad_array arrives;
  status = describe_arrival(tape, value, &stated, site, &arrives);
  if (status) return ad_tape_fail(tape, status);
  ad_tensor *input = ad_input_at(tape, &arrives, site);
  ad_tensor *x = bring(tape, input, &value->layout, &value->layout, &stated, "from_local", site);
  status = ad_tape_failed(tape) ? AD_OK : check_whole(x, value, site);
  if (status) return ad_tape_fail(tape, status);
  if (leaf) *leaf = input;
  return x;
}
