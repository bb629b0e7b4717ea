/* Waiting for other ranks, and waking those that wait. */
#ifndef COMM_SHM_WAIT_H
#define COMM_SHM_WAIT_H
#include "comm/shm/world.h"

/* Waits until ready(world, subject) is true: spins, then yields, then sleeps. ready() itself moves calls on. `blocking`
 * is the call that is waited for; NULL: all ranks' joining. AD_OK, or the error of the world. */
ad_status ad_shm_wait(shm_world *world, int (*ready)(shm_world *world, void *subject), void *subject,
                      const shm_call *blocking) AD_CHECKED;
/* Makes it the world's error that rank `rank`, without which the call cannot be completed, has left. */
void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank);

/* ---- wake.c ---- */

/* Wakes members of the channel that sleep, since something happened that they may wait for; ad_shm_wake_all all ranks.
 */
void ad_shm_wake(shm_world *world, const shm_channel *channel);
void ad_shm_wake_all(shm_control *control);

#endif
