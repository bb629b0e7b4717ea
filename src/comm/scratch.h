/* One piece of working memory per comm, for packing what a collective sends: it only grows, so that a step no larger
 * than an earlier one allocates nothing. */
#ifndef COMM_SCRATCH_H
#define COMM_SCRATCH_H
#include "addend/comm.h"

/* At least `bytes`, 64-byte aligned, with anything in it; valid until the next call, given back by ad_comm_close.
 * AD_MEMORY. */
ad_status ad_comm_scratch(ad_comm *comm, size_t bytes, void **out) AD_CHECKED;

#endif
