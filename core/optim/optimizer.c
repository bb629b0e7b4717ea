/* An optimizer on arrays: its states, checks and step. records.c has the record that describes each kind of
 * optimizer. */
#include <math.h>
#include "addend/optim.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "optim/record.h"

/* What the optimizer keeps for one parameter. */
typedef struct slot {
  const ad_optimizer_record *record;
  const ad_optimizer_options *options;
  ad_array
      /* the parameter as it was when the states were made; its `data` may have been freed, only whether it is NULL is
       * used */
      like;
  ad_array states[AD_OPTIMIZER_STATES_MAX]; /* layout.mesh is NULL for a state that is not kept */
  int decays;
} slot;

struct ad_optimizer {
  ad_optimizer_options options;
  slot *slots;
  size_t count;
  int64_t steps;
};

/* ---- options ---- */

static void *field_of(const ad_option_record *option, const ad_optimizer_options *options) {
  return (char *)(uintptr_t)options + option->offset;
}

static double value_of(const ad_option_record *option, const ad_optimizer_options *options) {
  const void *field = field_of(option, options);
  return option->is_flag ? *(const int *)field : *(const double *)field;
}

const ad_option_record *ad_optimizer_option_at(const ad_optimizer_record *record, size_t offset) {
  for (const ad_option_record *option = record->options; option->name; option++)
    if (option->offset == offset) return option;
  return NULL;
}

int ad_optimizer_option_is_missing(const ad_optimizer_record *record, size_t offset,
                                   const ad_optimizer_options *options) {
  return offset && value_of(ad_optimizer_option_at(record, offset), options) == 0;
}

void ad_optimizer_options_exactly(ad_optimizer_options *options) {
  const ad_optimizer_record *record = ad_optimizer_record_of(options->kind);
  ad_optimizer_options exact = {.size = options->size, .kind = options->kind};
  for (const ad_option_record *option = record->options; option->name; option++) {
    if (option->is_flag) {
      *(int *)field_of(option, &exact) = *(int *)field_of(option, options);
      continue;
    }
    double value = value_of(option, options);
    *(double *)field_of(option, &exact) = option->may_be_zero && value == 0 ? AD_BETA_ZERO : value;
  }
  *options = exact;
}

static void set_defaults(const ad_optimizer_record *record, ad_optimizer_options *options) {
  for (const ad_option_record *option = record->options; option->name; option++) {
    double *value = field_of(option, options);
    if (option->is_flag) continue;
    if (*value == 0)
      *value = option->fallback;
    else if (*value == AD_BETA_ZERO && option->may_be_zero)
      *value = 0;
  }
}

/* Refuses an option that this optimizer does not read, because the caller who set it probably meant another
 * optimizer. */
static ad_status check_belong(const ad_optimizer_record *record, const ad_optimizer_options *options) {
  for (int kind = 0; kind < AD_OPTIMIZER_COUNT; kind++) {
    const ad_optimizer_record *other = ad_optimizer_record_of((ad_optimizer_kind)kind);
    for (const ad_option_record *option = other->options; option->name; option++)
      if (!ad_optimizer_option_at(record, option->offset) && value_of(option, options) != 0)
        return ad_fail(AD_INVALID, "%s: `%s` is an option of %s; leave `%s` out, or choose %s in the field `kind`",
                       record->name, option->name, other->name, option->name, other->name);
  }
  return AD_OK;
}

static ad_status take_options(const ad_optimizer_options *given, ad_optimizer_options *out) {
  AD_TRY(ad_options_take(out, sizeof *out, given, "ad_optimizer_options"));
  const ad_optimizer_record *record = ad_optimizer_record_of(out->kind);
  if (!record)
    return ad_fail(
        AD_INVALID,
        "the field `kind` of ad_optimizer_options is %d, which is no optimizer; use a value of ad_optimizer_kind",
        (int)out->kind);
  AD_TRY(check_belong(record, out));
  set_defaults(record, out);
  for (const ad_option_record *option = record->options; option->name; option++) {
    if (value_of(option, out) == 0 || !ad_optimizer_option_is_missing(record, option->needs, out)) continue;
    const char *needed = ad_optimizer_option_at(record, option->needs)->name;
    return ad_fail(AD_INVALID,
                   "%s: `%s` has an effect only with a `%s` above 0, which is 0; set `%s`, or leave out `%s`",
                   record->name, option->name, needed, needed, option->name);
  }
  return record->check(out);
}

