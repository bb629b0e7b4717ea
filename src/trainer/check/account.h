/* Who was counted in a step that does not hold: each rank's addends as it handed them in and the sums as they came out,
 * judged as `addend diff` judges any job's. */
#ifndef CHECK_ACCOUNT_H
#define CHECK_ACCOUNT_H
#include "check/prover.h"

/* Before a step: every module's reducer will dump it. Collective; where files cannot be shared, or a reducer's meshes
 * have no dump, there is no account, and that is no error. */
ad_status ad_account_begin(ad_prover *prover, int64_t step) AD_CHECKED;
/* After it. Where `reads`, the first rank gives the parameters of the proof that do not hold in this step the causes
 * that the account has. Collective. */
ad_status ad_account_end(ad_prover *prover, int64_t step, int reads) AD_CHECKED;

/* Where ranks that this process started have ended in the middle of one: nothing of it is left. */
void ad_account_remove_left(void);

/* account_causes.c: what the document of `addend diff` says of one parameter becomes its causes, or that its addends
 * are `accounted`. NULL: there is no account of its module. */
void ad_account_judge(const ad_prover *prover, const json_t *document, size_t index, ad_proof_param *param);

#endif
