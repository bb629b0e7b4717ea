/* The window of full copies (ZeRO 3): gathers the parameters of a unit into a slot of memory before they are used, and
 * releases the slot afterwards. Every rank uses units in the same order, so ranks choose the same slots without
 * communicating.
 *
 * Ranks that share memory share one copy: in a gather each owner writes its part, and all ranks call a barrier. A slot
 * may be written again when all ranks have released it; a rank that calls the barrier of a later gather has released
 * it. */
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "reduce/store.h"
#include "comm/shared.h"

enum { NO_UNIT = -1, POISON = 0xff };  // NaN in every floating dtype

/* ---- which units have copies in a window ---- */

static int is_in(const ad_copy_window *window, const ad_stored *param) {
  return param->is_gathered && &window->store->windows[param->window] == window;
}

/* Returns 1 if the window has copies of parameters of the unit. With `trained` 1: of parameters that are not frozen, so
 * that an update changes the copies. */
static int has_copies(const ad_copy_window *window, size_t unit, int trained) {
  const ad_store *store = window->store;
  for (size_t i = store->unit_starts[unit]; i < store->unit_starts[unit + 1]; i++) {
    const ad_stored *param = &store->params[store->by_unit[i]];
    if (is_in(window, param) && !(trained && param->frozen)) return 1;
  }
  return 0;
}

/* ---- the window's slots of memory ---- */

static ad_status give_slot(ad_copy_window *window, size_t index) {
  ad_copy_slot *slot = &window->slots[index];
  slot->unit = NO_UNIT;
  AD_TRY(ad_new(window->kind_count, &slot->memory));
  AD_TRY(ad_new(window->kind_count, &slot->parts));
  AD_TRY(ad_new(window->kind_count, &slot->requests));
  for (size_t k = 0; k < window->kind_count && !ad_comm_is_dry(window->store->comm); k++) {
    const ad_copy_kind *kind = &window->kinds[k];
    size_t size = ad_dtype_size(kind->dtype);
    size_t whole = window->releases ? kind->most : kind->elements[index];
    size_t own = window->releases ? kind->most_own : kind->own[index];
    if (kind->shared) {
      AD_TRY(ad_comm_alloc_shared(window->store->comm, &kind->group, whole * size, &slot->memory[k]));
      continue;
    }
    AD_TRY(ad_comm_alloc(window->store->comm, whole * size, &slot->memory[k]));
    AD_TRY(ad_comm_alloc(window->store->comm, own * size, &slot->parts[k]));
  }
  return AD_OK;
}

/* Returns how many slots are needed: one for the unit in use, `prefetch` for units gathered ahead, and one for a
 * released unit that other ranks may still use. A window that is not released has a slot for each unit. */
static size_t count_slots(const ad_copy_window *window) {
  size_t wanted = (size_t)window->prefetch + 2, units = 0;
  if (!window->releases) return window->store->unit_count;
  for (size_t u = 0; u < window->store->unit_count; u++) units += (size_t)has_copies(window, u, 0);
  return wanted < units ? wanted : units;
}

ad_status ad_window_create(ad_copy_window *window) {
  if (!window->kind_count) return AD_OK;
  size_t count = count_slots(window);
  AD_TRY(ad_new(count, &window->slots));
  for (size_t i = 0; i < count; i++) {
    window->slot_count++;
    AD_TRY(give_slot(window, i));
  }
  return AD_OK;
}

static void wait_for_requests(ad_copy_window *window, ad_copy_slot *slot) {
  // Other ranks may still be before the barrier. If one of them fails, ad_comm_wait returns an error instead of
  // hanging.
  for (size_t k = 0; slot->requests && k < window->kind_count; k++) {
    if (slot->requests[k].id && ad_comm_wait(window->store->comm, &slot->requests[k])) slot->requests[k].id = 0;
  }
}

void ad_window_destroy(ad_copy_window *window) {
  for (size_t i = 0; i < window->slot_count; i++) {
    ad_copy_slot *slot = &window->slots[i];
    wait_for_requests(window, slot);
    for (size_t k = 0; k < window->kind_count; k++) {
      if (slot->memory) ad_comm_free(window->store->comm, slot->memory[k]);
      if (slot->parts) ad_comm_free(window->store->comm, slot->parts[k]);
    }
    ad_release(slot->memory);
    ad_release(slot->parts);
    ad_release(slot->requests);
  }
  ad_release(window->slots);
}

