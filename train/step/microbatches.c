/* The microbatches that are in flight on this rank: their values and losses, and the tapes of their phases. */
#include "base/error.h"
#include "base/memory.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/precision_policy.h"
#include "recipe/recompute.h"
#include "step/run.h"

/* ---- counting the microbatches that are in flight together ---- */

/* A phase of the program, by its index. */
typedef struct numbered_phase {
  const ad_program *program;
  size_t number;
} numbered_phase;

/* Returns 1 if phase `giver` gives a value that this phase needs. Backward of `giver` then reads the gradient from the
 * tape of this phase. */
static int gives_to(const numbered_phase *phase, size_t giver) {
  const char *const *needs = ad_program_phase(phase->program, phase->number)->needs;
  for (; needs && *needs; needs++)
    if (ad_phase_lists(ad_program_phase(phase->program, giver)->gives, *needs)) return 1;
  return 0;
}

/* Returns 1 if an action needs the phase's tape: the phase's own actions do, and the backward of each phase whose
 * values this phase needs. */
static int uses_tape(const void *context, const ad_action *action) {
  const numbered_phase *phase = context;
  if (action->kind == AD_ACTION_RECV_F || action->kind == AD_ACTION_RECV_B) return 0;
  if ((size_t)action->stage == phase->number) return 1;
  return (action->kind == AD_ACTION_B || action->kind == AD_ACTION_I) && gives_to(phase, (size_t)action->stage);
}

static int uses_microbatch(const void *context, const ad_action *action) {
  (void)context;
  (void)action;
  return 1;
}

static ad_module *module_of(const ad_run *run, size_t p) {
  return ad_run_module(run, ad_program_phase(run->program, p)->module);
}

static ad_status count_tapes(ad_run *run, size_t p) {
  ad_phase_share *share = &run->in_flight.phases[p];
  numbered_phase phase = {run->program, p};
  int is_own = module_of(run, p) != NULL;
  share->place = is_own ? run->in_flight.own_phases++ : SIZE_MAX;
  share->tape_count = 1;
  if (!is_own) return AD_OK;
  return ad_order_most_at_once(&run->order, (ad_order_use){uses_tape, &phase}, &share->tape_count);
}

static ad_status count_in_flight(ad_run *run) {
  size_t count = ad_program_phase_count(run->program);
  run->in_flight.own_phases = 0;
  AD_TRY(ad_new(count, &run->in_flight.phases));
  for (size_t p = 0; p < count; p++) AD_TRY(count_tapes(run, p));
  return ad_order_most_at_once(&run->order, (ad_order_use){uses_microbatch, NULL}, &run->in_flight.count);
}

/* ---- creating microbatches and their tapes ---- */

static ad_status create_phase_tapes(ad_run *run, size_t p, const ad_tape_options *options) {
  ad_phase_share *phase = &run->in_flight.phases[p];
  size_t module = ad_program_phase(run->program, p)->module;
  AD_TRY(ad_new(phase->tape_count, &phase->tapes));
  for (size_t i = 0; module_of(run, p) && i < phase->tape_count; i++) {
    AD_TRY(ad_tape_create(run->comm, ad_program_mesh(run->program, module), options, &phase->tapes[i]));
    if (run->leaves) ad_tape_take_leaf(phase->tapes[i], run->program->leaf_meshes, run->program->leaf_mesh_count);
    if (run->in_flight.pool) ad_tape_share(phase->tapes[i], run->in_flight.pool);
  }
  return AD_OK;
}

/* Returns the dtype of the residual stream; 0 means the tape's default. */
static ad_dtype residual_dtype(const ad_run *run) { return run->options.dtype ? 0 : run->recipe->precision.residual; }

static ad_status create_tapes(ad_run *run) {
  ad_tape_options options = {.size = sizeof options,
                             .dtype = ad_run_compute_dtype(run),
                             .residual = residual_dtype(run),
                             .crowd = run->options.crowd};
  options.recompute = ad_recipe_recompute(run->recipe, &options.recompute_count);
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) AD_TRY(create_phase_tapes(run, p, &options));
  return AD_OK;
}

static ad_status create_microbatch(const ad_run *run, ad_microbatch_run *out) {
  size_t values = run->program->value_count, phases = run->in_flight.own_phases;
  AD_TRY(ad_new(phases * ad_program_loss_count(run->program), &out->losses));
  AD_TRY(ad_new(values, &out->values));
  AD_TRY(ad_new(2 * values * phases, &out->taken));
  for (size_t i = 0; i < values; i++) {
    out->values[i].inputs = out->taken + 2 * i * phases;
    out->values[i].needed = out->values[i].inputs + phases;
  }
  return AD_OK;
}

