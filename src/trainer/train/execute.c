/* Executes a rank's list of the run's table. */
#include "train/execute.h"

#include "base/error.h"
#include "module/module.h"
#include "program/program.h"

static size_t microbatches(const ad_run *run) { return (size_t)run->recipe->train.microbatches; }
static size_t losses(const ad_run *run) { return ad_program_loss_count(run->program); }
static size_t phases(const ad_run *run) { return ad_program_phase_count(run->program); }
static size_t modules(const ad_run *run) { return ad_program_module_count(run->program); }

/* ---- a module's gradients of one microbatch ---- */

/* What all trained losses are divided by; 0: there is no single such number, or this rank does not know it. */
static double divisor_of(const ad_run *run) {
  size_t none = ad_program_count_count(run->program), count = none;
  double total = 0;
  for (size_t i = 0; i < losses(run); i++) {
    const ad_loss_spec *spec = ad_program_loss(run->program, i);
    if (spec->is_metric) continue;
    if (spec->per_microbatch || (count != none && count != spec->count)) return 0;
    count = spec->count;
  }
  for (size_t m = 0; count != none && run->counts[count] && m < microbatches(run); m++)
    total += (double)ad_count_of(run->counts[count], m);
  return total > 0 ? total : 0;
}

static ad_module_run *module_of(const ad_run *run, size_t p) {
  return &run->module_runs[ad_program_phase(run->program, p)->module];
}

static ad_reducer *reducer_of(const ad_run *run, size_t p) {
  return ad_module_reducer(run->modules[ad_program_phase(run->program, p)->module]);
}

/* How the reducer sums the microbatch that this module begins now. */
static ad_sync next_sync(const ad_run *run, const ad_module_run *module) {
  if (module->ended + 1 == microbatches(run)) return AD_SYNC_ALL;
  return module->ended < run->recipe->train.sync_count ? run->recipe->train.sync[module->ended] : AD_SYNC_SHARD;
}

/* Begins microbatch m in the reducer of phase p's module, unless an earlier phase of the module began it. */
static ad_status open_microbatch(ad_run *run, size_t p, size_t m) {
  ad_module_run *module = module_of(run, p);
  if (module->open == (int64_t)m) return AD_OK;
  if (module->open >= 0)
    return ad_fail(AD_INVALID,
                   "the table runs the backward of phase `%s` in microbatch %zu before it reduces microbatch %lld of "
                   "the same module: that REDUCE must come first",
                   ad_program_phase(run->program, p)->name, m, (long long)module->open);
  module->open = (int64_t)m;
  module->phases_left = module->phases;
  return ad_reducer_begin_microbatch(reducer_of(run, p), next_sync(run, module));
}

/* Ends the microbatch in the module's reducer, behind the module's last phase. */
static ad_status close_microbatch(ad_run *run, size_t p) {
  ad_module_run *module = module_of(run, p);
  if (--module->phases_left) return AD_OK;
  module->open = -1;
  module->ended++;
  ad_reducer_divided_by(reducer_of(run, p), divisor_of(run));
  return ad_reducer_end_microbatch(reducer_of(run, p));
}

static ad_status check_reduced(const ad_run *run, size_t p, int32_t m) {
  int64_t back = run->phases[p].back;
  if (back >= 0 && (m < 0 || m == back)) return AD_OK;
  return ad_fail(AD_INVALID, "the table reduces phase `%s` before its backward of the microbatch",
                 ad_program_phase(run->program, p)->name);
}

/* ---- actions ---- */

static ad_status forward(ad_run *run, ad_step_state *state, const ad_action *action) {
  return ad_phase_forward(run, state, (size_t)action->stage, (size_t)action->microbatch);
}

/* The microbatch whose I was executed and whose W was not, on the tape that this action uses; -1: none. */
static int64_t *owed_at(const ad_run *run, const ad_action *action) {
  const ad_phase_share *phase = &run->phases[action->stage];
  return &phase->owed[(size_t)action->microbatch % phase->tape_count];
}

static ad_status take_owed(const ad_run *run, const ad_action *action) {
  int64_t *owed = owed_at(run, action);
  if (*owed != action->microbatch)
    return ad_fail(AD_INVALID,
                   "the table adds gradients of weights (W) of phase `%s` in microbatch %d a second time, or without "
                   "the gradients of inputs (I) before",
                   ad_program_phase(run->program, (size_t)action->stage)->name, action->microbatch);
  *owed = -1;
  return AD_OK;
}

static ad_status inputs(ad_run *run, ad_step_state *state, const ad_action *action) {
  *owed_at(run, action) = action->microbatch;
  if (!state->goes_back) return AD_OK;
  return ad_phase_backward(run, (size_t)action->stage, (size_t)action->microbatch, AD_INPUTS_START);
}

/* Before a phase adds gradients of weights. */
static ad_status begin_addend(ad_run *run, const ad_step_state *state, const ad_action *action) {
  run->phases[action->stage].back = action->microbatch;
  return state->updates ? open_microbatch(run, (size_t)action->stage, (size_t)action->microbatch) : AD_OK;
}

