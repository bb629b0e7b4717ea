/* Opens a communicator: chooses the backend with which this process joins a world. The backends do the joining. */
#include "addend/comm.h"
#include "base/error.h"
#include "comm/foreign.h"
#include "comm/join.h"
#include "comm/mpi/join.h"
#include "comm/processor.h"
#include "comm/settings.h"
#include "comm/shm/join.h"

static ad_status check_call(ad_comm **out) {
  if (!out)
    return ad_fail(AD_INVALID,
                   "no communicator was opened, because `out` is NULL; pass the address of an ad_comm pointer");
  return ad_settings_check();
}

ad_status ad_comm_open_alone(ad_comm **out) {
  AD_TRY(check_call(out));
  return ad_shm_open_alone(out);
}

int ad_comm_launched(void) { return ad_shm_launched() || ad_mpi_launched() || ad_torchrun_launched(); }

ad_status ad_comm_open(ad_comm **out) {
  AD_TRY(check_call(out));
  if (!ad_comm_launched()) AD_TRY(ad_foreign_check());
  if (ad_shm_launched()) return ad_shm_open(out);
  if (!ad_mpi_launched()) return ad_torchrun_launched() ? ad_torchrun_open(out) : ad_shm_open_alone(out);
  AD_TRY(ad_processor_check(ad_processor_kind(), INT64_MAX));
  return ad_mpi_open(out);
}
