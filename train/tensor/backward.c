/* Backward: walks the tape from a loss, or from values whose gradients arrived, to the leaves. It allocates memory for
 * gradients, and submits a parameter's gradient to its reducer when the gradient is complete. There may be two walks:
 * the first computes the gradients on paths to inputs; the second, perhaps much later, computes all other gradients. */
#include <string.h>
#include "array/array.h"
#include "kernels/kernels.h"
#include "layout/sentences.h"
#include "layout/shown.h"
#include "reduce/reducer.h"
#include "products/gemm.h"
#include "tensor/tape.h"

/* ---- the memory of gradients ---- */

static ad_array describe_gradient(const ad_tape *tape, const ad_tensor *tensor) {
  ad_layout dual = ad_layout_dual(&tensor->array.layout);
  return ad_array_describe(tape->comm, tensor->grad_dtype, &tensor->array.shape, &dual);
}

/* Forms the gradient of a parameter directly in the reducer's bucket, if the bucket has the gradient's dtype and this
 * is the last run of backward and the first time that it reaches the parameter. Gradients of earlier runs, and of a
 * first walk (WALK_INPUTS), stay on the tape, because the reducer takes each submitted gradient as complete. Sets *done
 * to 1 if the bucket is used, and *adds to 1 if the bucket already has the sum of earlier microbatches. */
static ad_status form_in_reducer(const ad_tape *tape, ad_tensor *tensor, int *adds, int *done) {
  ad_reducer *reducer = ad_is_parameter(tensor) ? tensor->from->reducer : NULL;
  *done = 0;
  if (!reducer || !tape->began_last || tape->walk == WALK_INPUTS) return AD_OK;
  ad_array target;
  int target_adds;
  AD_TRY(ad_reducer_target(reducer, tensor->param, &target, &target_adds));
  int in_place = target.data || (tape->dry && ad_reducer_writes_in_place(reducer, tensor->param));
  if (!in_place || target.dtype != tensor->grad.dtype) return AD_OK;
  tensor->grad.data = target.data;
  *adds = target_adds;
  *done = 1;
  return AD_OK;
}

/* Allocates the memory of a tensor's gradient before the gradient's first share arrives. The gradient of an earlier run
 * is kept in `earlier`. */
static ad_status first_gradient(ad_tape *tape, ad_tensor *tensor, int *adds) {
  int done;
  tensor->has_earlier = tensor->has_grad;
  tensor->earlier = tensor->grad.data;
  tensor->grad = describe_gradient(tape, tensor);
  *adds = 0;
  AD_TRY(form_in_reducer(tape, tensor, adds, &done));
  if (!done) AD_TRY(ad_block_take(tape, ad_array_bytes(&tensor->grad), &tensor->grad.data));
  tensor->is_in_reducer = (unsigned char)done;
  tensor->has_grad = tensor->takes_shares = 1;
  return AD_OK;
}

/* Returns 1 if each share of the tensor's gradient is computed as if it were the only one, and added afterwards: for
 * the parameters of a tape that computes one leaf of the batch (train.leaves). The bits of a share then do not depend on
 * the shares before it; a product that adds to them would round in another way. */
static int has_single_shares(const ad_tape *tape, const ad_tensor *tensor) {
  return tape->leaf_meshes && ad_is_parameter(tensor);
}

/* Returns 1 if the next share of the gradient forms in memory of its own, because the gradient has a share already. */
static int forms_alone(const ad_tape *tape, const ad_tensor *tensor) {
  return has_single_shares(tape, tensor) && tensor->has_grad;
}

/* Sets the memory of a slot, into which an operation or a seed then writes its share of the tensor's gradient: the
 * gradient's memory or, if the share forms alone, separate memory. */
static ad_status claim(ad_tape *tape, ad_tensor *tensor, ad_gradient_slot *slot) {
  int is_leaf = !tensor->op;  // a leaf tensor passes no gradient on, so its own gradient adds up over all runs
  if (forms_alone(tape, tensor)) {
    *slot = (ad_gradient_slot){.dtype = tensor->grad_dtype};
    return ad_block_take(tape, ad_array_bytes(&tensor->grad), &slot->data);
  }
  slot->adds = 1;
  slot->dtype = tensor->grad_dtype;
  if (!tensor->takes_shares && !(is_leaf && tensor->has_grad)) AD_TRY(first_gradient(tape, tensor, &slot->adds));
  slot->data = tensor->grad.data;
  return AD_OK;
}

