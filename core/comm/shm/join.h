/* Joining a world, and opening it as a communicator. */
#ifndef COMM_SHM_JOIN_H
#define COMM_SHM_JOIN_H
#include "addend/comm.h"
#include "comm/shm/world.h"

/* Joins the world as rank `rank` and waits for the other ranks. Takes ownership of fd and `control`, also on
 * failure. `pids` has the process id of each rank; this rank watches these processes from now on. NULL: the launcher
 * watches them. */
ad_status ad_shm_join(int fd, shm_control *control, uint32_t rank, const int32_t *pids, shm_world **out) AD_CHECKED;
/* Returns 1 if `addend run` or ad_launch started this process as a rank. */
int ad_shm_launched(void);
/* ad_shm_open opens the world of the launcher that started this process; ad_shm_open_alone opens a new world of one
 * rank. */
ad_status ad_shm_open(ad_comm **out) AD_CHECKED;
ad_status ad_shm_open_alone(ad_comm **out) AD_CHECKED;

#endif
