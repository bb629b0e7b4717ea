/* The transitions of law 2 as operations: forward executes the transition, and backward executes the transition that
 * the table of law 2 names as its backward. */
#include "array/transit.h"
#include "base/injection.h"
#include "layout/sentences.h"
#include "tensor/tape.h"
#include "layout/transition.h"
#include "layout/type.h"
#include "mesh/mesh.h"

/* A transition over `axes` from type `from` to type `to`. */
typedef struct move_numbers {
  ad_move move;
  ad_axes axes;
  ad_type from, to;
  int ordinal; /* index of the transition among those of its tape, from 0 */
} move_numbers;

static const move_numbers *numbers_of(const ad_tensor *out) { return out->own; }

/* Executes a transition, forward or backward; no other function of a tape does so. `ordinal` and `backward` let a
 * function at an injection point find out which transition of the tape this is. */
static ad_status execute(ad_tape *tape, const ad_tensor *out, int backward, const ad_array *from, ad_array *to) {
  const move_numbers *at = numbers_of(out);
  ad_move move = backward ? ad_transition_find(at->move, at->from, at->to)->backward : at->move;
  ad_type type = backward ? ad_type_dual(at->from) : at->to;
  ad_transit transit = {.move = move,
                        .axes = at->axes,
                        .to = type,
                        .accumulate = ad_wide_of(out),
                        .site = out->site,
                        .ordinal = at->ordinal,
                        .backward = backward};
  return ad_transit_run(tape->comm, &transit, from, to);
}

// Returns 1 if the backward of the transition leads from the dual of `after` to the dual of `before`.
static int is_undone(const ad_layout *before, const ad_layout *after, const move_numbers *at, int ndim,
                     const char *site) {
  const ad_transition *transition = ad_transition_find(at->move, at->from, at->to);
  ad_layout grad = ad_layout_dual(after), wanted = ad_layout_dual(before), arrived;
  return transition &&
         !ad_layout_after_at(&grad, transition->backward, at->axes, ad_type_dual(at->from), ndim, &arrived, site) &&
         ad_layout_equal(&arrived, &wanted);
}

/* Refuses to move bytes between data-parallel positions, or stages, on the tape of a leaf: a leaf is computed on one
 * position alone, and only its gradients meet those of other leaves, in the reducer. Moves without bytes (convert, once,
 * declare) are right there: each says how a value is distributed over the ranks that have it, and one position has all of
 * a leaf's values. So `once` over dp counts a value once for the leaf, as for a microbatch in other runs. */
static ad_status check_leaf(const ad_tape *tape, const ad_tensor *out) {
  ad_axes axes = numbers_of(out)->axes & (AD_AXES_DP | AD_AXES(AD_PP));
  char names[96];
  if (!tape->leaf_meshes || tape->sums_microbatch || !axes || !ad_move_moves_bytes(numbers_of(out)->move)) return AD_OK;
  ad_axes_print(axes, names, sizeof names);
  return ad_fail(AD_TYPE,
                 "%s: `%s` is over %s, but with train.leaves each leaf of the batch is computed on the ranks of one "
                 "data-parallel position, so no value may depend on others" AD_MAY_REPAIR
                 "leave this move out, so that the leaf is computed by itself, or leave train.leaves out",
                 out->site, ad_move_name(numbers_of(out)->move), names);
}

static ad_status move_describe(ad_tape *tape, ad_tensor *out) {
  const move_numbers *at = numbers_of(out);
  const ad_array *x = &out->operand[0]->array;
  AD_TRY(check_leaf(tape, out));
  AD_TRY(ad_array_after_at(tape->comm, x, at->move, at->axes, at->to, &out->array, out->site));
  if (is_undone(&x->layout, &out->array.layout, at, x->shape.ndim, out->site)) return AD_OK;
  char before[128], after[128];
  return ad_fail(AD_TYPE,
                 "%s: `%s` converts \"%s\" to \"%s\", but its backward does not convert back" AD_MAY_REPAIR
                 "first convert the innermost of the axes that shard the dimension",
                 out->site, ad_move_name(at->move), ad_layout_print(&x->layout, before, sizeof before),
                 ad_layout_print(&out->array.layout, after, sizeof after));
}

// Returns 1 if the result can use the operand's memory: no bytes move and no bytes are cleared, or the group has one
// rank.
static int move_shares(const ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  ad_move move = numbers_of(out)->move;
  if (!ad_shape_equal(&x->local, &out->array.local)) return 0;
  if (ad_mesh_ranks_over(x->layout.mesh, numbers_of(out)->axes) == 1) return 1;
  return !ad_move_moves_bytes(move) && move != AD_MOVE_ONCE;
}

static ad_status move_forward(ad_tape *tape, ad_tensor *out) {
  return execute(tape, out, 0, &out->operand[0]->array, &out->array);
}

