/* Replaces the first rows of a sequence by the rows of another value. Each of the two values has the tape's dtype or
 * the wide one. The result has the sequence's dtype. */
#include <inttypes.h>
#include <string.h>
#include "base/text.h"
#include "layout/sentences.h"
#include "layout/transition.h"
#include "layout/type.h"
#include "tensor/tape.h"

static ad_status check_shapes(const ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array, *y = &out->operand[1]->array;
  char a[96], b[96];
  int fits = x->shape.ndim == 3 && y->shape.ndim == 3 && x->shape.dim[0] == y->shape.dim[0] &&
             x->shape.dim[2] == y->shape.dim[2] && y->shape.dim[1] <= x->shape.dim[1];
  if (fits) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `place` cannot put a value of shape %s in place of the first rows of a value of shape %s. Give "
                 "values of shape [batch, n, d] and [batch, seq, d], with n at most seq",
                 out->site, ad_shape_print(&y->shape, b, sizeof b), ad_shape_print(&x->shape, a, sizeof a));
}

/* Appends the suggestion to make the transition of this operand from type `from` to type `to`, and returns 1, if there
 * is such a transition that keeps the shape. `states` 1: only if the transition states a fact that types cannot check;
 * 0: only if it states no such fact. */
static int takes(ad_text *text, int operand, ad_type from, ad_type to, int states) {
  ad_way way = ad_way_direct(from, to);
  char a[AD_TYPE_TEXT_MAX], b[AD_TYPE_TEXT_MAX];
  int has_other_shape = ad_type_is_sharded(from) != ad_type_is_sharded(to) && way.move[0] == AD_MOVE_DECLARE;
  if (!way.count || has_other_shape || ad_move_states(way.move[0], from) != states) return 0;
  ad_text_add(text, AD_MAY_REPAIR "%s operand %d %s->%s", ad_move_name(way.move[0]), operand,
              ad_type_print(from, a, sizeof a), ad_type_print(to, b, sizeof b));
  return 1;
}

/* Prints a transition that makes both types equal, preferably one that states no unchecked fact; "" if there is
 * none. */
static const char *repair_of(ad_type x, ad_type y, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int states = 0; states < 2; states++)
    if (takes(&text, 2, y, x, states) || takes(&text, 1, x, y, states)) break;
  return buffer;
}

static ad_status check_layouts(const ad_tensor *out) {
  const ad_layout *x = &out->operand[0]->array.layout, *y = &out->operand[1]->array.layout;
  char a[AD_TYPE_TEXT_MAX], b[AD_TYPE_TEXT_MAX], repair[96];
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_dim(x->type[axis]) == 1 || ad_type_dim(y->type[axis]) == 1)
      return ad_fail(AD_TYPE,
                     "%s: the sequence of `place` is sharded over `%s`, but must be full" AD_MAY_REPAIR
                     "shard the sequence after this call",
                     out->site, ad_axis_name((ad_axis)axis));
    if (x->type[axis] != y->type[axis])
      return ad_fail(AD_TYPE, "%s: operand 1 of `place` is %s on `%s`, but operand 2 is %s%s", out->site,
                     ad_type_print(x->type[axis], a, sizeof a), ad_axis_name((ad_axis)axis),
                     ad_type_print(y->type[axis], b, sizeof b),
                     repair_of(x->type[axis], y->type[axis], repair, sizeof repair));
  }
  return AD_OK;
}

static ad_status place_describe(ad_tape *tape, ad_tensor *out) {
  AD_TRY(check_shapes(out));
  AD_TRY(check_layouts(out));
  const ad_array *x = &out->operand[0]->array;
  out->array = ad_array_describe(tape->comm, x->dtype, &x->shape, &x->layout);
  return AD_OK;
}

/* Returns the number of local elements of one sample. */
static size_t sample_of(const ad_array *array) { return (size_t)(array->local.dim[1] * array->local.dim[2]); }

static ad_status place_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array, *y = &out->operand[1]->array;
  size_t full = sample_of(x), front = sample_of(y), kept = (full - front) * ad_dtype_size(x->dtype);
  for (size_t i = 0; i < (size_t)x->local.dim[0]; i++) {
    ad_cast(ad_at(out, out->array.data, i * full), x->dtype, ad_at(out->operand[1], y->data, i * front), y->dtype,
            front);
    memcpy(ad_at(out, out->array.data, i * full + front), ad_at(out, x->data, i * full + front), kept);
  }
  return AD_OK;
}

/* Computes the gradients of both operands. The rows of x that were replaced get exactly zero. */
static ad_status place_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t full = sample_of(&out->array), front = sample_of(&out->operand[1]->array);
  for (size_t i = 0; i < (size_t)out->array.local.dim[0]; i++) {
    const void *from = ad_at(out, out->grad.data, i * full);
    if (slot[1].data) ad_slot_put_all(&slot[1], i * front, from, out->grad.dtype, front);
    if (!slot[0].data) continue;
    void *to = ad_at(out, slot[0].data, i * full);
    if (!slot[0].adds) rows->fill(to, 0, front, 0);
    rows->put(ad_at(out, to, front), ad_at(out, from, front), 1, full - front, slot[0].adds);
  }
  return AD_OK;
}

static const ad_operation place = {.name = "place",
                                   .unread = 3,
                                   .dtypes = AD_IN_ANY_FLOAT,
                                   .either = 1u << 1,
                                   .raw = 1u << 1,
                                   .describe = place_describe,
                                   .forward = place_forward,
                                   .backward = place_backward};

ad_tensor *ad_place_at(ad_tape *tape, ad_tensor *x, ad_tensor *front, const char *site) {
  return ad_tape_apply(tape, &place, (ad_tensor *[]){x, front}, 2, NULL, site);
}