/* Adds a share that formed alone to the tensor's gradient, and gives the share's memory back. */
static ad_status add_share(ad_tape *tape, const ad_tensor *tensor, const ad_gradient_slot *slot) {
  if (slot->data)
    ad_accumulate(tensor->grad.data, tensor->grad.dtype, slot->data, slot->dtype, 1, ad_array_numel(&tensor->grad));
  return ad_block_give(tape, ad_array_bytes(&tensor->grad), slot->data);
}

/* Returns 1 if operand i is also another operand of the same operation. */
static int stands_twice(const ad_tensor *out, int i) {
  for (int j = 0; j < out->operand_count; j++) {
    if (j != i && out->operand[j] == out->operand[i]) return 1;
  }
  return 0;
}

// Returns 1 if this is the first of two walks (WALK_INPUTS) and some operand of `out` gets its gradient only in the
// second (WALK_WEIGHTS).
static int is_to_wait(const ad_tape *tape, const ad_tensor *out) {
  return tape->walk == WALK_INPUTS && ad_walk_fills(WALK_WEIGHTS, out);
}

// Returns 1 if operand 0's gradient can have the memory of the result's gradient, which nothing reads after this
// operation.
static int takes_over(const ad_tape *tape, const ad_tensor *out, uint64_t filled) {
  const ad_tensor *operand = out->operand[0];
  return out->op->passes_gradient_on && filled & 1 && !operand->has_grad && !ad_is_parameter(operand) &&
         !out->is_kept && operand->grad_dtype == out->grad_dtype && !stands_twice(out, 0) && !is_to_wait(tape, out);
}

/* Sets a slot for each operand whose gradient this call of backward fills. Sets *alone to the operands, one bit each,
 * whose share forms in separate memory. */
static ad_status claim_slots(ad_tape *tape, ad_tensor *out, uint64_t filled, ad_gradient_slot *slot, uint64_t *alone) {
  if (takes_over(tape, out, filled)) {
    ad_tensor *operand = out->operand[0];
    operand->grad = describe_gradient(tape, operand);
    operand->grad.data = slot[0].data = out->grad.data;
    slot[0].dtype = operand->grad_dtype;
    operand->has_grad = operand->takes_shares = 1;
  }
  for (int i = 0; i < out->operand_count; i++) {
    if (slot[i].data || !(filled >> i & 1)) continue;
    *alone |= (uint64_t)forms_alone(tape, out->operand[i]) << i;
    AD_TRY(claim(tape, out->operand[i], &slot[i]));
    if (has_single_shares(tape, out->operand[i])) continue;
    // Both slots have the same memory. It is zeroed, and both slots add to it, so backward may fill them in any order.
    if (!slot[i].adds && slot[i].data && stands_twice(out, i)) {
      memset(slot[i].data, 0, ad_array_bytes(&out->operand[i]->grad));
      slot[i].adds = 1;
    }
  }
  return AD_OK;
}

/* ---- walking the tape ---- */

// Submits the complete gradient of a parameter to its reducer, or to the caller's function.
static ad_status pass_to_reducer(ad_tape *tape, ad_tensor *parameter) {
  const ad_parameters *from = parameter->from;
  ad_array gradient = parameter->grad;
  if (tape->leaf_meshes) gradient.layout.mesh = from->values[parameter->param]->layout.mesh;
  if (!from->reducer) {
    if (from->gradient) from->gradient(from->gradient_context, parameter->param, &gradient);
    return AD_OK;
  }
  parameter->has_grad = 0;
  if (tape->walk == WALK_WEIGHTS) ad_reducer_expect(from->reducer, parameter->param, -1);
  AD_TRY(ad_reducer_add_at(from->reducer, parameter->param, &gradient, parameter->site));
  int is_spare = tape->values->is_shared && !parameter->is_in_reducer;
  return is_spare ? ad_block_give(tape, ad_array_bytes(&parameter->grad), parameter->grad.data) : AD_OK;
}

// Counts one share of the gradient as received. After the last share the gradient is complete, and a parameter's
// gradient is submitted. The first of two walks (WALK_INPUTS) submits nothing: in it parameters get only gradients with
// which backward begins.
static ad_status one_use_less(ad_tape *tape, ad_tensor *tensor) {
  if (!tensor->carries || --tensor->uses) return AD_OK;
  int is_due = tape->began_last && tape->walk != WALK_INPUTS;
  return is_due && ad_is_parameter(tensor) ? pass_to_reducer(tape, tensor) : AD_OK;
}

