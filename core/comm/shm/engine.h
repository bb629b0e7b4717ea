/* Engine shm as the functions that comm.c calls. */
#ifndef COMM_SHM_ENGINE_H
#define COMM_SHM_ENGINE_H
#include "comm/engine.h"
#include "comm/shm/world.h"

extern const ad_engine ad_engine_shm;
/* Carries all calls under way as far as is possible now. */
void ad_shm_progress(shm_world *world);

#endif
