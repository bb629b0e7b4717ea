/* The order of collectives on ranks that compute different leaves with ZeRO 3. A leaf may leave out parameters that other
 * leaves use. Nevertheless all ranks must gather the same units, and send the same buckets between the same gathers. So a
 * rank passes every unit: in forward in ascending order, in backward in the reverse of the order in which the forward
 * pass acquired them. It gathers what its own leaf does not use, too. When backward has passed a unit for the last time,
 * those of the unit's gradients that the leaf does not have count as arrived. */
#include "base/error.h"
#include "base/memory.h"
#include "reduce/reducer.h"
#include "reduce/store.h"

static int is_ordered(const ad_store *store) { return store->order.reducer && store->in_pass; }

/* ---- gradients that the leaf does not have ---- */

/* Counts the gradients of the unit that backward will not submit as arrived. */
static ad_status leave_out(const ad_store *store, size_t unit) {
  for (size_t i = store->unit_starts[unit]; i < store->unit_starts[unit + 1]; i++)
    AD_TRY(ad_reducer_leave_out(store->order.reducer, store->by_unit[i]));
  return AD_OK;
}

/* Returns the unit that backward passes at place `place` of its order. */
static size_t unit_at(const ad_unit_order *order, size_t place) { return order->list[order->count - 1 - place]; }

/* Called when backward has passed the unit at `place`. */
static ad_status pass(const ad_store *store, size_t place) {
  const ad_unit_order *order = &store->order;
  for (size_t later = place + 1; later < order->count; later++)
    if (unit_at(order, later) == unit_at(order, place)) return AD_OK;
  return leave_out(store, unit_at(order, place));
}

/* ---- passing units ---- */

/* Gathers a unit that the leaf does not use at this place of the order. */
static ad_status visit(ad_store *store, size_t unit) {
  AD_TRY(ad_windows_acquire(store, unit));
  ad_windows_release(store, unit);
  return AD_OK;
}

static ad_status note(ad_unit_order *order, size_t unit) {
  if (order->count == order->room) {
    AD_TRY(ad_grow(&order->list, order->room, 2 * order->room + 16));
    order->room = 2 * order->room + 16;
  }
  order->list[order->count++] = unit;
  return AD_OK;
}

/* Forward: passes all units from the first that was not passed yet to the one before `end`. */
static ad_status pass_up_to(ad_store *store, size_t end) {
  for (; store->order.passed < end; store->order.passed++) {
    AD_TRY(visit(store, store->order.passed));
    AD_TRY(note(&store->order, store->order.passed));
  }
  return AD_OK;
}

/* Forward: a unit that is acquired again, out of order, comes after all others have been passed. */
static ad_status before_in_forward(ad_store *store, size_t unit) {
  ad_unit_order *order = &store->order;
  AD_TRY(pass_up_to(store, unit < order->passed ? store->unit_count : unit));
  if (unit == order->passed) order->passed++;
  return note(order, unit);
}

/* Backward: passes the units up to place `end` of the order. */
static ad_status pass_back_to(ad_store *store, size_t end) {
  ad_unit_order *order = &store->order;
  for (; order->next < end; order->next++) {
    AD_TRY(visit(store, unit_at(order, order->next)));
    AD_TRY(pass(store, order->next));
  }
  return AD_OK;
}

/* Backward: acquires the unit at its next place of the order, after all units before it. */
static ad_status acquire_in_backward(ad_store *store, size_t unit) {
  ad_unit_order *order = &store->order;
  size_t place = order->next;
  while (place < order->count && unit_at(order, place) != unit) place++;
  if (place == order->count) return ad_windows_acquire(store, unit);
  AD_TRY(pass_back_to(store, place));
  AD_TRY(ad_windows_acquire(store, unit));
  order->next = place + 1;
  return pass(store, place);
}

/* Returns 1 if the unit is the one that was passed last, or if its copies are still there. */
static int is_present(const ad_store *store, size_t unit) {
  const ad_unit_order *order = &store->order;
  if (ad_windows_have_copies(store, unit)) return ad_windows_have(store, unit);
  if (!store->backward) return order->count && order->list[order->count - 1] == unit;
  return order->next && unit_at(order, order->next - 1) == unit;
}

/* ---- what the store and the reducer call ---- */

ad_status ad_units_acquire(ad_store *store, size_t unit) {
  if (!is_ordered(store) || is_present(store, unit)) return ad_windows_acquire(store, unit);
  if (store->backward) return acquire_in_backward(store, unit);
  AD_TRY(before_in_forward(store, unit));
  return ad_windows_acquire(store, unit);
}

ad_status ad_units_bring(ad_store *store, size_t param) {
  size_t unit = store->params[param].unit;
  if (!is_ordered(store) || !store->backward || is_present(store, unit)) return AD_OK;
  AD_TRY(acquire_in_backward(store, unit));
  ad_windows_release(store, unit);
  return AD_OK;
}

void ad_units_begin_pass(ad_store *store) {
  store->order.next = 0;
  if (!store->backward) store->order.count = store->order.passed = 0;
}

ad_status ad_units_end_pass(ad_store *store) {
  if (!is_ordered(store)) return AD_OK;
  return store->backward ? pass_back_to(store, store->order.count) : pass_up_to(store, store->unit_count);
}

void ad_units_release(ad_store *store) { ad_release(store->order.list); }

void ad_store_follow(ad_store *store, ad_reducer *reducer) {
  if (!store->releases || !ad_reducer_has_leaves(reducer)) return;
  store->order.reducer = reducer;
  reducer->store = store;
}
