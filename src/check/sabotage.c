/* Plants known mistakes one at a time and says what became of each. Which mistakes a recipe can show follows from its
 * topology and its counts: a mistake that changes no number there is not planted, and the reason is said. */
#include "check/sabotage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "addend/data.h"
#include "base/error.h"
#include "base/memory.h"
#include "check/rounding.h"

const char *ad_caught_name(ad_caught caught) {
  static const char *const names[] = {"none", "type", "number", "protocol"};
  return names[caught];
}

/* Counted tokens of a sample, as data.valid says. */
static int64_t tokens_of(const ad_recipe *recipe, int64_t sample) {
  double fraction = recipe->data.valid_count ? recipe->data.valid[(size_t)sample % recipe->data.valid_count] : 1;
  return (int64_t)llround(fraction * (double)recipe->data.seq);
}

static int64_t tokens_of_span(const ad_recipe *recipe, ad_span span) {
  int64_t tokens = 0;
  for (int64_t i = span.first; i < span.first + span.count; i++) tokens += tokens_of(recipe, i);
  return tokens;
}

static int microbatch_counts_differ(const ad_recipe *recipe) {
  int64_t batch = recipe->train.global_batch, microbatches = recipe->train.microbatches;
  int64_t first = tokens_of_span(recipe, ad_cut(batch, 0, microbatches));
  for (int64_t m = 1; m < microbatches; m++)
    if (tokens_of_span(recipe, ad_cut(batch, m, microbatches)) != first) return 1;
  return 0;
}

/* What decides which mistakes show. */
typedef struct ad_stage {
  const ad_recipe *recipe;
  const ad_mesh *mesh;
  ad_axes reduced;        /* over which some parameter's gradient is a sum of several ranks' addends */
  int scales_loss;        /* some contract has f16 gradients */
  int sums_wide;          /* some contract promises more than 16 bits all the way */
  int reduces;            /* some gradient takes a step, be it over a group of one */
  int scatters_first;     /* some gradient is scattered, then all_reduced over replicas */
  int over_replicas;      /* the same, over more than one */
  int over_one;           /* some step is over a group of one */
  int starts_over_many;   /* some first step is over a group of more: launches of one rank meet others' */
  int is_uneven;          /* some scattered dimension has shards of unequal size, none empty */
  int has_copies;         /* some element is stored on several ranks */
  int keeps_shards;       /* some microbatch before the last leaves its shard of the sum to be added to */
  int64_t tokens;         /* counted in a step */
  int second_rank_counts; /* rank 1 of the mesh holds a counted token */
} ad_stage;

static int64_t size_of_axes(const ad_mesh *mesh, ad_axes axes) {
  int64_t size = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) size *= ad_mesh_axis_size(mesh, (ad_axis)axis);
  return size;
}

static void look_at_path(const ad_param_spec *param, ad_stage *stage) {
  ad_layout storage = ad_recipe_storage(stage->recipe, param), gradient = ad_layout_dual(&param->layout);
  ad_path_step steps[AD_AXIS_COUNT];
  int count;
  if (ad_layout_path(&gradient, &storage, steps, &count)) return;
  for (int i = 0; i < count; i++) stage->over_one |= size_of_axes(stage->mesh, steps[i].axes) == 1;
  stage->reduces |= count > 0;
  stage->starts_over_many |= count > 0 && size_of_axes(stage->mesh, steps[0].axes) > 1;
  ad_axes copies = ad_layout_axes_of(&storage, AD_R) | ad_layout_axes_of(&storage, AD_I);
  stage->has_copies |= size_of_axes(stage->mesh, copies) > 1;
  if (!count || steps[0].move != AD_MOVE_REDUCE_SCATTER) return;
  int64_t members = size_of_axes(stage->mesh, steps[0].axes), rows = param->shape.dim[0];
  stage->is_uneven |= rows > members && rows % members;
  stage->scatters_first |= count > 1;
  stage->over_replicas |= count > 1 && size_of_axes(stage->mesh, steps[1].axes) > 1;
}

