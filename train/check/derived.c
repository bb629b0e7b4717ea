/* Derives mutants from the program: for each transition that a step executes, the ways in which the transition can be
 * done wrongly (operators). A table has which operators apply to which transitions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "addend/train.h"
#include "check/computed.h"
#include "check/lifted_injections.h"
#include "check/mutants.h"
#include "base/memory.h"
#include "nn/experts.h"
#include "recipe/leaves.h"
#include "recipe/paper.h"
#include "recipe/recipe.h"
#include "mesh/mesh.h"

/* ---- the table: transitions, and ways to do them wrongly ---- */

/* Sets of transitions: one bit for each kind of move. */
enum {
  ALL_REDUCE = 1 << AD_MOVE_ALL_REDUCE,
  REDUCE_SCATTER = 1 << AD_MOVE_REDUCE_SCATTER,
  GATHER = 1 << AD_MOVE_ALL_GATHER,
  TO_ALL = 1 << AD_MOVE_ALL_TO_ALL,
  CONVERT = 1 << AD_MOVE_CONVERT,
  ONCE = 1 << AD_MOVE_ONCE,
  DECLARE = 1 << AD_MOVE_DECLARE,
  SUMS = ALL_REDUCE | REDUCE_SCATTER,
  MOVES = SUMS | GATHER | TO_ALL,
  EVERY = MOVES | CONVERT | ONCE | DECLARE
};

/* For each operator, the kinds of moves that it can mutate. `forward`: in the execution of the forward pass and of the
 * rest of the step; `backward`: in the execution of the backward pass; `record`: in the record on the tape. The comment
 * of a row is the wrong result. An entry is 0 if there is no such mutation: a backward pass has no record of its own,
 * since law 2 determines it; types do not know averages; a gather done twice has another shape. */
static const struct {
  unsigned forward, backward, record;
} table[AD_OPERATOR_COUNT] = {
    [AD_OPERATOR_LEFT_OUT] = {MOVES, 0, EVERY & ~ONCE}, /* this rank's part, and zeros for the parts of other ranks */
    [AD_OPERATOR_DOUBLED] = {SUMS, SUMS, EVERY},        /* the sum multiplied by the number of ranks */
    [AD_OPERATOR_AVERAGED] = {SUMS, SUMS, 0},           /* the sum divided by the number of ranks */
    [AD_OPERATOR_MORE_AXES] = {SUMS, SUMS, EVERY},      /* the sum over a larger group */
    [AD_OPERATOR_FEWER_AXES] = {MOVES & ~TO_ALL, MOVES & ~TO_ALL,
                                EVERY},            /* the sum over, or the gathered parts of, a smaller group */
    [AD_OPERATOR_OTHER_GROUP] = {MOVES, MOVES, 0}, /* the sum over, or the gathered parts of, a group of other ranks */
    [AD_OPERATOR_BACKWARD_IDENTITY] = {0, ALL_REDUCE, 0},
    [AD_OPERATOR_BACKWARD_LOCAL] = {0, REDUCE_SCATTER | GATHER | TO_ALL, 0},
    [AD_OPERATOR_FIRST_MICROBATCH_ONLY] = {MOVES, MOVES, 0}, /* in later microbatches the same as left_out */
    [AD_OPERATOR_ONCE_EVERYWHERE] = {ONCE, ONCE, ONCE},      /* the sum of every rank's replica */
};

/* ---- to which transitions an operator applies ---- */

/* Returns 1 if the operator applies to an exchange of rows by counts (V->V). Types do not show whose rows a rank has,
 * so there is no mutation in the record. */
static int means_something_of_rows(const ad_place *place, ad_operator op, int in_record) {
  if (in_record) return 0;
  if (op == AD_OPERATOR_FIRST_MICROBATCH_ONLY) return 1;
  return op == (place->phase == AD_PLACE_BACKWARD ? AD_OPERATOR_BACKWARD_LOCAL : AD_OPERATOR_LEFT_OUT);
}

/* Returns 1 if the operator applies to the transition. */
static int means_something(const ad_place *place, ad_operator op, int in_record) {
  unsigned bit = 1u << place->move;
  if (place->move == AD_MOVE_ALL_TO_ALL && place->from == AD_V) return means_something_of_rows(place, op, in_record);
  if (in_record) return place->phase != AD_PLACE_BACKWARD && (table[op].record & bit);
  return ((place->phase == AD_PLACE_BACKWARD ? table[op].backward : table[op].forward) & bit) != 0;
}

