/* Hints that code inside the library may give with a collective. Hints change no result, and ranks may give different
 * hints. */
#ifndef COMM_HINT_H
#define COMM_HINT_H
#include "addend/comm.h"

/* ad_comm_post with a hint. `past_caches` 1: this is one of many calls whose outputs together are larger than the
 * caches and are not read before all of them are written, so that writing them through the caches would only drive out
 * what is needed. */
ad_status ad_comm_post_hinted(ad_comm *comm, const ad_collective *collective, int past_caches,
                              ad_request *out) AD_CHECKED;

#endif
