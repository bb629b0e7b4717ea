/* Making and unmaking a rank's share of a run. What a step does with it is in step.c. */
#include "train/run.h"
#include "array/array.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/contract.h"
#include "recipe/recipe.h"
#include "tensor/tape.h"

/* ---- the world ---- */

ad_status ad_run_check_world(const ad_comm *comm, const ad_recipe *recipe) {
  int64_t ranks = 0, world = ad_comm_size(comm);
  char mesh[256];
  AD_TRY(ad_recipe_world(recipe, &ranks));
  if (ranks == world) return AD_OK;
  return ad_fail(AD_INVALID, "the mesh \"%s\" of %s has %lld ranks, this world has %lld; start as many as the mesh has",
                 ad_recipe_mesh_text(recipe, mesh, sizeof mesh), recipe->path ? recipe->path : recipe->name,
                 (long long)ranks, (long long)world);
}

static ad_status create_everyone(ad_run *run) {
  const ad_mesh *first = ad_program_mesh(run->program, 0);
  if (ad_mesh_size(first) != ad_comm_size(run->comm)) {
    char text[48];
    snprintf(text, sizeof text, "dp_shard=%lld", (long long)ad_comm_size(run->comm));
    AD_TRY(ad_mesh_create(text, &run->world));
    first = run->world;
  }
  run->everyone = ad_mesh_group(first, AD_AXES_ALL, ad_comm_rank(run->comm));
  return AD_OK;
}

/* ---- modules ---- */

ad_dtype ad_run_compute_dtype(const ad_run *run) { return ad_recipe_compute(run->recipe, run->options.dtype); }

/* Of the residual stream; 0: the tape's default. */
static ad_dtype residual_dtype(const ad_run *run) { return run->options.dtype ? 0 : run->recipe->precision.residual; }

/* From ZeRO 2 on no rank keeps whole gradients, unless a microbatch's stay unsent. */
static int reuses_buckets(const ad_recipe *recipe) {
  int reuses = recipe->shard.zero >= 2;
  for (size_t m = 0; m < recipe->train.sync_count; m++) reuses &= recipe->train.sync[m] != AD_SYNC_NONE;
  return reuses;
}

static ad_module_options module_options(ad_run *run) {
  const ad_recipe *recipe = run->recipe;
  return (ad_module_options){.size = sizeof(ad_module_options),
                             .compute = ad_run_compute_dtype(run),
                             .releases = recipe->shard.zero == 3,
                             .prefetch = (int)recipe->shard.prefetch,
                             .seed = (uint64_t)recipe->train.seed,
                             .reducer = {.size = sizeof(ad_reducer_options),
                                         .bucket_bytes = (size_t)(recipe->shard.bucket_mib * 1024 * 1024),
                                         .reuses = reuses_buckets(recipe),
                                         .window = (size_t)recipe->shard.window,
                                         .trace = ad_trace_bucket,
                                         .trace_context = &run->trace},
                             .optimizer = {.size = sizeof(ad_adamw_options),
                                           .beta1 = recipe->train.beta1,
                                           .beta2 = recipe->train.beta2,
                                           .epsilon = recipe->train.epsilon,
                                           .weight_decay = recipe->train.weight_decay}};
}

static int is_here(const ad_run *run, const ad_mesh *mesh) { return ad_mesh_has_rank(mesh, ad_comm_rank(run->comm)); }

static ad_status create_module(ad_run *run, size_t i, const ad_module_options *options) {
  const ad_module_spec *spec = ad_program_module(run->program, i);
  ad_module_options own = *options;
  char prefix[AD_PARAM_NAME_SIZE], files[AD_PARAM_NAME_SIZE];
  if (!is_here(run, spec->mesh))
    return run->options.plans ? AD_OK : ad_absent_create(run->comm, spec, options, &run->absent[i]);
  snprintf(prefix, sizeof prefix, "%s.", spec->name);
  snprintf(files, sizeof files, "stage%zu.", i);
  own.reducer.prefix = ad_program_names_modules(run->program) ? prefix : NULL;
  own.reducer.files = ad_program_stage_count(run->program) > 1 ? files : NULL;
  AD_TRY(ad_module_create(run->comm, spec, &own, &run->modules[i]));
  run->parameters[i] = ad_module_parameters(run->modules[i]);
  return AD_OK;
}

