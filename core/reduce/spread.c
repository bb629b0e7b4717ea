/* Values of which each rank updates only a part of the shard that it stores (`update` in ad_param_spec): after an update
 * the ranks that store the same shard gather it. The values of a unit lie one after another in memory, so that one
 * collective gathers a whole unit into its values. A master of the value's dtype lies in the value. */
#include "array/array.h"
#include "array/packed.h"
#include "array/transit.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "kernels/kernels.h"
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/mesh.h"
#include "reduce/plan.h"
#include "reduce/store.h"

int ad_param_spreads(const ad_param_spec *spec) {
  return !spec->frozen && !ad_layout_equal(&spec->storage, ad_param_update(spec));
}

static ad_status refuse_update(const ad_param_spec *spec) {
  char storage[160], update[160];
  return ad_fail(AD_INVALID,
                 "parameter `%s` cannot be updated as \"%s\" and stored as \"%s\"; `update` must equal `storage`, with "
                 "S0 on more axes where the storage is R or I, inside all other axes that shard the rows",
                 spec->name, ad_layout_print(&spec->update, update, sizeof update),
                 ad_layout_print(&spec->storage, storage, sizeof storage));
}

ad_status ad_spread_check(const ad_param_spec *spec, int64_t rank) {
  if (!ad_mesh_equal(spec->storage.mesh, spec->update.mesh)) return refuse_update(spec);
  ad_axes more = ad_layout_sharded_axes(&spec->update) & ~ad_layout_sharded_axes(&spec->storage);
  ad_layout expected = spec->storage;
  for (int depth = 0; depth < AD_AXIS_COUNT; depth++) {  // outermost first: a later axis becomes the innermost
    ad_axis axis = ad_layout_sharded_at(&spec->update, 0, depth);
    if (axis == AD_AXIS_COUNT || !(more & AD_AXES(axis))) continue;
    if (spec->storage.type[axis] != AD_R && spec->storage.type[axis] != AD_I) return refuse_update(spec);
    ad_layout_set(&expected, AD_AXES(axis), AD_S(0));
  }
  ad_shape stored = ad_layout_local_shape(&spec->storage, &spec->shape, rank);
  int is_once =
      spec->shape.ndim && ad_layout_is_sharded_once(&spec->update, spec->shape.dim[0], more, rank, stored.dim[0]);
  return is_once && ad_layout_equal(&expected, &spec->update) ? AD_OK : refuse_update(spec);
}

/* ---- which values are gathered together ---- */

static int is_of(const ad_spread *spread, const ad_stored *param, ad_axes axes) {
  return spread->unit == param->unit && spread->axes == axes && spread->values.dtype == param->value.dtype &&
         ad_mesh_equal(spread->values.layout.mesh, param->value.layout.mesh);
}

/* Adds the parameter to the values of its unit that are gathered over the same axes. */
static ad_status join_spread(ad_store *store, size_t index) {
  const ad_stored *param = &store->params[index];
  ad_axes axes = ad_layout_sharded_axes(&param->master.layout) & ~ad_layout_sharded_axes(&param->value.layout);
  size_t at = 0;
  while (at < store->spread_count && !is_of(&store->spreads[at], param, axes)) at++;
  if (at == store->spread_count) {
    AD_TRY(ad_grow(&store->spreads, at, at + 1));
    store->spreads[store->spread_count++] = (ad_spread){.unit = param->unit, .axes = axes, .values = param->value};
  }
  ad_spread *spread = &store->spreads[at];
  AD_TRY(ad_grow(&spread->params, spread->count, spread->count + 1));
  AD_TRY(ad_grow(&spread->names, spread->count, spread->count + 1));
  AD_TRY(ad_grow(&spread->segments, spread->count, spread->count + 1));
  spread->params[spread->count] = index;
  spread->names[spread->count] = param->name;
  spread->segments[spread->count++] = ad_segment_of(&param->value.local);
  return AD_OK;
}

static ad_status give_memory(const ad_store *store, ad_array *array) {
  if (ad_comm_is_dry(store->comm)) return AD_OK;
  return ad_comm_alloc(store->comm, ad_array_bytes(array), &array->data);
}

/* Returns where the part that this rank updates begins in the value of the spread's parameter number `index`. */
static char *own_part(const ad_store *store, const ad_spread *spread, size_t index) {
  int64_t rank = ad_comm_rank(store->comm);
  ad_group group = ad_mesh_group(spread->values.layout.mesh, spread->axes, rank);
  ad_segment segment = spread->segments[index];
  ad_span rows = ad_cut(segment.rows, ad_group_index(&group, rank), ad_group_size(&group));
  return (char *)store->params[spread->params[index]].value.data +
         (size_t)rows.first * segment.row * ad_dtype_size(spread->values.dtype);
}

static int has_masters(const ad_spread *spread) { return spread->masters.dtype != spread->values.dtype; }

/* Points the parameters' values and masters to their memory. */
static void place_params(ad_store *store, const ad_spread *spread) {
  char *value = spread->values.data, *master = spread->masters.data;
  for (size_t i = 0; value && i < spread->count; i++) {
    ad_stored *param = &store->params[spread->params[i]];
    param->value.data = value;
    param->master.data = has_masters(spread) ? master : own_part(store, spread, i);
    value += ad_array_bytes(&param->value);
    if (has_masters(spread)) master += ad_array_bytes(&param->master);
  }
}

