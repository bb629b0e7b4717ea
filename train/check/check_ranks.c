/* A whole check: starts its ranks; each rank checks its share, step after step. */
#include "base/error.h"
#include "check/directional.h"
#include "check/overflow.h"
#include "check/checker.h"
#include "comm/agree.h"

static ad_status check_steps(ad_checker *checker) {
  const ad_check_options *options = checker->job->options;
  ad_checker_begin(checker);
  checker->counts_calls = 1;
  for (int64_t step = 0; step < checker->job->steps; step++) {
    ad_step_report report;
    if (checker->reference && options->progress)
      options->progress(options->context, "steps", step, checker->job->steps);
    AD_TRY(ad_checker_step(checker, step, &report));
  }
  return ad_overflow_judge(checker);
}

static ad_status check_once(ad_comm *comm, const ad_check_job *job, int accounts, int64_t *passes) {
  ad_checker checker;
  const ad_check_options *options = job->options;
  AD_TRY(ad_checker_create(&checker, comm, job));
  checker.accounts = accounts;
  ad_status status = options->directional ? ad_directional(comm, checker.run, job) : check_steps(&checker);
  if (!status) status = ad_comm_barrier(comm, &checker.everyone);
  if (!status && ad_comm_rank(comm) == 0) {
    job->result->complete = 1;
    *passes = ad_check_result_passes(job->result, options->directional);
  }
  if (!status) status = ad_share_first(comm, &checker.everyone, passes, 1, AD_HERE);
  ad_checker_destroy(&checker);
  return status;
}

/* Checks the steps. If the check fails, repeats it and counts the addends of every step. */
ad_status ad_check_rank(ad_comm *comm, const ad_check_job *job) {
  int64_t passes = 0;
  ad_check_job again = *job;
  AD_TRY(check_once(comm, job, 0, &passes));
  again.dumps = 0;
  again.quiet = 1;
  return passes || job->options->directional ? AD_OK : check_once(comm, &again, 1, &passes);
}

static int check_on_rank(ad_comm *comm, void *context) {
  ad_status status = ad_check_rank(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

ad_status ad_check_run(const ad_check_job *job, ad_launch_result *launched) {
  ad_check_result_clear(job->result);
  ad_launch_options options = {.size = sizeof options, .function = check_on_rank, .context = (void *)job};
  AD_TRY(ad_recipe_world(job->recipe, &options.ranks));
  return ad_launch(&options, launched);
}