static void swap_with_earlier(ad_tensor *out) {
  void *data = out->grad.data;
  out->grad.data = out->earlier;
  out->earlier = data;
}

static void add_to_earlier(const ad_tensor *out) {
  if (out->grad.data) ad_rows(out->grad.dtype)->put(out->earlier, out->grad.data, 1, ad_array_numel(&out->grad), 1);
}

// Called in the first of two walks (WALK_INPUTS), when all operands that are computed from inputs got the gradient of
// `out`: keeps this gradient for the remaining operands, which get theirs in the second walk. If the caller wants the
// gradient, too (ad_keep), adds the gradient of earlier runs, so that the caller can read the sum between the walks.
static void wait_for_weights(ad_tensor *out) {
  out->takes_shares = 0;
  out->waits = 1;
  out->has_grad = out->is_kept;
  if (!out->is_kept || !out->has_earlier) return;
  add_to_earlier(out);
  swap_with_earlier(out);
}

// Called in the second of two walks (WALK_WEIGHTS), when the remaining operands got the gradient of `out` that was kept
// for them. Gives this gradient's memory back.
static ad_status end_waiting(ad_tape *tape, ad_tensor *out, int passed_on) {
  out->waits = 0;
  if (out->has_earlier) {
    swap_with_earlier(out);
    out->has_earlier = 0;
    return ad_block_give(tape, ad_array_bytes(&out->grad), out->earlier);
  }
  return out->is_kept || passed_on ? AD_OK : ad_block_give(tape, ad_array_bytes(&out->grad), out->grad.data);
}

// Called when all operands got the gradient of `out`: gives the gradient's memory back. A gradient that the caller
// keeps (ad_keep) stays, added to that of earlier runs.
static ad_status leave(ad_tape *tape, ad_tensor *out, int passed_on) {
  out->takes_shares = 0;
  if (!out->is_kept) {
    out->has_grad = 0;
    return passed_on ? AD_OK : ad_block_give(tape, ad_array_bytes(&out->grad), out->grad.data);
  }
  if (!out->has_earlier) return AD_OK;
  add_to_earlier(out);
  swap_with_earlier(out);
  out->has_earlier = 0;
  return ad_block_give(tape, ad_array_bytes(&out->grad), out->earlier);
}

/* Calls the operation's backward with its scratch memory and with the parameters that backward reads. */
static ad_status call_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot, uint64_t unread) {
  tape_mark mark = ad_tape_mark(tape);
  AD_TRY(ad_tape_take_scratch(tape, out));
  AD_TRY(ad_tape_acquire(tape, out, unread));
  ad_status status = tape->dry && !out->op->runs_dry ? AD_OK : out->op->backward(tape, out, slot);
  ad_status products = ad_gemm_status();
  ad_tape_release(out, unread);
  ad_tape_rewind(tape, mark);
  return status ? status : products;
}

/* Runs backward of one operation for the operands whose gradients this walk computes. */
static ad_status run_backward(ad_tape *tape, ad_tensor *out) {
  ad_gradient_slot slot[AD_OPERANDS_MAX] = {{.data = NULL}};
  uint64_t filled = ad_walk_fills(tape->walk, out);
  uint64_t unread = tape->walk == WALK_WHOLE ? out->op->unread : ad_operation_unread(out->op, filled);
  uint64_t alone = 0;
  int waited = out->waits, passed_on = takes_over(tape, out, filled);
  if (waited && out->has_earlier) swap_with_earlier(out);
  AD_TRY(claim_slots(tape, out, filled, slot, &alone));
  AD_TRY(call_backward(tape, out, slot, unread));
  for (int i = 0; i < out->operand_count; i++)
    if (alone >> i & 1) AD_TRY(add_share(tape, out->operand[i], &slot[i]));
  if (is_to_wait(tape, out))
    wait_for_weights(out);
  else
    AD_TRY(waited ? end_waiting(tape, out, passed_on) : leave(tape, out, passed_on));
  for (int i = 0; i < out->operand_count; i++)
    if (filled >> i & 1) AD_TRY(one_use_less(tape, out->operand[i]));
  return AD_OK;
}