static ad_status read_initial(ad_run *run) {
  if (run->recipe->from) return ad_run_read_pretrained(run, run->recipe->from);
  return run->recipe->weights ? ad_run_read_weights(run, run->recipe->weights) : AD_OK;
}

static ad_status create_modules(ad_run *run) {
  size_t count = ad_program_module_count(run->program);
  ad_module_options options = module_options(run);
  AD_TRY(ad_new(count, &run->modules));
  AD_TRY(ad_new(count, &run->absent));
  AD_TRY(ad_new(count, &run->parameters));
  for (size_t i = 0; i < count; i++) {
    const ad_module_spec *spec = ad_program_module(run->program, i);
    run->param_count += spec->param_count;
    ad_status status = create_module(run, i, &options);
    int scales = 0;
    if (!status) status = ad_module_has_f16_gradients(spec, &scales);
    if (status) return count > 1 ? ad_fail_in(status, "module `%s`", spec->name) : status;
    run->loss_scale.enabled |= scales;
  }
  run->loss_scale.exponent = run->loss_scale.enabled ? (int)run->recipe->precision.loss_scale : 0;
  return read_initial(run);
}

/* ---- norm groups ---- */

static int same_name(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static ad_status find_norm_group(ad_run *run, const char *name, size_t *out) {
  for (*out = 0; *out < run->norm_group_count; ++*out)
    if (same_name(run->norm_groups[*out].name, name)) return AD_OK;
  if (run->norm_group_count == AD_NORM_GROUPS_MAX)
    return ad_fail(AD_INVALID, "the program has more than %d norm groups", AD_NORM_GROUPS_MAX);
  run->norm_groups[run->norm_group_count++].name = name;
  return AD_OK;
}

static ad_status list_gradients(const ad_run *run, ad_norm_group *group, size_t m) {
  ad_module *module = run->modules[m];
  size_t count = ad_module_param_count(module);
  AD_TRY(ad_grow(&group->arrays, group->count, group->count + count));
  AD_TRY(ad_grow(&group->names, group->count, group->count + count));
  AD_TRY(ad_grow(&group->places, group->count, group->count + count));
  for (size_t i = 0; i < count; i++) {
    char name[2 * AD_PARAM_NAME_SIZE];
    AD_TRY(ad_copy_string(ad_program_param_name(run->program, m, i, name, sizeof name), &group->names[group->count]));
    group->places[group->count] = group->sum_count + i;
    group->arrays[group->count++] = ad_module_part(module, i, AD_PART_GRADIENT);
  }
  return AD_OK;
}

/* A mirror's gradients leave, they are nobody's update: they are in no norm. */
static ad_status create_norm_groups(ad_run *run) {
  size_t count = ad_program_module_count(run->program);
  AD_TRY(ad_new(count, &run->norm_group_of));
  for (size_t i = 0; i < count; i++) {
    const ad_module_spec *spec = ad_program_module(run->program, i);
    if (spec->is_mirror) continue;
    AD_TRY(find_norm_group(run, spec->norm_group, &run->norm_group_of[i]));
    ad_norm_group *group = &run->norm_groups[run->norm_group_of[i]];
    if (run->modules[i]) AD_TRY(list_gradients(run, group, i));
    group->sum_count += spec->param_count;
  }
  for (size_t i = 0; i < run->norm_group_count; i++)
    AD_TRY(ad_new(run->norm_groups[i].sum_count, &run->norm_groups[i].sums));
  return AD_OK;
}

/* ---- counts, phases ---- */

static ad_status create_counts(ad_run *run) {
  size_t count = ad_program_count_count(run->program), microbatches = (size_t)run->recipe->train.microbatches;
  AD_TRY(ad_new(count, &run->counts));
  AD_TRY(ad_new(count, &run->counted));
  for (size_t i = 0; i < count; i++) {
    const ad_count_spec *spec = ad_program_count(run->program, i);
    AD_TRY(ad_new(microbatches, &run->counted[i]));
    if (is_here(run, spec->layout.mesh))
      AD_TRY(ad_count_create(run->comm, &spec->layout, microbatches, &run->counts[i]));
  }
  return AD_OK;
}

/* ---- microbatches under way ---- */

/* A phase on paper. */
typedef struct numbered_phase {
  const ad_program *program;
  size_t number;
} numbered_phase;

/* Whether phase `giver` starts its backward from what the phase leaves. */
static int gives_to(const numbered_phase *phase, size_t giver) {
  const char *const *needs = ad_program_phase(phase->program, phase->number)->needs;
  for (; needs && *needs; needs++)
    if (ad_phase_lists(ad_program_phase(phase->program, giver)->gives, *needs)) return 1;
  return 0;
}

/* Whether an action needs the phase's tape: its own, and backward of those on its ranks that gave it something. */
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
  return run->modules[ad_program_phase(run->program, p)->module];
}

