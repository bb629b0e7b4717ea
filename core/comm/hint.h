/* Hints that code inside the library may give with a collective. Hints change no result, and ranks may give different
 * hints. */
#ifndef COMM_HINT_H
#define COMM_HINT_H
#include "addend/comm.h"

/* Posts a collective as ad_comm_post does, with a hint. Set past_caches to 1 if the call is one of many calls whose
 * outputs together are larger than the caches and are read only after all of them are written. The outputs then bypass
 * the caches, so that they do not evict other data. */
ad_status ad_comm_post_hinted(ad_comm *comm, const ad_collective *collective, int past_caches,
                              ad_request *out) AD_CHECKED;

#endif