/* One run of backward (a "start" of ad_backward_from). It begins at one or several outputs: at a loss (gradient
 * NULL, seed 1), or at a value with the gradient that arrived for it. */
typedef struct start {
  ad_tensor *const *outputs;
  const ad_array *const *gradients; /* NULL: all outputs are losses */
  size_t count;
  const char *site;
} start;

static const ad_array *arriving(const start *from, size_t i) { return from->gradients ? from->gradients[i] : NULL; }

// Counts, for each tensor between the leaves and the outputs, how many shares its gradient will get.
static void count_uses(const ad_tape *tape, const start *from) {
  // the gradient with which backward begins at an output (the seed) is a share of that output's gradient
  for (size_t i = 0; i < from->count; i++) from->outputs[i]->uses += from->outputs[i]->carries;
  for (ad_tensor *each = tape->last; each; each = each->previous) {
    if (!each->uses) continue;
    for (int i = 0; i < each->operand_count; i++) each->operand[i]->uses += each->operand[i]->carries;
  }
}

// Submits the gradients that earlier runs left for parameters which this last run does not reach.
static ad_status pass_unreached(ad_tape *tape) {
  for (ad_tensor *each = tape->last; each; each = each->previous) {
    if (ad_is_parameter(each) && each->has_grad && !each->uses) AD_TRY(pass_to_reducer(tape, each));
  }
  return AD_OK;
}

// Announces to the reducers which gradients the second walk (WALK_WEIGHTS) will still submit, so that no bucket is
// reduced before these arrive.
static void expect_weights(const ad_tape *tape) {
  for (const ad_tensor *each = tape->last; each; each = each->previous) {
    if (!ad_is_parameter(each) || !each->from->reducer || !(each->uses || each->has_grad)) continue;
    ad_reducer_expect(each->from->reducer, each->param, 1);
  }
}

// For the tape of a leaf of the batch: announces which gradients this last run submits. Others the leaf does not have.
static void announce(const ad_tape *tape) {
  for (const ad_tensor *each = tape->last; each; each = each->previous) {
    if (!ad_is_parameter(each) || !each->from->reducer || !(each->uses || each->has_grad)) continue;
    ad_reducer_announce(each->from->reducer, each->param);
  }
}

/* Writes the gradient from which backward begins at output i. */
static ad_status seed(ad_tape *tape, const start *from, size_t i) {
  ad_tensor *output = from->outputs[i];
  ad_gradient_slot slot = {.data = NULL};
  ad_array arrives = {0};
  // the array that arrives may be the output's own gradient, which claim() moves
  if (arriving(from, i)) arrives = *arriving(from, i);
  int is_alone = output->carries && forms_alone(tape, output);
  if (output->carries) AD_TRY(claim(tape, output, &slot));
  const row_kernels *rows = ad_rows(output->grad_dtype);
  if (slot.data && arrives.data)
    rows->put(slot.data, arrives.data, 1, ad_numel(output), slot.adds);
  else if (slot.data && !arriving(from, i))
    rows->fill(slot.data, 1, 1, slot.adds);
  if (is_alone) AD_TRY(add_share(tape, output, &slot));
  return one_use_less(tape, output);
}

static ad_status walk(ad_tape *tape, const start *from) {
  int is_whole = tape->walk == WALK_WHOLE;
  count_uses(tape, from);
  if (tape->leaf_meshes && tape->began_last) announce(tape);
  if (tape->began_last && is_whole) AD_TRY(pass_unreached(tape));
  for (size_t i = 0; i < from->count; i++) AD_TRY(seed(tape, from, i));
  for (ad_tensor *each = tape->last; each; each = each->previous) {
    if (!each->op || !each->takes_shares || !(is_whole || each->reached)) continue;
    AD_TRY(ad_layer_turn(tape, each->layer));
    AD_TRY(run_backward(tape, each));
  }
  return ad_layer_turn(tape, NULL);
}

/* Makes the first of two walks: computes the gradients on paths to inputs. */
static ad_status walk_inputs(ad_tape *tape, const start *from) {
  AD_TRY(walk(tape, from));
  tape->defers_weights = 1;
  expect_weights(tape);
  return ad_tape_drop(tape);
}

