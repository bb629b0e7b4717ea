/* The known bugs of updates, as mutations at an injection point. Optimizers themselves use nothing from this file. */
#include "optim/known_bugs.h"

#include <string.h>
#include "base/memory.h"
#include "optim/record.h"
#include "optim/whole_known_bugs.h"

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

/* Known bug: weight decay applies to parameters that do not decay, such as norms. */
static void decay_all(void *context, void *passing) {
  ad_updating *updating = passing;
  double decay = updating->numbers.options->weight_decay;
  if (updating->numbers.decay != decay) ((ad_known_bug_scene *)context)->fired = 1;
  updating->numbers.decay = decay;
}

/* Known bug: the number of the step is one too large, as if it were increased before and after. */
static void count_step_twice(void *context, void *passing) {
  ad_updating *updating = passing;
  if (!updating->record->prepare) return;
  updating->numbers.step++;
  updating->record->prepare(&updating->numbers);
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Exchanges the states of two parameters. */
static void exchange_states(ad_array *one, ad_array *other) {
  for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) {
    char *a = one[k].data, *b = other[k].data;
    for (size_t i = 0; a && i < ad_array_bytes(&one[k]); i++) {
      char byte = a[i];
      a[i] = b[i];
      b[i] = byte;
    }
  }
}

/* Known bug: a parameter gets the states of another one with as many elements on this rank, and that one gets its. */
static void take_states_of_another(void *context, void *passing) {
  const ad_updating *updating = passing;
  for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++)
    if (updating->states[k].data) ((ad_known_bug_scene *)context)->fired = 1;
  for (size_t other = updating->index; other-- > 0;) {
    ad_array *theirs[AD_OPTIMIZER_STATES_MAX], states[AD_OPTIMIZER_STATES_MAX];
    int fits = 0;
    for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) {
      const ad_array *mine = &updating->states[k];
      theirs[k] = ad_optimizer_state(updating->optimizer, other, k);
      int same = theirs[k] && mine->data && theirs[k]->data && theirs[k]->dtype == mine->dtype &&
                 ad_array_bytes(theirs[k]) == ad_array_bytes(mine);
      fits += same ? 1 : mine->data || theirs[k] ? -AD_OPTIMIZER_STATES_MAX : 0;
      states[k] = theirs[k] ? *theirs[k] : (ad_array){0};
    }
    if (fits <= 0) continue;
    exchange_states(updating->states, states);
    return;
  }
}

/* Known bug: states are sharded otherwise than their parameter, so each row has the states of the row before. */
static void rotate_states(void *context, void *passing) {
  const ad_updating *updating = passing;
  int64_t rows = updating->param->local.ndim ? updating->param->local.dim[0] : 1;
  for (size_t k = 0; k < AD_OPTIMIZER_STATES_MAX; k++) {
    const ad_array *state = &updating->states[k];
    size_t bytes = ad_array_bytes(state), row = rows > 1 ? bytes / (size_t)rows : 0;
    char *data = state->data, *last;
    if (!data || !row || ad_new(row, &last)) continue;
    memcpy(last, data + bytes - row, row);
    memmove(data + row, data, bytes - row);
    memcpy(data, last, row);
    ad_release(last);
    ((ad_known_bug_scene *)context)->fired = 1;
  }
}

/* Known bug: a group of parameters has the learning rate of the next one. */
static void take_rate_of_another(void *context, void *passing) {
  ad_updating *updating = passing;
  double rate = updating->rates[(updating->group + 1) % updating->group_count];
  ((ad_known_bug_scene *)context)->fired = 1;
  updating->numbers.lr = rate;
  if (updating->record->prepare) updating->record->prepare(&updating->numbers);
}

/* Known bug: every microbatch updates its share of the gradient, as if the update were part of the reduction. */
static void update_per_microbatch(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_updating *updating = passing;
  if (scene->microbatches < 2) return;
  updating->numbers.factor /= (double)scene->microbatches;
  updating->again = updating->record->whole ? (int)scene->microbatches - 1 : 0;
  for (int64_t m = 1; m < scene->microbatches && !updating->record->whole && updating->param->data; m++)
    ad_update_param(updating);
  scene->fired = 1;
}

#define NO_RATE                                                                                                       \
  "every compared number has the same bits as without the mutation: updates change nothing, as with a learning rate " \
  "of 0"
#define NO_DIFFERENCE \
  "every compared number has the same bits as without the mutation: the step's rate or direction is 0"

