/* Storage of parameters: shards of the values, f32 masters, and the list of full copies that computation needs.
 * window.c gathers and releases the copies. */
#include "reduce/store.h"
#include <stdlib.h>
#include "array/array.h"
#include "array/packed.h"
#include "base/environment.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/injection.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "layout/nest.h"
#include "reduce/precision_policy.h"
#include "reduce/plan.h"
#include "comm/shared.h"
#include "layout/type.h"
#include "mesh/mesh.h"

/* ---- checking and storing one parameter ---- */

static ad_status refuse_storage(const ad_param_spec *spec) {
  char layout[160], storage[160];
  return ad_fail(AD_INVALID,
                 "parameter `%s` cannot be gathered from storage \"%s\" to layout \"%s\"; the storage must equal the "
                 "layout, with at most one more S0 where the layout is R or I",
                 spec->name, ad_layout_print(&spec->storage, storage, sizeof storage),
                 ad_layout_print(&spec->layout, layout, sizeof layout));
}

/* Checks that the shards of the ranks that share a copy, one after another, are the part that each of these ranks
 * computes with. */
static ad_status check_storage(const ad_param_spec *spec, const ad_stored *param, ad_axes sharded, int64_t rank) {
  ad_axes outside = ~ad_layout_same_axes(&spec->layout);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int differs = spec->storage.type[axis] != spec->layout.type[axis];
    if (differs && (outside & AD_AXES(axis))) return refuse_storage(spec);
  }
  if (!spec->shape.ndim) return AD_OK;
  ad_axes by_rows = ad_layout_axes_sharding(&spec->storage, 0),
          others = sharded & ~by_rows & ad_mesh_large(spec->layout.mesh);
  if (others || !ad_layout_is_sharded_once(&spec->storage, spec->shape.dim[0], sharded, rank, param->segment.rows))
    return refuse_storage(spec);
  return AD_OK;
}

static ad_status find_own_part(ad_store *store, const ad_param_spec *spec, ad_stored *param) {
  int64_t rank = ad_comm_rank(store->comm);
  ad_axes same = ad_layout_same_axes(&spec->layout), sharded_here = same & ad_layout_sharded_axes(&spec->storage);
  ad_group sharded = ad_mesh_group(spec->layout.mesh, sharded_here, rank);
  ad_group replicas = ad_mesh_group(spec->layout.mesh, same & ~sharded_here, rank);
  const ad_shape *local = &param->compute.local;
  param->segment = ad_segment_of(local);
  param->own_start =
      (size_t)ad_cut(param->segment.rows, ad_group_index(&sharded, rank), ad_group_size(&sharded)).first *
      param->segment.row;
  param->writes = ad_group_index(&replicas, rank) == 0;
  return check_storage(spec, param, sharded_here, rank);
}

/* Returns the dtype in which computation uses a parameter. Matrices have the options' compute dtype. Biases and norm
 * weights have the wide dtype, because they are added to sums or scale rows. */
static ad_dtype compute_dtype(const ad_store *store, const ad_param_spec *spec) {
  ad_dtype compute = store->options.compute;
  return spec->wide || spec->shape.ndim < 2 ? ad_dtype_wide(compute) : compute;
}

static ad_status take_param(ad_store *store, const ad_param_spec *spec, ad_stored *param) {
  ad_precision_policy policy = spec->policy;
  ad_status status = ad_precision_policy_complete(&policy);
  if (status) return ad_fail_in(status, "parameter `%s`", spec->name);
  ad_dtype compute = compute_dtype(store, spec);
  AD_TRY(ad_copy_string(spec->name, &param->name));
  param->frozen = spec->frozen;
  param->spreads = ad_param_spreads(spec);
  param->has_master = param->spreads || (!param->frozen && !ad_dtype_is_wide(policy.param));
  param->is_gathered = policy.param != compute || !ad_layout_equal(&spec->layout, &spec->storage);
  param->compute = ad_array_describe(store->comm, compute, &spec->shape, &spec->layout);
  AD_TRY(find_own_part(store, spec, param));
  ad_dtype master = ad_dtype_wide(policy.param);
  if (param->spreads) {
    param->value = ad_array_describe(store->comm, policy.param, &spec->shape, &spec->storage);
    param->master = ad_array_describe(store->comm, master, &spec->shape, &spec->update);
    return ad_spread_check(spec, ad_comm_rank(store->comm));
  }
  AD_TRY(ad_array_create(store->comm, policy.param, &spec->shape, &spec->storage, &param->value));
  if (param->has_master) AD_TRY(ad_array_create(store->comm, master, &spec->shape, &spec->storage, &param->master));
  return AD_OK;
}