static ad_status count_tapes(ad_run *run, size_t p) {
  ad_phase_share *share = &run->phases[p];
  numbered_phase phase = {run->program, p};
  int is_own = module_of(run, p) != NULL;
  share->place = is_own ? run->own_phases++ : SIZE_MAX;
  share->tape_count = 1;
  if (!is_own) return AD_OK;
  return ad_order_most_at_once(&run->order, (ad_order_use){uses_tape, &phase}, &share->tape_count);
}

static ad_status count_under_way(ad_run *run) {
  size_t count = ad_program_phase_count(run->program);
  run->own_phases = 0;
  AD_TRY(ad_new(count, &run->phases));
  for (size_t p = 0; p < count; p++) AD_TRY(count_tapes(run, p));
  return ad_order_most_at_once(&run->order, (ad_order_use){uses_microbatch, NULL}, &run->under_way);
}

static ad_status create_phase_tapes(ad_run *run, size_t p, const ad_tape_options *options) {
  ad_phase_share *phase = &run->phases[p];
  size_t module = ad_program_phase(run->program, p)->module;
  AD_TRY(ad_new(phase->tape_count, &phase->tapes));
  AD_TRY(ad_new(phase->tape_count, &phase->owed));
  for (size_t i = 0; module_of(run, p) && i < phase->tape_count; i++) {
    AD_TRY(ad_tape_create(run->comm, ad_program_mesh(run->program, module), options, &phase->tapes[i]));
    if (run->pool) ad_tape_share(phase->tapes[i], run->pool);
  }
  return AD_OK;
}

static ad_status create_tapes(ad_run *run) {
  ad_tape_options options = {.size = sizeof options,
                             .dtype = ad_run_compute_dtype(run),
                             .residual = residual_dtype(run),
                             .crowd = run->options.crowd};
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) AD_TRY(create_phase_tapes(run, p, &options));
  return AD_OK;
}

ad_tape *ad_run_tape(const ad_run *run, size_t p, size_t m) {
  return run->phases[p].tapes[m % run->phases[p].tape_count];
}

ad_microbatch_run *ad_run_microbatch(const ad_run *run, size_t m) { return &run->microbatches[m % run->under_way]; }

