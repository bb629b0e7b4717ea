/* Dropout. The elements that stay are drawn by their position in the whole batch, so they do not depend on the mesh
 * or on the division into microbatches. Forward and backward draw the same numbers, so nothing is saved. */
#include <inttypes.h>
#include "tensor/tape.h"

static const dropout_numbers *numbers_of(const ad_tensor *out) { return out->own; }

static ad_status dropout_check(const ad_tape *tape, const ad_tensor *out) {
  const dropout_numbers *own = numbers_of(out);
  if (!(own->probability >= 0 && own->probability < 1))
    return ad_fail(AD_INVALID, "%s: the probability of `dropout` is %g, but must be at least 0 and below 1", out->site,
                   own->probability);
  if (!own->name) return ad_fail(AD_INVALID, "%s: the name of `dropout` is NULL; give each dropout a name", out->site);
  if (!out->array.shape.ndim)
    return ad_fail(
        AD_INVALID,
        "%s: the operand of `dropout` is a scalar, which has no samples; give a tensor of shape [samples, ...]",
        out->site);
  ad_axes own_rows = ad_layout_axes_of(&out->array.layout, AD_V);
  if (!own_rows) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: operand 1 of `dropout` is V on `%s`, but dropout draws by the position of an element in the full "
                 "value, and a V value has no full value; apply dropout before each rank has its own value, or declare "
                 "V->S(0) if the values of the ranks are parts of one value",
                 out->site, ad_axis_name((ad_axis)__builtin_ctz(own_rows)));
}

static size_t dropout_scratch(const ad_tensor *out) { return ad_numel(out) * sizeof(float); }

/* Draws a number in [0, 1) for each element. If the operand is Partial, all its addends get the same numbers. */
static ad_status draw_numbers(const ad_tape *tape, const ad_tensor *out, float **numbers) {
  const dropout_numbers *own = numbers_of(out);
  ad_layout layout = out->array.layout;
  ad_layout_set(&layout, ad_layout_axes_of(&layout, AD_P), AD_R);
  ad_array drawn = ad_array_describe(tape->comm, AD_F32, &out->array.shape, &layout);
  drawn.data = *numbers = out->scratch;
  return ad_array_uniform_at(tape->comm, own->seed, own->name, own->step, own->first, &drawn, out->site);
}

static double factor_of(const ad_tensor *out, double drawn) {
  double probability = numbers_of(out)->probability;
  return drawn < probability ? 0 : 1 / (1 - probability);
}

static ad_status dropout_forward(ad_tape *tape, ad_tensor *out) {
  float *drawn;
  const ad_array *x = &out->operand[0]->array;
  AD_TRY(draw_numbers(tape, out, &drawn));
  for (size_t i = 0; i < ad_numel(out); i++)
    ad_set_element(out->array.dtype, out->array.data, i,
                   factor_of(out, (double)drawn[i]) * ad_element(x->dtype, x->data, i));
  return AD_OK;
}

static ad_status dropout_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  float *drawn;
  AD_TRY(draw_numbers(tape, out, &drawn));
  for (size_t i = 0; i < ad_numel(out); i++)
    ad_slot_put(slot, i, factor_of(out, (double)drawn[i]) * ad_element(out->grad.dtype, out->grad.data, i));
  return AD_OK;
}

static const ad_operation dropout = {.name = "dropout",
                                     .dims = "...->...",
                                     .linearity = AD_MULTILINEAR,
                                     .unread = 1,
                                     .dtypes = AD_IN_ANY_FLOAT,
                                     .raw = 1,
                                     .own_size = sizeof(dropout_numbers),
                                     .check = dropout_check,
                                     .scratch = dropout_scratch,
                                     .forward = dropout_forward,
                                     .backward = dropout_backward};

ad_tensor *ad_dropout_at(ad_tape *tape, ad_tensor *x, double probability, uint64_t seed, const char *name, int64_t step,
                         int64_t first, const char *site) {
  return ad_tape_apply(tape, &dropout, &x, 1, &(dropout_numbers){probability, seed, name, step, first}, site);
}
