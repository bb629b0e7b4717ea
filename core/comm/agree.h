/* Makes the ranks of a group agree: all get the same status after a step that may have failed on some of them, or
 * all get the same numbers. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H
#include "addend/comm.h"
#include "base/internal.h"

/* Makes all ranks of a group agree on the outcome of a step that may have failed on some of them; all of them call
 * this function. `status` is this rank's outcome, with its message in ad_last_error(). Returns AD_OK if `status` is
 * AD_OK on all ranks of the group; otherwise returns, on every rank, the status and message of the first rank that
 * failed. */
AD_INTERNAL ad_status ad_agree(ad_comm *comm, const ad_group *group, ad_status status, const char *site) AD_CHECKED;
/* Sets `numbers` on all ranks of the group to those of its first rank (a broadcast). All ranks of the group call it. */
AD_INTERNAL ad_status ad_share_first(ad_comm *comm, const ad_group *group, int64_t *numbers, size_t count,
                                     const char *site) AD_CHECKED;

#endif
