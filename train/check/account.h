/* Says who was counted in a step whose check does not hold: dumps each rank's addends and the sums, and judges them as
 * `addend diff` judges any job's. */
#ifndef CHECK_ACCOUNT_H
#define CHECK_ACCOUNT_H
#include "check/checker.h"

/* Called before a step: asks every module's reducer to dump the step. Collective. If ranks share no files, or a dump
 * cannot describe a reducer's meshes, there is no account; that is no error. */
ad_status ad_account_begin(ad_checker *checker, int64_t step) AD_CHECKED;
/* Called after the step: if `reads`, the first rank gives each parameter whose gradient is wrong in this step the
 * causes that the account has. Removes the account. Collective. */
ad_status ad_account_end(ad_checker *checker, int64_t step, int reads) AD_CHECKED;

/* Removes accounts that the ranks of this process left because they ended in the middle of a step. */
void ad_account_remove_left(void);

/* account_counts.c: compares the ranks' counts of the step. Collective. */
ad_status ad_account_compare_counts(ad_checker *checker) AD_CHECKED;

/* account_causes.c: judges one parameter by the document of `addend diff`: gives it the document's causes, or notes in
 * `accounted` that its sum is right and its addends are wrong. document NULL: its module has no account. */
void ad_account_judge(const ad_checker *checker, const json_t *document, size_t index, ad_check_param *param);

#endif
