/* States that a program changes within a step: from gradients, by a rule of its own. */
#include "program/states.h"

#include "base/error.h"
#include "program/program.h"
#include "base/options.h"
#include "base/injection.h"

static ad_status check_change(ad_phase_run *at, const ad_state_change *change) {
  const ad_array *state = ad_phase_state(at, change->state);
  if (!state)
    return ad_fail(AD_INVALID,
                   "ad_phase_change_states: state number %zu (from 0) does not exist in the module of the phase; pass "
                   "a smaller number",
                   change->state);
  if (!change->gradient)
    return ad_fail(AD_INVALID,
                   "ad_phase_change_states: state number %zu (from 0) has no gradient, because the field `gradient` of "
                   "the ad_state_change is NULL; set it to the gradient of the state",
                   change->state);
  if (ad_array_numel(change->gradient) == ad_array_numel(state)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_phase_change_states: state number %zu (from 0) has %zu elements on this rank, but its gradient "
                 "has %zu; give a gradient with as many elements as the state",
                 change->state, ad_array_numel(state), ad_array_numel(change->gradient));
}

ad_status ad_phase_change_states(ad_phase_run *at, const ad_state_rule *given, const ad_state_change *changes,
                                 size_t count) {
  ad_state_rule rule;
  AD_NEED(at, given, changes);
  AD_TRY(ad_options_take(&rule, sizeof rule, given, "ad_state_rule"));
  if (at->program->setting.leaves)
    return ad_fail(
        AD_TYPE,
        "ad_phase_change_states: with train.leaves no phase may change a state, because other leaves would see "
        "the change only on this rank; change states in `after_step`, or leave train.leaves out");
  if (!rule.change)
    return ad_fail(AD_INVALID, "ad_phase_change_states: `change` of the ad_state_rule is NULL; set it to a function");
  for (size_t i = 0; i < count; i++) {
    AD_TRY(check_change(at, &changes[i]));
    ad_inject(AD_INJECT_STATE, &(ad_state_passing){ad_tape_comm(ad_phase_tape(at)), changes[i].gradient});
    rule.change(rule.own, at, &changes[i], i);
  }
  ad_inject(AD_INJECT_STATES, &(ad_states_passing){at, &rule, changes, count});
  return AD_OK;
}