// Returns the bytes of scratch memory: for this share of the gradient, until it is added to an earlier share.
static size_t move_scratch(const ad_tensor *out) {
  const ad_tensor *x = out->operand[0];
  return x->carries ? ad_numel(x) * ad_dtype_size(x->grad_dtype) : 0;
}

static ad_status move_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_array arrives = out->operand[0]->grad;
  if (slot[0].adds) arrives.data = out->scratch;
  AD_TRY(execute(tape, out, 1, &out->grad, &arrives));
  return slot[0].adds ? ad_array_add_at(&out->operand[0]->grad, &arrives, out->site) : AD_OK;
}

static const ad_operation transition = {.name = "move",
                                        .describe = move_describe,
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .passes_on = 1,
                                        .own_size = sizeof(move_numbers),
                                        .runs_dry = 1,
                                        .scratch = move_scratch,
                                        .shares = move_shares,
                                        .forward = move_forward,
                                        .backward = move_backward};

/* ---- transitions over several axes ---- */

static ad_axes first_of(ad_axes axes) { return axes & (~axes + 1); }

/* Returns that one of `axes` which shards its dimension innermost. */
static ad_axes innermost_of(const ad_layout *layout, ad_axes axes) {
  int innermost = -1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!(axes & AD_AXES(axis))) continue;
    if (innermost < 0 || layout->depth[axis] >= layout->depth[innermost]) innermost = axis;
  }
  return AD_AXES(innermost);
}

// Returns the axes of `at->axes` that one transition can move: axes of one type; and only the innermost of them if
// backward would restore the sharding over several axes in another order.
static ad_axes axes_at_once(const ad_array *x, const move_numbers *at, const char *site) {
  move_numbers part = *at;
  int first = __builtin_ctz(first_of(at->axes));
  part.from = x->layout.type[first];
  part.axes = at->axes & ad_layout_axes_of(&x->layout, part.from);
  ad_layout after;
  if (ad_layout_after_at(&x->layout, at->move, part.axes, at->to, x->shape.ndim, &after, site)) return part.axes;
  if (is_undone(&x->layout, &after, &part, x->shape.ndim, site)) return part.axes;
  return innermost_of(&x->layout, part.axes);
}

static int is_same_on_all(ad_type type) { return type == AD_R || type == AD_I || type == AD_P; }

// Returns those axes of a name like "dp" that need no transition. They are axes that the mesh does not name, so they
// have one rank, and on one rank the value's type means the same as the wanted one (R, I and P do).
static ad_axes axes_left_out(const ad_layout *layout, const move_numbers *at, ad_axes axes) {
  ad_axes named = ad_mesh_named(layout->mesh), out = 0;
  if (!(axes & named)) return 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type from = layout->type[axis];
    int means_same = is_same_on_all(from) && is_same_on_all(at->to) && !ad_transition_find(at->move, from, at->to);
    if (from == at->to || means_same) out |= AD_AXES(axis);
  }
  return out & axes & ~named;
}

/* Records the transition on the tape: once, or as often as a mutation at the injection point sets. */
static ad_tensor *record_move(ad_tape *tape, ad_tensor *x, move_numbers at, const char *site) {
  ad_record_passing passing = {site, at.move, at.ordinal, at.axes, 1, x && x->carries};
  ad_inject(AD_INJECT_RECORD, &passing);
  at.axes = passing.axes;
  for (int i = 0; i < passing.times; i++) x = ad_tape_apply(tape, &transition, &x, 1, &at, site);
  return x;
}

ad_tensor *ad_move_at(ad_tape *tape, ad_tensor *x, ad_move move, const char *axes, ad_type to, const char *site) {
  if (!site) site = AD_NO_SITE;
  move_numbers at = {.move = move, .to = to};
  ad_axes left = 0;
  if (!tape) return ad_tape_missing(site, ad_move_name(move));
  ad_status status = ad_axes_parse(axes, &left);
  if (status) x = ad_tape_fail(tape, ad_fail_in(status, "%s: %s", site, ad_move_name(move)));
  if (!ad_tape_failed(tape) && ad_tape_owns(tape, x)) left &= ~axes_left_out(&x->array.layout, &at, left);
  while (left && !ad_tape_failed(tape)) {
    at.axes = left;
    if (ad_tape_owns(tape, x)) {
      at.axes = axes_at_once(&x->array, &at, site);
      at.from = x->array.layout.type[__builtin_ctz(at.axes)];
    }
    at.ordinal = tape->transitions++;
    left &= ~at.axes;
    x = record_move(tape, x, at, site);
  }
  if (!ad_tape_failed(tape)) return x;
  if (ad_move_moves_bytes(move)) ad_tape_report_error(tape);  // other ranks may wait in the collective
  return ad_tape_fail(tape, AD_OK);
}
