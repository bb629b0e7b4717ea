/* Carries out calls. Each function ad_shm_work_... does the work that can be done now, and returns 1 when the call
 * is complete for this member. */
#ifndef COMM_SHM_WORK_H
#define COMM_SHM_WORK_H
#include "comm/shm/world.h"

/* ---- in work.c: calls that all members work on chunk by chunk ---- */

int ad_shm_work_chunks(shm_world *world, shm_call *c);
/* Returns the number of chunks in this member's part. */
uint32_t ad_shm_chunks(const ad_call *call);
/* Lists in `sources` the addresses of element `whole` in each value that members contribute; all values are in the
 * shared memory file. Returns their number, at most AD_CALL_NODES_MAX. */
uint32_t ad_shm_sources(const shm_world *world, const shm_call *c, size_t whole, const void **sources);

/* ---- in own.c: calls of which each member does its own part ---- */

int ad_shm_work_rounds(shm_world *world, shm_call *c);
int ad_shm_work_alone(shm_world *world, shm_call *c);

#endif
