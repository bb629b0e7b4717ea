/* The channels of groups that are lists of ranks. */
#ifndef COMM_SHM_LIST_H
#define COMM_SHM_LIST_H
#include "comm/shm/channel.h"
#include "comm/shm/world.h"

/* Allocates memory of the file for a channel; *out is its offset. */
ad_status ad_shm_take_channel(const shm_world *world, uint64_t bytes, uint64_t *out) AD_CHECKED;
/* Finds the list's entry in the table that all ranks share, or makes it. */
ad_status ad_shm_find_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) AD_CHECKED;
/* Finds the list's entry and notes that this rank makes no more calls on the list. The last member to do so clears the
 * channel. */
ad_status ad_shm_leave_list(const shm_world *world, const ad_group_shape *shape, shm_list **out) AD_CHECKED;

/* ---- in release.c: releasing a list's channel ---- */

/* The backend's `release`: this rank makes no more calls on the list. */
void ad_shm_release_list(shm_world *world, const ad_group_shape *shape);

#endif
