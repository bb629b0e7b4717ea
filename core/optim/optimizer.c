/* An optimizer on arrays: its states, checks and step. records.c has the record that describes each kind of
 * optimizer. */
#include <math.h>
#include <string.h>
#include "addend/optim.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "optim/pieces.h"
#include "optim/record.h"
#include "optim/whole.h"

/* What the optimizer keeps for one parameter. */
typedef struct slot {
  const ad_optimizer_record *record;
  const ad_optimizer_options *options;
  ad_array
      /* the parameter as it was when the states were made; its `data` may have been freed, only whether it is NULL is
       * used */
      like;
  ad_array states[AD_OPTIMIZER_STATES_MAX]; /* layout.mesh is NULL for a state that is not kept */
  size_t group;
  int decays, frozen;
  int64_t began; /* number of steps after which the states were zero; usually 0 */
} slot;

struct ad_optimizer {
  ad_optimizer_options *groups;
  size_t group_count;
  double *rates; /* for each group, its learning rate in the step that is being taken */
  slot *slots;
  size_t count;
  int64_t steps;
  ad_whole *whole;       /* NULL if no parameter is updated as whole matrices */
  ad_updating *updating; /* [count], if there is `whole`: the updates of such parameters in this step */
};

static int is_whole(const slot *s) { return !s->frozen && s->record->whole; }

/* ---- options ---- */

static void *field_of(const ad_option_record *option, const ad_optimizer_options *options) {
  return (char *)(uintptr_t)options + option->offset;
}

static double value_of(const ad_option_record *option, const ad_optimizer_options *options) {
  const void *field = field_of(option, options);
  return option->is_int ? *(const int *)field : *(const double *)field;
}

static void set_value(const ad_option_record *option, ad_optimizer_options *options, double value) {
  if (option->is_int)
    *(int *)field_of(option, options) = (int)value;
  else
    *(double *)field_of(option, options) = value;
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
    double value = value_of(option, options);
    set_value(option, &exact, value == 0 ? option->zero : value);
  }
  *options = exact;
}