/* Returns the axes with one mutation each; 1 if the operator takes no axis; 0 if there is no mutation. */
static ad_axes axes_for(const ad_place *place, ad_operator op, int in_record) {
  ad_axes own = place->axes & place->named, others = place->named & ~place->axes;
  switch (op) {
    case AD_OPERATOR_MORE_AXES:
      return in_record ? others : others & place->large;
    case AD_OPERATOR_FEWER_AXES:
      return own & (own - 1) ? own : 0;
    case AD_OPERATOR_OTHER_GROUP: {
      /* The value may be Partial (P) on an axis: a later sum over this axis would undo a shear along it. */
      ad_axes along = place->ranks > 1 ? others & place->large & ~place->partial : 0;
      return along & (~along + 1); /* the first of these axes: one mutation is enough */
    }
    case AD_OPERATOR_FIRST_MICROBATCH_ONLY:
      return place->times > 1 ? 1 : 0;
    default:
      return 1;
  }
}

int ad_operator_has_axis(ad_operator operator_) {
  return operator_ == AD_OPERATOR_MORE_AXES || operator_ == AD_OPERATOR_FEWER_AXES ||
         operator_ == AD_OPERATOR_OTHER_GROUP;
}

/* Returns the number in docs/catalogue.md of a published bug of a count; 0: none. If the count is not summed over the
 * ranks that shard the sequence, each rank has its own count, and the loss is a mean of means. */
static int catalogue_of_count(ad_operator op, ad_axis axis) {
  if (op == AD_OPERATOR_LEFT_OUT) return 11;
  return op == AD_OPERATOR_FEWER_AXES && axis == AD_CP ? 18 : 0;
}

static int is_over_tp(const ad_place *place) { return (place->axes & place->named) == AD_AXES(AD_TP); }

static int is_of_router(const ad_place *place) {
  const char *last = strrchr(place->what, '.');
  return (last && !strcmp(last, ".router")) || strstr(place->what, AD_SCORES_BECOME_OWN);
}

/* Returns 1 if the operator leaves out the only sum over tp of a router's gradient, on the tape or on the parameter's
 * path, so that each rank's part counts as the final gradient. */
static int takes_router_for_final(const ad_place *place, ad_operator op, ad_axis axis) {
  if (!is_of_router(place)) return 0;
  switch (op) {
    case AD_OPERATOR_FEWER_AXES:
      return axis == AD_TP && place->phase == AD_PLACE_STEP;
    case AD_OPERATOR_LEFT_OUT:
    case AD_OPERATOR_BACKWARD_IDENTITY:
    case AD_OPERATOR_BACKWARD_LOCAL:
      return is_over_tp(place);
    default:
      return 0;
  }
}

/* Returns the number in docs/catalogue.md of a published bug in a backward pass; 0: none. */
static int catalogue_of_backward(const ad_place *place, ad_operator op) {
  int over_tp = is_over_tp(place), sums = place->move == AD_MOVE_ALL_REDUCE;
  switch (op) {
    case AD_OPERATOR_BACKWARD_IDENTITY: /* only the gradients of this rank's heads are left */
      return over_tp ? 3 : 0;
    case AD_OPERATOR_BACKWARD_LOCAL: /* the gradients of rows that were sent to slots on other ranks are lost */
      return place->move == AD_MOVE_ALL_TO_ALL && place->from == AD_V ? 4 : 5;
    case AD_OPERATOR_AVERAGED: /* averages over the ranks that share one sequence, as if they were data parallel */
      return over_tp && place->move == AD_MOVE_REDUCE_SCATTER ? 14 : 0;
    /* a sum inside the tensor-parallel region multiplies the gradient by the number of its ranks */
    case AD_OPERATOR_DOUBLED:
      return over_tp && sums ? 15 : 0;
    default:
      return 0;
  }
}

/* Returns the number in docs/catalogue.md of the published bug that the operator makes at this kind of transition; 0:
 * none. */
