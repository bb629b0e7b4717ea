/* Executes a rank's list of actions in the run's table. */
#include "step/execute.h"

#include "base/error.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"

/* ---- executing one action: a function for each kind ---- */

static ad_status forward(ad_run *run, ad_step_state *state, const ad_action *action) {
  return ad_phase_forward(run, state, (size_t)action->stage, (size_t)action->microbatch);
}

static ad_status inputs(ad_run *run, ad_step_state *state, const ad_action *action) {
  ad_progress_defer(run, (size_t)action->stage, action->microbatch);
  if (!state->goes_back) return AD_OK;
  return ad_phase_backward(run, (size_t)action->stage, (size_t)action->microbatch, AD_INPUTS_START);
}

static ad_status back(ad_run *run, ad_step_state *state, const ad_action *action) {
  AD_TRY(ad_progress_begin_addend(run, (size_t)action->stage, (size_t)action->microbatch, state->updates));
  if (!state->goes_back) return AD_OK;
  return ad_phase_backward(run, (size_t)action->stage, (size_t)action->microbatch, AD_LAST_START);
}

static ad_status weights(ad_run *run, ad_step_state *state, const ad_action *action) {
  AD_TRY(ad_progress_flush(run, (size_t)action->stage, action->microbatch));
  AD_TRY(ad_progress_begin_addend(run, (size_t)action->stage, (size_t)action->microbatch, state->updates));
  return state->goes_back ? ad_phase_weights(run, (size_t)action->stage, (size_t)action->microbatch) : AD_OK;
}

/* Ends a phase's microbatch, so that its gradients can be reduced, and drops its tape. Values that other phases still
 * read stay. */
static ad_status reduce(ad_run *run, ad_step_state *state, const ad_action *action) {
  size_t p = (size_t)action->stage, m;
  AD_TRY(ad_progress_reduced(run, p, action->microbatch, &m));
  if (state->updates) AD_TRY(ad_phase_after(run, p, m));
  AD_TRY(ad_progress_end_addend(run, p, state->updates));
  return ad_tape_drop(ad_run_tape(run, p, m));
}

static ad_status send_value(ad_run *run, ad_step_state *state, const ad_action *action) {
  (void)state;
  return ad_transfers_post_values(run, (size_t)action->stage, (size_t)ad_action_peer(action),
                                  (size_t)action->microbatch);
}

static ad_status receive_value(ad_run *run, ad_step_state *state, const ad_action *action) {
  (void)state;
  return ad_transfers_post_values(run, (size_t)ad_action_peer(action), (size_t)action->stage,
                                  (size_t)action->microbatch);
}

static ad_status send_gradient(ad_run *run, ad_step_state *state, const ad_action *action) {
  if (!state->goes_back) return AD_OK;
  return ad_transfers_post_gradients(run, (size_t)ad_action_peer(action), (size_t)action->stage,
                                     (size_t)action->microbatch);
}

static ad_status receive_gradient(ad_run *run, ad_step_state *state, const ad_action *action) {
  if (!state->goes_back) return AD_OK;
  return ad_transfers_post_gradients(run, (size_t)action->stage, (size_t)ad_action_peer(action),
                                     (size_t)action->microbatch);
}

static ad_status (*const acts[AD_ACTION_COUNT])(ad_run *run, ad_step_state *state, const ad_action *action) = {
    [AD_ACTION_F] = forward,
    [AD_ACTION_B] = back,
    [AD_ACTION_I] = inputs,
    [AD_ACTION_W] = weights,
    [AD_ACTION_SEND_F] = send_value,
    [AD_ACTION_RECV_F] = receive_value,
    [AD_ACTION_SEND_B] = send_gradient,
    [AD_ACTION_RECV_B] = receive_gradient,
    [AD_ACTION_REDUCE] = reduce};

/* ---- executing a rank's list of actions ---- */

/* Forgets the state of the pass before, and returns the memory of tapes to the pool. */
static void begin_pass(ad_run *run) {
  ad_microbatches_begin_pass(run);
  ad_transfers_begin_pass(run);
  ad_progress_begin_pass(run);
}

/* Gives the reducer microbatches without addends: one, or as many as the lists of `sync` of shard.groups have. */
static ad_status reduce_nothing_in(const ad_run *run, ad_reducer *reducer) {
  size_t count = run->recipe->shard.group_count ? run->recipe->train.sync_count : 1;
  for (size_t m = 0; m < count; m++) {
    AD_TRY(ad_reducer_begin_microbatch(reducer, m + 1 < count ? ad_recipe_sync(run->recipe, m) : AD_SYNC_ALL));
    AD_TRY(ad_reducer_end_microbatch(reducer));
  }
  return AD_OK;
}

/* A module on which no phase runs has no gradients, but its reducer must reduce in each step, too. */
static ad_status reduce_nothing(const ad_run *run) {
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) {
    ad_module *module = ad_run_module(run, i);
    if (!module || ad_progress_has_phases(run, i)) continue;
    AD_TRY(reduce_nothing_in(run, ad_module_reducer(module)));
  }
  return AD_OK;
}

ad_status ad_run_execute(ad_run *run, ad_step_state *state) {
  run->trains = state->updates && !run->options.given_states;
  begin_pass(run);
  for (size_t i = 0; i < ad_order_count(&run->order); i++) {
    const ad_action *action = ad_order_at(&run->order, i);
    if (action->microbatch >= 0) ad_microbatch_begin(run, action->microbatch);
    AD_TRY(acts[action->kind](run, state, action));
  }
  if (state->updates) AD_TRY(reduce_nothing(run));
  AD_TRY(ad_step_wait_for_counts(run, state));
  return ad_transfers_settle(run);
}

static ad_status go_forward(ad_run *run, const ad_action *action) {
  if (action->kind == AD_ACTION_F) return ad_phase_values(run, (size_t)action->stage, (size_t)action->microbatch);
  if (action->kind == AD_ACTION_SEND_F) return send_value(run, NULL, action);
  return action->kind == AD_ACTION_RECV_F ? receive_value(run, NULL, action) : AD_OK;
}

ad_status ad_run_execute_forward(ad_run *run, size_t m) {
  run->trains = 0;
  begin_pass(run);
  for (size_t i = 0; i < ad_order_count(&run->order); i++) {
    const ad_action *action = ad_order_at(&run->order, i);
    if (action->microbatch != (int32_t)m) continue;
    ad_microbatch_begin(run, action->microbatch);
    AD_TRY(go_forward(run, action));
  }
  return ad_transfers_settle(run);
}
