/* Backward: walks the tape from the loss to the leaves, gives every gradient its memory and hands those of parameters
 * to the reducer as soon as they are complete. */
#include <string.h>
#include "reduce/reducer.h"
#include "tensor/tape.h"

/* ---- memory of gradients that were consumed ---- */

static ad_status take_gradient(ad_tape *tape, size_t bytes, void **out) {
  for (spare **at = &tape->spares; *at; at = &(*at)->next) {
    spare *found = *at;
    if (found->bytes != bytes) continue;
    *at = found->next;
    found->next = tape->records;
    tape->records = found;
    *out = found->data;
    return AD_OK;
  }
  return ad_tape_take(tape, bytes, out);
}

static ad_status give_back(ad_tape *tape, const ad_array *grad) {
  spare *record = tape->records;
  if (record)
    tape->records = record->next;
  else if (!(record = ad_arena_take(tape->arena, sizeof *record)))
    return AD_MEMORY;
  *record = (spare){tape->spares, ad_array_bytes(grad), grad->data};
  tape->spares = record;
  return AD_OK;
}

/* ---- where gradients go ---- */

static ad_status first_gradient(ad_tape *tape, ad_tensor *tensor, int *adds) {
  ad_layout dual = ad_layout_dual(&tensor->array.layout);
  tensor->grad = ad_array_describe(tape->comm, tensor->array.dtype, &tensor->array.shape, &dual);
  *adds = 0;
  if (tensor->is_parameter && tape->options.reducer) {
    ad_array target;
    AD_TRY(ad_reducer_target(tape->options.reducer, tensor->param, &target, adds));
    int in_place = target.data || (tape->dry && ad_reducer_writes_in_place(tape->options.reducer, tensor->param));
    if (in_place && target.dtype == tensor->grad.dtype) {
      tensor->grad.data = target.data;
      tensor->has_grad = 1;
      return AD_OK;
    }
    *adds = 0;
  }
  AD_TRY(take_gradient(tape, ad_array_bytes(&tensor->grad), &tensor->grad.data));
  tensor->has_grad = 1;
  return AD_OK;
}

static ad_status claim(ad_tape *tape, ad_tensor *tensor, gradient_slot *slot) {
  if (!tensor->carries) return AD_OK;
  slot->adds = 1;
  if (!tensor->has_grad) AD_TRY(first_gradient(tape, tensor, &slot->adds));
  slot->data = tensor->grad.data;
  return AD_OK;
}

static int stands_twice(const ad_tensor *out, int i) {
  for (int j = 0; j < out->operand_count; j++) {
    if (j != i && out->operand[j] == out->operand[i]) return 1;
  }
  return 0;
}

// Operand 0 takes over the memory of the result's gradient, which nobody needs any more.
static int takes_over(const ad_tensor *out) {
  const ad_tensor *operand = out->operand[0];
  return out->op->hands_over && operand->carries && !operand->has_grad && !operand->is_parameter && !out->is_kept &&
         !stands_twice(out, 0);
}

static ad_status claim_slots(ad_tape *tape, ad_tensor *out, gradient_slot *slot) {
  if (takes_over(out)) {
    out->operand[0]->grad = out->grad;
    out->operand[0]->has_grad = 1;
    slot[0].data = out->grad.data;
  }
  for (int i = 0; i < out->operand_count; i++) {
    if (slot[i].data) continue;
    AD_TRY(claim(tape, out->operand[i], &slot[i]));
    // Two slots that are one memory: zeroed, both add, in whatever order the operation fills them.
    if (!slot[i].adds && slot[i].data && stands_twice(out, i)) {
      memset(slot[i].data, 0, ad_array_bytes(&out->operand[i]->grad));
      slot[i].adds = 1;
    }
  }
  return AD_OK;
}

/* ---- the walk ---- */

// Another share of this gradient is in; a parameter's goes to the reducer with the last one.
static ad_status one_use_less(ad_tape *tape, ad_tensor *tensor) {
  if (!tensor->carries || --tensor->uses) return AD_OK;
  if (!tensor->is_parameter) return AD_OK;
  if (!tape->options.reducer) {
    if (tape->options.gradient) tape->options.gradient(tape->options.gradient_context, tensor->param, &tensor->grad);
    return AD_OK;
  }
  tensor->has_grad = 0;
  return ad_reducer_add(tape->options.reducer, tensor->param, &tensor->grad, tensor->site);
}