static ad_status create_microbatch(const ad_run *run, ad_microbatch_run *out) {
  size_t values = run->program->value_count, phases = run->own_phases;
  AD_TRY(ad_new(phases * ad_program_loss_count(run->program), &out->losses));
  AD_TRY(ad_new(values, &out->values));
  AD_TRY(ad_new(2 * values * phases, &out->taken));
  for (size_t i = 0; i < values; i++) {
    out->values[i].inputs = out->taken + 2 * i * phases;
    out->values[i].needed = out->values[i].inputs + phases;
  }
  return AD_OK;
}

static ad_status create_passing(ad_run *run) {
  if (ad_program_loss_count(run->program) > AD_LOSSES_MAX)
    return ad_fail(AD_INVALID, "the program has more than %d losses", AD_LOSSES_MAX);
  AD_TRY(ad_new(run->under_way, &run->microbatches));
  for (size_t i = 0; i < run->under_way; i++) AD_TRY(create_microbatch(run, &run->microbatches[i]));
  return ad_crossings_create(run);
}

/* All that there is of each microbatch under way. */
static ad_status create_microbatches(ad_run *run) {
  AD_TRY(count_under_way(run));
  AD_TRY(create_tapes(run));
  return create_passing(run);
}

static void count_phases(const ad_run *run) {
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++)
    run->module_runs[ad_program_phase(run->program, p)->module].phases++;
}

/* Tapes of a pipeline share memory. */
static ad_status create_order(ad_run *run) {
  int is_pipeline = ad_program_stage_count(run->program) > 1;
  const char *schedule = is_pipeline ? ad_recipe_schedule(run->recipe) : NULL;
  AD_TRY(ad_new(ad_program_module_count(run->program), &run->module_runs));
  count_phases(run);
  if (is_pipeline) AD_TRY(ad_tape_pool_create(ad_comm_is_dry(run->comm), &run->pool));
  if (run->options.table) return ad_order_share(run->program, ad_comm_rank(run->comm), run->options.table, &run->order);
  return ad_order_create(run->program, ad_comm_rank(run->comm), (size_t)run->recipe->train.microbatches, schedule,
                         &run->order);
}

/* ---- the whole ---- */

static ad_status create_program(ad_run *run) {
  AD_TRY(ad_run_check_world(run->comm, run->recipe));
  AD_TRY(ad_recipe_program(run->recipe, run->comm, run->options.dtype, &run->program));
  AD_TRY(create_everyone(run));
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  return kind->open ? kind->open(ad_program_own(run->program)) : AD_OK;
}

// What was made before a failure is given back by ad_run_destroy.
static ad_status create_parts(ad_run *run, const ad_run_options *options) {
  AD_TRY(ad_options_take(&run->options, sizeof run->options, options, "ad_run_options"));
  run->rounds_wires = !run->options.dtype;
  AD_TRY(create_program(run));
  AD_TRY(ad_trace_create(&run->trace));
  AD_TRY(create_modules(run));
  AD_TRY(create_norm_groups(run));
  AD_TRY(create_counts(run));
  AD_TRY(create_order(run));
  AD_TRY(create_microbatches(run));
  void *sums;
  AD_TRY(ad_comm_alloc(run->comm, AD_RUN_SUMS * sizeof *run->sums, &sums));
  run->sums = sums;
  return AD_OK;
}

ad_status ad_run_create(ad_comm *comm, const ad_recipe *recipe, const ad_run_options *options, ad_run **out) {
  AD_NEED(comm, recipe, out);
  ad_run *run;
  AD_TRY(ad_new(1, &run));
  run->comm = comm;
  run->recipe = recipe;
  ad_status status = ad_run_tell(run, create_parts(run, options));
  if (status) {
    run->options.trace = NULL;
    ad_run_destroy(run);
    return status;
  }
  *out = run;
  return AD_OK;
}

static void destroy_microbatch(ad_microbatch_run *m) {
  ad_release(m->taken);
  ad_release(m->values);
  ad_release(m->losses);
}

static void destroy_phase(ad_phase_share *phase) {
  for (size_t i = 0; phase->tapes && i < phase->tape_count; i++) ad_tape_destroy(phase->tapes[i]);
  ad_release(phase->tapes);
  ad_release(phase->owed);
}

