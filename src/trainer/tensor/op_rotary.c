/* Rotary positions. */
#include <inttypes.h>
#include <math.h>
#include "base/seams.h"
#include "tensor/heads.h"

typedef struct rotary_numbers {
  int64_t head_dim; /* elements of one head */
  double base;
} rotary_numbers;

static const rotary_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static head_sizes sizes_of(const ad_tensor *out) { return ad_head_sizes(out, numbers_of(out)->head_dim); }

static ad_status rotary_check(const ad_tape *tape, const ad_tensor *out) {
  const rotary_numbers *numbers = numbers_of(out);
  AD_TRY(ad_check_heads(tape, out, numbers->head_dim));
  if (numbers->head_dim % 2)
    return ad_fail(AD_INVALID, "%s: rotary: head_dim is %" PRId64 ", but pairs need an even number", out->site,
                   numbers->head_dim);
  if (!(numbers->base > 0))
    return ad_fail(AD_INVALID, "%s: rotary: base is %g, but must be above 0", out->site, numbers->base);
  return AD_OK;
}

// Cosines [seq, head_dim / 2], then sines, at the positions that this rank holds.
static size_t rotary_saved(const ad_tensor *out) {
  head_sizes size = sizes_of(out);
  return size.seq * size.head_dim * ad_dtype_size(ad_wide_of(out));
}

// Pair i of every position.
static void fill_pair(const ad_tensor *out, size_t i, const positions *at_positions) {
  head_sizes size = sizes_of(out);
  size_t half = size.head_dim / 2, at = i;
  double frequency = pow(numbers_of(out)->base, -2.0 * (double)i / (double)size.head_dim);
  for (int k = 0; k < at_positions->span_count; k++) {
    ad_span span = at_positions->span[k];
    for (int64_t position = span.first; position < span.first + span.count; position++, at += half) {
      ad_set_element(ad_wide_of(out), out->saved, at, cos((double)position * frequency));
      ad_set_element(ad_wide_of(out), out->saved, size.seq * half + at, sin((double)position * frequency));
    }
  }
}

static ad_status fill_table(ad_tape *tape, ad_tensor *out) {
  positions at;
  AD_TRY(ad_find_positions(out, &out->array, ad_comm_rank(ad_tape_comm(tape)), &at));
  ad_seam_pass(AD_SEAM_POSITIONS, &at);
  size_t pairs = sizes_of(out).head_dim / 2;
  for (size_t i = 0; i < pairs; i++) fill_pair(out, i, &at);
  return AD_OK;
}

static void rotate_all(const ad_tensor *out, void *dst, const void *src, double direction, int adds) {
  const row_kernels *rows = ad_rows(out->array.dtype);
  head_sizes size = sizes_of(out);
  size_t half = size.head_dim / 2, angle_bytes = half * ad_dtype_size(ad_wide_of(out));
  const char *cosines = out->saved, *sines = cosines + size.seq * angle_bytes;
  for (size_t i = 0; i < size.batch * size.seq; i++) {
    size_t angle = i % size.seq * angle_bytes;
    rows->rotate(ad_at(out, dst, i * size.width), ad_at(out, src, i * size.width), cosines + angle, sines + angle,
                 direction, half, size.heads, adds);
  }
}

static ad_status rotary_forward(ad_tape *tape, ad_tensor *out) {
  AD_TRY(fill_table(tape, out));
  rotate_all(out, out->array.data, out->operand[0]->array.data, 1, 0);
  return AD_OK;
}

static ad_status rotary_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  rotate_all(out, slot[0].data, out->grad.data, -1, slot[0].adds);
  return AD_OK;
}

static const ad_operation rotary = {.name = "rotary",
                                    .dims = "bsd->bsd",
                                    .linearity = AD_MULTILINEAR,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .own_size = sizeof(rotary_numbers),
                                    .check = rotary_check,
                                    .saved = rotary_saved,
                                    .forward = rotary_forward,
                                    .backward = rotary_backward};

ad_tensor *ad_rotary_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base, const char *site) {
  return ad_tape_apply(tape, &rotary, &x, 1, &(rotary_numbers){head_dim, base}, site);
}
