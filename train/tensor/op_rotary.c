/* Rotary position embedding, with or without scaled frequencies. */
#include <inttypes.h>
#include <math.h>
#include "base/injection.h"
#include "tensor/heads.h"

typedef struct rotary_numbers {
  int64_t head_dim; /* number of elements of one head */
  double base;
  ad_rotary_scaling scaling; /* factor 0: no scaling */
} rotary_numbers;

static const rotary_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static head_sizes sizes_of(const ad_tensor *out) { return ad_head_sizes(out, numbers_of(out)->head_dim); }

static ad_status check_scaling(const ad_rotary_scaling *scaling, const char *site) {
  double low = scaling->low_turns, high = scaling->high_turns, original = scaling->original_positions;
  if (scaling->factor == 0 || (scaling->factor > 0 && low > 0 && high > low && original > 0)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the scaling of `rotary` has factor %g, low_turns %g, high_turns %g and original_positions %g, "
                 "but all four must be above 0, and high_turns above low_turns",
                 site, scaling->factor, low, high, original);
}

static ad_status rotary_check(const ad_tape *tape, const ad_tensor *out) {
  const rotary_numbers *numbers = numbers_of(out);
  AD_TRY(ad_check_heads(tape, out, numbers->head_dim));
  if (numbers->head_dim % 2)
    return ad_fail(AD_INVALID, "%s: head_dim of `rotary` is %" PRId64 ", but must be even", out->site,
                   numbers->head_dim);
  if (!(numbers->base > 0))
    return ad_fail(AD_INVALID, "%s: the base of `rotary` is %g, but must be above 0", out->site, numbers->base);
  return check_scaling(&numbers->scaling, out->site);
}

// Returns the bytes that forward saves: cosines [seq, head_dim / 2], then sines, at this rank's positions.
static size_t rotary_saved(const ad_tensor *out) {
  head_sizes size = sizes_of(out);
  return size.seq * size.head_dim * ad_dtype_size(ad_wide_of(out));
}

/* Scales a frequency: high frequencies are kept, low ones divided by the factor, those between interpolated. */
static double scaled(const ad_rotary_scaling *scaling, double frequency) {
  const double pi = 3.14159265358979323846;
  double turns = scaling->original_positions * frequency / (2 * pi);
  double kept = fmin(fmax((turns - scaling->low_turns) / (scaling->high_turns - scaling->low_turns), 0), 1);
  return frequency * (kept + (1 - kept) / scaling->factor);
}

static double frequency_of(const rotary_numbers *numbers, size_t pair) {
  double frequency = pow(numbers->base, -2.0 * (double)pair / (double)numbers->head_dim);
  return numbers->scaling.factor == 0 ? frequency : scaled(&numbers->scaling, frequency);
}

// Writes the cosines and sines of pair i at every position.
static void fill_pair(const ad_tensor *out, size_t i, const positions *at_positions) {
  head_sizes size = sizes_of(out);
  size_t half = size.head_dim / 2, at = i;
  double frequency = frequency_of(numbers_of(out), i);
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
  AD_TRY(ad_find_positions_on(tape, out, &out->array, &at));
  ad_inject(AD_INJECT_POSITIONS, &at);
  size_t pairs = sizes_of(out).head_dim / 2;
  for (size_t i = 0; i < pairs; i++) fill_pair(out, i, &at);
  return AD_OK;
}

/* Rotates all pairs; direction 1 rotates forward, -1 back. */
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
  return ad_rotary_scaled_at(tape, x, head_dim, base, NULL, site);
}

ad_tensor *ad_rotary_scaled_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base,
                               const ad_rotary_scaling *scaling, const char *site) {
  rotary_numbers numbers = {.head_dim = head_dim, .base = base};
  if (scaling) numbers.scaling = *scaling;
  return ad_tape_apply(tape, &rotary, &x, 1, &numbers, site);
}
