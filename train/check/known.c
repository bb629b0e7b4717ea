/* Lists the known bugs that are not a transition done wrongly, and finds out which of them can have an effect in a
 * run. */
#include <math.h>
#include <stdio.h>

#include "bridge/known_bugs.h"
#include "base/roundoff.h"
#include "check/mutants.h"
#include "module/module.h"
#include "optim/known_bugs.h"
#include "optim/record.h"
#include "program/known_bugs.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "recipe/sharding.h"
#include "reduce/known_bugs.h"
#include "reduce/plan.h"
#include "tensor/known_bugs.h"
#include "tensor/ring.h"
#include "step/known_bugs.h"
#include "step/run.h"
#include "layout/type.h"
#include "mesh/mesh.h"

static size_t append(const ad_known_bug *bugs, size_t count, ad_mutant *list) {
  for (size_t i = 0; i < count && list; i++) {
    const ad_known_bug *known = &bugs[i];
    list[i] = (ad_mutant){.known = known,
                          .catalogue = known->catalogue,
                          .expected_ratio = NAN,
                          .ratio = NAN,
                          .loss_err = NAN,
                          .moved = NAN};
    snprintf(list[i].name, sizeof list[i].name, "%s", known->name);
  }
  return count;
}

typedef const ad_known_bug *(*bug_list)(size_t *count);

static size_t append_all(const bug_list *lists, size_t list_count, ad_mutant *list) {
  size_t count = 0;
  for (size_t i = 0; i < list_count; i++) {
    size_t own;
    const ad_known_bug *bugs = lists[i](&own);
    count += append(bugs, own, list ? list + count : NULL);
  }
  return count;
}

size_t ad_known_list(ad_mutant *list) {
  static const bug_list lists[] = {ad_reduce_known_bugs, ad_reduce_spread_bugs, ad_bridge_known_bugs,
                                   ad_optim_known_bugs,  ad_tensor_known_bugs,  ad_program_known_bugs,
                                   ad_train_known_bugs,  ad_pool_known_bugs,    ad_pipeline_known_bugs};
  return append_all(lists, sizeof lists / sizeof *lists, list);
}

size_t ad_known_list_of_leaves(ad_mutant *list) {
  static const bug_list lists[] = {ad_reduce_leaf_bugs, ad_train_leaf_bugs};
  return append_all(lists, sizeof lists / sizeof *lists, list);
}

/* ---- facts (AD_NEED_...): what a run has, so that a known bug can show ---- */

static ad_needs facts_of_path(const ad_param_spec *spec) {
  const ad_mesh *mesh = spec->layout.mesh;
  ad_layout gradient = ad_layout_dual(&spec->layout);
  ad_path_step steps[AD_AXIS_COUNT];
  int count, early;
  ad_needs facts = ad_check_reduced_axes(&spec->layout) ? AD_NEED_SUMMED : 0;
  if (!ad_layout_equal(&spec->storage, ad_param_update(spec))) facts |= AD_NEED_PARTLY_UPDATED;
  if (ad_type_is_sharded(spec->layout.type[AD_EP]) && ad_mesh_axis_size(mesh, AD_EP) > 1)
    facts |= AD_NEED_SPREAD_EXPERTS;
  if (ad_gradient_path(&gradient, &spec->storage, ad_param_update(spec), steps, &count, &early) || !count) return facts;
  facts |= AD_NEED_REDUCED;
  for (int i = 0; i < count; i++)
    if (ad_mesh_ranks_over(mesh, steps[i].axes) == 1) facts |= AD_NEED_OVER_ONE;
  int64_t members = ad_mesh_ranks_over(mesh, steps[0].axes);
  if (members > 1) facts |= AD_NEED_FIRST_OVER_MANY;
  if (steps[0].move != AD_MOVE_REDUCE_SCATTER) return facts;
  if (spec->shape.dim[0] > members && spec->shape.dim[0] % members) facts |= AD_NEED_UNEVEN;
  if (count > early && early) facts |= AD_NEED_SCATTERED_FIRST;
  if (count > early && early && ad_mesh_ranks_over(mesh, steps[1].axes) > 1) facts |= AD_NEED_OVER_REPLICAS;
  return facts;
}

