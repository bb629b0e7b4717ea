/* Ranks that no launcher of addend's started: whether their processes still run. */
#ifndef COMM_SHM_DEATHS_H
#define COMM_SHM_DEATHS_H
#include "comm/shm/world.h"

/* Watches these processes, one of each rank, from now on. */
ad_status ad_shm_deaths_begin(shm_world *world, const int32_t *pids) AD_CHECKED;
void ad_shm_deaths_end(shm_world *world);
/* Makes it the world's error that a rank's process ended without leaving the world. */
void ad_shm_look_for_dead(shm_world *world);

#endif