/* ---- waiting until no rank reads a slot that is refilled ---- */

/* Calls a barrier. After it, no rank uses a copy that was released before the barrier. */
static ad_status fence(ad_copy_window *window) {
  for (size_t k = 0; k < window->kind_count; k++) {
    if (window->kinds[k].shared) AD_TRY(ad_comm_barrier(window->store->comm, &window->kinds[k].group));
  }
  window->completed = ++window->gathers;
  return AD_OK;
}

static ad_status wait_for(ad_copy_window *window, ad_copy_slot *slot) {
  for (size_t k = 0; k < window->kind_count; k++) AD_TRY(ad_comm_wait(window->store->comm, &slot->requests[k]));
  if (window->completed <= slot->number) window->completed = slot->number + 1;
  slot->ready = 1;
  return AD_OK;
}

/* Returns the slot of the first gather that was posted after the slot `released` was released; NULL if there is
 * none. */
static ad_copy_slot *gather_after(const ad_copy_window *window, const ad_copy_slot *released) {
  ad_copy_slot *first = NULL;
  for (size_t i = 0; i < window->slot_count; i++) {
    ad_copy_slot *slot = &window->slots[i];
    int after = slot->unit != NO_UNIT && slot->number >= released->released_at;
    if (after && (!first || slot->number < first->number)) first = slot;
  }
  return first;
}

/* Waits until no rank uses the released copies that are still in the slot. */
static ad_status make_free(ad_copy_window *window, const ad_copy_slot *slot) {
  if (window->completed > slot->released_at) return AD_OK;
  ad_copy_slot *after = gather_after(window, slot);
  return after ? wait_for(window, after) : fence(window);
}

/* ---- gathering a unit's parameters ---- */

static int is_of(const ad_copy_window *window, const ad_stored *param, size_t kind) {
  return is_in(window, param) && param->kind == kind;
}

static ad_status post_shared(ad_copy_window *window, ad_copy_slot *slot, size_t unit, size_t k) {
  ad_dtype dtype = window->kinds[k].dtype;
  char *memory = slot->memory[k];
  for (size_t i = window->store->unit_starts[unit]; i < window->store->unit_starts[unit + 1] && memory; i++) {
    const ad_stored *param = &window->store->params[window->store->by_unit[i]];
    if (!is_of(window, param, k) || !param->writes) continue;
    char *to = memory + (param->start + param->own_start) * ad_dtype_size(dtype);
    size_t numel = ad_array_numel(&param->value);
    if (window->store->past_caches)
      ad_cast_past(to, dtype, param->value.data, param->value.dtype, 1, numel);
    else
      ad_cast(to, dtype, param->value.data, param->value.dtype, numel);
  }
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER, .group = window->kinds[k].group, .site = AD_HERE};
  return ad_comm_post(window->store->comm, &barrier, &slot->requests[k]);
}

/* Lists the unit's parameters of kind `k` in window->store->segments and window->store->names. Unless `part` is NULL, casts this rank's
 * parts of these parameters to the compute dtype and writes them to `part`. Returns the number of parameters. */
static size_t take_parts(ad_copy_window *window, size_t unit, size_t k, char *part) {
  size_t count = 0;
  for (size_t i = window->store->unit_starts[unit]; i < window->store->unit_starts[unit + 1]; i++) {
    const ad_stored *param = &window->store->params[window->store->by_unit[i]];
    if (!is_of(window, param, k)) continue;
    window->store->names[count] = param->name;
    window->store->segments[count++] = param->segment;
    if (!part) continue;
    ad_cast(part, param->compute.dtype, param->value.data, param->value.dtype, ad_array_numel(&param->value));
    part += ad_array_numel(&param->value) * ad_dtype_size(param->compute.dtype);
  }
  return count;
}

/* Posts one all-gather for all parameters of the unit, for ranks that share no memory. The parameters are packed into
 * one array, which is sharded by rows on the kind's axes and varying (V) on all other axes. */
