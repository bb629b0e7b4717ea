/* What a caller inside the library may tell of a collective besides what it is. Hints change no result; ranks may
 * differ in them. */
#ifndef COMM_HINT_H
#define COMM_HINT_H
#include "addend/comm.h"

/* ad_comm_post. `past_caches` 1: one of many calls whose outputs together are larger than caches and not read before
 * all of them are written, so that writing them through the caches would only drive out what is needed. */
ad_status ad_comm_post_hinted(ad_comm *comm, const ad_collective *collective, int past_caches,
                              ad_request *out) AD_CHECKED;

#endif
