/* The first error of the world. */
#ifndef COMM_SHM_ERROR_H
#define COMM_SHM_ERROR_H
#include "comm/shm/world.h"

/* Sets the error of the world and wakes all ranks, unless the world has an error already. */
void ad_shm_raise(shm_control *control, uint32_t rank, ad_status status, ad_status cause, const char *text);
/* Sets the error of the world to this rank's last error (its message is ad_last_error); `cause` is the status of
 * that error. */
void ad_shm_raise_own(shm_world *world, ad_status cause);
/* Returns the status of the world's error, and makes its message this rank's ad_last_error. */
ad_status ad_shm_error(const shm_control *control);

#endif
