/* The channels of groups: the first member that makes a call on a group makes its channel in the shared memory file,
 * and the other members find it there. call.c writes the calls that members publish in a channel. */
#include "comm/shm/channel.h"

#include <sched.h>
#include "base/memory.h"
#include "comm/shm/error.h"
#include "comm/shm/list.h"
#include "comm/shm/world.h"
#include "mesh/group.h"

static uint64_t hash_shape(const ad_group_shape *shape) {
  const uint64_t odd = 0x9e3779b97f4a7c15ull;
  uint64_t hash = ((uint64_t)shape->base + 1 + (uint64_t)shape->head + ((uint64_t)shape->gap << 20)) * odd;
  for (int k = 0; k < shape->count; k++) {
    hash = (hash ^ hash >> 29 ^ (uint64_t)shape->size[k]) * odd;
    hash = (hash ^ hash >> 29 ^ (uint64_t)shape->stride[k]) * odd;
  }
  return hash ^ hash >> 32;
}

// Makes the group's channel and writes it to `entry`: this rank is the first that makes a call on the group, and so
// owns the entry. The slots are zero, like all memory of a new file.
static ad_status write_entry(shm_world *world, shm_entry *entry, const ad_call *call) {
  ad_status status = ad_shm_take_channel(world, ad_shm_channel_bytes(call->members), &entry->channel);
  if (status) {
    atomic_store(&entry->state, 0);
    return status;
  }
  entry->shape = call->shape;
  entry->members = call->members;
  atomic_store_explicit(&entry->state, 2, memory_order_release);
  return AD_OK;
}

// Finds the group's entry in the table that all ranks share, or makes it.
static ad_status find_entry(shm_world *world, const ad_call *call, uint64_t hash, shm_entry **out) {
  for (uint64_t i = 0; i < SHM_CHANNELS; i++) {
    shm_entry *entry = &world->control->entries[(hash + i) % SHM_CHANNELS];
    uint32_t state = 0;
    if (atomic_compare_exchange_strong(&entry->state, &state, 1)) AD_TRY(write_entry(world, entry, call));
    while ((state = atomic_load_explicit(&entry->state, memory_order_acquire)) == 1) {
      if (ad_shm_failed(world)) return ad_shm_error(world->control);
      sched_yield();
    }
    if (state == 2 && ad_shape_same(&entry->shape, &call->shape)) {
      *out = entry;
      return AD_OK;
    }
  }
  return ad_fail(AD_MEMORY, "the world has more than %d different groups of ranks; use fewer groups", SHM_CHANNELS);
}

const shm_entry *ad_shm_entry(const shm_control *control, uint64_t channel) {
  for (int i = 0; i < SHM_CHANNELS; i++) {
    const shm_entry *entry = &control->entries[i];
    if (atomic_load_explicit(&entry->state, memory_order_acquire) == 2 && entry->channel == channel) return entry;
  }
  uint32_t lists = atomic_load(&control->lists_used);
  for (uint32_t i = 0; i < lists; i++) {
    const shm_entry *entry = &control->lists[i].entry;
    if (atomic_load_explicit(&entry->state, memory_order_acquire) == 2 && entry->channel == channel) return entry;
  }
  return NULL;
}

ad_group_shape ad_shm_entry_shape(shm_control *control, const shm_entry *entry) {
  ad_group_shape shape = entry->shape;
  char *channel = (char *)control + entry->channel;
  if (shape.list) shape.ranks = (const int64_t *)(channel + ad_shm_channel_bytes(entry->members));
  return shape;
}

// Returns the element of this rank's hash table that has the group's channel, or else the free element in which the
// channel belongs.
static shm_channel **place_in_table(shm_world *world, const ad_group_shape *shape, uint64_t hash) {
  for (uint64_t i = hash;; i++) {
    shm_channel **place = &world->channels[i % world->channel_slots];
    if (!*place || ad_shape_same(&(*place)->shape, shape)) return place;
  }
}