static int catalogue_of(const ad_place *place, ad_operator op, ad_axis axis) {
  int is_count = !strcmp(place->what, "count"), is_norm = !strcmp(place->what, "norm");
  if (place->phase == AD_PLACE_STEP && is_count) return catalogue_of_count(op, axis);
  if (place->move == AD_MOVE_ONCE && op == AD_OPERATOR_ONCE_EVERYWHERE)
    return place->phase == AD_PLACE_STEP ? 27 : place->phase == AD_PLACE_FORWARD ? 8 : 0;
  if (place->move == AD_MOVE_ONCE) return 0;
  if (takes_router_for_final(place, op, axis)) return 1;
  if (place->phase == AD_PLACE_BACKWARD) return catalogue_of_backward(place, op);
  if (place->phase != AD_PLACE_STEP || is_norm) return 0;
  return op == AD_OPERATOR_AVERAGED ? 9 : op == AD_OPERATOR_LEFT_OUT ? 2 : op == AD_OPERATOR_DOUBLED ? 7 : 0;
}

/* Returns the ratio of the wrong gradient to the right one; NaN if it is not the same for all elements. */
static double expected_ratio(const ad_place *place, ad_operator op) {
  if (!place->is_segment || !(SUMS & 1u << place->move)) return NAN;
  if (op == AD_OPERATOR_AVERAGED) return 1 / (double)place->ranks;
  return op == AD_OPERATOR_DOUBLED ? (double)place->ranks : NAN;
}

static ad_mutant mutant_of(const ad_place *place, ad_operator op, ad_axis axis, int in_record) {
  ad_mutant mutant = {.mutation = {.place = *place, .operator_ = op, .axis = axis, .in_record = in_record},
                      .catalogue = catalogue_of(place, op, axis),
                      .expected_ratio = in_record ? NAN : expected_ratio(place, op),
                      .ratio = NAN,
                      .loss_err = NAN,
                      .moved = NAN};
  char where[AD_PROGRAM_NAME_SIZE + 128];
  snprintf(mutant.name, sizeof mutant.name, "%s%s%s%s: %s", ad_operator_name(op), ad_operator_has_axis(op) ? ":" : "",
           ad_operator_has_axis(op) ? ad_axis_name(axis) : "", in_record ? " in the record" : "",
           ad_place_print(place, where, sizeof where));
  return mutant;
}

/* Lists the mutants of one operator at one transition, one for each axis; only counts them if `list` is NULL. Returns
 * their number. */
static size_t list_operator(const ad_place *place, ad_operator op, int in_record, ad_mutant *list) {
  size_t count = 0;
  if (!means_something(place, op, in_record)) return 0;
  ad_axes axes = axes_for(place, op, in_record);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!(axes & AD_AXES(axis))) continue;
    if (list) list[count] = mutant_of(place, op, (ad_axis)axis, in_record);
    count++;
  }
  return count;
}

size_t ad_derived_list(const ad_places *places, ad_mutant *list) {
  size_t count = 0;
  for (size_t i = 0; i < places->count; i++) {
    for (int op = 0; op < AD_OPERATOR_COUNT; op++) {
      for (int in_record = 1; in_record >= 0; in_record--)
        count += list_operator(&places->list[i], (ad_operator)op, in_record, list ? list + count : NULL);
    }
  }
  return count;
}

/* ---- listing transitions by taking a step on backend dry, which moves no values ---- */

/* Takes the first step as `rank` on backend dry. Lists the step's transitions in `watching` and makes `mutation`; each
 * of the two may be NULL. */
static ad_status take_dry_step(const ad_recipe *recipe, int64_t rank, ad_places *watching, ad_mutation *mutation) {
  ad_comm *comm;
  ad_run *run = NULL;
  int64_t world = 0;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64, .quiet = 1};
  AD_TRY(ad_recipe_world(recipe, &world));
  AD_TRY(ad_comm_open_dry(rank, world, &comm));
  ad_status status = ad_run_create(comm, recipe, &options, &run);
  ad_step_report report;
  if (watching) ad_places_watch(watching);
  if (mutation) ad_mutation_begin(mutation);
  if (!status) status = ad_run_step(run, 0, &report);
  ad_injections_clear();
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}

static ad_status add_places_of(const ad_recipe *recipe, int64_t rank, ad_places *to) {
  ad_places own = {0};
  ad_status status = take_dry_step(recipe, rank, &own, NULL);
  if (!status) status = own.status;
  if (!status) status = ad_places_add(to, &own);
  ad_places_release(&own);
  return status;
}