/* Walks the tape for the second time (WALK_WEIGHTS): computes the gradients that the first walk left out. */
static ad_status walk_weights(ad_tape *tape) {
  AD_TRY(pass_unreached(tape));
  for (ad_tensor *each = tape->last; each; each = each->previous) {
    if (!each->op || !(each->takes_shares || each->waits)) continue;
    AD_TRY(ad_layer_turn(tape, each->layer));
    AD_TRY(run_backward(tape, each));
  }
  AD_TRY(ad_layer_turn(tape, NULL));
  tape->defers_weights = 0;
  return ad_tape_drop(tape);
}

/* ---- checks before backward starts ---- */

/* Returns words that name the repair for a loss of this type. */
static const char *repair_of(ad_type type) {
  if (type == AD_R)
    return ", so every rank has the same sum" AD_MAY_REPAIR
           "once R->P, or all_reduce P->I instead of P->R where it is made";
  if (type == AD_V) return AD_MAY_REPAIR "declare V->P, if each rank's value is an addend of the loss";
  return AD_MAY_REPAIR "sum over the sharded dimension first, which makes it P";
}

static ad_status check_loss_type(const ad_layout *layout, const char *site) {
  ad_axes named = ad_mesh_named(layout->mesh);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type type = layout->type[axis];
    int counts = (named & AD_AXES(axis)) || type != AD_R;
    if (!counts || type == AD_P || type == AD_I) continue;
    char name[16];
    return ad_fail(AD_TYPE, "%s: `backward` needs a loss that is P or I, but the loss is %s on `%s`%s", site,
                   ad_type_print(type, name, sizeof name), ad_axis_name((ad_axis)axis), repair_of(type));
  }
  return AD_OK;
}

ad_status ad_check_loss(const ad_tensor *loss, const char *site) {
  char shape[96];
  if (loss->array.shape.ndim || !ad_dtype_is_float(loss->array.dtype))
    return ad_fail(AD_INVALID,
                   "%s: `backward` needs a scalar loss, but the loss has shape %s and dtype %s; sum the loss over all "
                   "its elements first",
                   site, ad_shape_print(&loss->array.shape, shape, sizeof shape), ad_dtype_name(loss->array.dtype));
  return check_loss_type(&loss->array.layout, site);
}

static ad_status check_arriving_layout(const ad_layout *grad, const ad_layout *output, size_t i, const char *site) {
  ad_layout dual = ad_layout_dual(output);
  if (ad_layout_equal(grad, &dual)) return AD_OK;
  char is[160], wanted[160], of[160];
  ad_layouts_shown_apart(grad, &dual, is, wanted, sizeof is);
  return ad_fail(AD_TYPE,
                 "%s: `backward` got a gradient of output %zu (from 0) that is \"%s\" on mesh \"%s\", but the output "
                 "is \"%s\" on \"%s\"; give the gradient the dual layout, \"%s\" (ad_layout_dual)",
                 site, i, is, ad_mesh_text(grad->mesh), ad_layout_shown(output, of, sizeof of),
                 ad_mesh_text(output->mesh), wanted);
}

// Checks that the gradient that arrived for output i has the dtype, shape, layout and scale that the gradient of output
// i has on the tape.
static ad_status check_arriving(const ad_tape *tape, const start *from, size_t i) {
  const ad_array *grad = arriving(from, i), *output = &from->outputs[i]->array;
  const char *site = from->site;
  char a[96], b[96];
  if (!grad->layout.mesh)
    return ad_fail(AD_INVALID, "%s: `backward` got a gradient of output %zu (from 0) without a mesh; set its layout",
                   site, i);
  ad_dtype dtype = from->outputs[i]->grad_dtype;
  if (grad->dtype != dtype)
    return ad_fail(AD_INVALID,
                   "%s: `backward` got a gradient of output %zu (from 0) with dtype %s, but the gradient must have "
                   "dtype %s; convert the gradient first",
                   site, i, ad_dtype_name(grad->dtype), ad_dtype_name(dtype));
  if (!ad_shape_equal(&grad->shape, &output->shape))
    return ad_fail(AD_INVALID,
                   "%s: `backward` got a gradient of output %zu (from 0) with shape %s, but the output has shape %s; "
                   "give a gradient of the output's shape",
                   site, i, ad_shape_print(&grad->shape, a, sizeof a), ad_shape_print(&output->shape, b, sizeof b));
  if (grad->scale)
    return ad_fail(AD_TYPE,
                   "%s: `backward` got a gradient of output %zu (from 0) that is scaled by 2^-%d, but its scale must "
                   "be 0; undo the scale first",
                   site, i, grad->scale);
  AD_TRY(check_arriving_layout(&grad->layout, &output->layout, i, site));
  return ad_array_check(tape->comm, grad, "backward", site);
}

