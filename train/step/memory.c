/* Measures the memory of a run's ranks, as the kernel counts it. train/plan computes what they should have. */
#include "base/error.h"
#include "base/process.h"
#include "step/run.h"

static ad_status over_ranks(ad_run *run, size_t own, ad_reduction reduction, int64_t *out) {
  run->sums[0] = (double)own;
  AD_TRY(ad_run_reduce_sums(run, 1, reduction, AD_HERE));
  *out = (int64_t)run->sums[0];
  return AD_OK;
}

ad_status ad_run_measure_memory(ad_run *run, ad_run_memory *out) {
  AD_NEED(run, out);
  ad_run_memory memory;
  size_t own = ad_process_pss();
  AD_TRY(over_ranks(run, own, AD_MAX, &memory.rank_bytes));
  AD_TRY(over_ranks(run, own, AD_SUM, &memory.all_bytes));
  *out = memory;
  return AD_OK;
}
