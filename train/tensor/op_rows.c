/* Operations on rows [rows, width]: a batch as rows and back; a row for each slot of a routing; the sum of a token's
 * slots; and a factor for each row of a value. */
#include <inttypes.h>
#include <string.h>
#include "base/injection.h"
#include "layout/nest.h"
#include "layout/sentences.h"
#include "layout/type.h"
#include "tensor/routing.h"
#include "tensor/tape.h"

/* ---- a batch as rows ---- */

/* Returns the layout of a batch as rows. Axes that shard any dimension but the last become V, because each rank then
 * has its own rows. The last dimension becomes dimension 1. */
static ad_layout layout_of_rows(const ad_array *x) {
  ad_layout layout = x->layout;
  int last = x->shape.ndim - 1;
  for (int dim = 0; dim < last; dim++) ad_layout_set(&layout, ad_layout_axes_sharding(&layout, dim), AD_V);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_type_dim(layout.type[axis]) == last) layout.type[axis] = ad_type_sharded_like(layout.type[axis], 1);
  return layout;
}

static ad_status to_rows_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  char shape[96];
  if (x->shape.ndim < 2)
    return ad_fail(AD_INVALID, "%s: the operand of `to_rows` has shape %s, but must have at least 2 dimensions",
                   out->site, ad_shape_print(&x->shape, shape, sizeof shape));
  ad_layout layout = layout_of_rows(x);
  ad_shape rows = {2, {(int64_t)ad_rows_of(out->operand[0]), x->shape.dim[x->shape.ndim - 1]}};
  out->array = ad_array_describe(tape->comm, x->dtype, &rows, &layout);
  return AD_OK;
}

static int shares(const ad_tensor *out) { return 1; }

static ad_status copy_forward(ad_tape *tape, ad_tensor *out) {
  const void *from = out->operand[0]->array.data;
  if (out->array.data != from) memcpy(out->array.data, from, ad_array_bytes(&out->array));
  return AD_OK;
}

static ad_status copy_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  if (slot[0].data != out->grad.data)
    ad_rows(out->grad.dtype)->put(slot[0].data, out->grad.data, 1, ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const ad_operation to_rows = {.name = "to_rows",
                                     .dtypes = AD_IN_ANY_FLOAT,
                                     .passes_on = 1,
                                     .passes_gradient_on = 1,
                                     .describe = to_rows_describe,
                                     .shares = shares,
                                     .forward = copy_forward,
                                     .backward = copy_backward};

ad_tensor *ad_to_rows_at(ad_tape *tape, ad_tensor *x, const char *site) {
  return ad_tape_apply(tape, &to_rows, &x, 1, NULL, site);
}

/* like: the value that the rows were taken from */
typedef struct rows_numbers {
  const ad_tensor *like;
} rows_numbers;

/* Checks that rows return with the type that they got from to_rows: V if each rank took its own rows, not sharded if
 * all ranks took the same rows. */
static ad_status check_row_type(const ad_tensor *out, const ad_layout *wanted, ad_axis axis, int was_sharded) {
  ad_type is = out->operand[0]->array.layout.type[axis];
  char has[16], should[16];
  if (was_sharded ? is == AD_V : ad_type_dim(is) != 0) return AD_OK;
  return ad_fail(
      AD_TYPE, "%s: the rows of `from_rows` are %s on `%s`, %s; convert the rows to %s", out->site,
      ad_type_print(is, has, sizeof has), ad_axis_name(axis),
      was_sharded ? "but in `to_rows` each rank took its own rows" : "but in `to_rows` all ranks took the same rows",
      ad_type_print(wanted->type[axis], should, sizeof should));
}

/* Describes the result: it has the shape and sharding of `like`, from which the rows were taken. On axes that do not
 * shard the rows it has the types of x. */
static ad_status from_rows_describe(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *origin = ((const rows_numbers *)out->own)->like;
  if (!ad_tape_owns(tape, origin))
    return ad_fail(AD_INVALID, "%s: the argument `like` of `from_rows` is %s; give the tensor that `to_rows` got",
                   out->site, ad_tape_foreigner(origin));
  const ad_array *x = &out->operand[0]->array, *like = &origin->array;
  ad_layout wanted = layout_of_rows(like), layout = like->layout;
  int last = like->shape.ndim - 1;
  if (x->shape.ndim != 2 || x->local.dim[0] != (int64_t)ad_rows_of(origin))
    return ad_fail(AD_INVALID,
                   "%s: the operand of `from_rows` has %" PRId64
                   " rows, but must have the %zu that `to_rows` made of `like`",
                   out->site, x->shape.ndim ? x->local.dim[0] : 0, ad_rows_of(origin));
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int dim = ad_type_dim(like->layout.type[axis]), was_sharded = dim >= 0 && dim < last;
    AD_TRY(check_row_type(out, &wanted, (ad_axis)axis, was_sharded));
    if (was_sharded) continue;
    ad_type is = x->layout.type[axis];
    layout.type[axis] = ad_type_dim(is) == 1 ? ad_type_sharded_like(is, last) : is;
    layout.depth[axis] = x->layout.depth[axis];
  }
  ad_shape shape = like->shape;
  shape.dim[last] = x->shape.dim[1];
  out->array = ad_array_describe(tape->comm, x->dtype, &shape, &layout);
  return AD_OK;
}