static const ad_known_bug bugs[] = {
    {.name = "update-applied-twice",
     .words = "the optimizer updates every parameter twice in a step",
     .needs = AD_NEED_TOKENS,
     .no_effect = NO_RATE,
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
    {.name = "decay-everywhere",
     .words = "parameters decay that should not, such as norms",
     .needs = AD_NEED_TOKENS | AD_NEED_UNDECAYED,
     .no_effect = NO_RATE,
     .at = {{AD_INJECT_UPDATE, decay_all}}},
    {.name = "step-off-by-one",
     .words = "the optimizer's number of the step is one too large",
     .needs = AD_NEED_TOKENS | AD_NEED_STEP_NUMBER,
     .no_effect = NO_RATE,
     .at = {{AD_INJECT_UPDATE, count_step_twice}}},
    {.name = "state-of-another-parameter",
     .words = "parameters of one size exchange their states",
     .needs = AD_NEED_TOKENS | AD_NEED_STATES,
     .no_effect =
         "every compared number has the same bits as without the mutation: no two parameters have as many elements "
         "on a rank and states that differ",
     .at = {{AD_INJECT_UPDATE, take_states_of_another}}},
    {.name = "state-sharded-otherwise",
     .words = "the optimizer's states are sharded otherwise than their parameters",
     .needs = AD_NEED_TOKENS | AD_NEED_STATES,
     .no_effect = "every compared number has the same bits as without the mutation: the states are zero before the "
                  "first step",
     .at = {{AD_INJECT_UPDATE, rotate_states}}},
    {.name = "rate-of-another-group",
     .words = "a group of parameters has another group's learning rate",
     .needs = AD_NEED_TOKENS | AD_NEED_GROUP_RATES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_UPDATE, take_rate_of_another}}},
    {.name = "update-per-microbatch",
     .catalogue = 35,
     .words = "the optimizer updates in every microbatch",
     .needs = AD_NEED_TOKENS | AD_NEED_MICROBATCHES | AD_NEED_STATES,
     .no_effect = NO_RATE,
     .at = {{AD_INJECT_UPDATE, update_per_microbatch}}},
    {.name = "muon-per-tp-shard",
     .catalogue = 32,
     .words = "each rank of tp orthogonalises its own part of a matrix",
     .needs = AD_NEED_TOKENS | AD_NEED_TP_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_per_tp_shard}}},
    {.name = "muon-per-shard",
     .words = "each rank orthogonalises the part of a matrix that it stores",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_per_shard}}},
    {.name = "muon-partly-reduced",
     .catalogue = 31,
     .words = "a matrix is orthogonalised of which each rank has summed its own part alone",
     .needs = AD_NEED_TOKENS | AD_NEED_SUMMED | AD_NEED_SHARDED_MATRICES,
     .no_effect =
         "every compared number has the same bits as without the mutation: no rank has the whole gradient of a "
         "matrix that it stores a part of",
     .at = {{AD_INJECT_LAUNCH, ad_bug_keep_addends}, {AD_INJECT_MATRIX, ad_bug_matrix_partly_reduced}}},
    {.name = "muon-halves-not-exchanged",
     .words = "the parts of a matrix that other ranks store are 0 where it is orthogonalised",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_of_own_part}}},
    {.name = "muon-before-sum",
     .words = "each rank orthogonalises its addend of a gradient, before the sum",
     .needs = AD_NEED_TOKENS | AD_NEED_SUMMED | AD_NEED_MATRICES,
     .at = {{AD_INJECT_LAUNCH, ad_bug_orthogonalise_addends}}},
    {.name = "muon-not-orthogonalised",
     .catalogue = 34,
     .words = "matrices are updated by their momentum alone",
     .needs = AD_NEED_TOKENS | AD_NEED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_not_orthogonalised}}},
    {.name = "muon-silently-off",
     .catalogue = 33,
     .words = "AdamW updates all matrices, whose dimensions the optimizer does not see",
     .needs = AD_NEED_TOKENS | AD_NEED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_to_adamw}}},
    {.name = "muon-flat-goes-to-adamw",
     .catalogue = 37,
     .words = "AdamW updates sharded matrices, since their shards are flat",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_sharded_matrix_to_adamw}}},
    {.name = "muon-split-by-shard-rows",
     .catalogue = 36,
     .words = "fused matrices are not split, since a shard's size is not theirs",
     .needs = AD_NEED_TOKENS | AD_NEED_FUSED,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_fused_matrix_in_one}}},
    {.name = "muon-norm-per-shard",
     .words = "each rank divides its part of a matrix by the norm of this part",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_MATRICES,
     .no_effect = NO_DIFFERENCE,
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_norm_per_shard}}},
    {.name = "muon-rate-by-shard-shape",
     .words = "the rate is adjusted to a shard's shape",
     .needs = AD_NEED_TOKENS | AD_NEED_SHARDED_MATRICES,
     .no_effect = "every compared number has the same bits as without the mutation: the factor of the rate is the same "
                  "for the shard's shape",
     .at = {{AD_INJECT_MATRIX, ad_bug_matrix_rate_by_shard}}},
    {.name = "muon-result-of-another-matrix",
     .words = "a matrix is updated by the result of another one",
     .needs = AD_NEED_TOKENS | AD_NEED_MATRICES,
     .no_effect = "every compared number has the same bits as without the mutation: no two matrices of one shape have "
                  "results that differ",
     .at = {{AD_INJECT_STACK, ad_bug_result_of_another_matrix}}},
    {.name = "muon-not-nesterov",
     .words = "the direction is the momentum, without nesterov",
     .needs = AD_NEED_TOKENS | AD_NEED_MATRICES,
     .no_effect = "every compared number has the same bits as without the mutation: in the first step both directions "
                  "are multiples of the gradient, and without nesterov they always are the same",
     .at = {{AD_INJECT_UPDATE, ad_bug_not_nesterov}}},
    {.name = "muon-decay-after-adjusted-rate",
     .words = "weight decay has the rate that is adjusted to a matrix's shape",
     .needs = AD_NEED_TOKENS | AD_NEED_MATRICES | AD_NEED_DECAY,
     .no_effect =
         "every compared number has the same bits as without the mutation: the factor of the rate is 1, or the "
         "rate is 0",
     .at = {{AD_INJECT_UPDATE, ad_bug_decay_by_adjusted_rate}}},
};

const ad_known_bug *ad_optim_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