static ad_status check_output(const ad_tape *tape, const start *from, size_t i) {
  const ad_tensor *output = from->outputs[i];
  int is_loss = !arriving(from, i);
  if (!ad_tape_owns(tape, output) && is_loss)
    return ad_fail(AD_INVALID, "%s: the loss that `backward` got is %s; give a result of this tape", from->site,
                   ad_tape_foreigner(output));
  if (!ad_tape_owns(tape, output))
    return ad_fail(AD_INVALID, "%s: output %zu (from 0) that `backward` got is %s; give a result of this tape",
                   from->site, i, ad_tape_foreigner(output));
  return is_loss ? ad_check_loss(output, from->site) : check_arriving(tape, from, i);
}

static ad_status check_first(const ad_tape *tape, const char *site) {
  if (tape->defers_weights)
    return ad_fail(AD_INVALID,
                   "%s: the backward pass of the inputs has already run since the last ad_tape_reset; call "
                   "ad_backward_weights for the gradients of the weights",
                   site);
  if (!tape->began_last) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `backward` has already run since the last ad_tape_reset; add the losses before it runs, or use "
                 "AD_LAST_START only in the last call of ad_backward_from",
                 site);
}

static ad_status check_start(const ad_tape *tape, const start *from) {
  AD_TRY(ad_tape_status(tape));
  AD_TRY(check_first(tape, from->site));
  int reaches = 0;
  for (size_t i = 0; i < from->count; i++) {
    AD_TRY(check_output(tape, from, i));
    reaches |= from->outputs[i]->carries;
  }
  if (reaches) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `backward` finds no parameter and no input that needs a gradient, because it begins with %s",
                 from->site, from->count ? "the outputs, which depend on constants only" : "a call without outputs");
}

/* Records a failure on the tape and reports it to the other ranks. */
static ad_status end_backward(ad_tape *tape, ad_status status) {
  if (!status) return AD_OK;
  ad_tape_fail(tape, status);
  ad_tape_report_error(tape);
  return ad_tape_status(tape);
}

ad_status ad_backward_from_at(ad_tape *tape, ad_tensor *const *outputs, const ad_array *const *gradients, size_t n,
                              ad_start which, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(tape);
  if (n) AD_NEED(outputs);
  start from = {outputs, gradients, n, site};
  if (tape->runs_forward) ad_tape_trace(tape, AD_FORWARD, AD_ENDS);
  tape->runs_forward = 0;
  ad_status status = check_start(tape, &from);
  if (!status) {
    tape->began_last = which != AD_MORE_STARTS;
    tape->walk = which == AD_INPUTS_START ? WALK_INPUTS : WALK_WHOLE;
    ad_tape_trace(tape, AD_BACKWARD, AD_BEGINS);
    status = which == AD_INPUTS_START ? walk_inputs(tape, &from) : walk(tape, &from);
    ad_tape_trace(tape, AD_BACKWARD, AD_ENDS);
  }
  return end_backward(tape, status);
}

/* ---- the later pass that computes the gradients of weights ---- */

static ad_status check_weights(const ad_tape *tape, const char *site) {
  AD_TRY(ad_tape_status(tape));
  if (tape->defers_weights) return AD_OK;
  return ad_fail(AD_INVALID, "%s: the backward pass of the weights cannot run, because %s", site,
                 tape->began_last
                     ? "this pass has already run since the last ad_tape_reset"
                     : "the backward pass of the inputs must run first; call ad_backward_from with AD_INPUTS_START");
}

ad_status ad_backward_weights_at(ad_tape *tape, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(tape);
  ad_status status = check_weights(tape, site);
  if (!status) {
    tape->walk = WALK_WEIGHTS;
    ad_tape_trace(tape, AD_BACKWARD, AD_BEGINS);
    status = walk_weights(tape);
    ad_tape_trace(tape, AD_BACKWARD, AD_ENDS);
  }
  return end_backward(tape, status);
}

ad_status ad_backward_at(ad_tape *tape, ad_tensor *loss, const char *site) {
  AD_NEED(tape);
  return ad_backward_from_at(tape, &loss, NULL, 1, AD_LAST_START, site);
}
