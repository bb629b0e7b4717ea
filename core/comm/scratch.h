/* Scratch memory: each comm has one piece, in which inputs of collectives are packed. It only grows, so that a step
 * no larger than an earlier step allocates nothing. */
#ifndef COMM_SCRATCH_H
#define COMM_SCRATCH_H
#include "addend/comm.h"

/* Sets *out to at least `bytes` bytes of memory, 64-byte aligned, not cleared. The memory is valid until this function
 * is called again; ad_comm_close frees it. Returns AD_MEMORY if there is not enough. */
ad_status ad_comm_scratch(ad_comm *comm, size_t bytes, void **out) AD_CHECKED;

#endif