static ad_status post_apart(ad_copy_window *window, ad_copy_slot *slot, size_t unit, size_t k) {
  const ad_copy_kind *kind = &window->kinds[k];
  size_t count = take_parts(window, unit, k, slot->parts[k]);
  if (!count) return AD_OK;
  ad_layout layout = ad_layout_all(kind->group.mesh, AD_V);
  ad_layout_set(&layout, kind->axes, AD_S(0));
  ad_array parts = ad_array_describe_packed(window->store->comm, kind->dtype, window->store->segments, count, &layout),
           whole;
  ad_transit transit = {.move = AD_MOVE_ALL_GATHER, .axes = kind->axes, .to = AD_R, .site = AD_HERE, .what = "values"};
  transit.names = window->store->names;
  AD_TRY(ad_array_after_at(window->store->comm, &parts, transit.move, transit.axes, transit.to, &whole, transit.site));
  parts.data = slot->parts[k];
  whole.data = slot->memory[k];
  return ad_transit_post(window->store->comm, &transit, &parts, &whole, &slot->requests[k]);
}

static ad_status gather(ad_copy_window *window, ad_copy_slot *slot, size_t unit) {
  AD_TRY(make_free(window, slot));
  slot->unit = (int64_t)unit;
  slot->taken = slot->ready = 0;
  slot->number = window->gathers++;
  for (size_t k = 0; k < window->kind_count; k++) {
    if (window->kinds[k].shared)
      AD_TRY(post_shared(window, slot, unit, k));
    else
      AD_TRY(post_apart(window, slot, unit, k));
  }
  return AD_OK;
}

/* Points the parameters of the slot's unit to their copies in `memory`, or to no copy if `memory` is NULL. */
static void set_copies(ad_copy_window *window, const ad_copy_slot *slot, void *const *memory) {
  for (size_t i = window->store->unit_starts[slot->unit]; i < window->store->unit_starts[slot->unit + 1]; i++) {
    ad_stored *param = &window->store->params[window->store->by_unit[i]];
    if (!is_in(window, param)) continue;
    char *start = memory ? memory[param->kind] : NULL;
    param->compute.data = start ? start + param->start * ad_dtype_size(param->compute.dtype) : NULL;
  }
}

ad_status ad_window_refill(ad_copy_window *window, int updated) {
  for (size_t i = 0; i < window->slot_count; i++) window->slots[i].released_at = window->gathers;
  for (size_t i = 0; i < window->slot_count; i++)
    if (has_copies(window, i, updated)) AD_TRY(gather(window, &window->slots[i], i));
  for (size_t i = 0; i < window->slot_count; i++) {
    if (!has_copies(window, i, updated)) continue;
    AD_TRY(wait_for(window, &window->slots[i]));
    set_copies(window, &window->slots[i], window->slots[i].memory);
  }
  return AD_OK;
}

/* ---- emptying a slot ---- */

/* On backend hostile, fills a released copy with NaN when no rank uses the copy any more. Each rank fills only the
 * parts that it writes in a gather, so that no two ranks write the same bytes; and no rank gathers another unit into the
 * slot, where its parts lie elsewhere, before all are filled. */
static ad_status poison(ad_copy_window *window, const ad_copy_slot *slot) {
  AD_TRY(fence(window));
  for (size_t i = window->store->unit_starts[slot->unit]; i < window->store->unit_starts[slot->unit + 1]; i++) {
    const ad_stored *param = &window->store->params[window->store->by_unit[i]];
    if (!is_in(window, param) || !slot->memory[param->kind]) continue;
    int shared = window->kinds[param->kind].shared;
    size_t size = ad_dtype_size(param->compute.dtype);
    char *copy = (char *)slot->memory[param->kind] + param->start * size;
    if (!shared) memset(copy, POISON, ad_array_numel(&param->compute) * size);
    if (shared && param->writes) memset(copy + param->own_start * size, POISON, ad_array_numel(&param->value) * size);
  }
  return fence(window);
}

static ad_status let_go(ad_copy_window *window, ad_copy_slot *slot) {
  if (!slot->ready) AD_TRY(wait_for(window, slot));
  slot->released_at = window->gathers;
  if (window->store->poisons) AD_TRY(poison(window, slot));
  set_copies(window, slot, NULL);
  slot->unit = NO_UNIT;
  return AD_OK;
}

static ad_status let_idle_go(ad_copy_window *window, size_t next) {
  for (size_t i = 0; i < window->slot_count; i++) {
    ad_copy_slot *slot = &window->slots[i];
    int idle = slot->unit != NO_UNIT && slot->unit != (int64_t)next && slot->taken && !slot->uses;
    if (idle) AD_TRY(let_go(window, slot));
  }
  return AD_OK;
}

