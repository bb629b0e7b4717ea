/* One piece of working memory for each comm, in which the inputs of collectives are put together. It only grows, so
 * that a step no larger than an earlier one allocates nothing. */
#ifndef COMM_SCRATCH_H
#define COMM_SCRATCH_H
#include "addend/comm.h"

/* Gives at least `bytes` of memory, 64-byte aligned, not cleared; valid until this function is called again, freed by
 * ad_comm_close. AD_MEMORY. */
ad_status ad_comm_scratch(ad_comm *comm, size_t bytes, void **out) AD_CHECKED;

#endif