static void look_at_contract(const ad_param_spec *param, ad_stage *stage) {
  ad_contract contract;
  if (ad_recipe_contract(stage->recipe, param->name, &contract)) return;
  stage->scales_loss |= (contract.grad == AD_F16 && !contract.raw) || contract.reduce == AD_F16;
  stage->sums_wide |= ad_unit_roundoff(contract.grad) <= 0x1p-24 && ad_unit_roundoff(contract.reduce) <= 0x1p-24;
}

static int keeps_shards(const ad_recipe *recipe) {
  int kept = 0;
  for (size_t m = 0; m + 1 < recipe->train.sync_count; m++) {
    ad_span rows = ad_cut(recipe->train.global_batch, (int64_t)m, recipe->train.microbatches);
    if (recipe->train.sync[m] == AD_SYNC_ALL) kept = 0;
    kept |= recipe->train.sync[m] == AD_SYNC_SHARD && tokens_of_span(recipe, rows);
  }
  return kept;
}

static ad_axes reduced_axes(const ad_model *model) {
  ad_axes axes = 0;
  for (size_t i = 0; i < ad_model_param_count(model); i++)
    axes |= ad_proof_reduced_axes(&ad_model_param(model, i)->layout);
  return axes;
}

static int64_t tokens_of_rank(const ad_recipe *recipe, const ad_layout *batch, int64_t rank) {
  int64_t tokens = 0, microbatches = recipe->train.microbatches;
  for (int64_t m = 0; m < microbatches; m++)
    tokens += tokens_of_span(recipe, ad_batch_rows(batch, rank, recipe->train.global_batch, microbatches, m));
  return tokens;
}

/* Mistakes that f64 would not show as they are. */
static int is_of_dtype(ad_switch which) {
  return which == AD_SWITCH_OVERFLOW_PER_RANK || which == AD_SWITCH_BUCKET_BY_RAW_DTYPE ||
         which == AD_SWITCH_NARROW_ACCUMULATE;
}

static ad_stage stage_of(const ad_recipe *recipe, const ad_mesh *mesh, const ad_model *model) {
  ad_stage stage = {.recipe = recipe, .mesh = mesh, .reduced = reduced_axes(model)};
  stage.keeps_shards = keeps_shards(recipe);
  for (size_t i = 0; i < ad_model_param_count(model); i++) {
    look_at_path(ad_model_param(model, i), &stage);
    look_at_contract(ad_model_param(model, i), &stage);
  }
  stage.tokens = tokens_of_span(recipe, (ad_span){0, recipe->train.global_batch});
  int64_t second = ad_mesh_first_rank(mesh) + 1;
  stage.second_rank_counts =
      ad_mesh_has_rank(mesh, second) && tokens_of_rank(recipe, ad_model_batch_layout(model), second) > 0;
  return stage;
}

/* Why a mistake changes no number here; NULL: it shows. First those in how sums are cut, scaled and kept. */
static const char *why_hidden_in_reduction(ad_switch which, const ad_stage *stage) {
  switch (which) {
    case AD_SWITCH_PARTIAL_AFTER:
      if (!stage->scatters_first) return "no gradient is reduce-scattered and then all-reduced (shard.zero)";
      return stage->keeps_shards ? NULL : "no microbatch leaves a shard of its sum to be added to (train.sync)";
    case AD_SWITCH_BOTH_FACTORS:
      if (!stage->over_replicas) return "no gradient is reduce-scattered and then summed over several replicas";
      return stage->keeps_shards ? NULL : "no microbatch leaves a shard of its sum to be added to (train.sync)";
    case AD_SWITCH_ADD_TO_ITSELF:
      return stage->over_one ? NULL : "no reduction is over a group of one rank";
    case AD_SWITCH_PADDING_COUNTED:
      return stage->is_uneven ? NULL : "no gradient is cut into shards of unequal size";
    case AD_SWITCH_REPLICA_IN_NORM:
      return stage->has_copies ? NULL : "no element is stored on several ranks";
    case AD_SWITCH_BUCKET_BY_RAW_DTYPE:
    case AD_SWITCH_NARROW_ACCUMULATE:
      if (!stage->reduces) return "no gradient is reduced";
      return stage->sums_wide ? NULL : "no contract promises more than 16 bits from gradient to sum";
    default:
      return stage->reduces ? NULL : "no gradient is reduced";
  }
}