static ad_needs facts_of_reducer(const ad_reducer *reducer) {
  size_t taking_turns = 0;
  for (size_t i = 0; i < ad_reducer_bucket_count(reducer); i++)
    for (size_t k = 0; k < i; k++) {
      int window = ad_reducer_bucket(reducer, i).window;
      taking_turns += window >= 0 && ad_reducer_bucket(reducer, k).window == window;
    }
  return taking_turns ? AD_NEED_TURNS : 0;
}

static ad_needs facts_of_computing(const ad_run *run, int shards_formulas) {
  ad_dtype compute = run->recipe->precision.compute, residual = run->recipe->precision.residual;
  ad_needs facts = shards_formulas ? 0 : AD_NEED_FULL_FORMULAS;
  if (compute != AD_BF16) return facts;
  return facts | AD_NEED_NARROW_PRODUCTS | (residual == AD_BF16 ? 0 : AD_NEED_WIDE_STREAM);
}

/* Returns the facts about a parameter's precision policy in the recipe's own dtypes, whatever dtype the run computes
 * in. */
static ad_needs facts_of_policy(const ad_recipe *recipe, const char *name) {
  ad_precision_policy policy;
  ad_needs facts = 0;
  if (ad_recipe_precision_policy(recipe, name, &policy)) return 0;
  if ((!policy.raw && ad_dtype_needs_scale(policy.grad)) || ad_dtype_needs_scale(policy.reduce)) facts |= AD_NEED_F16;
  if (!policy.raw && ad_unit_roundoff(policy.grad) > 0x1p-24) facts |= AD_NEED_NARROW_GRADIENTS;
  if (ad_unit_roundoff(policy.grad) <= 0x1p-24 && ad_unit_roundoff(policy.reduce) <= 0x1p-24)
    facts |= AD_NEED_WIDE_SUMS;
  return facts;
}

/* Returns the count `count` in microbatch m, or 0 if this rank does not know it. */
static int64_t counted_in(const ad_run *run, size_t count, size_t m) {
  return ad_run_count(run, count) ? ad_count_of(ad_run_count(run, count), m) : 0;
}

/* Returns the facts about a parameter that is updated as whole matrices. Where each rank works on the block that it
 * stores, no matrix is brought together. */
static ad_needs facts_of_matrices(const ad_param_spec *spec, int is_blockwise) {
  ad_axes large = is_blockwise ? 0 : ad_mesh_large(spec->storage.mesh);
  ad_needs facts = AD_NEED_MATRICES | (spec->matrices.form == AD_MATRIX_FUSED ? AD_NEED_FUSED : 0);
  for (int dimension = spec->shape.ndim - 2; dimension < spec->shape.ndim; dimension++) {
    ad_axes sharded = ad_layout_axes_of(ad_param_update(spec), AD_S(dimension)) & large;
    if (sharded) facts |= AD_NEED_SHARDED_MATRICES;
    if (sharded & (AD_AXES(AD_TP) | AD_AXES(AD_ETP))) facts |= AD_NEED_TP_MATRICES;
  }
  return facts;
}

/* Returns the facts about how a parameter is updated. */
static ad_needs facts_of_update(const ad_run *run, size_t param) {
  ad_optimizer_options options[AD_GROUPS_MAX];
  ad_run_param at = ad_run_param_at(run, param);
  char name[AD_PROGRAM_NAME_SIZE];
  ad_program_param_name(run->program, at.module, at.param, name, sizeof name);
  ad_recipe_optimizers(run->recipe, run->options.dtype, options);
  const ad_optimizer_options *own = &options[ad_recipe_group_of(run->recipe, name)];
  const ad_optimizer_record *record = ad_optimizer_record_of(own->kind);
  int decays = at.spec->decays || own->decays_all;
  ad_needs facts = own->weight_decay <= 0 ? 0 : decays ? AD_NEED_DECAY : AD_NEED_UNDECAYED;
  if (record->prepare) facts |= AD_NEED_STEP_NUMBER;
  if (record->whole) facts |= facts_of_matrices(at.spec, record->whole->is_blockwise(own));
  for (int part = AD_PART_STATE; part < AD_PART_GRADIENT; part++)
    if (ad_run_part(run, param, (ad_param_part)part)) facts |= AD_NEED_STATES;
  return facts;
}