/* ---- units of parameters, numbered from 0 in ascending order of the caller's numbers ---- */

static int compare_numbers(const void *a, const void *b) {
  int left = *(const int *)a, right = *(const int *)b;
  return (left > right) - (left < right);
}

static ad_status number_units(ad_store *store, const ad_param_spec *specs) {
  size_t count = store->param_count;
  int *numbers;
  AD_TRY(ad_new(count, &numbers));
  for (size_t i = 0; i < count; i++) numbers[i] = specs[i].unit;
  qsort(numbers, count, sizeof *numbers, compare_numbers);
  for (size_t i = 0; i < count; i++) {
    if (!store->unit_count || numbers[i] != numbers[store->unit_count - 1]) numbers[store->unit_count++] = numbers[i];
  }
  for (size_t i = 0; i < count; i++) {
    const int *found = bsearch(&specs[i].unit, numbers, store->unit_count, sizeof *numbers, compare_numbers);
    store->params[i].unit = (size_t)(found - numbers);
  }
  ad_release(numbers);
  return AD_OK;
}

static ad_status list_units(ad_store *store) {
  AD_TRY(ad_new(store->param_count, &store->by_unit));
  AD_TRY(ad_new(store->unit_count + 2, &store->unit_starts));
  size_t *starts = store->unit_starts;
  for (size_t i = 0; i < store->param_count; i++) starts[store->params[i].unit + 2]++;
  for (size_t u = 0; u < store->unit_count; u++) starts[u + 2] += starts[u + 1];
  for (size_t i = 0; i < store->param_count; i++) store->by_unit[starts[store->params[i].unit + 1]++] = i;
  return AD_OK;
}

/* ---- windows of full copies: one for each `releases` and `prefetch` that some group has ---- */

static ad_status find_window(ad_store *store, const ad_store_group *group, size_t *out) {
  int releases = group->releases != 0, prefetch = releases ? group->prefetch : 0;
  if (group->prefetch < 0)
    return ad_fail(AD_INVALID,
                   "the store's option `prefetch` is %d, but the number of units to gather ahead must be 0 or more",
                   group->prefetch);
  for (*out = 0; *out < store->window_count; ++*out) {
    const ad_copy_window *window = &store->windows[*out];
    if (window->releases == releases && window->prefetch == prefetch) return AD_OK;
  }
  AD_TRY(ad_grow(&store->windows, store->window_count, store->window_count + 1));
  store->windows[store->window_count++] = (ad_copy_window){.store = store, .releases = releases, .prefetch = prefetch};
  store->releases |= releases;
  return AD_OK;
}

/* Makes the windows, and finds that of each parameter. */
static ad_status make_windows(ad_store *store, const ad_store_group *groups) {
  const ad_store_options *options = &store->options;
  const ad_store_group first = {.releases = options->releases, .prefetch = options->prefetch};
  size_t unused;
  AD_TRY(find_window(store, &first, &unused));
  for (size_t i = 0; i < store->param_count; i++) {
    size_t group = options->group_of ? options->group_of[i] : 0;
    if (group > options->group_count)
      return ad_fail(AD_INVALID, "parameter `%s` of the store is in group %zu, but there are groups 0 to %zu",
                     store->params[i].name, group, options->group_count);
    AD_TRY(find_window(store, group ? &groups[group - 1] : &first, &store->params[i].window));
  }
  return AD_OK;
}

static ad_status take_windows(ad_store *store) {
  const ad_store_options *options = &store->options;
  void *groups;
  if (options->group_count && !options->groups)
    return ad_fail(AD_INVALID, "the store's options have `group_count` %zu, but `groups` is NULL",
                   options->group_count);
  AD_TRY(
      ad_options_take_all(&groups, sizeof *options->groups, options->groups, options->group_count, "ad_store_group"));
  ad_status status = make_windows(store, groups);
  ad_release(groups);
  store->options.groups = NULL;
  store->options.group_of = NULL;
  return status;
}