static ad_status back(ad_run *run, ad_step_state *state, const ad_action *action) {
  AD_TRY(begin_addend(run, state, action));
  if (!state->goes_back) return AD_OK;
  return ad_phase_backward(run, (size_t)action->stage, (size_t)action->microbatch, AD_LAST_START);
}

static ad_status weights(ad_run *run, ad_step_state *state, const ad_action *action) {
  AD_TRY(take_owed(run, action));
  AD_TRY(begin_addend(run, state, action));
  return state->goes_back ? ad_phase_weights(run, (size_t)action->stage, (size_t)action->microbatch) : AD_OK;
}

/* Ends a phase's microbatch and drops its tape; values that other phases still read stay. */
static ad_status reduce(ad_run *run, ad_step_state *state, const ad_action *action) {
  size_t p = (size_t)action->stage;
  AD_TRY(check_reduced(run, p, action->microbatch));
  size_t m = (size_t)run->phases[p].back;
  if (state->updates) {
    AD_TRY(ad_phase_after(run, p, m));
    AD_TRY(close_microbatch(run, p));
  }
  run->phases[p].back = -1;
  return ad_tape_drop(ad_run_tape(run, p, m));
}

static ad_status send_value(ad_run *run, ad_step_state *state, const ad_action *action) {
  (void)state;
  return ad_crossings_post_values(run, (size_t)action->stage, (size_t)ad_action_peer(action),
                                  (size_t)action->microbatch);
}

static ad_status receive_value(ad_run *run, ad_step_state *state, const ad_action *action) {
  (void)state;
  return ad_crossings_post_values(run, (size_t)ad_action_peer(action), (size_t)action->stage,
                                  (size_t)action->microbatch);
}

static ad_status send_gradient(ad_run *run, ad_step_state *state, const ad_action *action) {
  if (!state->goes_back) return AD_OK;
  return ad_crossings_post_gradients(run, (size_t)ad_action_peer(action), (size_t)action->stage,
                                     (size_t)action->microbatch);
}

static ad_status receive_gradient(ad_run *run, ad_step_state *state, const ad_action *action) {
  if (!state->goes_back) return AD_OK;
  return ad_crossings_post_gradients(run, (size_t)action->stage, (size_t)ad_action_peer(action),
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

/* ---- the list ---- */

/* Gives microbatch m its place, and forgets what an earlier microbatch in that place had. */
static void begin_microbatch(const ad_run *run, int32_t m) {
  ad_microbatch_run *at = ad_run_microbatch(run, (size_t)m);
  if (at->number == m) return;
  at->number = m;
  for (size_t i = 0; i < losses(run) * run->own_phases; i++) at->losses[i] = (ad_handed_loss){0};
  for (size_t v = 0; v < run->program->value_count; v++) {
    at->values[v].output = NULL;
    at->values[v].arrived = NULL;
    for (size_t p = 0; p < run->own_phases; p++) at->values[v].inputs[p] = at->values[v].needed[p] = NULL;
  }
}

/* Forgets what is left of the last pass, also the memory that tapes have of the pool. */
static void begin_pass(ad_run *run) {
  for (size_t i = 0; i < run->under_way; i++) run->microbatches[i].number = -1;
  ad_crossings_begin_pass(run);
  for (size_t i = 0; i < modules(run); i++) {
    run->module_runs[i].open = -1;
    run->module_runs[i].ended = 0;
  }
  for (size_t p = 0; p < phases(run); p++) {
    run->phases[p].back = -1;
    for (size_t i = 0; i < run->phases[p].tape_count; i++) run->phases[p].owed[i] = -1;
    for (size_t i = 0; run->pool && i < run->phases[p].tape_count; i++)
      if (run->phases[p].tapes[i]) ad_tape_reset(run->phases[p].tapes[i]);
  }
}

/* A module that no phase runs on has a reduction too: a sum of nothing. */
static ad_status reduce_nothing(const ad_run *run) {
  for (size_t i = 0; i < modules(run); i++) {
    if (!run->modules[i] || run->module_runs[i].phases) continue;
    AD_TRY(ad_reducer_begin_microbatch(ad_module_reducer(run->modules[i]), AD_SYNC_ALL));
    AD_TRY(ad_reducer_end_microbatch(ad_module_reducer(run->modules[i])));
  }
  return AD_OK;
}

ad_status ad_run_execute(ad_run *run, ad_step_state *state) {
  run->trains = state->updates && !run->options.given_states;
  begin_pass(run);
  for (size_t i = 0; i < ad_order_count(&run->order); i++) {
    const ad_action *action = ad_order_at(&run->order, i);
    if (action->microbatch >= 0) begin_microbatch(run, action->microbatch);
    AD_TRY(acts[action->kind](run, state, action));
  }
  if (state->updates) AD_TRY(reduce_nothing(run));
  AD_TRY(ad_step_wait_for_counts(run, state));
  return ad_crossings_settle(run);
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
    begin_microbatch(run, action->microbatch);
    AD_TRY(go_forward(run, action));
  }
  return ad_crossings_settle(run);
}