/* ---- states ---- */

static ad_status check_param(const ad_optimizer_record *record, const ad_array *param, size_t index) {
  if (param->dtype != AD_F32 && param->dtype != AD_F64)
    return ad_fail(AD_INVALID,
                   "%s: parameter %zu (from 0) has dtype %s, but %s can update only f32 and f64; give the parameter "
                   "one of these dtypes",
                   record->name, index, ad_dtype_name(param->dtype), record->name);
  if (param->scale)
    return ad_fail(AD_TYPE,
                   "%s: parameter %zu (from 0) is stored multiplied by 2^-%d, but must be stored without a scale; set "
                   "its `scale` to 0",
                   record->name, index, param->scale);
  return AD_OK;
}

/* Makes the states of a parameter, all zero. If the parameter has no data, as on backend dry, its states have no data
 * either. */
static ad_status make_states(slot *s) {
  for (size_t k = 0; s->record->states[k].name; k++) {
    if (ad_optimizer_option_is_missing(s->record, s->record->states[k].needs, s->options)) continue;
    uint8_t *memory = NULL;
    if (s->like.data) AD_TRY(ad_new(ad_array_bytes(&s->like), &memory));
    s->states[k] = s->like;
    s->states[k].data = memory;
  }
  return AD_OK;
}

static ad_status make_slots(ad_optimizer *optimizer, const ad_array *const *params, const ad_param_spec *specs) {
  const ad_optimizer_record *record = ad_optimizer_record_of(optimizer->options.kind);
  for (size_t i = 0; i < optimizer->count; i++) {
    optimizer->slots[i] = (slot){
        .record = record, .options = &optimizer->options, .like = *params[i], .decays = specs ? specs[i].decays : 1};
    AD_TRY(make_states(&optimizer->slots[i]));
  }
  return AD_OK;
}

ad_status ad_optimizer_create(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                              const ad_optimizer_options *options, ad_optimizer **out) {
  AD_NEED(out);
  if (count) AD_NEED(params);
  for (size_t i = 0; i < count; i++) AD_NEED(params[i]);
  ad_optimizer_options complete;
  AD_TRY(take_options(options, &complete));
  const ad_optimizer_record *record = ad_optimizer_record_of(complete.kind);
  for (size_t i = 0; i < count; i++) AD_TRY(check_param(record, params[i], i));
  ad_optimizer *optimizer;
  AD_TRY(ad_new(1, &optimizer));
  optimizer->options = complete;
  optimizer->count = count;
  void *own = NULL;
  ad_status status = ad_new(count, &optimizer->slots);
  if (!status && specs) status = ad_options_take_all(&own, sizeof *specs, specs, count, "ad_param_spec");
  if (!status) status = make_slots(optimizer, params, own);
  ad_release(own);
  if (status) {
    ad_optimizer_destroy(optimizer);
    return status;
  }
  *out = optimizer;
  return AD_OK;
}

void ad_optimizer_destroy(ad_optimizer *optimizer) {
  if (!optimizer) return;
  for (size_t i = 0; optimizer->slots && i < optimizer->count; i++)
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) ad_release(optimizer->slots[i].states[k].data);
  ad_release(optimizer->slots);
  ad_release(optimizer);
}

static int has_state(const slot *s, size_t k) { return s->states[k].layout.mesh != NULL; }

ad_array *ad_optimizer_state(ad_optimizer *optimizer, size_t param, size_t state) {
  if (!ad_has(param, optimizer->count, __func__, "parameter") ||
      !ad_has(state, AD_OPTIMIZER_STATES_MAX, __func__, "state"))
    return NULL;
  slot *s = &optimizer->slots[param];
  return has_state(s, state) ? &s->states[state] : NULL;
}

