/* A value as it is when it has travelled in a narrower dtype, and its gradient when that has come back in one: where
 * both ends are one rank and nothing travels, the same roundings. */
#include "base/kernels.h"
#include "tensor/tape.h"

typedef struct wire_dtypes {
  ad_dtype value, gradient; /* 0: as they are */
} wire_dtypes;

/* Through the dtype and back, block after block; to == from is fine. */
static void round_through(ad_dtype wire, ad_dtype dtype, void *to, const void *from, size_t numel) {
  enum { BLOCK = 512 };
  double block[BLOCK]; /* of any dtype */
  size_t size = ad_dtype_size(dtype);
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    ad_cast(block, wire ? wire : dtype, (const char *)from + at * size, dtype, n);
    ad_cast((char *)to + at * size, dtype, block, wire ? wire : dtype, n);
  }
}

static ad_status wire_forward(ad_tape *tape, ad_tensor *out) {
  const wire_dtypes *wire = out->own;
  round_through(wire->value, out->array.dtype, out->array.data, out->operand[0]->array.data, ad_numel(out));
  return AD_OK;
}

static ad_status wire_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  const wire_dtypes *wire = out->own;
  if (!slot[0].data) return AD_OK;
  round_through(wire->gradient, out->array.dtype, out->grad.data, out->grad.data, ad_numel(out));
  if (slot[0].data != out->grad.data)
    ad_rows(out->array.dtype)->put(slot[0].data, out->grad.data, 1, ad_numel(out), slot[0].adds);
  return AD_OK;
}

static const operation wire = {.name = "wire",
                               .dims = "...->...",
                               .linearity = AD_NONLINEAR,
                               .dtypes = IN_F32_F64,
                               .unread = 1,
                               .own_size = sizeof(wire_dtypes),
                               .hands_over = 1,
                               .forward = wire_forward,
                               .backward = wire_backward};

ad_tensor *ad_wire_at(ad_tape *tape, ad_tensor *x, ad_dtype value, ad_dtype gradient, const char *site) {
  return ad_tape_apply(tape, &wire, &x, 1, &(wire_dtypes){value, gradient}, site);
}