static void set_defaults(const ad_optimizer_record *record, ad_optimizer_options *options) {
  for (const ad_option_record *option = record->options; option->name; option++) {
    double value = value_of(option, options);
    if (value == 0)
      set_value(option, options, option->fallback);
    else if (value == option->zero)
      set_value(option, options, 0);
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

/* Checks the options of a group, and fills in their defaults. */
static ad_status take_options(ad_optimizer_options *out) {
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

static ad_status check_group(const ad_optimizer_setup *setup, size_t index) {
  size_t group = setup->group_of ? setup->group_of[index] : 0;
  if (group < setup->group_count) return AD_OK;
  return ad_fail(AD_INVALID,
                 "parameter %zu (from 0) is in group %zu (from 0), but there are %zu groups; give group_of a number "
                 "below that",
                 index, group, setup->group_count);
}

/* Makes the slot of a parameter. `spec` may be NULL. */
static ad_status make_slot(ad_optimizer *optimizer, const ad_optimizer_setup *setup, const ad_array *param,
                           const ad_param_spec *spec, size_t index) {
  slot *s = &optimizer->slots[index];
  s->frozen = spec && spec->frozen;
  if (s->frozen) return AD_OK;
  AD_TRY(check_group(setup, index));
  s->group = setup->group_of ? setup->group_of[index] : 0;
  s->options = &optimizer->groups[s->group];
  s->record = ad_optimizer_record_of(s->options->kind);
  s->decays = !spec || spec->decays || s->options->decays_all;
  s->like = *param;
  AD_TRY(check_param(s->record, param, index));
  return make_states(s);
}

/* Copies the options of all groups, with defaults filled in. */
static ad_status take_groups(ad_optimizer *optimizer, ad_optimizer_setup *setup) {
  static const ad_optimizer_options defaults = {.size = sizeof defaults};
  if (!setup->groups) {
    setup->groups = &defaults;
    setup->group_count = 1;
  }
  if (!setup->group_count) return ad_fail(AD_INVALID, "an optimizer needs at least one group, but `group_count` is 0");
  void *own = NULL;
  AD_TRY(ad_options_take_all(&own, sizeof *setup->groups, setup->groups, setup->group_count, "ad_optimizer_options"));
  optimizer->groups = own;
  optimizer->group_count = setup->group_count;
  for (size_t g = 0; g < optimizer->group_count; g++) AD_TRY(take_options(&optimizer->groups[g]));
  return ad_new(optimizer->group_count, &optimizer->rates);
}

/* ---- whole matrices ---- */

static int ascends(const int64_t *cuts, size_t count, int64_t size) {
  for (size_t i = 0; i < count; i++)
    if (cuts[i] <= (i ? cuts[i - 1] : 0) || cuts[i] >= size) return 0;
  return 1;
}

static ad_status check_cuts(const ad_whole_param *param) {
  const ad_shape *shape = &param->like.shape;
  int64_t rows = shape->dim[shape->ndim - 2], cols = shape->dim[shape->ndim - 1];
  const ad_matrix_cuts *cuts = &param->cuts;
  if (ascends(cuts->rows, cuts->row_count, rows) && ascends(cuts->cols, cuts->col_count, cols)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the cuts of parameter %zu (`%s`) must ascend, be above 0, and be below %lld rows and %lld columns",
      param->record->name, param->index, param->name, (long long)rows, (long long)cols);
}

/* Describes parameter `index`, which is updated as whole matrices. */
static ad_status whole_param(const slot *s, const ad_optimizer_setup *setup, const ad_param_spec *spec, size_t index,
                             ad_whole_param *out) {
  *out = (ad_whole_param){.index = index,
                          .name = spec && spec->name ? spec->name : "no name",
                          .like = s->like,
                          .record = s->record,
                          .options = s->options};
  if (spec) out->matrices = spec->matrices;
  if (setup->cuts) out->cuts = setup->cuts[index];
  AD_TRY(ad_matrices_check(s->record, index, out->name, &s->like.shape, &out->matrices));
  int blockwise = s->record->whole->is_blockwise && s->record->whole->is_blockwise(s->options);
  if (blockwise && out->matrices.form == AD_MATRIX_FUSED)
    return ad_fail(AD_INVALID,
                   "%s: parameter %zu (`%s`) has fused matrices, which a rank's block would divide elsewhere than the "
                   "full parameter; leave out `blockwise`",
                   s->record->name, index, out->name);
  if (!blockwise) out->cuts = (ad_matrix_cuts){0};
  AD_TRY(check_cuts(out));
  if (s->like.data || ad_comm_is_dry(setup->comm) || !ad_array_numel(&s->like)) return AD_OK;
  return ad_fail(AD_INVALID, "%s: parameter %zu (`%s`) has no memory for its elements; set its `data`", s->record->name,
                 index, out->name);
}

/* Makes what updates parameters as whole matrices, if there are such parameters. `specs` may be NULL. */
static ad_status make_whole(ad_optimizer *optimizer, const ad_optimizer_setup *setup, const ad_param_spec *specs) {
  ad_whole_param *params;
  size_t count = 0, first = optimizer->count;
  for (size_t i = optimizer->count; i-- > 0;)
    if (is_whole(&optimizer->slots[i])) first = i;
  if (first == optimizer->count) return AD_OK;
  if (!setup->comm)
    return ad_fail(AD_INVALID,
                   "%s needs a comm, to bring matrices together; set the field `comm` of ad_optimizer_setup",
                   optimizer->slots[first].record->name);
  AD_TRY(ad_new(optimizer->count, &optimizer->updating));
  AD_TRY(ad_new(optimizer->count, &params));
  ad_status status = AD_OK;
  for (size_t i = first; i < optimizer->count && !status; i++)
    if (is_whole(&optimizer->slots[i]))
      status = whole_param(&optimizer->slots[i], setup, specs ? &specs[i] : NULL, i, &params[count++]);
  if (!status) status = ad_whole_create(setup->comm, &setup->product, params, count, &optimizer->whole);
  ad_release(params);
  return status;
}

const ad_whole *ad_optimizer_whole(const ad_optimizer *optimizer) { return optimizer->whole; }

static ad_status fill_optimizer(ad_optimizer *optimizer, const ad_array *const *params, const ad_param_spec *specs,
                                const ad_optimizer_setup *given) {
  ad_optimizer_setup setup;
  AD_TRY(ad_options_take(&setup, sizeof setup, given, "ad_optimizer_setup"));
  AD_TRY(take_groups(optimizer, &setup));
  AD_TRY(ad_new(optimizer->count, &optimizer->slots));
  void *own = NULL;
  if (specs) AD_TRY(ad_options_take_all(&own, sizeof *specs, specs, optimizer->count, "ad_param_spec"));
  ad_status status = AD_OK;
  for (size_t i = 0; i < optimizer->count && !status; i++)
    status = make_slot(optimizer, &setup, params[i], own ? (const ad_param_spec *)own + i : NULL, i);
  if (!status) status = make_whole(optimizer, &setup, own);
  ad_release(own);
  return status;
}

ad_status ad_optimizer_create_groups(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                                     const ad_optimizer_setup *setup, ad_optimizer **out) {
  AD_NEED(out);
  if (count) AD_NEED(params);
  for (size_t i = 0; i < count; i++) AD_NEED(params[i]);
  ad_optimizer *optimizer;
  AD_TRY(ad_new(1, &optimizer));
  optimizer->count = count;
  ad_status status = fill_optimizer(optimizer, params, specs, setup);
  if (status) {
    ad_optimizer_destroy(optimizer);
    return status;
  }
  *out = optimizer;
  return AD_OK;
}

ad_status ad_optimizer_create(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                              const ad_optimizer_options *options, ad_optimizer **out) {
  ad_optimizer_setup setup = {.size = sizeof setup, .groups = options, .group_count = 1};
  return ad_optimizer_create_groups(params, specs, count, &setup, out);
}

void ad_optimizer_destroy(ad_optimizer *optimizer) {
  if (!optimizer) return;
  ad_whole_destroy(optimizer->whole);
  ad_release(optimizer->updating);
  for (size_t i = 0; optimizer->slots && i < optimizer->count; i++)
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) ad_release(optimizer->slots[i].states[k].data);
  ad_release(optimizer->slots);
  ad_release(optimizer->rates);
  ad_release(optimizer->groups);
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

static const char *name_of(const ad_optimizer *optimizer, size_t group) {
  return ad_optimizer_record_of(optimizer->groups[group].kind)->name;
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

static ad_status check_factors(const ad_optimizer *optimizer, double factor, const char *site) {
  for (size_t g = 0; g < optimizer->group_count; g++)
    if (!isfinite(optimizer->rates[g]))
      return ad_fail(AD_INVALID,
                     "%s: in `%s`, the learning rate `lr` of group %zu must be finite, but is %g; pass a finite "
                     "number. Nothing was "
                     "updated",
                     site, name_of(optimizer, g), g, optimizer->rates[g]);
  if (!isfinite(factor))
    return ad_fail(AD_INVALID,
                   "%s: in `%s`, the `factor` of the gradients must be finite, but is %g; pass a finite number. "
                   "Nothing was updated",
                   site, name_of(optimizer, 0), factor);
  return AD_OK;
}

static ad_status check_step(const ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
                            const char *site) {
  for (size_t i = 0; i < optimizer->count; i++) {
    if (optimizer->slots[i].frozen) continue;
    AD_TRY(check_param_of(&optimizer->slots[i], params[i], i, site));
    AD_TRY(check_gradient_of(&optimizer->slots[i], grads[i], i, site));
  }
  return AD_OK;
}

const void *ad_gradient_at(ad_dtype dtype, const ad_array *grad, size_t at, size_t n, double space[AD_GRADIENT_BLOCK]) {
  static const double zeros[AD_GRADIENT_BLOCK];
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
  double space[AD_GRADIENT_BLOCK];
  size_t numel = ad_array_numel(u->param), block = grad && grad->dtype == dtype ? numel : AD_GRADIENT_BLOCK;
  for (size_t at = 0; at < numel; at += block) {
    size_t n = numel - at < block ? numel - at : block;
    const void *from = ad_gradient_at(dtype, grad, at, n, space);
    void *states[AD_OPTIMIZER_STATES_MAX];
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++)
      states[k] = u->states[k].data ? (char *)u->states[k].data + at * ad_dtype_size(dtype) : NULL;
    if (dtype == AD_F64)
      kernels->f64(&u->numbers, (double *)u->param->data + at, states, from, n);
    else
      kernels->f32(&u->numbers, (float *)u->param->data + at, states, from, n);
  }
}

/* Describes the update of a parameter in this step, and lets mutations change it. */
static ad_updating begin_update(ad_optimizer *optimizer, size_t index, ad_array *param, const ad_array *grad,
                                double factor) {
  slot *s = &optimizer->slots[index];
  ad_updating updating = {.record = s->record,
                          .param = param,
                          .states = s->states,
                          .grad = grad,
                          .optimizer = optimizer,
                          .index = index,
                          .group = s->group,
                          .rates = optimizer->rates,
                          .group_count = optimizer->group_count};
  updating.numbers = (ad_update){.options = s->options,
                                 .lr = optimizer->rates[s->group],
                                 .factor = factor,
                                 .decay = s->decays ? s->options->weight_decay : 0,
                                 .step = optimizer->steps - s->began};
  if (s->record->prepare) s->record->prepare(&updating.numbers);
  ad_inject(AD_INJECT_UPDATE, &updating);
  return updating;
}

/* Updates the parameters that consist of whole matrices. */
static ad_status update_whole(ad_optimizer *optimizer, ad_array *const *params, const char *site) {
  int again = 0;
  for (size_t i = 0; i < optimizer->count; i++)
    if (optimizer->updating[i].again > again) again = optimizer->updating[i].again;
  for (int times = 1 + again; times > 0; times--) AD_TRY(ad_whole_step(optimizer->whole, optimizer->updating, site));
  for (size_t i = 0; i < optimizer->count; i++)
    if (is_whole(&optimizer->slots[i])) ad_inject(AD_INJECT_UPDATED, params[i]);
  return AD_OK;
}

/* Takes a step with the rates in optimizer->rates. */
static ad_status take_step(ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
                           double factor, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (optimizer->count) AD_NEED_OF("ad_optimizer_step", params, grads);
  for (size_t i = 0; i < optimizer->count; i++)
    if (!optimizer->slots[i].frozen) AD_NEED_OF("ad_optimizer_step", params[i]);
  AD_TRY(check_factors(optimizer, factor, site));
  AD_TRY(check_step(optimizer, params, grads, site));
  optimizer->steps++;
  for (size_t i = 0; i < optimizer->count; i++) {
    if (optimizer->slots[i].frozen) continue;
    ad_updating updating = begin_update(optimizer, i, params[i], grads[i], factor);
    if (is_whole(&optimizer->slots[i])) {
      optimizer->updating[i] = updating;
      continue;
    }
    if (params[i]->data) ad_update_param(&updating);
    ad_inject(AD_INJECT_UPDATED, params[i]);
  }
  return optimizer->whole ? update_whole(optimizer, params, site) : AD_OK;
}

ad_status ad_optimizer_step_at(ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
                               double lr, double factor, const char *site) {
  AD_NEED(optimizer);
  for (size_t g = 0; g < optimizer->group_count; g++) optimizer->rates[g] = lr;
  return take_step(optimizer, params, grads, factor, site);
}

ad_status ad_optimizer_step_rates_at(ad_optimizer *optimizer, ad_array *const *params, const ad_array *const *grads,
                                     const double *rates, double factor, const char *site) {
  AD_NEED(optimizer, rates);
  memcpy(optimizer->rates, rates, optimizer->group_count * sizeof *rates);
  return take_step(optimizer, params, grads, factor, site);
}

int64_t ad_optimizer_steps(const ad_optimizer *optimizer) { return optimizer->steps; }

ad_status ad_optimizer_set_steps(ad_optimizer *optimizer, int64_t steps) {
  AD_NEED(optimizer);
  if (steps < 0)
    return ad_fail(AD_INVALID,
                   "%s: the number of steps taken must be at least 0, but is %lld; pass 0 or more. Nothing was changed",
                   name_of(optimizer, 0), (long long)steps);
  optimizer->steps = steps;
  return AD_OK;
}

ad_status ad_optimizer_begin_states(ad_optimizer *optimizer, size_t param, int64_t step) {
  AD_NEED(optimizer);
  if (!ad_has(param, optimizer->count, __func__, "parameter")) return AD_INVALID;
  if (step < 0 || step > optimizer->steps)
    return ad_fail(AD_INVALID, "states begin after 0 to %lld steps, which is how many were taken, but not after %lld",
                   (long long)optimizer->steps, (long long)step);
  optimizer->slots[param].began = step;
  return AD_OK;
}