const char *ad_optimizer_state_name(ad_optimizer_kind kind, size_t state) {
  const ad_optimizer_record *record = ad_optimizer_record_of(kind);
  return record && state < AD_OPTIMIZER_STATES_MAX ? record->states[state].name : NULL;
}

size_t ad_optimizer_bytes(const ad_optimizer *optimizer) {
  size_t bytes = 0;
  for (size_t i = 0; i < optimizer->count; i++)
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++)
      if (has_state(&optimizer->slots[i], k)) bytes += ad_array_bytes(&optimizer->slots[i].states[k]);
  return bytes;
}

/* ---- checks of a step ---- */

static const char *name_of(const ad_optimizer *optimizer) {
  return ad_optimizer_record_of(optimizer->options.kind)->name;
}

/* Checks law 6 (like adds to like) between a parameter's state and `array`, which is the parameter or its gradient.
 * `what` says which of the two, for messages. */
static ad_status check_meets(const slot *s, const ad_array *array, const char *what, size_t index, const char *site) {
  char mine[256], theirs[256];
  const ad_array *state = &s->like;
  if (!ad_shape_equal(&state->shape, &array->shape))
    return ad_fail(AD_INVALID,
                   "%s: in `%s`, %s %zu has shape %s, but its state has shape %s; pass arrays of the shape with which "
                   "ad_optimizer_create was called. Nothing was updated",
                   site, s->record->name, what, index, ad_shape_print(&array->shape, theirs, sizeof theirs),
                   ad_shape_print(&state->shape, mine, sizeof mine));
  if (!ad_layout_equal(&state->layout, &array->layout))
    return ad_fail(AD_TYPE,
                   "%s: in `%s`, %s %zu has layout \"%s\", but its state has layout \"%s\"; reduce the gradient to the "
                   "storage layout first. Nothing was updated",
                   site, s->record->name, what, index, ad_layout_print(&array->layout, theirs, sizeof theirs),
                   ad_layout_print(&state->layout, mine, sizeof mine));
  if (array->scale)
    return ad_fail(AD_TYPE,
                   "%s: in `%s`, %s %zu is stored multiplied by 2^-%d, but must be stored without a scale, as its "
                   "state is. Nothing was updated",
                   site, s->record->name, what, index, array->scale);
  if (!ad_shape_equal(&state->local, &array->local))
    return ad_fail(AD_INVALID,
                   "%s: in `%s`, the local part of %s %zu has shape %s, but that of its state has shape %s; pass "
                   "arrays with which ad_optimizer_create was called. Nothing was updated",
                   site, s->record->name, what, index, ad_shape_print(&array->local, theirs, sizeof theirs),
                   ad_shape_print(&state->local, mine, sizeof mine));
  if (array->data || !state->data || !ad_array_numel(array)) return AD_OK;
  return ad_fail(AD_INVALID, "%s: in `%s`, %s %zu has no memory for its elements; set its `data`. Nothing was updated",
                 site, s->record->name, what, index);
}

static ad_status check_param_of(const slot *s, const ad_array *param, size_t index, const char *site) {
  AD_TRY(check_meets(s, param, "parameter", index, site));
  if (param->data && !s->like.data && ad_array_numel(param))
    return ad_fail(AD_INVALID,
                   "%s: in `%s`, parameter %zu had no `data` when ad_optimizer_create made its state; create the "
                   "optimizer again with the memory of the parameter. Nothing was updated",
                   site, s->record->name, index);
  if (param->dtype == s->like.dtype) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: in `%s`, parameter %zu has dtype %s, but its state was made for dtype %s; create the optimizer "
                 "again for this dtype. Nothing was updated",
                 site, s->record->name, index, ad_dtype_name(param->dtype), ad_dtype_name(s->like.dtype));
}

/* Checks a gradient. Its dtype may be another floating dtype than the parameter's, as that of sums by a precision
 * policy often is. */
