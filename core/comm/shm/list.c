/* The channels of groups that are lists of ranks. The file has a table of them that all ranks share, with an entry
 * for each list in use. When all members have released a list, its channel is cleared, and the entry is free for
 * another list of equally many ranks. Making and releasing lists is rare, so both search the table under one lock. A
 * list on which no call was made gets its entry when a member releases it, so that the entry counts the releases of all
 * members. The data that each rank keeps about its lists is in channel.c and release.c. */
#include "comm/shm/list.h"

#include <sched.h>
#include <string.h>
#include "comm/shm/error.h"

/* ---- the lock on the table of channels ---- */

static ad_status lock(const shm_world *world) {
  uint32_t open = 0;
  while (!atomic_compare_exchange_weak_explicit(&world->control->lists_locked, &open, 1, memory_order_acquire,
                                                memory_order_relaxed)) {
    if (ad_shm_failed(world)) return ad_shm_error(world->control);  // the rank that holds the lock may have died
    open = 0;
    sched_yield();
  }
  return AD_OK;
}

static void unlock(const shm_world *world) {
  atomic_store_explicit(&world->control->lists_locked, 0, memory_order_release);
}

/* ---- finding and making channels in the table ---- */

ad_status ad_shm_take_channel(const shm_world *world, uint64_t bytes, uint64_t *out) {
  uint64_t used = atomic_fetch_add(&world->control->channels_used, bytes);
  if (used + bytes > world->control->channels_bytes)
    return ad_fail(
        AD_MEMORY,
        "the world has too many different groups of ranks, so the memory for their channels is full; use fewer groups");
  *out = world->control->channels_start + used;
  return AD_OK;
}

static int64_t *ranks_of(const shm_world *world, const shm_entry *entry) {
  return ad_shm_at(world, entry->channel + ad_shm_channel_bytes(entry->members));
}

// Returns the entry of the list with this shape; else a free entry with room for such a list; else, if the table is
// full, NULL.
static shm_list *find_place(const shm_world *world, const ad_group_shape *shape) {
  shm_control *control = world->control;
  uint32_t used = atomic_load(&control->lists_used);
  shm_list *free = NULL;
  for (uint32_t i = 0; i < used; i++) {
    shm_list *list = &control->lists[i];
    uint64_t id = atomic_load_explicit(&list->id, memory_order_relaxed);
    if (id == shape->list) return list;
    if (!id && list->entry.members == (uint32_t)ad_shape_members(shape)) free = list;
  }
  return free || used == SHM_CHANNELS ? free : &control->lists[used];
}

// Makes the channel of a new entry, with memory for the list's ranks after the channel.
static ad_status make_channel(const shm_world *world, shm_list *list, uint32_t members) {
  shm_control *control = world->control;
  uint64_t list_bytes = (members * sizeof(int64_t) + SHM_PAIR - 1) / SHM_PAIR * SHM_PAIR;
  AD_TRY(ad_shm_take_channel(world, ad_shm_channel_bytes(members) + list_bytes, &list->entry.channel));
  list->entry.members = members;
  atomic_store(&control->lists_used, (uint32_t)(list - control->lists) + 1);
  return AD_OK;
}

// Fills a free entry for the list with this shape.
static ad_status begin_list(const shm_world *world, shm_list *list, const ad_group_shape *shape) {
  uint32_t members = (uint32_t)ad_shape_members(shape);
  if (!list->entry.channel) AD_TRY(make_channel(world, list, members));
  memcpy(ranks_of(world, &list->entry), shape->ranks, members * sizeof(int64_t));
  list->entry.shape = *shape;
  list->entry.shape.ranks = NULL;
  list->released = 0;
  atomic_store_explicit(&list->entry.state, 2, memory_order_release);
  atomic_store_explicit(&list->id, shape->list, memory_order_release);
  return AD_OK;
}

// Finds the list's entry, or makes one. The caller has locked the table.
static ad_status find_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) {
  shm_list *list = find_place(world, shape);
  if (!list)
    return ad_fail(AD_MEMORY, "the world has more than %d lists of ranks; release lists that are no longer used",
                   SHM_CHANNELS);
  if (atomic_load(&list->id) != shape->list) AD_TRY(begin_list(world, list, shape));
  *out = list;
  return AD_OK;
}

ad_status ad_shm_find_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) {
  AD_TRY(lock(world));
  ad_status status = find_list(world, shape, out);
  unlock(world);
  return status;
}

/* ---- releasing a list: clearing its channel ---- */

// Clears a channel that is no longer used: every member has released the list, and none has a call in flight. All
// members have made the same calls, so they used the first slots of the ring, or all of them.
static void clear_channel(const shm_world *world, shm_list *list) {
  uint32_t members = list->entry.members;
  shm_consumed *consumed = ad_shm_at(world, list->entry.channel);
  shm_slot *slots = (shm_slot *)(consumed + members);
  for (uint32_t i = 0; i < members; i++) {
    uint64_t calls = atomic_load(&consumed[i].calls);
    for (uint64_t k = 0; k < calls && k < SHM_RING; k++)
      atomic_store_explicit(&slots[(size_t)i * SHM_RING + k].published, 0, memory_order_relaxed);
    atomic_store_explicit(&consumed[i].calls, 0, memory_order_relaxed);
  }
  atomic_store_explicit(&list->entry.state, 0, memory_order_relaxed);
  atomic_store_explicit(&list->id, 0, memory_order_release);
}

ad_status ad_shm_leave_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) {
  AD_TRY(lock(world));
  ad_status status = find_list(world, shape, out);
  if (!status && ++(*out)->released == (*out)->entry.members) clear_channel(world, *out);
  unlock(world);
  return status;
}