static const char *why_hidden_in_microbatches(ad_switch which, const ad_stage *stage) {
  if (stage->recipe->train.microbatches == 1) return "a step has one microbatch";
  int shows = which != AD_SWITCH_MEAN_OF_MEANS || microbatch_counts_differ(stage->recipe);
  return shows ? NULL : "every microbatch counts the same number of tokens";
}

static const char *why_hidden_on_one_rank(const ad_stage *stage) {
  return ad_mesh_size(stage->mesh) > 1 ? NULL : "there is one rank";
}

static int needs_tokens(ad_switch which) {
  return which != AD_SWITCH_BUCKET_ORDER && which != AD_SWITCH_PERTURBED_REPLICA && which != AD_SWITCH_BUCKET_SIZE;
}

/* An axis of size 1 averages over one rank: nothing to see. */
static const char *why_hidden(ad_switch which, const ad_stage *stage, ad_axes axes) {
  if (needs_tokens(which) && !stage->tokens) return "no token of the step counts";
  switch (which) {
    case AD_SWITCH_AVERAGE:
    case AD_SWITCH_SKIP_REDUCTION:
    case AD_SWITCH_DOUBLE_REDUCTION:
    case AD_SWITCH_LOCAL_COUNT:
    case AD_SWITCH_FIRST_STEP:
      return stage->reduced & axes ? NULL : "no gradient is summed over several ranks";
    case AD_SWITCH_MEAN_OF_MEANS:
    case AD_SWITCH_LAST_MICROBATCH:
      return why_hidden_in_microbatches(which, stage);
    case AD_SWITCH_SHIFTED_SLICE:
      return stage->second_rank_counts ? NULL : "there is no second rank with a counted token";
    case AD_SWITCH_BUCKET_ORDER:
      return stage->starts_over_many ? NULL : "no bucket's first reduction is over several ranks";
    case AD_SWITCH_PERTURBED_REPLICA:
    case AD_SWITCH_BUCKET_SIZE:
      return why_hidden_on_one_rank(stage);
    case AD_SWITCH_OVERFLOW_PER_RANK:
      return stage->scales_loss ? why_hidden_on_one_rank(stage) : "no gradient is f16 on its way (precision)";
    default:
      return why_hidden_in_reduction(which, stage);
  }
}

static double expected_ratio(ad_switch which, double size) {
  if (which == AD_SWITCH_AVERAGE) return 1 / size;
  if (which == AD_SWITCH_DOUBLE_REDUCTION) return size;
  return NAN;
}

static void add(ad_switch which, const ad_mesh *mesh, ad_axis axis, ad_sabotage *out, size_t *count) {
  const ad_switch_record *record = ad_switch_at(which);
  ad_sabotage *sabotage = &out[(*count)++];
  *sabotage = (ad_sabotage){
      .catalogue = record->catalogue, .of_dtype = is_of_dtype(which), .expected_ratio = NAN, .ratio = NAN};
  if (record->per_axis) {
    snprintf(sabotage->name, sizeof sabotage->name, "%s:%s", record->name, ad_axis_name(axis));
    sabotage->axes = AD_AXES(axis);
    sabotage->expected_ratio = expected_ratio(which, (double)ad_mesh_axis_size(mesh, axis));
  } else {
    snprintf(sabotage->name, sizeof sabotage->name, "%s", record->name);
  }
}