/* ---- kinds of full copies: one for each dtype and set of axes ---- */

static ad_status find_kind(ad_copy_window *window, const ad_param_spec *spec, ad_dtype dtype, size_t *out) {
  const ad_store *store = window->store;
  ad_axes axes = ad_layout_same_axes(&spec->layout);
  int64_t rank = ad_comm_rank(store->comm);
  ad_copy_kind kind = {.dtype = dtype, .axes = axes, .group = ad_mesh_group(spec->layout.mesh, axes, rank)};
  kind.shared = !store->options.apart && ad_comm_shares(store->comm, &kind.group);
  if (!kind.shared) {
    kind.axes &= ad_layout_sharded_axes(&spec->storage);
    kind.group = ad_mesh_group(spec->layout.mesh, kind.axes, rank);
  }
  for (size_t i = 0; i < window->kind_count; i++) {
    const ad_copy_kind *known = &window->kinds[i];
    *out = i;
    int same = known->dtype == kind.dtype && known->axes == kind.axes && known->shared == kind.shared;
    if (same && ad_mesh_equal(known->group.mesh, kind.group.mesh)) return AD_OK;
  }
  AD_TRY(ad_grow(&window->kinds, window->kind_count, window->kind_count + 1));
  *out = window->kind_count;
  ad_copy_kind *added = &window->kinds[window->kind_count++];
  *added = kind;
  AD_TRY(ad_new(store->unit_count, &added->elements));
  return ad_new(store->unit_count, &added->own);
}

static ad_status place_copies(ad_store *store, const ad_param_spec *specs) {
  for (size_t i = 0; i < store->param_count; i++) {
    ad_stored *param = &store->params[i];
    if (!param->is_gathered) continue;
    ad_copy_window *window = &store->windows[param->window];
    AD_TRY(find_kind(window, &specs[i], param->compute.dtype, &param->kind));
    ad_copy_kind *kind = &window->kinds[param->kind];
    size_t *elements = &kind->elements[param->unit], *own = &kind->own[param->unit];
    param->start = *elements;
    *elements += ad_array_numel(&param->compute);
    *own += ad_array_numel(&param->value);
    if (*elements > kind->most) kind->most = *elements;
    if (*own > kind->most_own) kind->most_own = *own;
  }
  return AD_OK;
}

/* Returns 1 if the copies that a step gathers are larger than the caches, else 0. */
static int is_past_caches(const ad_store *store) {
  size_t bytes = 0;
  for (size_t i = 0; i < store->param_count; i++) {
    const ad_stored *param = &store->params[i];
    size_t element = ad_dtype_size(param->compute.dtype) + ad_dtype_size(param->value.dtype);
    if (param->is_gathered) bytes += ad_array_numel(&param->compute) * element;
  }
  return ad_is_past_caches(bytes);
}

/* ---- creating and destroying a store ---- */

static ad_status take_options(const ad_store_options *options, ad_store *store) {
  AD_TRY(ad_options_take(&store->options, sizeof store->options, options, "ad_store_options"));
  if (!store->options.compute) store->options.compute = AD_F32;
  if (!ad_dtype_is_wide(store->options.compute) && store->options.compute != AD_BF16) {
    return ad_fail(AD_INVALID, "the store's option `compute` is %s, but must be f32, f64 or bf16",
                   ad_dtype_name(store->options.compute));
  }
  store->poisons = ad_environment_text("ADDEND_HOSTILE") != NULL;
  return AD_OK;
}

static ad_status build_store(ad_store *store, const ad_param_spec *params, size_t count,
                             const ad_store_options *options) {
  AD_TRY(take_options(options, store));
  AD_TRY(ad_new(count, &store->params));
  AD_TRY(ad_new(count, &store->segments));
  AD_TRY(ad_new(count, &store->names));
  for (size_t i = 0; i < count; i++) {
    store->param_count++;
    AD_TRY(take_param(store, &params[i], &store->params[i]));
  }
  AD_TRY(number_units(store, params));
  AD_TRY(list_units(store));
  AD_TRY(take_windows(store));
  AD_TRY(place_copies(store, params));
  store->past_caches = is_past_caches(store);
  AD_TRY(ad_spreads_create(store));
  for (size_t w = 0; w < store->window_count; w++) AD_TRY(ad_window_create(&store->windows[w]));
  for (size_t i = 0; i < count; i++) {
    ad_stored *param = &store->params[i];
    if (!param->is_gathered) param->compute.data = param->value.data;
  }
  return AD_OK;
}