/* Sets *out to the first of these ranks that computes a leaf. In the step of a rank that computes none, types would
 * show no mutation. */
static ad_status find_leaf(const ad_recipe *recipe, int64_t ranks, int64_t *out) {
  for (int64_t rank = 0; rank < ranks; rank++) {
    int64_t *leaves, rounds = ad_recipe_rounds(recipe), round = 0;
    AD_TRY(ad_recipe_list_leaves(recipe, rank, &leaves));
    while (round < rounds && leaves[round] < 0) round++;
    ad_release(leaves);
    if (round == rounds) continue;
    *out = rank;
    return AD_OK;
  }
  return AD_OK;
}

/* Adds the transitions of the first rank of each pipeline stage (of one rank if there is no pipeline). The last stage
 * comes first: that stage divides losses by counts, so its step is the one in which types refuse a mutation of a
 * count. */
static ad_status add_places_of_stages(const ad_recipe *recipe, ad_places *to) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create(recipe->meshes[0].text, &mesh));
  int64_t positions = ad_mesh_axis_size(mesh, AD_PP), ranks = ad_mesh_size(mesh) / positions;
  ad_mesh_destroy(mesh);
  for (int64_t position = positions; position-- > 0;) {
    int64_t rank = position * ranks;
    if (recipe->train.leaves) AD_TRY(find_leaf(recipe, ranks, &rank));
    AD_TRY(add_places_of(recipe, rank, to));
  }
  return AD_OK;
}

/* Adds the transitions of the first rank of each pool, and of each block in a pool. The ranks of pools follow one
 * another. */
static ad_status add_all_places(const ad_recipe *recipe, ad_places *to) {
  int64_t rank = 0;
  for (size_t i = 0; i < recipe->mesh_count; i++) {
    ad_mesh *mesh;
    if (!ad_recipe_is_disjoint(recipe)) return add_places_of_stages(recipe, to);
    AD_TRY(ad_mesh_create(recipe->meshes[i].text, &mesh));
    int64_t blocks = ad_mesh_axis_size(mesh, AD_BLOCK), ranks = ad_mesh_size(mesh) / blocks;
    ad_mesh_destroy(mesh);
    for (int64_t block = 0; block < blocks; block++, rank += ranks) AD_TRY(add_places_of(recipe, rank, to));
  }
  return AD_OK;
}

ad_status ad_derived_places(const ad_recipe *recipe, ad_places *out) {
  ad_places places = {0};
  ad_status status = add_all_places(recipe, &places);
  if (status)
    ad_places_release(&places);
  else
    *out = places;
  return status;
}

static int is_same_on_all(ad_type type) { return type == AD_R || type == AD_I; }

/* Returns why the mutated program computes the same as the right one, apart from its types; NULL if it does not. */
static const char *why_same_program(const ad_mutation *mutation) {
  const ad_place *place = &mutation->place;
  int is_axis = mutation->operator_ == AD_OPERATOR_MORE_AXES || mutation->operator_ == AD_OPERATOR_FEWER_AXES;
  int of_one = is_axis ? !(AD_AXES(mutation->axis) & place->large) : place->ranks == 1;
  if (of_one) return "over a group of one rank the types allow the mutation, which there is the same program";
  if (place->move == AD_MOVE_DECLARE)
    return "a declaration moves no bytes, and all other types are right without this declaration";
  if (mutation->of_constant && is_same_on_all(place->from) && is_same_on_all(place->to))
    return "no gradient comes back through this transition, and without a gradient R and I are the same";
  return NULL;
}

/* The context of take_recorded_step: one step of the program with a mutation in the record. */
typedef struct recorded_step {
  const ad_recipe *recipe;
  ad_mutation *mutation;
} recorded_step;

static ad_status take_recorded_step(void *context) {
  const recorded_step *recorded = context;
  return take_dry_step(recorded->recipe, recorded->mutation->place.rank, NULL, recorded->mutation);
}

/* Takes the step with a conversion that the search for repairs inserts. A conversion before the mutated transition
 * shifts the indices of transitions; then the mutated one is not found, and the repair does not count. */
static ad_status take_mended_step(void *context) {
  const recorded_step *recorded = context;
  AD_TRY(take_recorded_step(context));
  return recorded->mutation->fired
             ? AD_OK
             : ad_fail(AD_INVALID,
                       "the mutation was not applied, because the mutant's step has no transition of its number");
}