static ad_status check_gradient_of(const slot *s, const ad_array *grad, size_t index, const char *site) {
  if (!grad) return AD_OK;
  AD_TRY(check_meets(s, grad, "gradient", index, site));
  if (ad_dtype_is_float(grad->dtype)) return AD_OK;
  char floats[AD_DTYPES_TEXT];
  return ad_fail(
      AD_TYPE,
      "%s: in `%s`, gradient %zu has dtype %s, but must have %s; convert the gradient first. Nothing was updated", site,
      s->record->name, index, ad_dtype_name(grad->dtype), ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
}

static ad_status check_factors(const ad_optimizer *optimizer, double lr, double factor, const char *site) {
  if (!isfinite(lr))
    return ad_fail(
        AD_INVALID,
        "%s: in `%s`, the learning rate `lr` must be finite, but is %g; pass a finite number. Nothing was updated",
        site, name_of(optimizer), lr);
  if (!isfinite(factor))
    return ad_fail(AD_INVALID,
                   "%s: in `%s`, the `factor` of the gradients must be finite, but is %g; pass a finite number. "
                   "Nothing was updated",
                   site, name_of(optimizer), factor);
  return AD_OK;
}

static ad_status check_step(const ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
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
static const void *gradient_at(ad_dtype dtype, const ad_array *grad, size_t at, size_t n, double space[BLOCK]) {
  static const double zeros[BLOCK];
  if (!grad) return zeros;
  const void *from = (const char *)grad->data + at * ad_dtype_size(grad->dtype);
  if (grad->dtype == dtype) return from;
  ad_cast(space, dtype, from, grad->dtype, n);
  return space;
}

void ad_update_param(const ad_updating *u) {
  const ad_update_kernels *kernels = u->record->kernels[ad_kernels_variant()];
  const ad_array *grad = u->grad;
  ad_dtype dtype = u->param->dtype;
  double space[BLOCK];
  size_t numel = ad_array_numel(u->param), block = grad && grad->dtype == dtype ? numel : BLOCK;
  for (size_t at = 0; at < numel; at += block) {
    size_t n = numel - at < block ? numel - at : block;
    const void *from = gradient_at(dtype, grad, at, n, space);
    void *states[AD_OPTIMIZER_STATES_MAX];
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++)
      states[k] = u->states[k].data ? (char *)u->states[k].data + at * ad_dtype_size(dtype) : NULL;
    if (dtype == AD_F64)
      kernels->f64(&u->numbers, (double *)u->param->data + at, states, from, n);
    else
      kernels->f32(&u->numbers, (float *)u->param->data + at, states, from, n);
  }
}

ad_status ad_optimizer_step_at(ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
                               double lr, double factor, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(optimizer);
  if (optimizer->count) AD_NEED(params, grads);
  for (size_t i = 0; i < optimizer->count; i++) AD_NEED(params[i]);
  AD_TRY(check_factors(optimizer, lr, factor, site));
  AD_TRY(check_step(optimizer, params, grads, site));
  optimizer->steps++;
  for (size_t i = 0; i < optimizer->count; i++) {
    slot *s = &optimizer->slots[i];
    ad_updating updating = {.record = s->record, .param = params[i], .states = s->states, .grad = grads[i]};
    updating.numbers = (ad_update){.options = s->options,
                                   .lr = lr,
                                   .factor = factor,
                                   .decay = s->decays ? s->options->weight_decay : 0,
                                   .step = optimizer->steps};
    if (s->record->prepare) s->record->prepare(&updating.numbers);
    ad_inject(AD_INJECT_UPDATE, &updating);
    if (params[i]->data) ad_update_param(&updating);
    ad_inject(AD_INJECT_UPDATED, params[i]);
  }
  return AD_OK;
}

int64_t ad_optimizer_steps(const ad_optimizer *optimizer) { return optimizer->steps; }

ad_status ad_optimizer_set_steps(ad_optimizer *optimizer, int64_t steps) {
  AD_NEED(optimizer);
  if (steps < 0)
    return ad_fail(AD_INVALID,
                   "%s: the number of steps taken must be at least 0, but is %lld; pass 0 or more. Nothing was changed",
                   name_of(optimizer), (long long)steps);
  optimizer->steps = steps;
  return AD_OK;
}