ad_status ad_window_empty(ad_copy_window *window) {
  for (size_t i = 0; i < window->slot_count; i++) {
    if (window->slots[i].uses)
      return ad_fail(AD_INVALID,
                     "ad_store_end_pass was called while a parameter is still acquired; call ad_store_release for "
                     "every acquired parameter first");
  }
  for (size_t i = 0; i < window->slot_count; i++) {
    if (window->slots[i].unit != NO_UNIT) AD_TRY(let_go(window, &window->slots[i]));
  }
  return AD_OK;
}

/* ---- acquiring and releasing units ---- */

static ad_copy_slot *slot_of(const ad_copy_window *window, int64_t unit) {
  for (size_t i = 0; i < window->slot_count; i++) {
    if (window->slots[i].unit == unit) return &window->slots[i];
  }
  return NULL;
}

/* Returns the free slot that was released longest ago; NULL if no slot is free. */
static ad_copy_slot *free_slot(const ad_copy_window *window) {
  ad_copy_slot *oldest = NULL;
  for (size_t i = 0; i < window->slot_count; i++) {
    ad_copy_slot *slot = &window->slots[i];
    if (slot->unit == NO_UNIT && (!oldest || slot->released_at < oldest->released_at)) oldest = slot;
  }
  return oldest;
}

/* Releases the slot of a unit that was gathered ahead but is not the unit that is acquired next. */
static ad_status drop_expected(ad_copy_window *window) {
  for (size_t i = 0; i < window->slot_count; i++) {
    ad_copy_slot *slot = &window->slots[i];
    if (slot->unit != NO_UNIT && !slot->taken) return let_go(window, slot);
  }
  return ad_fail(AD_INVALID,
                 "the store has memory for %zu units, but more units are in use at the same time; raise the option "
                 "`prefetch`, or release parameters sooner",
                 window->slot_count);
}

static ad_status bring(ad_copy_window *window, size_t unit, ad_copy_slot **out) {
  ad_copy_slot *slot = slot_of(window, (int64_t)unit);
  if (!slot) {
    if (!free_slot(window)) AD_TRY(drop_expected(window));
    slot = free_slot(window);
    AD_TRY(gather(window, slot, unit));
  }
  AD_TRY(wait_for(window, slot));
  set_copies(window, slot, slot->memory);
  slot->taken = 1;
  *out = slot;
  return AD_OK;
}

ad_status ad_window_gather_ahead(ad_copy_window *window, int64_t from) {
  int64_t step = window->store->backward ? -1 : 1, count = (int64_t)window->store->unit_count, ahead = 0;
  for (int64_t unit = from + step; unit >= 0 && unit < count && ahead < window->prefetch; unit += step) {
    if (!has_copies(window, (size_t)unit, 0)) continue;
    ahead++;
    ad_copy_slot *slot = free_slot(window);
    if (slot && !slot_of(window, unit)) AD_TRY(gather(window, slot, (size_t)unit));
  }
  return AD_OK;
}

/* Acquires the unit in one window. */
static ad_status acquire(ad_copy_window *window, size_t unit) {
  ad_copy_slot *slot = slot_of(window, (int64_t)unit);
  if (!slot || !slot->taken) {
    AD_TRY(let_idle_go(window, unit));
    AD_TRY(bring(window, unit, &slot));
    AD_TRY(ad_window_gather_ahead(window, (int64_t)unit));
  }
  slot->uses++;
  return AD_OK;
}

/* ---- units in all windows that are released ---- */

int ad_windows_have_copies(const ad_store *store, size_t unit) {
  for (size_t w = 0; w < store->window_count; w++)
    if (store->windows[w].releases && has_copies(&store->windows[w], unit, 0)) return 1;
  return 0;
}

ad_status ad_windows_acquire(ad_store *store, size_t unit) {
  for (size_t w = 0; w < store->window_count; w++)
    if (store->windows[w].releases && has_copies(&store->windows[w], unit, 0))
      AD_TRY(acquire(&store->windows[w], unit));
  return AD_OK;
}

int ad_windows_have(const ad_store *store, size_t unit) {
  for (size_t w = 0; w < store->window_count; w++) {
    const ad_copy_window *window = &store->windows[w];
    const ad_copy_slot *slot = window->releases ? slot_of(window, (int64_t)unit) : NULL;
    if (slot) return slot->taken;
  }
  return 0;
}

void ad_windows_release(ad_store *store, size_t unit) {
  for (size_t w = 0; w < store->window_count; w++) {
    ad_copy_slot *slot = store->windows[w].releases ? slot_of(&store->windows[w], (int64_t)unit) : NULL;
    if (slot && slot->uses) slot->uses--;
  }
}
