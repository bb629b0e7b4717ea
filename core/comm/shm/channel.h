/* Channels: memory in the shared memory file through which the members of a group publish their calls to each other. */
#ifndef COMM_SHM_CHANNEL_H
#define COMM_SHM_CHANNEL_H
#include "comm/shm/slot.h"
#include "mesh/group.h"

typedef struct shm_world shm_world;

/* This rank's data about a channel. */
typedef struct shm_channel {
  ad_group_shape shape;
  uint32_t members, index;
  shm_consumed *consumed;
  shm_slot *slots;
  uint64_t next_sequence;
  uint64_t consumed_by_all;  // how many calls all members had consumed when this rank last looked
  uint64_t finished;         // bit i: call i, counted from this rank's first unconsumed one, is finished on this rank
  void *tables[SHM_RING];    // tables that are too large for the slot; each is freed when its slot is used again
  const shm_list *list;      // if the group is a list of ranks: the list's entry in the shared file
  struct shm_channel *next;  // if the group is a list of ranks: the next channel of such a group on this rank
} shm_channel;

static inline shm_slot *ad_shm_slot_at(const shm_channel *channel, uint32_t member, uint64_t sequence) {
  return &channel->slots[(size_t)member * SHM_RING + sequence % SHM_RING];
}

/* Finds the channel of the call's group, or makes it. */
ad_status ad_shm_channel(shm_world *world, const ad_call *call, shm_channel **out) AD_CHECKED;
void ad_shm_channels_free(shm_world *world);
/* Returns 1 if the slot of the channel's next call is free to be written. */
int ad_shm_ring_free(shm_channel *channel);
/* Returns 1 if all members have consumed the call. */
int ad_shm_consumed(shm_channel *channel, uint64_t sequence);
/* Returns 1 if the channel belonged to a list of ranks that all members have released. */
static inline int ad_shm_is_over(const shm_channel *channel) {
  return channel->list && atomic_load_explicit(&channel->list->id, memory_order_acquire) != channel->shape.list;
}
static inline uint64_t ad_shm_channel_bytes(uint64_t members) {
  return members * (sizeof(shm_consumed) + SHM_RING * sizeof(shm_slot));
}
/* Returns the shape of the entry's group. If the group is a list, the shape borrows the list's ranks from the shared
 * memory file. */
ad_group_shape ad_shm_entry_shape(shm_control *control, const shm_entry *entry);
/* Returns the entry of the group whose channel starts at offset `channel`, or NULL if there is none. */
const shm_entry *ad_shm_entry(const shm_control *control, uint64_t channel);

#endif
