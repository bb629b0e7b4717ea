/* Declares backend shm, the table of functions that comm.c calls. */
#ifndef COMM_SHM_BACKEND_H
#define COMM_SHM_BACKEND_H
#include "comm/backend.h"
#include "comm/shm/world.h"

extern const ad_backend ad_backend_shm;
/* Advances all calls in flight as far as is possible now. */
void ad_shm_progress(shm_world *world);

#endif
