/* Each comm has one piece of working memory, for packing the inputs of collectives. It only grows, so that a step no
 * larger than an earlier step allocates nothing. */
#ifndef COMM_SCRATCH_H
#define COMM_SCRATCH_H
#include "addend/comm.h"

/* Gives at least `bytes` of memory, 64-byte aligned, not cleared; valid until this function is called again, freed by
 * ad_comm_close. AD_MEMORY. */
ad_status ad_comm_scratch(ad_comm *comm, size_t bytes, void **out) AD_CHECKED;

#endif
