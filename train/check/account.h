/* Finds which addends were counted in a step whose check fails: dumps each rank's addends and the sums, and judges them
 * as `addend diff` judges the dump of any job. */
#ifndef CHECK_ACCOUNT_H
#define CHECK_ACCOUNT_H
#include "check/checker.h"

/* Called before a step: asks every module's reducer to dump the step. Collective. If ranks share no file system, or a
 * dump cannot describe a reducer's meshes, there is no account of addends; this is no error. */
ad_status ad_account_begin(ad_checker *checker, int64_t step) AD_CHECKED;
/* Called after the step. With `reads`, the first rank reads the account of addends, and sets the causes of each
 * parameter whose gradient is wrong in this step. Removes the account. Collective. */
ad_status ad_account_end(ad_checker *checker, int64_t step, int reads) AD_CHECKED;

/* Removes the accounts of ranks that this process started and that ended in the middle of a step. */
void ad_account_remove_left(void);

/* account_counts.c: compares the counts by which ranks divided their losses in the step. Collective. */
ad_status ad_account_compare_counts(ad_checker *checker) AD_CHECKED;

/* In account_causes.c: judges the parameter `index` by the document of `addend diff`. Sets the parameter's causes, or
 * records in `accounted` that the sum is right and the addends are wrong. `document` is NULL if the module has no
 * account. */
void ad_account_judge(const ad_checker *checker, const json_t *document, size_t index, ad_check_param *param);

#endif
