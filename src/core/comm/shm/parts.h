/* Who reduces which part of a reduction: arithmetic, without a world. */
#ifndef COMM_SHM_PARTS_H
#define COMM_SHM_PARTS_H
#include "comm/call.h"

/* How many elements member k reduces: the size of its part. */
size_t ad_shm_part(const ad_call *call, uint32_t k);
/* As ad_call_run, of member k's part: how many elements from its element `at` on are neighbours in the whole; *whole:
 * where they start there. */
size_t ad_shm_run(const ad_call *call, uint32_t k, size_t at, size_t *whole);

#endif