/* Returns the facts about learning rates. A rate of another group is that of the next one. */
static ad_needs facts_of_rates(const ad_recipe *recipe) {
  double rates[AD_GROUPS_MAX];
  size_t count = ad_recipe_group_count(recipe);
  if (ad_recipe_rates(recipe, 0, rates)) return 0;
  for (size_t i = 0; i < count; i++)
    if (rates[i] != rates[(i + 1) % count]) return AD_NEED_GROUP_RATES;
  return 0;
}

static int some_are_counted(const ad_run *run, size_t m) {
  int some = 0;
  for (size_t i = 0; i < ad_program_count_count(run->program); i++) some |= counted_in(run, i, m) > 0;
  return some;
}

/* Returns 1 if, when the last microbatch begins, a shard that an earlier microbatch reduce-scattered is not yet summed
 * over replicas. With leaves, rounds take the place of microbatches. */
static int keeps_shards(const ad_run *run, size_t group) {
  int kept = 0;
  for (size_t round = 0; round + 1 < (size_t)ad_recipe_rounds(run->recipe); round++) {
    ad_sync sync = ad_recipe_sync_of_group(run->recipe, group, round);
    int64_t part = ad_run_part_of(run, round);
    if (sync == AD_SYNC_ALL) kept = 0;
    kept |= sync == AD_SYNC_SHARD && part >= 0 && some_are_counted(run, (size_t)part);
  }
  return kept;
}

/* Returns 1 if keeps_shards holds for the group of some parameter that ZeRO shards. */
static int some_keep_shards(const ad_run *run) {
  char name[AD_PROGRAM_NAME_SIZE];
  if (!run->recipe->shard.group_count) return keeps_shards(run, 0);
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    ad_program_param_name(run->program, at.module, at.param, name, sizeof name);
    if (!at.spec->frozen && !ad_layout_equal(&at.spec->layout, &at.spec->storage) &&
        keeps_shards(run, ad_recipe_shard_group_of(run->recipe, name)))
      return 1;
  }
  return 0;
}

/* Returns the facts about groups that are reduced, or gathered, in another way than others. */
static ad_needs facts_of_shard_groups(const ad_run *run) {
  const ad_recipe *recipe = run->recipe;
  size_t count = recipe->train.sync_count, all[AD_MICROBATCHES_MAX] = {0}, trained = 0, released = 0, kept = 0;
  int differs = 0, counted = 0, sums_differ = 0;
  if (!recipe->shard.group_count) return 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    ad_recipe_sharding sharding = ad_run_sharding(run, i);
    if (!at.held || at.spec->frozen) continue;
    trained++;
    for (size_t m = 0; m < count; m++) all[m] += sharding.sync[m] == AD_SYNC_ALL;
    differs |= memcmp(sharding.sync, recipe->train.sync, count * sizeof *sharding.sync) != 0;
    int is_sharded = !ad_layout_equal(&at.spec->layout, &at.spec->storage);
    released += is_sharded && sharding.zero == 3;
    kept += is_sharded && sharding.zero != 3;
  }
  for (size_t m = 0; !recipe->train.leaves && m + 1 < count; m++) {
    counted |= some_are_counted(run, m);
    sums_differ |= counted && all[m] && all[m] < trained;
  }
  ad_needs facts = released && kept ? AD_NEED_GROUP_LEVELS : 0;
  if (sums_differ) facts |= AD_NEED_GROUP_SUMS;
  return facts | (differs && count && some_are_counted(run, count - 1) ? AD_NEED_GROUP_SYNC : 0);
}

/* Returns the facts about how the losses that are trained on use their counts. */
static ad_needs facts_of_losses(const ad_run *run) {
  ad_needs facts = 0;
  for (size_t i = 0; i < ad_program_loss_count(run->program); i++) {
    const ad_loss_spec *spec = ad_program_loss(run->program, i);
    if (spec->is_metric || spec->per_microbatch) continue;
    facts |= AD_NEED_DIVIDED;
    for (size_t m = 1; m < (size_t)ad_recipe_parts(run->recipe); m++)
      if (counted_in(run, spec->count, m) != counted_in(run, spec->count, 0)) facts |= AD_NEED_UNEQUAL_MICROBATCHES;
  }
  return facts;
}

