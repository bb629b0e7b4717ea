/* Law 5: the step's counts, one small sum that is posted when the batch is read. */
#include "addend/reduce.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/switches.h"

struct ad_count {
  ad_comm *comm;
  int64_t *value;  // in comm memory
  ad_request request;
  int posted;
};

ad_status ad_count_create(ad_comm *comm, ad_count **out) {
  AD_NEED(comm, out);
  ad_count *count;
  void *memory;
  AD_TRY(ad_new(1, &count));
  ad_status status = ad_comm_alloc(comm, sizeof *count->value, &memory);
  if (status) {
    ad_release(count);
    return status;
  }
  count->comm = comm;
  count->value = memory;
  *out = count;
  return AD_OK;
}

void ad_count_destroy(ad_count *count) {
  if (!count) return;
  // Peers may still read it; an error there ends this wait too.
  if (count->request.id && ad_comm_wait(count->comm, &count->request)) count->request.id = 0;
  ad_comm_free(count->comm, count->value);
  ad_release(count);
}

ad_status ad_count_post(ad_count *count, const ad_group *group, int64_t local, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(count, group);
  AD_NEED(group->mesh);
  if (count->posted) {
    return ad_fail(AD_INVALID, "%s: count: the one posted before is still under way; wait for it first", site);
  }
  *count->value = local;
  ad_collective call = {.op = AD_ALL_REDUCE, .group = *group, .in = count->value, .out = count->value, .count = 1};
  call.dtype = AD_I64;
  call.site = site;
  if (!ad_switched(AD_SWITCH_LOCAL_COUNT)) AD_TRY(ad_comm_post(count->comm, &call, &count->request));
  count->posted = 1;
  return AD_OK;
}

ad_status ad_count_wait(ad_count *count, int64_t *out) {
  AD_NEED(count, out);
  if (!count->posted) return ad_fail(AD_INVALID, "count: wait, but none was posted");
  count->posted = 0;
  AD_TRY(ad_comm_wait(count->comm, &count->request));
  *out = *count->value;
  return AD_OK;
}
