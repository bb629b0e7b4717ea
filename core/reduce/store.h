/* The store's own objects: parameters, and the window of full copies. For the files of reduce/ only. */
#ifndef REDUCE_STORE_H
#define REDUCE_STORE_H
#include "addend/reduce.h"
#include "addend/store.h"
#include "base/internal.h"

typedef struct ad_stored {
  char *name;
  ad_array value, master, compute;
  int has_master;             // 1: the parameter has a master of its own; 0: its value is the master
  int spreads;                // 1: this rank's master is only a part of its value: values are gathered (spread.c)
  int frozen;                 // 1: no optimizer updates the parameter, so it has no master of its own
  int is_gathered;            // 1: `compute` is a gathered copy; 0: `compute` is the value itself
  size_t unit, window, kind;  // window: index in store->windows; kind: index in the window's kinds
  size_t start;      // offset of the parameter's copy in the memory for copies of its kind (ad_copy_kind), in elements
  size_t own_start;  // offset of this rank's part in the copy, in elements
  int writes;        // 1: this rank writes its part for all ranks that share the copy
  ad_segment segment;
} ad_stored;

/* A kind of full copies: those of one dtype that are gathered over one group. If ranks share memory, the group has all
 * ranks that compute with the same values; otherwise it has the ranks over which the values are sharded. */
typedef struct ad_copy_kind {
  ad_dtype dtype;
  ad_axes axes;
  ad_group group;
  int shared;
  size_t *elements;  // [unit]: number of elements of the unit's copies
  size_t *own;       // [unit]: number of elements of this rank's parts of the unit's copies
  size_t most, most_own;
} ad_copy_kind;

/* Values of a unit that are gathered together after an update, over `axes`: on these axes they are stored whole, and
 * sharded when they are updated. The arrays are packed; each parameter's value and master lie in them. */
typedef struct ad_spread {
  size_t unit;
  ad_axes axes;
  size_t *params, count;  // indices of the parameters
  const char **names;     // borrowed from the parameters
  ad_segment *segments;   // rows of this rank's part of each value
  ad_array values;
  ad_array masters;  // without memory if its dtype is the values': masters then lie in the values
  ad_array parts;    // the masters in the values' dtype, one after another, as they are sent
} ad_spread;
#define AD_WHAT_UPDATED "updated values" /* `what` of the transitions that gather them */

/* Memory for the full copies of one unit, of all kinds. */
typedef struct ad_copy_slot {
  int64_t unit;      // the unit whose copies are in the slot; -1: no unit
  int taken, ready;  // taken: 1 if the unit was acquired since its gather; ready: 1 if the gather is complete
  int64_t uses;
  uint64_t number;         // the number of the gather that fills the slot
  uint64_t released_at;    // number of gathers that had been posted when the slot was released
  void **memory, **parts;  // parts: buffers for the values that this rank sends, if memory is not shared
  ad_request *requests;
} ad_copy_slot;

/* The order in which a pass uses units, for ranks that compute different leaves (unit_order.c). */
typedef struct ad_unit_order {
  ad_reducer *reducer;  // the reducer of the parameters' gradients; NULL: ranks use the same units, in any order
  size_t *list;         // the units in the order in which the forward pass acquired them
  size_t count, room;   // number of units in the list, and of those for which it has memory
  size_t passed;        // forward: number of units, from unit 0 on, that were passed
  size_t next;          // backward: number of places of the reversed list that were passed
} ad_unit_order;

/* The full copies of the parameters whose groups have the same `releases` and `prefetch`. */
typedef struct ad_copy_window {
  ad_store *store;
  int releases, prefetch;
  ad_copy_kind *kinds;
  size_t kind_count;
  ad_copy_slot *slots;  // if the window is not released: one for each unit of the store
  size_t slot_count;
  // gathers: number of gathers that this rank has posted; completed: number of the first gathers that all ranks are
  // known to have posted
  uint64_t gathers, completed;
} ad_copy_window;

