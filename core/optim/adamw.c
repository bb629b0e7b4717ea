/* AdamW on arrays: its state, checks and step. adamw_kernel_body.h computes each element. */
#include <math.h>
#include "addend/optim.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "optim/adamw.h"
#include "optim/adamw_kernel.h"

/* The optimizer's state of one parameter. */
typedef struct slot {
  ad_dtype param; /* dtype of the parameter and of its moments */
  ad_array moment[2];
  int decays;
} slot;

struct ad_adamw {
  ad_adamw_options options;
  slot *slots;
  size_t count;
  int64_t steps;
};

static double beta_or(double beta, double fallback) {
  if (beta == AD_BETA_ZERO) return 0;
  return beta == 0 ? fallback : beta;
}

static void set_defaults(ad_adamw_options *options) {
  options->beta1 = beta_or(options->beta1, 0.9);
  options->beta2 = beta_or(options->beta2, 0.95);
  if (options->epsilon == 0) options->epsilon = 1e-8;
}

static ad_status check_options(const ad_adamw_options *options) {
  if (!(options->beta1 >= 0 && options->beta1 < 1 && options->beta2 >= 0 && options->beta2 < 1))
    return ad_fail(AD_INVALID, "AdamW: `beta1` and `beta2` must be at least 0 and less than 1, but are %g and %g",
                   options->beta1, options->beta2);
  if (!(options->epsilon > 0 && isfinite(options->epsilon)))
    return ad_fail(AD_INVALID, "AdamW: `epsilon` must be above 0, but is %g", options->epsilon);
  if (!(options->weight_decay >= 0 && isfinite(options->weight_decay)))
    return ad_fail(AD_INVALID, "AdamW: `weight_decay` must be at least 0, but is %g", options->weight_decay);
  return AD_OK;
}

static ad_status check_param(const ad_array *param, size_t index) {
  if (param->dtype != AD_F32 && param->dtype != AD_F64)
    return ad_fail(AD_INVALID, "AdamW: parameter %zu has dtype %s; AdamW can update only f32 and f64", index,
                   ad_dtype_name(param->dtype));
  if (param->scale)
    return ad_fail(AD_TYPE, "AdamW: parameter %zu is stored times 2^-%d; a parameter must be stored unscaled", index,
                   param->scale);
  return AD_OK;
}

/* Makes a zero moment with the parameter's dtype and layout. A parameter without data, as on backend dry, has moments
 * without data. */
static ad_status make_moment(const ad_array *param, ad_array *out) {
  ad_array moment = *param;
  uint8_t *memory = NULL;
  if (param->data) AD_TRY(ad_new(ad_array_bytes(&moment), &memory));
  moment.data = memory;
  *out = moment;
  return AD_OK;
}

static ad_status make_slots(ad_adamw *optimizer, const ad_array *const *params, const ad_param_spec *specs) {
  for (size_t i = 0; i < optimizer->count; i++) {
    slot *s = &optimizer->slots[i];
    s->decays = specs ? specs[i].decays : 1;
    s->param = params[i]->dtype;
    AD_TRY(make_moment(params[i], &s->moment[0]));
    AD_TRY(make_moment(params[i], &s->moment[1]));
  }
  return AD_OK;
}

ad_status ad_adamw_create(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                          const ad_adamw_options *options, ad_adamw **out) {
  AD_NEED(out);
  if (count) AD_NEED(params);
  for (size_t i = 0; i < count; i++) AD_NEED(params[i]);
  ad_adamw_options complete;
  AD_TRY(ad_options_take(&complete, sizeof complete, options, "ad_adamw_options"));
  set_defaults(&complete);
  AD_TRY(check_options(&complete));
  for (size_t i = 0; i < count; i++) AD_TRY(check_param(params[i], i));
  ad_adamw *optimizer;
  AD_TRY(ad_new(1, &optimizer));
  optimizer->options = complete;
  optimizer->count = count;
  void *own = NULL;
  ad_status status = ad_new(count, &optimizer->slots);
  if (!status && specs) status = ad_options_take_all(&own, sizeof *specs, specs, count, "ad_param_spec");
  if (!status) status = make_slots(optimizer, params, own);
  ad_release(own);
  if (status) {
    ad_adamw_destroy(optimizer);
    return status;
  }
  *out = optimizer;
  return AD_OK;
}

