/* The known bugs of updates, as mutations at an injection point. Optimizers themselves use nothing from this file. */
#include "optim/known_bugs.h"

#include <string.h>
#include "optim/record.h"

/* Known bug: every parameter is updated twice in a step, as if two hooks called the optimizer. */
static void update_twice(void *context, void *passing) {
  ad_updating *updating = passing;
  updating->again = updating->record->whole != NULL;
  if (!updating->param->data && !updating->again) return;
  if (!updating->again) ad_update_param(updating);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: the optimizer's states are zero at the beginning of every step, as if the training loop created a new
 * optimizer in each step. */
static void forget_states(void *context, void *passing) {
  const ad_updating *updating = passing;
  for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) {
    ad_array *state = &updating->states[k];
    if (!state->data) continue;
    memset(state->data, 0, ad_array_bytes(state));
    ((ad_known_bug_scene *)context)->fired = 1;
  }
}

/* Known bug: weight decay applies to no parameter. */
static void leave_out_decay(void *context, void *passing) {
  ad_updating *updating = passing;
  if (updating->numbers.decay != 0) ((ad_known_bug_scene *)context)->fired = 1;
  updating->numbers.decay = 0;
}

static const ad_known_bug bugs[] = {
    {.name = "update-applied-twice",
     .words = "the optimizer updates every parameter twice in a step",
     .needs = AD_NEED_TOKENS,
     .no_effect = "every compared number has the same bits as without the mutation: updates change nothing, as with a "
                  "learning rate of 0",
     .at = {{AD_INJECT_UPDATE, update_twice}}},
    {.name = "momentum-forgotten",
     .words = "the optimizer's states (momentum, moments) begin from zero in every step",
     .needs = AD_NEED_TOKENS | AD_NEED_STATES,
     .no_effect = "every compared number has the same bits as without the mutation: the states are zero after the "
                  "first step",
     .at = {{AD_INJECT_UPDATE, forget_states}}},
    {.name = "decay-missing",
     .words = "no parameter decays",
     .needs = AD_NEED_TOKENS | AD_NEED_DECAY,
     .no_effect = "every compared number has the same bits as without the mutation: decay changes nothing, as with a "
                  "learning rate of 0",
     .at = {{AD_INJECT_UPDATE, leave_out_decay}}},
};

const ad_known_bug *ad_optim_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