struct ad_store {
  ad_comm *comm;
  ad_store_options options;
  ad_stored *params;
  size_t param_count;
  size_t unit_count;
  size_t *by_unit, *unit_starts;  // unit u has params[by_unit[i]] for i from unit_starts[u] to unit_starts[u + 1]
  ad_copy_window *windows;
  size_t window_count;
  int releases;  // 1: some window is released
  ad_spread *spreads;
  size_t spread_count;
  void *sent;  // memory for the parts of one spread, which are sent when its values are gathered
  size_t sent_bytes;
  ad_segment *segments;  // memory for the segments of one unit's parameters
  const char **names;    // memory for the names of one unit's parameters
  int backward, in_pass, poisons;
  ad_unit_order order;
  int past_caches;  // 1: full copies are written by stores that bypass the caches
};

/* Argument of the injection point AD_INJECT_REFILL. */
typedef struct ad_refill_passing {
  const ad_store *store;
  const ad_copy_window *window;
  int is_left_out;  // 1: the window's copies are not gathered
} ad_refill_passing;

/* window.c: makes the slots for full copies. */
ad_status ad_window_create(ad_copy_window *window) AD_CHECKED;
void ad_window_destroy(ad_copy_window *window);
/* Gathers every unit into a slot of its own; with `updated` 1, not units of frozen parameters alone. */
ad_status ad_window_refill(ad_copy_window *window, int updated) AD_CHECKED;
ad_status ad_window_gather_ahead(ad_copy_window *window, int64_t from)
    AD_CHECKED; /* posts gathers of the units after `from`, in the order of the pass */
ad_status ad_window_empty(ad_copy_window *window) AD_CHECKED;
/* A unit is acquired in all windows that are released, whichever of its parameters is used first, so that all ranks
 * gather in the same order. ad_windows_have_copies returns 1 if there is any such window with parameters of the unit;
 * ad_windows_have returns 1 if the unit was acquired and is not replaced yet. */
int ad_windows_have_copies(const ad_store *store, size_t unit);
ad_status ad_windows_acquire(ad_store *store, size_t unit) AD_CHECKED;
int ad_windows_have(const ad_store *store, size_t unit);
void ad_windows_release(ad_store *store, size_t unit);

/* spread.c. */
int ad_param_spreads(const ad_param_spec *spec); /* returns 1 if the parameter is updated in other parts than stored */
/* AD_INVALID unless values that are updated and stored so can be gathered after the update. */
ad_status ad_spread_check(const ad_param_spec *spec, int64_t rank) AD_CHECKED;
ad_status ad_spreads_create(ad_store *store) AD_CHECKED; /* gives such values and their masters memory */
void ad_spreads_destroy(ad_store *store);
size_t ad_spreads_bytes(const ad_store *store);
ad_status ad_spreads_gather(ad_store *store) AD_CHECKED; /* makes values of masters; collective */
void ad_spreads_take(ad_store *store);                   /* makes masters of values */

/* unit_order.c. ad_units_acquire acquires a unit for a use, after the units before it; ad_units_bring does so before a
 * gradient of the unit is submitted in backward, and releases it. Without ad_store_follow nothing is ordered. */
ad_status ad_units_acquire(ad_store *store, size_t unit) AD_CHECKED;
ad_status ad_units_bring(ad_store *store, size_t param) AD_CHECKED;
void ad_units_begin_pass(ad_store *store);
ad_status ad_units_end_pass(ad_store *store) AD_CHECKED;
void ad_units_release(ad_store *store);
/* Lets ranks leave out different parameters in their leaves: passes of the store gather the same units on all ranks, in
 * the same order as the reducer launches buckets. The reducer must have the store's parameters. Does nothing without
 * leaves or `releases`. Each leaf must have one forward and one backward pass. Borrows both. */
AD_INTERNAL void ad_store_follow(ad_store *store, ad_reducer *reducer);

#endif
