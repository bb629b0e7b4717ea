/* The channels of groups that are lists of ranks. */
#ifndef COMM_SHM_LIST_H
#define COMM_SHM_LIST_H
#include "comm/shm/channel.h"
#include "comm/shm/world.h"

/* Allocates memory in the shared memory file for a channel; *out is its offset. */
ad_status ad_shm_take_channel(const shm_world *world, uint64_t bytes, uint64_t *out) AD_CHECKED;
/* Finds the list's entry in the table that all ranks share; makes one if there is none. */
ad_status ad_shm_find_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) AD_CHECKED;
/* Finds the list's entry, and records that this rank makes no more calls on the list. The last member that does this
 * clears the channel. */
ad_status ad_shm_leave_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) AD_CHECKED;

/* ---- in release.c: releasing a list's channel ---- */

/* Releases a list: this rank makes no more calls on it. This is the backend's function `release`. */
void ad_shm_release_list(shm_world *world, const ad_group_shape *shape);

#endif