static void list(const ad_stage *stage, ad_sabotage out[AD_SABOTAGE_MAX], size_t *count) {
  *count = 0;
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    ad_switch which = (ad_switch)i;
    int per_axis = ad_switch_at(which)->per_axis;
    for (int axis = 0; axis < (per_axis ? AD_AXIS_COUNT : 1) && *count < AD_SABOTAGE_MAX; axis++)
      if (!why_hidden(which, stage, per_axis ? AD_AXES(axis) : AD_AXES_ALL))
        add(which, stage->mesh, (ad_axis)axis, out, count);
  }
}

static void list_hidden(const ad_stage *stage, ad_unplanted out[AD_SWITCH_COUNT], size_t *count) {
  *count = 0;
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    const char *why = why_hidden((ad_switch)i, stage, AD_AXES_ALL);
    if (why) out[(*count)++] = (ad_unplanted){ad_switch_at((ad_switch)i)->name, why};
  }
}

ad_status ad_sabotage_list(const ad_recipe *recipe, ad_sabotage out[AD_SABOTAGE_MAX], size_t *count,
                           ad_unplanted unplanted[AD_SWITCH_COUNT], size_t *unplanted_count) {
  ad_mesh *mesh;
  ad_model *model;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  ad_status status = ad_recipe_model(recipe, mesh, &model);
  if (!status) {
    ad_stage stage = stage_of(recipe, mesh, model);
    list(&stage, out, count);
    list_hidden(&stage, unplanted, unplanted_count);
    ad_model_destroy(model);
  }
  ad_mesh_destroy(mesh);
  return status;
}

static double error_of(const ad_proof_param *param) {
  return isnan(param->max_rel_err) || isnan(param->ratio) ? INFINITY : param->max_rel_err;
}

/* The parameter that shows the mistake best: unequal replicas before errors, then the worst error. */
static const ad_proof_param *worst_param(const ad_proof *proof) {
  const ad_proof_param *worst = NULL;
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    if (param->replicas_equal && error_of(param) <= param->bound) continue;
    if (!worst || param->replicas_equal < worst->replicas_equal ||
        (param->replicas_equal == worst->replicas_equal && error_of(param) > error_of(worst)))
      worst = param;
  }
  return worst;
}

static void caught_by_number(const ad_proof *proof, ad_sabotage *sabotage) {
  if (ad_proof_passes(proof, 0)) return;
  sabotage->caught = AD_CAUGHT_NUMBER;
  const ad_proof_param *param = worst_param(proof);
  if (!param) return;
  snprintf(sabotage->param, sizeof sabotage->param, "%s", param->name);
  sabotage->ratio = param->ratio;
  sabotage->cause = param->cause;
}

/* A refusal and a broken protocol are catches; anything else is a failure of the check itself. */
static ad_status caught_by_status(const ad_launch_result *result, ad_status status, ad_sabotage *sabotage) {
  if (status == AD_INTERRUPTED) return status;
  switch (result->status) {
    case AD_TYPE:
      sabotage->caught = AD_CAUGHT_TYPE;
      break;
    case AD_MISMATCH:
    case AD_CYCLE:
    case AD_RANK_LEFT:
      sabotage->caught = AD_CAUGHT_PROTOCOL;
      break;
    default:
      return ad_fail(status, "%s: %s", sabotage->name, result->message);
  }
  snprintf(sabotage->message, sizeof sabotage->message, "%s", result->message);
  return AD_OK;
}

ad_status ad_sabotage_try(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                          ad_sabotage *sabotage) {
  ad_check_options planted = *options;
  planted.progress = NULL;
  planted.recipe_dtype = sabotage->of_dtype;
  planted.dtype = AD_F64;
  ad_launch_result result = {0};
  ad_proof_job job = {recipe, &planted, sabotage->name, proof, .quiet = 1};
  ad_status status = ad_proof_run(&job, &result);
  if (status) return caught_by_status(&result, status, sabotage);
  caught_by_number(proof, sabotage);
  return AD_OK;
}