static ad_status create_values(ad_run *run) {
  AD_TRY(ad_new(run->in_flight.count, &run->in_flight.list));
  for (size_t i = 0; i < run->in_flight.count; i++) AD_TRY(create_microbatch(run, &run->in_flight.list[i]));
  return AD_OK;
}

ad_status ad_microbatches_create(ad_run *run, int shares_memory) {
  if (ad_program_loss_count(run->program) > AD_LOSSES_MAX)
    return ad_fail(AD_INVALID, "the program has more than %d losses, the most that are allowed; add fewer",
                   AD_LOSSES_MAX);
  if (shares_memory) AD_TRY(ad_tape_pool_create(ad_comm_is_dry(run->comm), &run->in_flight.pool));
  AD_TRY(count_in_flight(run));
  AD_TRY(create_tapes(run));
  return create_values(run);
}

static void destroy_microbatch(ad_microbatch_run *m) {
  ad_release(m->taken);
  ad_release(m->values);
  ad_release(m->losses);
}

static void destroy_phase(ad_phase_share *phase) {
  for (size_t i = 0; phase->tapes && i < phase->tape_count; i++) ad_tape_destroy(phase->tapes[i]);
  ad_release(phase->tapes);
}

void ad_microbatches_destroy(ad_run *run) {
  for (size_t p = 0; run->in_flight.phases && p < ad_program_phase_count(run->program); p++)
    destroy_phase(&run->in_flight.phases[p]);
  for (size_t i = 0; run->in_flight.list && i < run->in_flight.count; i++) destroy_microbatch(&run->in_flight.list[i]);
  ad_tape_pool_destroy(run->in_flight.pool);
  ad_release(run->in_flight.list);
  ad_release(run->in_flight.phases);
  run->in_flight = (ad_in_flight){0};
}

/* ---- beginning a microbatch, and a pass over all microbatches ---- */

void ad_microbatch_begin(const ad_run *run, int32_t m) {
  ad_microbatch_run *at = ad_run_microbatch(run, (size_t)m);
  if (at->number == m) return;
  at->number = m;
  for (size_t i = 0; i < ad_program_loss_count(run->program) * run->in_flight.own_phases; i++)
    at->losses[i] = (ad_submitted_loss){0};
  for (size_t v = 0; v < run->program->value_count; v++) {
    at->values[v].output = NULL;
    at->values[v].arrived = NULL;
    for (size_t p = 0; p < run->in_flight.own_phases; p++) at->values[v].inputs[p] = at->values[v].needed[p] = NULL;
  }
}

void ad_microbatches_begin_pass(ad_run *run) {
  for (size_t i = 0; i < run->in_flight.count; i++) run->in_flight.list[i].number = -1;
  for (size_t p = 0; run->in_flight.pool && p < ad_program_phase_count(run->program); p++)
    for (size_t i = 0; i < run->in_flight.phases[p].tape_count; i++)
      if (run->in_flight.phases[p].tapes[i]) ad_tape_reset(run->in_flight.phases[p].tapes[i]);
}

/* ---- finding a microbatch and its tape ---- */

ad_tape *ad_run_tape(const ad_run *run, size_t p, size_t m) {
  return run->in_flight.phases[p].tapes[m % run->in_flight.phases[p].tape_count];
}

ad_microbatch_run *ad_run_microbatch(const ad_run *run, size_t m) {
  return &run->in_flight.list[m % run->in_flight.count];
}

int64_t ad_run_part_of(const ad_run *run, size_t round) { return run->leaves ? run->leaves[round] : (int64_t)round; }
int64_t ad_run_pass_of(const ad_run *run, size_t round) { return run->leaves ? run->passes[round] : (int64_t)round; }

size_t ad_run_own_phases(const ad_run *run) { return run->in_flight.own_phases; }
const ad_phase_share *ad_run_phase(const ad_run *run, size_t p) { return &run->in_flight.phases[p]; }

/* Returns tape `index` of all tapes on this rank, or NULL after the last. */
static const ad_tape *tape_at(const ad_run *run, size_t index) {
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) {
    const ad_phase_share *phase = &run->in_flight.phases[p];
    if (!phase->tapes[0]) continue;
    if (index < phase->tape_count) return phase->tapes[index];
    index -= phase->tape_count;
  }
  return NULL;
}

size_t ad_run_tape_bytes(const ad_run *run) {
  size_t bytes = ad_tape_pool_peak_bytes(run->in_flight.pool);
  const ad_tape *tape;
  for (size_t i = 0; (tape = tape_at(run, i)); i++) bytes += ad_tape_peak_bytes(tape);
  return bytes;
}

size_t ad_run_most_routed(const ad_run *run) {
  size_t most = 0;
  const ad_tape *tape;
  for (size_t i = 0; (tape = tape_at(run, i)); i++) {
    size_t tokens = ad_tape_most_routed(tape);
    most = tokens > most ? tokens : most;
  }
  return most;
}