static void destroy_microbatches(ad_run *run) {
  ad_crossings_destroy(run);
  for (size_t p = 0; run->phases && p < ad_program_phase_count(run->program); p++) destroy_phase(&run->phases[p]);
  for (size_t i = 0; run->microbatches && i < run->under_way; i++) destroy_microbatch(&run->microbatches[i]);
  ad_tape_pool_destroy(run->pool);
  ad_release(run->microbatches);
  ad_release(run->phases);
  run->pool = NULL;
  run->microbatches = NULL;
  run->phases = NULL;
}

static void destroy_counts(ad_run *run) {
  for (size_t i = 0; run->counts && i < ad_program_count_count(run->program); i++) ad_count_destroy(run->counts[i]);
  for (size_t i = 0; run->counted && i < ad_program_count_count(run->program); i++) ad_release(run->counted[i]);
  ad_release(run->counts);
  ad_release(run->counted);
}

/* All that there is of microbatches, for the order that the run has now. */
static ad_status renew_microbatches(ad_run *run) {
  destroy_microbatches(run);
  AD_TRY(ad_tape_pool_create(ad_comm_is_dry(run->comm), &run->pool));
  return create_microbatches(run);
}

ad_status ad_run_take_table(ad_run *run, ad_table *table) {
  ad_status status = ad_order_take(&run->order, run->program, table);
  if (status) ad_table_destroy(table);
  return ad_run_tell(run, status ? status : renew_microbatches(run));
}

ad_status ad_run_take_unchecked(ad_run *run, ad_table *table) {
  ad_order_replace(&run->order, table);
  return ad_run_tell(run, renew_microbatches(run));
}

static void destroy_modules(ad_run *run) {
  for (size_t i = 0; run->modules && i < ad_program_module_count(run->program); i++) ad_module_destroy(run->modules[i]);
  for (size_t i = 0; i < run->norm_group_count; i++) {
    ad_release(run->norm_groups[i].arrays);
    for (size_t k = 0; k < run->norm_groups[i].count; k++) ad_release(run->norm_groups[i].names[k]);
    ad_release(run->norm_groups[i].names);
    ad_release(run->norm_groups[i].places);
    ad_release(run->norm_groups[i].sums);
  }
  ad_release(run->norm_group_of);
  for (size_t i = 0; run->absent && i < ad_program_module_count(run->program); i++) ad_absent_release(&run->absent[i]);
  ad_release(run->absent);
  ad_release(run->parameters);
  ad_release(run->modules);
}

static void write_trace(ad_run *run) {
  if (!run->options.trace) return;
  ad_status status = ad_trace_settle(&run->trace);
  if (!status) status = ad_trace_write(&run->trace, ad_comm_rank(run->comm), run->options.trace);
  if (status) ad_log(AD_LOG_WARNING, "%s", ad_last_error());
}

void ad_run_destroy(ad_run *run) {
  if (!run) return;
  write_trace(run);
  ad_comm_free(run->comm, run->sums);
  destroy_microbatches(run);
  ad_order_release(&run->order);
  ad_release(run->module_runs);
  destroy_counts(run);
  destroy_modules(run);
  ad_trace_destroy(&run->trace);
  ad_program_destroy(run->program);
  ad_mesh_destroy(run->world);
  ad_release(run);
}

ad_status ad_run_tell(ad_run *run, ad_status status) {
  if (ad_status_is_own(status)) ad_comm_fail(run->comm, status, ad_last_error());
  return status;
}

int ad_run_warns(const ad_run *run) { return ad_run_is_first(run) && !run->options.quiet; }

int ad_run_is_first(const ad_run *run) { return ad_group_index(&run->everyone, ad_comm_rank(run->comm)) == 0; }

/* ---- reading ---- */

