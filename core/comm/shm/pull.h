/* Reading ("pulling") bytes from the memory of a peer's process. */
#ifndef COMM_SHM_PULL_H
#define COMM_SHM_PULL_H
#include "comm/shm/world.h"

/* Called before this rank joins the world: permits the other ranks to read this rank's memory, and publishes a word
 * that they try to read. */
void ad_shm_pull_allow(shm_world *world);
/* ad_shm_pull_try is called when all ranks have joined: it tries to read the word of each other rank. When all ranks
 * have tried, ad_shm_pull_decide sets world->pulls, which is the same on all ranks: 1 if all can read each other's
 * memory. */
void ad_shm_pull_try(shm_world *world);
void ad_shm_pull_decide(shm_world *world);
/* Ends the permission that ad_shm_pull_allow gave. */
void ad_shm_pull_end(const shm_world *world);
/* Reads `bytes` bytes at address `from` in the process of rank `rank`, for the call or the transfer `c`. Returns 0
 * if the bytes could not be read: either the world has an error, or the process has ended and its death is not reported
 * yet (the caller then tries again later). */
int ad_shm_pull(shm_world *world, shm_call *c, uint32_t rank, uint64_t from, void *to, size_t bytes);

#endif
