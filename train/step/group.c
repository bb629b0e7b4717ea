/* All ranks of a run as one group: which rank is the first, how a rank that fails informs the others, and sums over all
 * ranks. */
#include <stdio.h>
#include "base/error.h"
#include "step/run.h"

ad_status ad_run_group_create(ad_run *run) {
  const ad_mesh *first = ad_program_full_mesh(run->program, 0);
  if (!run->options.is_part && ad_mesh_size(first) != ad_comm_size(run->comm)) {
    char text[48];
    snprintf(text, sizeof text, "dp_shard=%lld", (long long)ad_comm_size(run->comm));
    AD_TRY(ad_mesh_create(text, &run->world));
    first = run->world;
  }
  run->everyone = ad_mesh_group(first, AD_AXES_ALL, ad_comm_rank(run->comm));
  void *sums;
  AD_TRY(ad_comm_alloc(run->comm, AD_RUN_SUMS * sizeof *run->sums, &sums));
  run->sums = sums;
  return AD_OK;
}

void ad_run_group_destroy(ad_run *run) {
  ad_comm_free(run->comm, run->sums);
  ad_mesh_destroy(run->world);
}

ad_status ad_run_report_error(ad_run *run, ad_status status) {
  if (ad_status_is_own(status)) ad_comm_fail(run->comm, status, ad_last_error());
  return status;
}

int ad_run_warns(const ad_run *run) { return ad_run_is_first(run) && !run->options.quiet; }

int ad_run_is_first(const ad_run *run) { return ad_group_index(&run->everyone, ad_comm_rank(run->comm)) == 0; }

ad_group ad_run_everyone(const ad_run *run) { return run->everyone; }

ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) {
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = run->everyone,
                          .in = run->sums,
                          .out = run->sums,
                          .count = count,
                          .dtype = AD_F64,
                          .reduction = reduction,
                          .site = site};
  return ad_comm_run(run->comm, &reduce);
}
