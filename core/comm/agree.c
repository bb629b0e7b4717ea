/* Makes the ranks of a group agree on one outcome of a step that may have failed on some of them. */
#include "comm/agree.h"

#include <stdio.h>
#include "base/error.h"

typedef struct outcome {
  int32_t status;
  char message[AD_MESSAGE_MAX];
} outcome;

// Sets *first to the index of the first member whose status is an error, or to the group's size if there is none.
static ad_status find_first_failure(ad_comm *comm, const ad_group *group, ad_status status, const char *site,
                                    int64_t *first) {
  *first = status ? ad_group_index(group, ad_comm_rank(comm)) : ad_group_size(group);
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = *group,
                          .in = first,
                          .out = first,
                          .count = 1,
                          .dtype = AD_I64,
                          .reduction = AD_MIN,
                          .site = site};
  return ad_comm_run(comm, &reduce);
}

ad_status ad_agree(ad_comm *comm, const ad_group *group, ad_status status, const char *site) {
  outcome shared = {.status = status};
  if (status) snprintf(shared.message, sizeof shared.message, "%s", ad_last_error());
  int64_t first = 0;
  AD_TRY(find_first_failure(comm, group, status, site, &first));
  if (first == ad_group_size(group)) return AD_OK;
  ad_collective broadcast = {.size = sizeof broadcast,
                             .op = AD_BROADCAST,
                             .group = *group,
                             .in = &shared,
                             .out = &shared,
                             .count = sizeof shared / sizeof(int32_t),
                             .dtype = AD_I32,
                             .root = first,
                             .site = site};
  AD_TRY(ad_comm_run(comm, &broadcast));
  return ad_fail_on_all_ranks((ad_status)shared.status, "%s", shared.message);
}

ad_status ad_share_first(ad_comm *comm, const ad_group *group, int64_t *numbers, size_t count, const char *site) {
  ad_collective broadcast = {.size = sizeof broadcast,
                             .op = AD_BROADCAST,
                             .group = *group,
                             .in = numbers,
                             .out = numbers,
                             .count = count,
                             .dtype = AD_I64,
                             .site = site};
  return ad_comm_run(comm, &broadcast);
}
