/* The functions of known bugs of updates on whole matrices; known_bugs.c has their records. Each is called with the
 * ad_known_bug_scene as context. */
#ifndef OPTIM_WHOLE_KNOWN_BUGS_H
#define OPTIM_WHOLE_KNOWN_BUGS_H

/* at AD_INJECT_MATRIX */
void ad_bug_matrix_per_tp_shard(void *context, void *passing);
void ad_bug_matrix_per_shard(void *context, void *passing);
void ad_bug_matrix_of_own_part(void *context, void *passing);
void ad_bug_matrix_partly_reduced(void *context, void *passing);
void ad_bug_matrix_not_orthogonalised(void *context, void *passing);
void ad_bug_matrix_to_adamw(void *context, void *passing);
void ad_bug_sharded_matrix_to_adamw(void *context, void *passing);
void ad_bug_fused_matrix_in_one(void *context, void *passing);
void ad_bug_matrix_norm_per_shard(void *context, void *passing);
void ad_bug_matrix_rate_by_shard(void *context, void *passing);
/* at AD_INJECT_STACK */
void ad_bug_result_of_another_matrix(void *context, void *passing);
/* at AD_INJECT_LAUNCH */
void ad_bug_keep_addends(void *context, void *passing);
void ad_bug_orthogonalise_addends(void *context, void *passing);
/* at AD_INJECT_UPDATE */
void ad_bug_not_nesterov(void *context, void *passing);
void ad_bug_decay_by_adjusted_rate(void *context, void *passing);

#endif