static ad_status run_backward(ad_tape *tape, ad_tensor *out) {
  gradient_slot slot[OPERANDS_MAX] = {{NULL, 0}};
  int handed_over = takes_over(out);
  AD_TRY(claim_slots(tape, out, slot));
  tape_mark mark = ad_tape_mark(tape);
  AD_TRY(ad_tape_take_scratch(tape, out));
  AD_TRY(ad_tape_acquire(tape, out, out->op->unread));
  ad_status status = tape->dry ? AD_OK : out->op->backward(tape, out, slot);
  ad_tape_release(tape, out, out->op->unread);
  ad_tape_rewind(tape, mark);
  if (status) return status;
  if (!out->is_kept) {
    out->has_grad = 0;
    if (!handed_over) AD_TRY(give_back(tape, &out->grad));
  }
  for (int i = 0; i < out->operand_count; i++) AD_TRY(one_use_less(tape, out->operand[i]));
  return AD_OK;
}

// Counts, for every tensor between the leaves and the loss, the shares that its gradient will get.
static void count_uses(ad_tensor *loss) {
  loss->uses = 1;  // the seed
  for (ad_tensor *each = loss; each; each = each->previous) {
    if (!each->uses) continue;
    for (int i = 0; i < each->operand_count; i++) each->operand[i]->uses += each->operand[i]->carries;
  }
}

static ad_status seed(ad_tape *tape, ad_tensor *loss) {
  gradient_slot slot = {NULL, 0};
  AD_TRY(claim(tape, loss, &slot));
  if (slot.data) ad_rows(loss->array.dtype)->fill(slot.data, 1, 1, slot.adds);
  return one_use_less(tape, loss);
}

static ad_status walk(ad_tape *tape, ad_tensor *loss) {
  count_uses(loss);
  AD_TRY(seed(tape, loss));
  for (ad_tensor *each = loss; each; each = each->previous) {
    if (each->op && each->has_grad) AD_TRY(run_backward(tape, each));
  }
  return AD_OK;
}

/* ---- where backward may start ---- */

static const char *repair_of(ad_type type) {
  if (type == AD_R)
    return "every rank holds the same sum: say so with once (R->P), or make it by all_reduce P->I instead of P->R";
  if (type == AD_V) return "declare it V->P if each rank's value is an addend of the loss";
  return "sum over the cut dimension first, which makes it P";
}

static ad_status check_loss_type(const ad_layout *layout, const char *site) {
  ad_axes named = ad_mesh_named(layout->mesh);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type type = layout->type[axis];
    int counts = (named & AD_AXES(axis)) || type != AD_R;
    if (!counts || type == AD_P || type == AD_I) continue;
    char name[16];
    return ad_fail(AD_TYPE, "%s: backward: the loss is %s on `%s`, but backward starts from P or I; %s", site,
                   ad_type_print(type, name, sizeof name), ad_axis_name((ad_axis)axis), repair_of(type));
  }
  return AD_OK;
}

static ad_status check_loss(const ad_tape *tape, const ad_tensor *loss, const char *site) {
  AD_TRY(ad_tape_status(tape));
  if (!ad_tape_owns(tape, loss))
    return ad_fail(AD_INVALID, "%s: backward: the loss is %s", site, ad_tape_foreigner(loss));
  if (tape->ran_backward)
    return ad_fail(AD_INVALID, "%s: backward ran already since the last ad_tape_reset; add losses before it", site);
  char shape[96];
  if (loss->array.shape.ndim || !ad_dtype_is_float(loss->array.dtype))
    return ad_fail(AD_INVALID, "%s: backward: the loss has shape %s and dtype %s, but must be a scalar; sum it first",
                   site, ad_shape_print(&loss->array.shape, shape, sizeof shape), ad_dtype_name(loss->array.dtype));
  return check_loss_type(&loss->array.layout, site);
}

ad_status ad_backward_at(ad_tape *tape, ad_tensor *loss, const char *site) {
  AD_NEED(tape);
  if (!site) site = AD_NO_SITE;
  if (tape->runs_forward) ad_tape_trace(tape, "forward", 0);
  tape->runs_forward = 0;
  ad_status status = check_loss(tape, loss, site);
  if (!status) {
    tape->ran_backward = 1;
    ad_tape_trace(tape, "backward", 1);
    status = walk(tape, loss);
    ad_tape_trace(tape, "backward", 0);
  }
  if (!status) return AD_OK;
  ad_tape_fail(tape, status);
  ad_tape_tell(tape);
  return ad_tape_status(tape);
}
