/* One outcome for all ranks of a group, where each did something alone that may have failed. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H
#include "addend/comm.h"

/* `status` is what happened on this rank, its message in ad_last_error(). AD_OK when it is that on all ranks; otherwise
 * the status and the message of the group's first rank that failed, on every rank. Collective over the group. */
ad_status ad_agree(ad_comm *comm, const ad_group *group, ad_status status, const char *site) AD_CHECKED;

#endif
