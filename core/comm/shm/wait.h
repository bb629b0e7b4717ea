/* Waiting for other ranks, and waking ranks that wait. */
#ifndef COMM_SHM_WAIT_H
#define COMM_SHM_WAIT_H
#include "comm/shm/world.h"

/* Waits until ready(world, subject) is true: spins, then yields, then sleeps. ready() also advances calls. `blocking`
 * is the awaited call; NULL: the wait is for all ranks to join. Returns AD_OK, or the error of the world. */
ad_status ad_shm_wait(shm_world *world, int (*ready)(shm_world *world, void *subject), void *subject,
                      const shm_call *blocking) AD_CHECKED;
/* For a rank that tests a call in a loop instead of waiting: looks ten times a second, as a wait does, whether ranks
 * that the call needs have died or left. */
void ad_shm_look_in_test(shm_world *world, const shm_call *tested);
/* Called when this rank may be able to advance a call: ends its long wait in the eyes of the other ranks, until it
 * sleeps again. */
static inline void ad_shm_pause_long(const shm_world *world) {
  _Atomic uint64_t *epoch = &world->records[world->rank].epoch;
  if (atomic_load_explicit(epoch, memory_order_relaxed) & 1) atomic_fetch_add(epoch, 1);
}

/* ---- in left.c: ranks that left the world ---- */

/* Sets the world's error: rank `rank`, which the call needs, has left. */
void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank);
int ad_shm_has_left(const shm_world *world, uint32_t rank);

/* ---- in circle.c: ranks that wait for each other ---- */

/* Sets the world's error if this rank is in a circle of ranks that wait for each other. */
void ad_shm_look_for_circle(shm_world *world);

/* ---- in wake.c: waking ranks that sleep ---- */

/* These functions wake ranks that may wait for something that has just happened: ad_shm_wake the channel's sleeping
 * members, ad_shm_wake_rank one rank if it sleeps, ad_shm_wake_all all ranks. */
void ad_shm_wake(shm_world *world, const shm_channel *channel);
void ad_shm_wake_rank(shm_world *world, uint32_t rank);
void ad_shm_wake_all(shm_control *control);

#endif