static ad_status create_store(ad_comm *comm, const ad_param_spec *params, size_t count, const ad_store_options *options,
                              ad_store **out) {
  for (size_t i = 0; i < count; i++)
    AD_NEED_OF("ad_store_create", params[i].name, params[i].layout.mesh, params[i].storage.mesh);
  ad_store *store;
  AD_TRY(ad_new(1, &store));
  store->comm = comm;
  ad_status status = build_store(store, params, count, options);
  if (status) {
    ad_store_destroy(store);
    return status;
  }
  *out = store;
  return AD_OK;
}

ad_status ad_store_create(ad_comm *comm, const ad_param_spec *params, size_t count, const ad_store_options *options,
                          ad_store **out) {
  AD_NEED(comm, out);
  if (count) AD_NEED(params);
  void *specs;
  AD_TRY(ad_options_take_all(&specs, sizeof *params, params, count, "ad_param_spec"));
  ad_status status = create_store(comm, specs, count, options, out);
  ad_release(specs);
  return status;
}

static void release_kinds(ad_copy_window *window) {
  for (size_t i = 0; i < window->kind_count; i++) {
    ad_release(window->kinds[i].elements);
    ad_release(window->kinds[i].own);
  }
  ad_release(window->kinds);
}

void ad_store_destroy(ad_store *store) {
  if (!store) return;
  for (size_t w = 0; w < store->window_count; w++) ad_window_destroy(&store->windows[w]);
  ad_spreads_destroy(store);
  for (size_t i = 0; i < store->param_count; i++) {
    if (!store->params[i].spreads) ad_array_destroy(store->comm, &store->params[i].value);
    if (!store->params[i].spreads) ad_array_destroy(store->comm, &store->params[i].master);
    ad_release(store->params[i].name);
  }
  for (size_t w = 0; w < store->window_count; w++) release_kinds(&store->windows[w]);
  ad_release(store->windows);
  ad_units_release(store);
  ad_release(store->by_unit);
  ad_release(store->unit_starts);
  ad_release(store->segments);
  ad_release(store->names);
  ad_release(store->params);
  ad_release(store);
}

/* ---- reading, refreshing and acquiring parameters ---- */

ad_array *ad_store_value(ad_store *store, size_t param) {
  return ad_has(param, store->param_count, __func__, "parameter") ? &store->params[param].value : NULL;
}

ad_array *ad_store_master(ad_store *store, size_t param) {
  if (!ad_has(param, store->param_count, __func__, "parameter")) return NULL;
  ad_stored *p = &store->params[param];
  return p->has_master ? &p->master : &p->value;
}

const ad_array *ad_store_compute(const ad_store *store, size_t param) {
  return ad_has(param, store->param_count, __func__, "parameter") ? &store->params[param].compute : NULL;
}

static ad_status refill(ad_copy_window *window, int updated) {
  ad_refill_passing passing = {window->store, window, 0};
  if (updated) ad_inject(AD_INJECT_REFILL, &passing);
  return passing.is_left_out ? AD_OK : ad_window_refill(window, updated);
}

ad_status ad_store_refresh(ad_store *store, ad_written written) {
  AD_NEED(store);
  if (store->in_pass)
    return ad_fail(AD_INVALID, "ad_store_refresh was called inside a pass; call ad_store_end_pass first");
  if ((unsigned)written > AD_MASTERS_UPDATED)
    return ad_fail(AD_INVALID,
                   "ad_store_refresh was called with `written` %d, but `written` must be AD_VALUES_WRITTEN, "
                   "AD_MASTERS_WRITTEN or AD_MASTERS_UPDATED",
                   (int)written);
  int from_master = written != AD_VALUES_WRITTEN;
  for (size_t i = 0; i < store->param_count; i++) {
    ad_stored *param = &store->params[i];
    if (!param->has_master || param->spreads || !param->value.data) continue;
    const ad_array *from = from_master ? &param->master : &param->value;
    const ad_array *to = from_master ? &param->value : &param->master;
    ad_cast(to->data, to->dtype, from->data, from->dtype, ad_array_numel(to));
  }
  if (!from_master) ad_spreads_take(store);
  if (from_master) AD_TRY(ad_spreads_gather(store));
  for (size_t w = 0; w < store->window_count; w++)
    if (!store->windows[w].releases) AD_TRY(refill(&store->windows[w], written == AD_MASTERS_UPDATED));
  return AD_OK;
}

