/* Law 5: the step's counts, one small sum that is posted when the batch is read. */
#include "array/array.h"
#include "base/switches.h"
#include "addend/reduce.h"

ad_status ad_count_post(ad_comm *comm, const ad_group *group, int64_t local, const char *site, ad_count *out) {
  ad_count count = {0};
  void *memory;
  AD_TRY(ad_comm_alloc(comm, sizeof *count.value, &memory));
  count.value = memory;
  *count.value = local;
  ad_collective call = {.op = AD_ALL_REDUCE, .group = *group, .in = memory, .out = memory, .count = 1, .dtype = AD_I64};
  call.site = site;
  ad_status status = ad_switched(AD_SWITCH_LOCAL_COUNT) ? AD_OK : ad_comm_post(comm, &call, &count.request);
  if (status) {
    ad_comm_free(comm, memory);
    return status;
  }
  *out = count;
  return AD_OK;
}

ad_status ad_count_wait(ad_comm *comm, ad_count *count, int64_t *out) {
  ad_status status = ad_comm_wait(comm, &count->request);
  if (!status) *out = *count->value;
  ad_comm_free(comm, count->value);
  *count = (ad_count){0};
  return status;
}
