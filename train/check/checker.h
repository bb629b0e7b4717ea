/* One rank's share of a check: used by the check without mutants (check_ranks.c) and by trials of mutants (trial.c). */
#ifndef CHECK_CHECKER_H
#define CHECK_CHECKER_H
#include "check/addends.h"
#include "check/computing.h"
#include "check/mutation.h"
#include "check/result.h"
#include "check/reference.h"
#include "check/replicas.h"
#include "module/module.h"

enum { AD_ACCOUNT_PATH = 256 };

/* The axes along which a count (by which losses are divided) should be the same on all ranks, but is not. */
typedef struct ad_reported_counts {
  ad_axes within; /* axes over which the count is summed, but along which ranks have different sums */
  ad_axes beside; /* other axes, along which ranks count the same rows, but with different results */
} ad_reported_counts;

/* One rank's share of one check. Parameters are numbered over all modules, as in ad_run_param_at. */
typedef struct ad_checker {
  ad_comm *comm;
  const ad_check_job *job;
  ad_run *run;
  ad_group everyone;
  size_t param_count;
  ad_array *gradients;                  /* the full gradient of each parameter that trains */
  const ad_array **full_gradients;      /* the addresses of `gradients`; NULL for frozen parameters */
  uint64_t *frozen;                     /* for each frozen parameter, a hash of this rank's value before the step */
  const ad_array **parts;               /* this rank's array of each parameter, for comparing replicas */
  ad_replicas *replicas[AD_PART_COUNT]; /* how replicas compare, for each kind of array and parameter */
  ad_array scratch;                     /* memory for any full array of the model */
  /* for each parameter, 1: in a step that was judged, its gradient was zero except for rounding */
  unsigned char *cancels;
  /* 1: `cancels` is complete; only its parameters may have a gradient that is zero except for rounding */
  int knows_cancelling;
  int shards_formulas;                /* 1: ranks compute formulas in pieces (check/formulas.h) */
  ad_addends addends;                 /* the ranks' own addends, summed in f64; only if the recipe's dtypes round */
  ad_computing computing;             /* how far rounding may move gradients; on the first rank, only if dtypes round */
  ad_reference *reference;            /* the reference (check/reference.h), on the first rank; NULL on other ranks */
  ad_step_report reference_report;    /* on the first rank: the reference's report of the step that was judged last */
  ad_overflow overflow;               /* overflows in the steps since ad_checker_begin */
  int counts_calls;                   /* 1: the collectives of the next step are compared with its plan */
  ad_calls made, planned;             /* the collectives that ranks made, and those of the plan */
  int accounts;                       /* 1: account.c counts the addends of a step whose check fails */
  int has_account;                    /* 1: the step in flight dumps its addends for account.c */
  ad_reported_counts reported_counts; /* how the counts of the step in flight differ between ranks */
  char account[AD_ACCOUNT_PATH];      /* path of the folders of the account; a number follows for each module */
  ad_places places; /* on the first rank: the program's transitions, listed when an account is first read */
} ad_checker;

/* Creates the run and, on the first rank, its reference. Collective. On failure nothing is left behind. */
ad_status ad_checker_create(ad_checker *checker, ad_comm *comm, const ad_check_job *job) AD_CHECKED;
void ad_checker_destroy(ad_checker *checker);
/* Called before the first step: on the first rank, marks every number of the check as not judged. */
void ad_checker_begin(ad_checker *checker);
/* Takes a step with the present mutation, if there is one, then lifts the mutation and judges the step. On the first
 * rank job->result keeps the worst numbers of all steps. */
ad_status ad_checker_step(ad_checker *checker, int64_t step, ad_step_report *report) AD_CHECKED;
/* The part of ad_checker_step that compares numbers, on the first rank. Compares a step's full gradients, the ranks'
 * addends and the distributed report `dist` with the reference. The reference must have taken the same step last, with
 * its report in reference_report. */
void ad_checker_judge(ad_checker *checker, const ad_step_report *dist);
#endif