ad_status ad_store_begin_pass(ad_store *store, ad_pass pass) {
  AD_NEED(store);
  if (store->in_pass)
    return ad_fail(AD_INVALID, "ad_store_begin_pass was called inside a pass; call ad_store_end_pass first");
  if (pass != AD_FORWARD && pass != AD_BACKWARD)
    return ad_fail(AD_INVALID,
                   "ad_store_begin_pass was called with `pass` %d, but `pass` must be AD_FORWARD or AD_BACKWARD",
                   (int)pass);
  store->in_pass = 1;
  store->backward = pass == AD_BACKWARD;
  ad_units_begin_pass(store);
  for (size_t w = 0; w < store->window_count; w++)
    if (store->windows[w].releases)
      AD_TRY(ad_window_gather_ahead(&store->windows[w], store->backward ? (int64_t)store->unit_count : -1));
  return AD_OK;
}

/* Returns 1 if the parameter's copy exists only while it is used. */
static int is_released(const ad_store *store, size_t param) {
  return store->params[param].is_gathered && store->windows[store->params[param].window].releases;
}

ad_status ad_store_acquire(ad_store *store, size_t param) {
  AD_NEED(store);
  if (param >= store->param_count)
    return ad_fail(AD_INVALID, "the store has no parameter %zu; there are %zu parameters, numbered from 0", param,
                   store->param_count);
  if (!store->releases) return AD_OK;
  if (store->order.reducer) return ad_units_acquire(store, store->params[param].unit);
  return is_released(store, param) ? ad_windows_acquire(store, store->params[param].unit) : AD_OK;
}

void ad_store_release(ad_store *store, size_t param) {
  if (!store || !ad_has(param, store->param_count, __func__, "parameter")) return;
  if (store->releases && (store->order.reducer || is_released(store, param)))
    ad_windows_release(store, store->params[param].unit);
}

ad_status ad_store_end_pass(ad_store *store) {
  AD_NEED(store);
  if (!store->in_pass)
    return ad_fail(AD_INVALID, "ad_store_end_pass was called outside a pass; call ad_store_begin_pass first");
  AD_TRY(ad_units_end_pass(store));
  store->in_pass = 0;
  for (size_t w = 0; w < store->window_count; w++)
    if (store->windows[w].releases) AD_TRY(ad_window_empty(&store->windows[w]));
  return AD_OK;
}

/* ---- the bytes that a store takes ---- */

size_t ad_store_bytes(const ad_store *store) {
  size_t bytes = ad_spreads_bytes(store);
  for (size_t i = 0; i < store->param_count; i++) {
    if (store->params[i].spreads) continue;
    bytes += ad_array_bytes(&store->params[i].value);
    if (store->params[i].has_master) bytes += ad_array_bytes(&store->params[i].master);
  }
  return bytes;
}

static size_t slot_bytes(const ad_copy_window *window, size_t slot, const ad_copy_kind *kind) {
  size_t whole = window->releases ? kind->most : kind->elements[slot];
  size_t own = window->releases ? kind->most_own : kind->own[slot];
  size_t size = ad_dtype_size(kind->dtype);
  if (!kind->shared) return (whole + own) * size;
  size_t members = (size_t)ad_group_size(&kind->group);
  return (whole + members - 1) / members * size;
}

size_t ad_store_gathered_bytes(const ad_store *store) {
  size_t bytes = 0;
  for (size_t w = 0; w < store->window_count; w++) {
    const ad_copy_window *window = &store->windows[w];
    for (size_t slot = 0; slot < window->slot_count; slot++)
      for (size_t k = 0; k < window->kind_count; k++) bytes += slot_bytes(window, slot, &window->kinds[k]);
  }
  return bytes;
}
