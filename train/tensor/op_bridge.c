/* The transfer over a bridge between two meshes of the same ranks, as one operation. */
#include "bridge/bridge.h"
#include "tensor/tape.h"

/* ordinal: index of the transition among those of its tape, from 0 */
typedef struct bridge_numbers {
  ad_bridge *bridge;
  int ordinal;
} bridge_numbers;

static const bridge_numbers *numbers_of(const ad_tensor *out) { return out->own; }

static ad_status bridge_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  ad_bridge *bridge = numbers_of(out)->bridge;
  ad_array source;
  if (ad_bridge_is_disjoint(bridge))
    return ad_fail(AD_INVALID,
                   "%s: the two meshes of the bridge have no rank in common, but `bridge` on a tape needs two meshes "
                   "of the same ranks; transfer the value between phases instead",
                   out->site);
  AD_TRY(ad_bridge_describe_at(bridge, x->dtype, &x->shape, AD_FORWARD, &source, &out->array, out->site));
  return ad_bridge_check_source(bridge, x, out->site);
}

static ad_status bridge_forward(ad_tape *tape, ad_tensor *out) {
  return ad_bridge_forward_at(numbers_of(out)->bridge, &out->operand[0]->array, &out->array, out->site);
}

// Returns the bytes of scratch memory: for this share of the gradient, until it is added to an earlier share.
static size_t bridge_scratch(const ad_tensor *out) {
  const ad_tensor *x = out->operand[0];
  return x->carries ? ad_numel(x) * ad_dtype_size(x->grad_dtype) : 0;
}

static ad_status bridge_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  ad_array arrives = out->operand[0]->grad;
  if (slot[0].adds) arrives.data = out->scratch;
  AD_TRY(
      ad_bridge_backward_numbered(numbers_of(out)->bridge, &out->grad, &arrives, numbers_of(out)->ordinal, out->site));
  return slot[0].adds ? ad_array_add_at(&out->operand[0]->grad, &arrives, out->site) : AD_OK;
}

static const ad_operation bridge_operation = {.name = "bridge",
                                              .dtypes = AD_IN_ANY_FLOAT,
                                              .passes_on = 1,
                                              .own_size = sizeof(bridge_numbers),
                                              .runs_dry = 1,
                                              .keeps = 1,
                                              .scratch = bridge_scratch,
                                              .describe = bridge_describe,
                                              .forward = bridge_forward,
                                              .backward = bridge_backward};

/* Always returns 1: the record `stay` is used only for a bridge over which no rank needs another rank's elements, so
 * value and gradient keep their memory. */
static int is_local(const ad_tensor *out) { return 1; }

static const ad_operation stay = {.name = "bridge",
                                  .dtypes = AD_IN_ANY_FLOAT,
                                  .passes_on = 1,
                                  .own_size = sizeof(bridge_numbers),
                                  .runs_dry = 1,
                                  .keeps = 1,
                                  .passes_gradient_on = 1,
                                  .shares = is_local,
                                  .scratch = bridge_scratch,
                                  .describe = bridge_describe,
                                  .forward = bridge_forward,
                                  .backward = bridge_backward};

ad_tensor *ad_transfer_tensor_at(ad_tape *tape, ad_tensor *x, ad_bridge *bridge, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, bridge_operation.name);
  if (!bridge)
    return ad_tape_fail(
        tape, ad_fail(AD_INVALID, "%s: the bridge of `bridge` is NULL; create one with ad_bridge_create", site));
  int stays = x && x->array.shape.ndim && ad_bridge_is_local(bridge, x->array.shape.dim[0]);
  x = ad_tape_apply(tape, stays ? &stay : &bridge_operation, &x, 1, &(bridge_numbers){bridge, tape->transitions++},
                    site);
  if (ad_tape_failed(tape)) ad_tape_report_error(tape);  // other ranks may wait in the bridge
  return x;
}
