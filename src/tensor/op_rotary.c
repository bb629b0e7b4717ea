/* Rotary positions, and the sizes of heads that attention shares. */
#include <inttypes.h>
#include <math.h>
#include "tensor/heads.h"

enum { SPANS_MAX = 16 };

/* ---- heads ---- */

head_sizes ad_head_sizes(const ad_tensor *out) {
  const ad_shape *local = &out->array.local;
  head_sizes sizes = {(size_t)local->dim[0], (size_t)local->dim[1], (size_t)local->dim[2], 0,
                      (size_t)out->attributes.head_dim};
  sizes.heads = sizes.width / sizes.head_dim;
  return sizes;
}

ad_status ad_check_heads(const ad_tape *tape, const ad_tensor *out) {
  int64_t head_dim = out->attributes.head_dim, width = out->array.shape.dim[2];
  if (head_dim < 1 || width % head_dim)
    return ad_fail(AD_INVALID, "%s: %s: head_dim %" PRId64 " does not divide the last dimension, %" PRId64, out->site,
                   out->op->name, head_dim, width);
  ad_span spans[SPANS_MAX];
  int count = ad_layout_spans(&out->array.layout, 2, width, ad_comm_rank(ad_tape_comm(tape)), spans, SPANS_MAX);
  for (int i = 0; i < count && i < SPANS_MAX; i++) {
    if (spans[i].first % head_dim || spans[i].count % head_dim)
      return ad_fail(AD_INVALID,
                     "%s: %s: this rank's part [%" PRId64 ", %" PRId64 ") of the last dimension cuts a head of %" PRId64
                     " in two; the %" PRId64
                     " "
                     "heads must divide evenly",
                     out->site, out->op->name, spans[i].first, (spans[i].first + spans[i].count), head_dim,
                     (width / head_dim));
  }
  return AD_OK;
}

/* ---- rotary ---- */

static ad_status rotary_check(const ad_tape *tape, const ad_tensor *out) {
  AD_TRY(ad_check_heads(tape, out));
  if (out->attributes.head_dim % 2)
    return ad_fail(AD_INVALID, "%s: rotary: head_dim is %" PRId64 ", but pairs need an even number", out->site,
                   out->attributes.head_dim);
  if (!(out->attributes.number > 0))
    return ad_fail(AD_INVALID, "%s: rotary: base is %g, but must be above 0", out->site, out->attributes.number);
  return AD_OK;
}

// Cosines [seq, head_dim / 2], then sines, at the positions that this rank holds.
static size_t rotary_saved(const ad_tensor *out) {
  head_sizes size = ad_head_sizes(out);
  return size.seq * size.head_dim * ad_dtype_size(out->array.dtype);
}

// Pair i of every position.
static void fill_pair(const ad_tensor *out, size_t i, const ad_span *spans, int count) {
  head_sizes size = ad_head_sizes(out);
  size_t half = size.head_dim / 2, at = i;
  double frequency = pow(out->attributes.number, -2.0 * (double)i / (double)size.head_dim);
  for (int k = 0; k < count; k++)
    for (int64_t position = spans[k].first; position < spans[k].first + spans[k].count; position++, at += half) {
      ad_set_element(out->array.dtype, out->saved, at, cos((double)position * frequency));
      ad_set_element(out->array.dtype, out->saved, size.seq * half + at, sin((double)position * frequency));
    }
}

static ad_status fill_table(ad_tape *tape, ad_tensor *out) {
  ad_span spans[SPANS_MAX];
  int count = ad_layout_spans(&out->array.layout, 1, out->array.shape.dim[1], ad_comm_rank(ad_tape_comm(tape)), spans,
                              SPANS_MAX);
  if (count > SPANS_MAX)
    return ad_fail(AD_INVALID, "%s: rotary: the sequence is cut into %d pieces; %d is the most", out->site, count,
                   SPANS_MAX);
  size_t pairs = ad_head_sizes(out).head_dim / 2;
  for (size_t i = 0; i < pairs; i++) fill_pair(out, i, spans, count);
  return AD_OK;
}

static void rotate_all(const ad_tensor *out, void *dst, const void *src, double direction, int adds) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  head_sizes size = ad_head_sizes(out);
  size_t half = size.head_dim / 2, sines = size.seq * half;
  for (size_t i = 0; i < size.batch * size.seq; i++) {
    size_t angle = i % size.seq * half;
    rows->rotate(ad_at(out, dst, i * size.width), ad_at(out, src, i * size.width), ad_at(out, out->saved, angle),
                 ad_at(out, out->saved, sines + angle), direction, half, size.heads, adds);
  }
}

static ad_status rotary_forward(ad_tape *tape, ad_tensor *out) {
  AD_TRY(fill_table(tape, out));
  rotate_all(out, out->array.data, out->operand[0]->array.data, 1, 0);
  return AD_OK;
}

static ad_status rotary_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  rotate_all(out, slot[0].data, out->grad.data, -1, slot[0].adds);
  return AD_OK;
}

static const operation rotary = {.name = "rotary",
                                 .dims = "bsd->bsd",
                                 .linearity = AD_MULTILINEAR,
                                 .check = rotary_check,
                                 .saved = rotary_saved,
                                 .forward = rotary_forward,
                                 .backward = rotary_backward};

ad_tensor *ad_rotary_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base, const char *site) {
  return ad_tape_apply(tape, &rotary, &x, 1, &(attributes){.number = base, .head_dim = head_dim}, site);
}