static ad_needs facts_of_batch(const ad_run *run) {
  ad_needs facts = facts_of_losses(run);
  int64_t microbatches = ad_recipe_parts(run->recipe);
  if (microbatches > 1) facts |= AD_NEED_MICROBATCHES;
  if (!run->recipe->train.leaves && microbatches > 1) facts |= AD_NEED_ROUNDS;
  for (int64_t m = 0; m < microbatches; m++)
    if (some_are_counted(run, (size_t)m)) facts |= AD_NEED_TOKENS;
  return facts | (some_keep_shards(run) ? AD_NEED_SHARDS_KEPT : 0);
}

/* Counts the leaves of this rank: only a rank with at least two leaves computes several parts of the batch, whatever
 * the number of rounds. */
static ad_needs facts_of_leaves(const ad_run *run) {
  int64_t own = 0;
  for (int64_t round = 0; run->leaves && round < ad_recipe_rounds(run->recipe); round++) own += run->leaves[round] >= 0;
  return (own >= 2 ? AD_NEED_ROUNDS | AD_NEED_TWO_LEAVES : 0) | (own >= 4 ? AD_NEED_FOUR_LEAVES : 0);
}

ad_needs ad_known_facts(const ad_run *run, int shards_formulas) {
  ad_needs facts = facts_of_batch(run) | facts_of_computing(run, shards_formulas) | ad_pool_facts(run) |
                   ad_pipeline_facts(run) | facts_of_leaves(run) | facts_of_rates(run->recipe);
  facts |= facts_of_shard_groups(run);
  if (ad_comm_size(run->comm) > 1) facts |= AD_NEED_RANKS;
  if (ad_replicas_differ_on_other_mesh(run)) facts |= AD_NEED_OTHER_REPLICAS;
  for (size_t m = 0; m < ad_program_module_count(run->program); m++)
    if (ad_run_module(run, m)) facts |= facts_of_reducer(ad_module_reducer(ad_run_module(run, m)));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    char name[AD_PROGRAM_NAME_SIZE];
    if (!ad_run_trains(run, i)) {
      facts |= AD_NEED_FROZEN;
      continue;
    }
    facts |= facts_of_path(at.spec) | facts_of_update(run, i);
    facts |= facts_of_policy(run->recipe, ad_program_param_name(run->program, at.module, at.param, name, sizeof name));
  }
  return facts;
}

static void see_ring(void *context, void *passing) {
  const ring_turn_passing *at = passing;
  if (at->ring->members > 1) *(ad_needs *)context |= AD_NEED_RING | (at->is_masked ? AD_NEED_MASKED_RING : 0);
}

static void see_gathered(void *context, void *passing) { *(ad_needs *)context |= AD_NEED_RING_GRADIENTS; }

static void see_positions(void *context, void *passing) {
  const positions *at = passing;
  if (at->span_count && (at->span_count > 1 || at->span[0].first)) *(ad_needs *)context |= AD_NEED_SHARDED_SEQUENCE;
}

static void see_routes(void *context, void *passing) { *(ad_needs *)context |= ad_bridge_known_bugs_show(passing); }

static void see_returned(void *context, void *passing) { *(ad_needs *)context |= ad_pool_known_bugs_show(passing); }

static void see_state(void *context, void *passing) { *(ad_needs *)context |= ad_program_known_bugs_show(passing); }

static void see_rerun(void *context, void *passing) { *(ad_needs *)context |= ad_rerun_shows(passing); }

void ad_known_watch(ad_needs *facts) {
  ad_injection_set(AD_INJECT_RETURNED, (ad_injection){see_returned, facts});
  ad_injection_set(AD_INJECT_STATE, (ad_injection){see_state, facts});
  ad_injection_set(AD_INJECT_RERUN, (ad_injection){see_rerun, facts});
  ad_injection_set(AD_INJECT_RING_TURN, (ad_injection){see_ring, facts});
  ad_injection_set(AD_INJECT_RING_GATHERED, (ad_injection){see_gathered, facts});
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){see_routes, facts});
  ad_injection_set(AD_INJECT_POSITIONS, (ad_injection){see_positions, facts});
}

int ad_known_shows(ad_mutant *mutant, ad_needs facts) {
  ad_needs missing = mutant->known->needs & ~facts;
  if (!missing) return 1;
  mutant->killed_by = AD_KILLED_BY_NOT_APPLICABLE;
  snprintf(mutant->message, sizeof mutant->message, "%s", ad_need_sentence(missing));
  return 0;
}
