/* A change of view as an operation: the memory stays, and the ranks are factored into other axes. Backward views the
 * gradient on the mesh of the operand. */
#include <string.h>
#include "tensor/tape.h"

typedef struct view_numbers {
  const ad_mesh *view;
} view_numbers;

static const ad_mesh *view_of(const ad_tensor *out) { return ((const view_numbers *)out->own)->view; }

// Describes x on the view, and checks that the gradient can be viewed on x's mesh again. It can: its types are the
// duals, and if types agree on a set of axes, so do their duals.
static ad_status view_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  if (!view_of(out))
    return ad_fail(AD_INVALID, "%s: `view` got no mesh, but NULL; give a mesh of the same ranks", out->site);
  ad_layout seen, back, dual;
  AD_TRY(ad_layout_view_at(&x->layout, view_of(out), &seen, out->site));
  dual = ad_layout_dual(&seen);
  AD_TRY(ad_layout_view_at(&dual, x->layout.mesh, &back, out->site));
  out->array = ad_array_describe(tape->comm, x->dtype, &x->shape, &seen);
  return AD_OK;
}

static int view_shares(const ad_tensor *out) { return 1; }

static ad_status view_forward(ad_tape *tape, ad_tensor *out) {
  const ad_array *x = &out->operand[0]->array;
  if (out->array.data != x->data && ad_array_bytes(x)) memcpy(out->array.data, x->data, ad_array_bytes(x));
  return AD_OK;
}

static ad_status view_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  if (slot[0].data != out->grad.data)
    ad_rows(out->grad.dtype)->put(slot[0].data, out->grad.data, 1, ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const ad_operation view_operation = {.name = "view",
                                            .describe = view_describe,
                                            .passes_gradient_on = 1,
                                            .dtypes = AD_IN_ANY_FLOAT,
                                            .passes_on = 1,
                                            .own_size = sizeof(view_numbers),
                                            .shares = view_shares,
                                            .forward = view_forward,
                                            .backward = view_backward};

ad_tensor *ad_view_at(ad_tape *tape, ad_tensor *x, const ad_mesh *view, const char *site) {
  return ad_tape_apply(tape, &view_operation, &x, 1, &(view_numbers){view}, site);
}