void ad_adamw_destroy(ad_adamw *optimizer) {
  if (!optimizer) return;
  for (size_t i = 0; optimizer->slots && i < optimizer->count; i++) {
    ad_release(optimizer->slots[i].moment[0].data);
    ad_release(optimizer->slots[i].moment[1].data);
  }
  ad_release(optimizer->slots);
  ad_release(optimizer);
}

/* Checks law 6 (like adds to like) between a parameter's state and `array`, which is the parameter or its gradient.
 * `what` says which of the two, for messages. */
static ad_status check_meets(const slot *s, const ad_array *array, const char *what, size_t index, const char *site) {
  char mine[256], theirs[256];
  const ad_array *state = &s->moment[0];
  if (!ad_shape_equal(&state->shape, &array->shape))
    return ad_fail(AD_INVALID, "%s: in `AdamW`, %s %zu has shape %s, but its state has shape %s; nothing was updated",
                   site, what, index, ad_shape_print(&array->shape, theirs, sizeof theirs),
                   ad_shape_print(&state->shape, mine, sizeof mine));
  if (!ad_layout_equal(&state->layout, &array->layout))
    return ad_fail(AD_TYPE,
                   "%s: in `AdamW`, %s %zu has layout \"%s\", but its state has layout \"%s\"; reduce the gradient to "
                   "the storage layout; nothing was updated",
                   site, what, index, ad_layout_print(&array->layout, theirs, sizeof theirs),
                   ad_layout_print(&state->layout, mine, sizeof mine));
  if (array->scale)
    return ad_fail(AD_TYPE,
                   "%s: in `AdamW`, %s %zu is stored times 2^-%d, but must be stored unscaled, as its state is; "
                   "nothing was updated",
                   site, what, index, array->scale);
  if (!ad_shape_equal(&state->local, &array->local))
    return ad_fail(AD_INVALID,
                   "%s: in `AdamW`, the local part of %s %zu has shape %s, but that of its state has shape %s; nothing "
                   "was updated",
                   site, what, index, ad_shape_print(&array->local, theirs, sizeof theirs),
                   ad_shape_print(&state->local, mine, sizeof mine));
  if (array->data || !state->data || !ad_array_numel(array)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: in `AdamW`, %s %zu has no memory for its elements; set its `data`; nothing was updated", site,
                 what, index);
}

static ad_status check_param_of(const slot *s, const ad_array *param, size_t index, const char *site) {
  AD_TRY(check_meets(s, param, "parameter", index, site));
  if (param->data && !s->moment[0].data && ad_array_numel(param))
    return ad_fail(AD_INVALID,
                   "%s: in `AdamW`, parameter %zu had no `data` when ad_adamw_create made its state; create AdamW "
                   "again with the memory of the parameter; nothing was updated",
                   site, index);
  if (param->dtype == s->param) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: in `AdamW`, parameter %zu has dtype %s, but its state was made for dtype %s; nothing was updated",
                 site, index, ad_dtype_name(param->dtype), ad_dtype_name(s->param));
}

/* Checks a gradient. Its dtype may be another floating dtype than the parameter's: that of sums by the precision
 * policy. */
static ad_status check_gradient_of(const slot *s, const ad_array *grad, size_t index, const char *site) {
  if (!grad) return AD_OK;
  AD_TRY(check_meets(s, grad, "gradient", index, site));
  if (ad_dtype_is_float(grad->dtype)) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: in `AdamW`, gradient %zu has dtype %s, but must have f64, f32, bf16 or f16; nothing was updated",
                 site, index, ad_dtype_name(grad->dtype));
}

static ad_status check_factors(double lr, double factor, const char *site) {
  if (!isfinite(lr))
    return ad_fail(AD_INVALID, "%s: in `AdamW`, the learning rate `lr` must be finite, but is %g; nothing was updated",
                   site, lr);
  if (!isfinite(factor))
    return ad_fail(AD_INVALID,
                   "%s: in `AdamW`, the `factor` of the gradients must be finite, but is %g; nothing was updated", site,
                   factor);
  return AD_OK;
}

