/* The optimizer states of parameters when a run resumes: which optimizer updated each parameter before the checkpoint and
 * does now, which states it keeps, and whose states begin anew (--fresh-states). checkpoint.c stores and reads the states. */
#ifndef TRAIN_RESUMED_STATES_H
#define TRAIN_RESUMED_STATES_H
#include <jansson.h>
#include "recipe/schema.h"
#include "step/fingerprint.h"
#include "step/run.h"

/* Returns the kind of optimizer that updates a parameter; of a frozen one that of optimizer.kind. */
ad_optimizer_kind ad_run_optimizer_kind(const ad_run *run, size_t param);
/* Returns 1 if the states of the parameter begin anew: its name matches a pattern of the option fresh_states. */
int ad_run_has_fresh_states(const ad_run *run, size_t param);
/* Returns 1 if `name`, of a value in a checkpoint, is a state or a master that the run does not need, because the states
 * of its parameter begin anew. */
int ad_run_discards_state(const ad_run *run, const char *name);
/* Returns AD_INVALID if a pattern of the option fresh_states matches no parameter. */
ad_status ad_run_check_fresh_states(const ad_run *run) AD_CHECKED;

/* The facts about states that a checkpoint has, each a JSON object by parameters' names. OPTIMIZERS: the optimizer of a
 * parameter whose optimizer is not that of optimizer.kind. BEGAN: after how many optimizer steps the states of a
 * parameter began anew, if they did. */
#define AD_FACT_OPTIMIZERS "optimizers"
#define AD_FACT_BEGAN "states_began"
enum { AD_STATE_FACTS = 2 };
/* Adds those facts that say something about this run, at most AD_STATE_FACTS. The values are owned by the list. */
ad_status ad_run_add_state_facts(const ad_run *run, ad_checkpoint_fact *facts, size_t *count) AD_CHECKED;

/* What the facts of a checkpoint say about states. */
typedef struct ad_earlier_states {
  json_t *optimizers, *began;      /* the facts OPTIMIZERS and BEGAN; NULL if the checkpoint has none */
  const char *kind;                /* optimizer.kind; borrowed from the facts */
  const ad_checkpoint_fact *facts; /* all facts, with the options of optimizers; borrowed */
  size_t fact_count;
} ad_earlier_states;
/* Returns AD_IO if the facts are damaged. Release with ad_earlier_states_release. */
ad_status ad_earlier_states_read(const ad_schema *schema, const ad_checkpoint_fact *facts, size_t count,
                                 ad_earlier_states *out) AD_CHECKED;
void ad_earlier_states_release(ad_earlier_states *earlier);
/* Returns 1 if nothing updated the parameter before the checkpoint. */
int ad_earlier_is_frozen(const ad_run *run, const ad_earlier_states *earlier, size_t param);
/* Returns AD_INVALID, with their names, if parameters whose states do not begin anew have another optimizer than before
 * the checkpoint, or one that keeps other states, by this run's fingerprint `here`; or if a pattern of fresh_states
 * matches only parameters that are frozen now and were before. Else sets run->began to what the checkpoint says. */
ad_status ad_earlier_states_judge(ad_run *run, const ad_fingerprint *here, const ad_earlier_states *earlier) AD_CHECKED;
/* Tells the optimizers, which have taken `steps` steps, when the states of each parameter began, and logs on the first
 * rank which states begin anew. Returns AD_IO if the checkpoint's numbers are impossible. */
ad_status ad_run_begin_states(ad_run *run, int64_t steps) AD_CHECKED;

#endif