static const ad_operation from_rows = {.name = "from_rows",
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .passes_on = 1,
                                       .own_size = sizeof(rows_numbers),
                                       .passes_gradient_on = 1,
                                       .describe = from_rows_describe,
                                       .shares = shares,
                                       .forward = copy_forward,
                                       .backward = copy_backward};

ad_tensor *ad_from_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *like, const char *site) {
  return ad_tape_apply(tape, &from_rows, &x, 1, &(rows_numbers){like}, site);
}

/* ---- from a row for each token to a row for each slot, and back ---- */

/* Row i of the slots is row index[i] of the tokens. */
typedef struct slot_numbers {
  const size_t *index;
  size_t slots, tokens;
  const ad_routing *routing; /* used only by the operation slot_weights */
} slot_numbers;

static const slot_numbers *slots_of(const ad_tensor *out) { return out->own; }

/* Checks that the operand has the routing's number of rows, and that each rank has its own rows. */
static ad_status check_rows(const ad_tensor *out, size_t rows) {
  const ad_array *x = &out->operand[0]->array;
  char text[16];
  if (!x->shape.ndim || (size_t)x->local.dim[0] != rows)
    return ad_fail(AD_INVALID,
                   "%s: the operand of `%s` has %" PRId64
                   " rows, but the routing has %zu. Give the rows that were routed",
                   out->site, out->op->name, x->shape.ndim ? x->local.dim[0] : 0, rows);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_type_dim(x->layout.type[axis]) == 0)
      return ad_fail(AD_TYPE,
                     "%s: the rows of `%s` are %s on `%s`, but each rank routes its own rows" AD_MAY_REPAIR
                     "declare them V",
                     out->site, out->op->name, ad_type_print(x->layout.type[axis], text, sizeof text),
                     ad_axis_name((ad_axis)axis));
  return AD_OK;
}

static ad_status describe_rows(const ad_tape *tape, ad_tensor *out, size_t before, size_t after) {
  const ad_array *x = &out->operand[0]->array;
  AD_TRY(check_rows(out, before));
  ad_shape shape = x->shape;
  shape.dim[0] = (int64_t)after;
  out->array = ad_array_describe(tape->comm, x->dtype, &shape, &x->layout);
  return AD_OK;
}

static size_t width_of(const ad_tensor *out) { return out->array.shape.ndim > 1 ? ad_columns(out) : 1; }

/* Copies rows: slots[i] = tokens[index[i]]. */
static void take_rows(const ad_tensor *out, void *slots, const void *tokens, int adds) {
  const slot_numbers *numbers = slots_of(out);
  size_t width = width_of(out);
  for (size_t i = 0; i < numbers->slots; i++)
    ad_rows(out->array.dtype)
        ->put(ad_at(out, slots, i * width), ad_at(out, tokens, numbers->index[i] * width), 1, width, adds);
}

// Returns the bytes of scratch memory: for rows of a narrow dtype their sums in the wide dtype, until these are
// rounded.
static size_t sums_scratch(const ad_tensor *out) {
  ad_dtype wide = ad_wide_of(out);
  return wide == out->array.dtype ? 0 : slots_of(out)->tokens * width_of(out) * ad_dtype_size(wide);
}

/* Adds rows: tokens[index[i]] += slots[i]. A token's slots are added in the wide dtype, and the sum is rounded once. */
static void add_rows(const ad_tensor *out, void *tokens, const void *slots, int adds) {
  const slot_numbers *numbers = slots_of(out);
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = width_of(out), row_bytes = width * ad_dtype_size(ad_wide_of(out));
  int are_wide = ad_wide_of(out) == out->array.dtype;
  char *sums = are_wide ? tokens : out->scratch;
  if (!adds || !are_wide) memset(sums, 0, numbers->tokens * row_bytes);
  for (size_t i = 0; i < numbers->slots; i++)
    rows->put_wide(sums + numbers->index[i] * row_bytes, ad_at(out, slots, i * width), 1, width, 1);
  if (!are_wide) rows->put_narrow(tokens, sums, 1, numbers->tokens * width, adds);
}

static ad_status to_slots_describe(ad_tape *tape, ad_tensor *out) {
  return describe_rows(tape, out, slots_of(out)->tokens, slots_of(out)->slots);
}
static ad_status to_slots_forward(ad_tape *tape, ad_tensor *out) {
  take_rows(out, out->array.data, out->operand[0]->array.data, 0);
  return AD_OK;
}
static ad_status to_slots_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  add_rows(out, slot[0].data, out->grad.data, slot[0].adds);
  return AD_OK;
}