ad_program *ad_run_program(const ad_run *run) { return run->program; }
ad_module *ad_run_module(const ad_run *run, size_t module) {
  return ad_has(module, ad_program_module_count(run->program), __func__, "module") ? run->modules[module] : NULL;
}
ad_group ad_run_everyone(const ad_run *run) { return run->everyone; }
ad_loss_scale *ad_run_loss_scale(ad_run *run) { return &run->loss_scale; }
ad_comm *ad_run_comm(const ad_run *run) { return run->comm; }
const ad_recipe *ad_run_recipe(const ad_run *run) { return run->recipe; }
size_t ad_run_param_count(const ad_run *run) { return run->param_count; }

ad_run_param ad_run_param_at(const ad_run *run, size_t index) {
  ad_run_param found = {.param = index};
  if (!ad_has(index, ad_run_param_count(run), __func__, "parameter")) return (ad_run_param){0};
  const ad_planned_module *modules = run->program->modules;
  while (found.param >= modules[found.module].spec.param_count) found.param -= modules[found.module++].spec.param_count;
  found.spec = &modules[found.module].spec.params[found.param];
  found.held = run->modules[found.module];
  return found;
}

ad_array *ad_run_part(const ad_run *run, size_t index, ad_param_part part) {
  ad_run_param at = ad_run_param_at(run, index);
  if (!at.spec || !ad_has(part, AD_PART_COUNT, __func__, "part")) return NULL;
  if (at.held) return ad_module_part(at.held, at.param, part);
  if (run->options.plans) return NULL;
  return run->absent[at.module].part[at.param * AD_PART_COUNT + (size_t)part];
}

ad_array *ad_run_state(const ad_run *run, size_t module, size_t state) {
  if (!ad_has(module, ad_program_module_count(run->program), __func__, "module")) return NULL;
  if (!ad_has(state, ad_program_module(run->program, module)->state_count, __func__, "state")) return NULL;
  if (run->modules[module]) return ad_module_state(run->modules[module], state);
  return run->options.plans ? NULL : &run->absent[module].states[state];
}

ad_status ad_run_whole_at(ad_run *run, const ad_array *in, ad_array *out, const char *site) {
  AD_NEED(run, in, out);
  return ad_array_whole_for_at(run->comm, &run->everyone, in->layout.mesh, in, out, site);
}

ad_status ad_run_refresh(ad_run *run, ad_written written) {
  AD_NEED(run);
  for (size_t i = 0; i < ad_program_module_count(run->program); i++)
    if (run->modules[i]) AD_TRY(ad_module_refresh(run->modules[i], written));
  return AD_OK;
}

size_t ad_run_data_bytes(const ad_run *run) { return ad_program_data_bytes(run->program); }

/* Tape number `index` of all that this rank has; NULL after the last. */
static const ad_tape *tape_at(const ad_run *run, size_t index) {
  for (size_t p = 0; p < ad_program_phase_count(run->program); p++) {
    const ad_phase_share *phase = &run->phases[p];
    if (!phase->tapes[0]) continue;
    if (index < phase->tape_count) return phase->tapes[index];
    index -= phase->tape_count;
  }
  return NULL;
}

size_t ad_run_tape_bytes(const ad_run *run) {
  size_t bytes = ad_tape_pool_peak_bytes(run->pool);
  const ad_tape *tape;
  for (size_t i = 0; (tape = tape_at(run, i)); i++) bytes += ad_tape_peak_bytes(tape);
  return bytes;
}

double ad_run_crossing_seconds(const ad_run *run) { return 1e-9 * (double)run->trace.crossing; }

size_t ad_run_most_routed(const ad_run *run) {
  size_t most = 0;
  const ad_tape *tape;
  for (size_t i = 0; (tape = tape_at(run, i)); i++) {
    size_t tokens = ad_tape_most_routed(tape);
    most = tokens > most ? tokens : most;
  }
  return most;
}
