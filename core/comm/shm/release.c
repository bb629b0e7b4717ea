/* Releases lists of ranks: the data that this rank keeps for a list is freed when all members have released the
 * list. */
#include "base/memory.h"
#include "comm/shm/list.h"
#include "comm/shm/memory.h"
#include "comm/shm/transfer.h"

// For lists that all members have released: frees the data that this rank kept, and drops messages that this rank has
// not received. No more messages come on such lists.
static void sweep(shm_world *world) {
  ad_shm_progress_transfers(world);
  ad_shm_look_at_kept(world);
  for (shm_channel **link = &world->released; *link;) {
    shm_channel *channel = *link;
    if (!ad_shm_is_over(channel)) {
      link = &channel->next;
      continue;
    }
    *link = channel->next;
    ad_shm_drop_messages(world, channel->shape.list);
    for (int i = 0; i < SHM_RING; i++)
      if (channel->tables[i]) ad_shm_free(world, channel->tables[i]);
    ad_release(channel);
  }
}

// Removes the list's channel from world->lists and returns it; returns NULL if this rank has made no call on the list.
static shm_channel *take_channel(shm_world *world, uint64_t id) {
  shm_channel **link = &world->lists;
  while (*link && (*link)->shape.list != id) link = &(*link)->next;
  shm_channel *channel = *link;
  if (channel) *link = channel->next;
  if (world->last_channel == channel) world->last_channel = NULL;
  return channel;
}

// Keeps the channel of a list that this rank has released until all members have released the list.
static void put_away(shm_world *world, shm_channel *channel, const shm_list *list, uint64_t id) {
  // If there is no memory, unreceived messages of the list stay until the world ends.
  if (!channel && ad_new(1, &channel)) return;
  channel->shape.list = id;
  channel->list = list;
  channel->next = world->released;
  world->released = channel;
}

void ad_shm_release_list(shm_world *world, const ad_group_shape *shape) {
  shm_list *list = NULL;
  shm_channel *channel = take_channel(world, shape->list);
  ad_status status = ad_shm_leave_list(world, shape, &list);
  // If the list has no entry in the shared memory file, no call was ever made on it, and none will be.
  if (!status || channel) put_away(world, channel, status ? channel->list : list, shape->list);
  sweep(world);
}