ad_status ad_derived_repair(const ad_recipe *recipe, ad_mutant *mutant, ad_repair *out, int *found) {
  recorded_step recorded = {recipe, &mutant->mutation};
  ad_repair_search search;
  return ad_repair_find(take_mended_step, &recorded, out, found, &search);
}

static int divides_a_loss(const ad_program *program, size_t count) {
  for (size_t i = 0; i < ad_program_loss_count(program); i++)
    if (ad_program_loss(program, i)->count == count) return 1;
  return 0;
}

/* Sets *out to 1 if the place sums counts, and on the place's rank no loss is divided by any of these counts. */
static ad_status is_of_idle_count(const ad_recipe *recipe, const ad_place *place, int *out) {
  ad_paper paper;
  *out = ad_place_is_count(place);
  if (!*out) return AD_OK;
  AD_TRY(ad_paper_open(recipe, &paper));
  for (size_t i = 0; i < ad_program_count_count(paper.program); i++) {
    const ad_layout *layout = &ad_program_count(paper.program, i)->layout;
    ad_axes summed = ad_layout_axes_of(layout, AD_P) & ad_mesh_large(layout->mesh);
    int is_here = ad_mesh_has_rank(layout->mesh, place->rank) && summed == (place->axes & place->large);
    if (is_here && divides_a_loss(paper.program, i)) *out = 0;
  }
  ad_paper_close(&paper);
  return AD_OK;
}

ad_status ad_derived_try_record(const ad_recipe *recipe, ad_mutant *mutant) {
  recorded_step recorded = {recipe, &mutant->mutation};
  ad_status status = take_recorded_step(&recorded);
  int fired = mutant->mutation.fired; /* the search for repairs sets `fired` to 0 */
  if (status) status = ad_repair_report(status, take_mended_step, &recorded);
  mutant->mutation.fired = fired;
  /* 1: refused by a type or by a shape */
  int refused = status == AD_TYPE || (status == AD_INVALID && mutant->mutation.fired);
  if (status && !refused) return status;
  if (status) {
    mutant->killed_by = AD_KILLED_BY_TYPE;
    snprintf(mutant->message, sizeof mutant->message, "%s", ad_last_error());
  } else if (!mutant->mutation.fired) {
    snprintf(mutant->message, sizeof mutant->message,
             "the mutant's step did not reach the transition that the mutation changes");
  } else {
    const char *why = why_same_program(&mutant->mutation);
    int is_idle = 0;
    if (!why) AD_TRY(is_of_idle_count(recipe, &mutant->mutation.place, &is_idle));
    if (is_idle) why = "no loss is divided by this count, so no type depends on it";
    if (!why) return AD_OK;
    mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
    snprintf(mutant->message, sizeof mutant->message, "%s", why);
  }
  return AD_OK;
}

void ad_derived_report_no_effect(ad_mutant *mutant) {
  const ad_mutation *mutation = &mutant->mutation;
  const char *axis = ad_axis_name(mutation->axis);
  mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
  if (mutation->place.ranks == 1)
    snprintf(mutant->message, sizeof mutant->message,
             "the transition is over a group of one rank, so there is nothing to sum or to gather");
  else if (mutation->operator_ == AD_OPERATOR_FEWER_AXES && !(mutation->place.large & AD_AXES(mutation->axis)))
    snprintf(mutant->message, sizeof mutant->message, "the axis `%s` has one rank", axis);
  else if (mutation->operator_ == AD_OPERATOR_OTHER_GROUP && (mutation->place.same & AD_AXES(mutation->axis)))
    snprintf(mutant->message, sizeof mutant->message, "all ranks along `%s` submit the same values", axis);
  else if (ad_place_is_count(&mutation->place))
    snprintf(mutant->message, sizeof mutant->message,
             "in two steps every compared number has the same bits as without the mutation: each loss that this count "
             "divides takes its microbatch's share of the count (per_microbatch), in which the mutation cancels, or "
             "the count divides no loss");
  else
    snprintf(mutant->message, sizeof mutant->message,
             "in two steps every compared number has the same bits as without the mutation: the values that the "
             "mutation adds or leaves out are zero, or the same on other ranks");
}
