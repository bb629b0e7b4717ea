/* Which member reduces which part of a reduction. The functions only compute. */
#ifndef COMM_SHM_PARTS_H
#define COMM_SHM_PARTS_H
#include "comm/call.h"

/* Returns how many elements member k reduces: the size of its part. */
size_t ad_shm_part(const ad_call *call, uint32_t k);
/* Returns how many elements of member k's part, from element `at` on, are contiguous in the full value; *whole is
 * set to their offset in the full value. ad_call_run does the same for blocks. */
size_t ad_shm_run(const ad_call *call, uint32_t k, size_t at, size_t *whole);

#endif