static const ad_operation to_slots = {.name = "to_slots",
                                      .dtypes = AD_IN_ANY_FLOAT,
                                      .own_size = sizeof(slot_numbers),
                                      .scratch = sums_scratch,
                                      .describe = to_slots_describe,
                                      .forward = to_slots_forward,
                                      .backward = to_slots_backward};

static ad_status from_slots_describe(ad_tape *tape, ad_tensor *out) {
  return describe_rows(tape, out, slots_of(out)->slots, slots_of(out)->tokens);
}
static ad_status from_slots_forward(ad_tape *tape, ad_tensor *out) {
  add_rows(out, out->array.data, out->operand[0]->array.data, 0);
  return AD_OK;
}
static ad_status from_slots_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  take_rows(out, slot[0].data, out->grad.data, slot[0].adds);
  return AD_OK;
}

static const ad_operation from_slots = {.name = "from_slots",
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .own_size = sizeof(slot_numbers),
                                        .scratch = sums_scratch,
                                        .describe = from_slots_describe,
                                        .forward = from_slots_forward,
                                        .backward = from_slots_backward};

/* Returns the slots of a routing. The routing is NULL if the tape failed before tokens were routed. */
static slot_numbers token_slots(const ad_routing *routing) {
  return routing ? (slot_numbers){routing->token_of_slot, routing->slots, routing->tokens, NULL} : (slot_numbers){0};
}

static ad_tensor *apply_slots(ad_tape *tape, const ad_operation *op, ad_tensor *x, slot_numbers numbers,
                              const char *site) {
  return ad_tape_apply(tape, op, &x, 1, &numbers, site);
}

ad_tensor *ad_to_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site) {
  return apply_slots(tape, &to_slots, x, token_slots(routing), site);
}

ad_tensor *ad_from_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site) {
  return apply_slots(tape, &from_slots, x, token_slots(routing), site);
}

/* ---- the weight of each slot: the score that chose it ---- */

static ad_status weights_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  const slot_numbers *numbers = slots_of(out);
  if (ad_numel(out->operand[0]) != numbers->tokens)
    return ad_fail(AD_INVALID,
                   "%s: `slot_weights` got %zu scores, but the routing has %zu choices. Give one score for each choice",
                   out->site, ad_numel(out->operand[0]), numbers->tokens);
  ad_shape shape = {1, {(int64_t)numbers->slots}};
  out->array = ad_array_describe(tape->comm, x->dtype, &shape, &x->layout);
  return AD_OK;
}

static ad_status weights_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  slot_scores_passing passing = {slots_of(out)->routing, &out->grad};
  ad_inject(AD_INJECT_SLOT_SCORES, &passing);
  return to_slots_backward(tape, out, slot);
}

static const ad_operation slot_weights = {.name = "slot_weights",
                                          .dtypes = AD_IN_F32_F64,
                                          .own_size = sizeof(slot_numbers),
                                          .describe = weights_describe,
                                          .forward = to_slots_forward,
                                          .backward = weights_backward};

ad_tensor *ad_slot_weights_at(ad_tape *tape, ad_tensor *chosen, const ad_routing *routing, const char *site) {
  slot_numbers numbers = {0};
  if (routing)
    numbers = (slot_numbers){routing->choice_of_slot, routing->slots, routing->tokens * routing->top_k, routing};
  return apply_slots(tape, &slot_weights, chosen, numbers, site);
}

/* ---- multiplying each row by its own factor ---- */

static double factor_of(const ad_tensor *out, size_t i) {
  return ad_element(out->operand[1]->array.dtype, out->operand[1]->array.data, i);
}

static ad_status scale_rows_forward(ad_tape *tape, ad_tensor *out) {
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++)
    ad_rows(out->array.dtype)
        ->put(ad_at(out, out->array.data, i * width), ad_at(out, out->operand[0]->array.data, i * width),
              factor_of(out, i), width, 0);
  return AD_OK;
}

static ad_status scale_rows_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_dtype dtype = out->array.dtype;
  size_t width = ad_columns(out);
  for (size_t i = 0; i < ad_rows_of(out); i++) {
    const void *dy = ad_at(out, out->grad.data, i * width);
    if (slot[0].data)
      ad_rows(dtype)->put(ad_at(out, slot[0].data, i * width), dy, factor_of(out, i), width, slot[0].adds);
    if (slot[1].data)
      ad_slot_put(&slot[1], i, ad_rows(dtype)->dot(dy, ad_at(out, out->operand[0]->array.data, i * width), width));
  }
  return AD_OK;
}

static const ad_operation scale_rows = {.name = "scale_rows",
                                        .dims = "...d,...->...d",
                                        .linearity = AD_MULTILINEAR,
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .wide = 1u << 1,
                                        .forward = scale_rows_forward,
                                        .backward = scale_rows_backward};

ad_tensor *ad_scale_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *factors, const char *site) {
  return ad_tape_apply(tape, &scale_rows, (ad_tensor *[]){x, factors}, 2, NULL, site);
}
