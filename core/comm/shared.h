/* Memory that ranks of one node share. */
#ifndef COMM_SHARED_H
#define COMM_SHARED_H
#include "addend/comm.h"

/* Allocates one zeroed block of memory that all members of `group` share. Sets *out to the address of the block in
 * this member's process. All members call this function, and each frees the block; its memory is released when the last
 * member has freed it. AD_INVALID unless ad_comm_shares returns 1 for the group. */
#define ad_comm_alloc_shared(...) ad_comm_alloc_shared_at(__VA_ARGS__, AD_HERE)
AD_CHECKED ad_status ad_comm_alloc_shared_at(ad_comm *comm, const ad_group *group, size_t bytes, void **out,
                                             const char *site);
/* Returns 1 if all members of `group` are on one node and can share memory, else 0. Does not communicate. */
int ad_comm_shares(const ad_comm *comm, const ad_group *group);

#endif
