/* Rounds a value, and its gradient, as if it had travelled in a narrower dtype. Replaces a bridge between modules on
 * the same ranks: nothing travels, but the roundings are those of a bridge between ranks. */
#include <math.h>
#include "base/roundoff.h"
#include "kernels/finite.h"
#include "kernels/kernels.h"
#include "tensor/tape.h"

/* If the communication dtype has a smaller range than f32, raises *overflow to the largest value that became infinite
 * in it. */
static void note_overflow(const void *narrow, ad_dtype comm_dtype, double scale, const void *from, ad_dtype dtype,
                          size_t n, double *overflow) {
  if (ad_dtype_needs_scale(comm_dtype) && overflow)
    *overflow = fmax(*overflow, scale * ad_largest_overflow(narrow, comm_dtype, from, dtype, n));
}

/* Casts from `dtype` to the communication dtype and back, block by block. Values in the communication dtype are
 * multiplied by `scale`. `to` may be `from` unless `adds` is 1. */
static void round_through(ad_dtype comm_dtype, double scale, ad_dtype dtype, void *to, const void *from, size_t numel,
                          int adds, double *overflow) {
  enum { BLOCK = 512 };
  double block[BLOCK], rounded[BLOCK]; /* enough memory for BLOCK values of any dtype */
  size_t size = ad_dtype_size(dtype);
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    ad_cast_scaled(block, comm_dtype ? comm_dtype : dtype, (const char *)from + at * size, dtype, scale, n);
    note_overflow(block, comm_dtype, scale, (const char *)from + at * size, dtype, n, overflow);
    ad_cast_scaled(rounded, dtype, block, comm_dtype ? comm_dtype : dtype, 1 / scale, n);
    ad_rows(dtype)->put((char *)to + at * size, rounded, 1, n, adds);
  }
}

static ad_status comm_round_forward(ad_tape *tape, ad_tensor *out) {
  const transfer_rounding *comm_dtype = out->own;
  round_through(comm_dtype->value, 1, out->array.dtype, out->array.data, out->operand[0]->array.data, ad_numel(out), 0,
                comm_dtype->overflow);
  return AD_OK;
}

static ad_status comm_round_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const transfer_rounding *comm_dtype = out->own;
  if (!slot[0].data) return AD_OK;
  round_through(comm_dtype->gradient, comm_dtype->gradient_scale, out->grad.dtype, slot[0].data, out->grad.data,
                ad_numel(out), slot[0].adds, comm_dtype->overflow ? comm_dtype->overflow + 1 : NULL);
  return AD_OK;
}

static const ad_operation comm_dtype = {.name = "comm_round",
                                        .dims = "...->...",
                                        .linearity = AD_NONLINEAR,
                                        .dtypes = AD_IN_ANY_FLOAT,
                                        .passes_on = 1,
                                        .unread = 1,
                                        .own_size = sizeof(transfer_rounding),
                                        .passes_gradient_on = 1,
                                        .forward = comm_round_forward,
                                        .backward = comm_round_backward};

ad_tensor *ad_comm_round_at(ad_tape *tape, ad_tensor *x, const transfer_rounding *rounding, const char *site) {
  return ad_tape_apply(tape, &comm_dtype, &x, 1, rounding, site);
}