static ad_status check_step(const ad_adamw *optimizer, ad_array *const *params, const ad_array *const *grads,
                            const char *site) {
  for (size_t i = 0; i < optimizer->count; i++) {
    AD_TRY(check_param_of(&optimizer->slots[i], params[i], i, site));
    AD_TRY(check_gradient_of(&optimizer->slots[i], grads[i], i, site));
  }
  return AD_OK;
}

enum {
  // Number of elements of a block. Gradients that are missing or have another dtype are processed block by block, so
  // that a block stays in a cache.
  BLOCK = 1024
};

/* Returns elements [at, at + n) of the gradient in the parameter's dtype: the gradient's own memory, or `space` with
 * the converted elements; zeros if there is no gradient. */
static const void *gradient_at(const slot *s, const ad_array *grad, size_t at, size_t n, double space[BLOCK]) {
  static const double zeros[BLOCK];
  if (!grad) return zeros;
  const void *from = (const char *)grad->data + at * ad_dtype_size(grad->dtype);
  if (grad->dtype == s->param) return from;
  ad_cast(space, s->param, from, grad->dtype, n);
  return space;
}

/* Updates one parameter. */
static void update(const slot *s, const adamw_step *step, ad_array *param, const ad_array *grad) {
  const adamw_kernels *kernels = ad_adamw_kernels();
  double space[BLOCK];
  size_t numel = ad_array_numel(param), block = grad && grad->dtype == s->param ? numel : BLOCK;
  void *value = param->data, *first = s->moment[0].data, *second = s->moment[1].data;
  for (size_t at = 0; at < numel; at += block) {
    size_t n = numel - at < block ? numel - at : block;
    const void *from = gradient_at(s, grad, at, n, space);
    if (s->param == AD_F64)
      kernels->f64(step, (double *)value + at, (double *)first + at, (double *)second + at, from, n);
    else
      kernels->f32(step, (float *)value + at, (float *)first + at, (float *)second + at, from, n);
  }
}

/* Returns the numbers of the present step, except the weight decay. */
static adamw_step numbers_of(const ad_adamw *optimizer, double lr, double factor) {
  const ad_adamw_options *o = &optimizer->options;
  double t = (double)optimizer->steps;
  return (adamw_step){.factor = factor,
                      .beta1 = o->beta1,
                      .beta2 = o->beta2,
                      .epsilon = o->epsilon,
                      .lr = lr,
                      .correction1 = 1 / (1 - pow(o->beta1, t)),
                      .correction2 = 1 / (1 - pow(o->beta2, t))};
}

ad_status ad_adamw_step_at(ad_adamw *optimizer, ad_array *const *params, const ad_array *const *grads, double lr,
                           double factor, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(optimizer);
  if (optimizer->count) AD_NEED(params, grads);
  for (size_t i = 0; i < optimizer->count; i++) AD_NEED(params[i]);
  AD_TRY(check_factors(lr, factor, site));
  AD_TRY(check_step(optimizer, params, grads, site));
  optimizer->steps++;
  adamw_step step = numbers_of(optimizer, lr, factor);
  for (size_t i = 0; i < optimizer->count; i++) {
    const slot *s = &optimizer->slots[i];
    step.decay = s->decays ? optimizer->options.weight_decay : 0;
    if (params[i]->data) update(s, &step, params[i], grads[i]);
    ad_inject(AD_INJECT_UPDATED, params[i]);
  }
  return AD_OK;
}

int64_t ad_adamw_steps(const ad_adamw *optimizer) { return optimizer->steps; }

ad_status ad_adamw_set_steps(ad_adamw *optimizer, int64_t steps) {
  AD_NEED(optimizer);
  if (steps < 0)
    return ad_fail(AD_INVALID, "AdamW: the number of steps taken must be at least 0, but is %lld; nothing was changed",
                   (long long)steps);
  optimizer->steps = steps;
  return AD_OK;
}

ad_array *ad_adamw_state(ad_adamw *optimizer, size_t param, ad_moment moment) {
  if (!ad_has(param, optimizer->count, __func__, "parameter") || !ad_has(moment, 2, __func__, "moment")) return NULL;
  return &optimizer->slots[param].moment[moment];
}

size_t ad_adamw_bytes(const ad_adamw *optimizer) {
  size_t bytes = 0;
  for (size_t i = 0; i < optimizer->count; i++) bytes += 2 * ad_array_bytes(&optimizer->slots[i].moment[0]);
  return bytes;
}
