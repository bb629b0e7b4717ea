/* For ranks that addend's launcher did not start: finds out whether their processes still run. */
#ifndef COMM_SHM_DEATHS_H
#define COMM_SHM_DEATHS_H
#include "comm/shm/world.h"

/* Begins to watch the processes of all ranks, whose pids are in `pids`. */
ad_status ad_shm_deaths_begin(shm_world *world, const int32_t *pids) AD_CHECKED;
void ad_shm_deaths_end(shm_world *world);
/* Checks all processes. If one ended without leaving the world, that becomes the world's error. */
void ad_shm_look_for_dead(shm_world *world);

#endif