// Makes this rank's hash table of channels larger, so that at most half of its elements are used.
static ad_status grow_table(shm_world *world) {
  shm_channel **old = world->channels;
  uint32_t old_slots = world->channel_slots, slots = old_slots ? 2 * old_slots : 32;
  if (2 * (world->channel_count + 1) <= old_slots) return AD_OK;
  AD_TRY(ad_new(slots, &world->channels));
  world->channel_slots = slots;
  for (uint32_t i = 0; i < old_slots; i++)
    if (old[i]) *place_in_table(world, &old[i]->shape, hash_shape(&old[i]->shape)) = old[i];
  ad_release(old);
  return AD_OK;
}

// Makes this rank's data about the channel of an entry.
static ad_status make_channel(const shm_world *world, const ad_call *call, const shm_entry *entry, shm_channel **out) {
  shm_channel *channel;
  AD_TRY(ad_new(1, &channel));
  channel->shape = ad_shm_entry_shape(world->control, entry);
  channel->members = call->members;
  channel->index = call->index;
  channel->consumed = ad_shm_at(world, entry->channel);
  channel->slots = (shm_slot *)(channel->consumed + call->members);
  *out = channel;
  return AD_OK;
}

// Finds this rank's channel of a list of ranks, or makes it.
static ad_status find_channel_of_list(shm_world *world, const ad_call *call, shm_channel **out) {
  shm_list *list = world->control->lists;  // only a first value: replaced when the list is found
  shm_channel *channel = world->lists;
  while (channel && channel->shape.list != call->shape.list) channel = channel->next;
  if (!channel) {
    AD_TRY(ad_shm_find_list(world, &call->shape, &list));
    AD_TRY(make_channel(world, call, &list->entry, &channel));
    channel->list = list;
    channel->next = world->lists;
    world->lists = channel;
  }
  *out = world->last_channel = channel;
  return AD_OK;
}

static ad_status add_channel(shm_world *world, const ad_call *call, uint64_t hash, shm_channel **out) {
  shm_channel *channel;
  shm_entry *entry = world->control->entries;  // only a first value: find_entry replaces it
  AD_TRY(grow_table(world));
  AD_TRY(find_entry(world, call, hash, &entry));
  AD_TRY(make_channel(world, call, entry, &channel));
  *place_in_table(world, &call->shape, hash) = channel;
  world->channel_count++;
  *out = channel;
  return AD_OK;
}

ad_status ad_shm_channel(shm_world *world, const ad_call *call, shm_channel **out) {
  shm_channel *channel = world->last_channel;
  if (channel && ad_shape_same(&channel->shape, &call->shape)) {
    *out = channel;
    return AD_OK;
  }
  if (call->shape.list) return find_channel_of_list(world, call, out);
  uint64_t hash = hash_shape(&call->shape);
  channel = world->channel_slots ? *place_in_table(world, &call->shape, hash) : NULL;
  if (!channel) AD_TRY(add_channel(world, call, hash, &channel));
  *out = world->last_channel = channel;
  return AD_OK;
}

static void free_lists(shm_channel *first) {
  for (shm_channel *next; first; first = next) {
    next = first->next;
    ad_release(first);
  }
}

void ad_shm_channels_free(shm_world *world) {
  free_lists(world->lists);
  free_lists(world->released);
  for (uint32_t i = 0; i < world->channel_slots; i++) ad_release(world->channels[i]);
  ad_release(world->channels);
}

// Returns 1 if all members have consumed their first `needed` calls.
static int have_consumed(shm_channel *channel, uint64_t needed) {
  if (channel->consumed_by_all >= needed) return 1;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < channel->members; i++) {
    uint64_t calls = atomic_load_explicit(&channel->consumed[i].calls, memory_order_acquire);
    if (calls < least) least = calls;
  }
  channel->consumed_by_all = least;
  return least >= needed;
}

int ad_shm_ring_free(shm_channel *channel) {
  return have_consumed(channel, channel->next_sequence < SHM_RING ? 0 : channel->next_sequence - SHM_RING + 1);
}

int ad_shm_consumed(shm_channel *channel, uint64_t sequence) {
  return ad_shm_is_over(channel) || have_consumed(channel, sequence + 1);
}
