/* One rank's share of a proof, as the clean proof and the trial of a planted mistake share it. */
#ifndef CHECK_PROVER_H
#define CHECK_PROVER_H
#include "check/addends.h"
#include "check/computing.h"
#include "check/planting.h"
#include "check/proof.h"
#include "check/reference.h"
#include "check/replicas.h"
#include "module/module.h"

enum { AD_ACCOUNT_PATH = 256 };

/* One rank's share of one proof. Parameters are numbered over all modules, as in ad_run_param_at. */
typedef struct ad_prover {
  ad_comm *comm;
  const ad_proof_job *job;
  ad_run *run;
  ad_group everyone;
  size_t param_count;
  ad_array *gradients;                  /* whole, one a parameter */
  const ad_array **whole_gradients;     /* their addresses */
  const ad_array **parts;               /* this rank's arrays, for the comparison of replicas */
  ad_replicas *replicas[AD_PART_COUNT]; /* of each array of a parameter */
  ad_array scratch;                     /* whole; as large as the largest value */
  ad_addends addends;                   /* where rounding is judged by them */
  ad_computing computing;               /* on the first rank, where dtypes round */
  ad_reference *reference;              /* on the first rank, NULL elsewhere */
  ad_step_report reference_report;      /* on the first rank: what the reference reported of the last judged step */
  ad_overflow overflow;                 /* of the steps since it began */
  int counts_calls;              /* 1: the collectives of the next step that is taken are held against its plan */
  ad_calls made, planned;        /* of that */
  int accounts;                  /* 1: of a step that does not hold, account.c says who was counted */
  int has_account;               /* of the step under way */
  char account[AD_ACCOUNT_PATH]; /* where its files begin */
  ad_places places;              /* on the first rank the program's transitions, once an account was read */
} ad_prover;

/* Makes the run, and on the first rank its reference. Collective. On failure nothing is left behind. */
ad_status ad_prover_create(ad_prover *prover, ad_comm *comm, const ad_proof_job *job) AD_CHECKED;
void ad_prover_destroy(ad_prover *prover);
/* Before the first step: on the first rank the proof says that nothing was judged yet. */
void ad_prover_begin(ad_prover *prover);
/* Takes the step, with whatever is planted, and judges it without: on the first rank, into job->proof, which keeps the
 * worst of all steps. */
ad_status ad_prover_step(ad_prover *prover, int64_t step, ad_step_report *report) AD_CHECKED;
/* The part of ad_prover_step that compares numbers, on the first rank: holds the whole gradients, the ranks' addends and
 * the report `dist` of a step against the reference, which took the same step last and left reference_report. */
void ad_prover_judge(ad_prover *prover, const ad_step_report *dist);
#endif
