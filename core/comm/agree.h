/* Gives all ranks of a group one outcome, where each did something that may have failed, or one rank's numbers. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H
#include "addend/comm.h"
#include "base/internal.h"

/* `status` is what happened on this rank, with its message in ad_last_error(). Returns AD_OK if it is AD_OK on all
 * ranks of the group; otherwise, on every rank, the status and the message of the first one that failed. All ranks of
 * the group call it. */
AD_INTERNAL ad_status ad_agree(ad_comm *comm, const ad_group *group, ad_status status, const char *site) AD_CHECKED;
/* Broadcasts `numbers` of the group's first rank to all its ranks. All ranks of the group call it. */
AD_INTERNAL ad_status ad_share_first(ad_comm *comm, const ad_group *group, int64_t *numbers, size_t count,
                                     const char *site) AD_CHECKED;

#endif