/* Describes the packed values and the parts of them that this rank updates, and gives them memory. */
static ad_status make_spread(ad_store *store, ad_spread *spread) {
  ad_layout layout = ad_layout_all(spread->values.layout.mesh, AD_V);
  ad_dtype dtype = spread->values.dtype;
  ad_layout_set(&layout, spread->axes, AD_S(0));
  spread->parts = ad_array_describe_packed(store->comm, dtype, spread->segments, spread->count, &layout);
  AD_TRY(ad_array_after(store->comm, &spread->parts, AD_MOVE_ALL_GATHER, spread->axes, AD_R, &spread->values));
  spread->masters = spread->parts;
  spread->masters.dtype = ad_dtype_wide(dtype);
  AD_TRY(give_memory(store, &spread->values));
  if (has_masters(spread)) AD_TRY(give_memory(store, &spread->masters));
  place_params(store, spread);
  if (ad_array_bytes(&spread->parts) > store->sent_bytes) store->sent_bytes = ad_array_bytes(&spread->parts);
  return AD_OK;
}

ad_status ad_spreads_create(ad_store *store) {
  for (size_t unit = 0; unit < store->unit_count; unit++)
    for (size_t i = store->unit_starts[unit]; i < store->unit_starts[unit + 1]; i++)
      if (store->params[store->by_unit[i]].spreads) AD_TRY(join_spread(store, store->by_unit[i]));
  for (size_t i = 0; i < store->spread_count; i++) AD_TRY(make_spread(store, &store->spreads[i]));
  if (!store->sent_bytes || ad_comm_is_dry(store->comm)) return AD_OK;
  return ad_comm_alloc(store->comm, store->sent_bytes, &store->sent);
}

void ad_spreads_destroy(ad_store *store) {
  for (size_t i = 0; i < store->spread_count; i++) {
    ad_spread *spread = &store->spreads[i];
    ad_comm_free(store->comm, spread->values.data);
    ad_comm_free(store->comm, spread->masters.data);
    ad_release(spread->params);
    ad_release(spread->names);
    ad_release(spread->segments);
  }
  ad_comm_free(store->comm, store->sent);
  ad_release(store->spreads);
}

size_t ad_spreads_bytes(const ad_store *store) {
  size_t bytes = store->sent_bytes;
  for (size_t i = 0; i < store->spread_count; i++) {
    const ad_spread *spread = &store->spreads[i];
    bytes += ad_array_bytes(&spread->values) + (has_masters(spread) ? ad_array_bytes(&spread->masters) : 0);
  }
  return bytes;
}

/* ---- values from masters, and masters from values ---- */

/* Checks that the gather led to the layout in which values are stored. */
static ad_status check_gathered(const ad_spread *spread, const ad_array *gathered) {
  char have[160], want[160];
  if (ad_layout_equal(&gathered->layout, &spread->values.layout)) return AD_OK;
  return ad_fail(AD_TYPE,
                 "the values of `%s`%s have the layout \"%s\" after the update, but are stored as \"%s\", so their "
                 "gather was left out or went over the wrong axes",
                 spread->names[0], spread->count > 1 ? " and others of its unit" : "",
                 ad_layout_print(&gathered->layout, have, sizeof have),
                 ad_layout_print(&spread->values.layout, want, sizeof want));
}

/* Copies the masters, one after another, to the memory that is sent, in the values' dtype. */
static void fill_parts(const ad_store *store, ad_spread *spread) {
  char *part = spread->parts.data = store->sent;
  for (size_t i = 0; part && i < spread->count; i++) {
    const ad_array *master = &store->params[spread->params[i]].master;
    ad_cast(part, spread->parts.dtype, master->data, master->dtype, ad_array_numel(master));
    part += ad_array_numel(master) * ad_dtype_size(spread->parts.dtype);
  }
}

ad_status ad_spreads_gather(ad_store *store) {
  for (size_t i = 0; i < store->spread_count; i++) {
    ad_spread *spread = &store->spreads[i];
    ad_transit transit = {.move = AD_MOVE_ALL_GATHER,
                          .axes = spread->axes,
                          .to = AD_R,
                          .past_caches = store->past_caches,
                          .site = AD_HERE,
                          .what = AD_WHAT_UPDATED,
                          .names = spread->names};
    fill_parts(store, spread);
    ad_array gathered = spread->values;
    AD_TRY(ad_transit_run(store->comm, &transit, &spread->parts, &gathered));
    AD_TRY(check_gathered(spread, &gathered));
  }
  return AD_OK;
}

void ad_spreads_take(ad_store *store) {
  for (size_t i = 0; i < store->spread_count; i++) {
    const ad_spread *spread = &store->spreads[i];
    for (size_t k = 0; spread->masters.data && k < spread->count; k++) {
      const ad_array *master = &store->params[spread->params[k]].master;
      ad_cast(master->data, master->dtype, own_part(store, spread, k), spread->values.dtype, ad_array_numel(master));
    }
  }
}
