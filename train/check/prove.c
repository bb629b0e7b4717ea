/* A whole proof: starts its ranks, and lets each prove its share, step after step. */
#include "base/error.h"
#include "check/directional.h"
#include "check/overflow.h"
#include "check/prover.h"
#include "comm/agree.h"

static ad_status prove_steps(ad_prover *prover) {
  const ad_check_options *options = prover->job->options;
  ad_prover_begin(prover);
  prover->counts_calls = 1;
  for (int64_t step = 0; step < prover->job->steps; step++) {
    ad_step_report report;
    if (prover->reference && options->progress) options->progress(options->context, "steps", step, prover->job->steps);
    AD_TRY(ad_prover_step(prover, step, &report));
  }
  return ad_overflow_judge(prover);
}

static ad_status prove_once(ad_comm *comm, const ad_proof_job *job, int accounts, int64_t *passes) {
  ad_prover prover;
  const ad_check_options *options = job->options;
  AD_TRY(ad_prover_create(&prover, comm, job));
  prover.accounts = accounts;
  ad_status status = options->directional ? ad_directional(comm, prover.run, job) : prove_steps(&prover);
  if (!status) status = ad_comm_barrier(comm, &prover.everyone);
  if (!status && ad_comm_rank(comm) == 0) {
    job->proof->complete = 1;
    *passes = ad_proof_passes(job->proof, options->directional);
  }
  if (!status) status = ad_share_first(comm, &prover.everyone, passes, 1, AD_HERE);
  ad_prover_destroy(&prover);
  return status;
}

/* Proves the steps; if they do not hold, proves them once more and counts the addends of every step. */
ad_status ad_prove(ad_comm *comm, const ad_proof_job *job) {
  int64_t passes = 0;
  ad_proof_job again = *job;
  AD_TRY(prove_once(comm, job, 0, &passes));
  again.dumps = 0;
  again.quiet = 1;
  return passes || job->options->directional ? AD_OK : prove_once(comm, &again, 1, &passes);
}

static int prove_on_rank(ad_comm *comm, void *context) {
  ad_status status = ad_prove(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

ad_status ad_proof_run(const ad_proof_job *job, ad_launch_result *result) {
  ad_proof_clear(job->proof);
  ad_launch_options options = {.size = sizeof options, .function = prove_on_rank, .context = (void *)job};
  AD_TRY(ad_recipe_world(job->recipe, &options.ranks));
  return ad_launch(&options, result);
}
