/* Derives mutants from the program: for each transition that a step executes, the ways in which it can be done wrongly
 * (operators). A table says which operators apply to which transitions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "addend/train.h"
#include "check/computed.h"
#include "check/lifted_injections.h"
#include "check/mutants.h"
#include "nn/experts.h"
#include "recipe/paper.h"
#include "recipe/recipe.h"

/* ---- the table: transitions, and ways to do them wrongly ---- */

/* Sets of transitions, one bit a move. */
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

/* The transitions to which each operator applies, with its result: injected into execution (the forward pass or the
 * step; the backward pass), and into the record. Missing entries: a backward pass has no separate record, since law 2
 * gives it; the types know no average; a gather done twice has another shape. */
static const struct {
  unsigned forward, backward, record;
} table[AD_OPERATOR_COUNT] = {
    [AD_OPERATOR_LEFT_OUT] = {MOVES, 0, EVERY & ~ONCE}, /* this rank's part, zeros for the others' */
    [AD_OPERATOR_DOUBLED] = {SUMS, SUMS, EVERY},        /* the sum times the number of ranks */
    [AD_OPERATOR_AVERAGED] = {SUMS, SUMS, 0},           /* the sum over the number of ranks */
    [AD_OPERATOR_MORE_AXES] = {SUMS, SUMS, EVERY},      /* the sum of a larger group */
    [AD_OPERATOR_FEWER_AXES] = {MOVES & ~TO_ALL, MOVES & ~TO_ALL,
                                EVERY},            /* the sum, or the gathered parts, of a smaller group */
    [AD_OPERATOR_OTHER_GROUP] = {MOVES, MOVES, 0}, /* the sum, or the gathered parts, of other ranks */
    [AD_OPERATOR_BACKWARD_IDENTITY] = {0, ALL_REDUCE, 0},
    [AD_OPERATOR_BACKWARD_LOCAL] = {0, REDUCE_SCATTER | GATHER | TO_ALL, 0},
    [AD_OPERATOR_FIRST_MICROBATCH_ONLY] = {MOVES, MOVES, 0}, /* in later microbatches as left_out */
    [AD_OPERATOR_ONCE_EVERYWHERE] = {ONCE, ONCE, ONCE},      /* the sum of every rank's replica */
};

/* ---- whether one way of doing it wrongly has a meaning for one transition ---- */

/* Whether the operator applies to an exchange of rows by counts (V->V). Types do not say whose rows a rank has, so
 * there is no mutation of the record. */
static int means_something_of_rows(const ad_place *place, ad_operator op, int in_record) {
  if (in_record) return 0;
  if (op == AD_OPERATOR_FIRST_MICROBATCH_ONLY) return 1;
  return op == (place->phase == AD_PLACE_BACKWARD ? AD_OPERATOR_BACKWARD_LOCAL : AD_OPERATOR_LEFT_OUT);
}

/* Whether the operator applies to the transition: whether there is such a mutation. */
static int means_something(const ad_place *place, ad_operator op, int in_record) {
  unsigned bit = 1u << place->move;
  if (place->move == AD_MOVE_ALL_TO_ALL && place->from == AD_V) return means_something_of_rows(place, op, in_record);
  if (in_record) return place->phase != AD_PLACE_BACKWARD && (table[op].record & bit);
  return ((place->phase == AD_PLACE_BACKWARD ? table[op].backward : table[op].forward) & bit) != 0;
}

/* Returns the axes that each give one mutation; 1 if the operator takes no axis; 0 if there is no mutation. */
static ad_axes axes_for(const ad_place *place, ad_operator op, int in_record) {
  ad_axes own = place->axes & place->named, others = place->named & ~place->axes;
  switch (op) {
    case AD_OPERATOR_MORE_AXES:
      return in_record ? others : others & place->large;
    case AD_OPERATOR_FEWER_AXES:
      return own & (own - 1) ? own : 0;
    case AD_OPERATOR_OTHER_GROUP: {
      /* Along an axis on which the value is Partial (P), the later sum would undo the shear. */
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

/* Published bugs of counts. If the count is not summed over the ranks that shard the sequence, each rank has its
 * own, and the loss is a mean of means. */
static int catalogue_of_count(ad_operator op, ad_axis axis) {
  if (op == AD_OPERATOR_LEFT_OUT) return 11;
  return op == AD_OPERATOR_FEWER_AXES && axis == AD_CP ? 18 : 0;
}

static int is_over_tp(const ad_place *place) { return (place->axes & place->named) == AD_AXES(AD_TP); }

static int is_of_router(const ad_place *place) {
  const char *last = strrchr(place->what, '.');
  return (last && !strcmp(last, ".router")) || strstr(place->what, AD_SCORES_BECOME_OWN);
}

/* Whether the operator leaves out the one sum over tp of a router's gradient, on the tape or on the parameter's
 * path. */
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

/* Numbers of published bugs in backward passes; 0: none. */
static int catalogue_of_backward(const ad_place *place, ad_operator op) {
  int over_tp = is_over_tp(place), sums = place->move == AD_MOVE_ALL_REDUCE;
  switch (op) {
    case AD_OPERATOR_BACKWARD_IDENTITY: /* of all heads' gradients only this rank's heads' is left */
      return over_tp ? 3 : 0;
    case AD_OPERATOR_BACKWARD_LOCAL: /* for rows by counts: gradients of slots on other ranks are lost */
      return place->move == AD_MOVE_ALL_TO_ALL && place->from == AD_V ? 4 : 5;
    case AD_OPERATOR_AVERAGED: /* the ranks of one sequence are divided by as if they were data parallel */
      return over_tp && place->move == AD_MOVE_REDUCE_SCATTER ? 14 : 0;
    case AD_OPERATOR_DOUBLED: /* a sum inside the parallel region multiplies the gradient by its ranks */
      return over_tp && sums ? 15 : 0;
    default:
      return 0;
  }
}

/* Numbers of published bugs that are one operator at one kind of transition; 0: none. */
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

/* The ratio of the wrong gradient to the right one; NaN: it is no one number. */
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

/* Lists the mutants of one operator at one transition, one for each axis; list NULL: only counts them. */
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

/* Takes the first step as `rank` on backend dry; lists its transitions in `watching`, injects `mutation` (each may be
 * NULL). */
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

/* Adds the transitions of the first rank of each pipeline stage (one rank if there is no pipeline). The last stage
 * comes first: it divides losses by counts, so a mutation of a count's record is refused there. */
static ad_status add_places_of_stages(const ad_recipe *recipe, ad_places *to) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create(recipe->meshes[0].text, &mesh));
  int64_t positions = ad_mesh_axis_size(mesh, AD_PP), ranks = ad_mesh_size(mesh) / positions;
  ad_mesh_destroy(mesh);
  for (int64_t position = positions; position-- > 0;) AD_TRY(add_places_of(recipe, position * ranks, to));
  return AD_OK;
}

/* Adds the transitions of the first rank of each pool and of each block in it. Pools' ranks follow one another. */
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

/* Why the mutated program is the same program apart from its types; NULL if it is another. */
static const char *why_same_program(const ad_mutation *mutation) {
  const ad_place *place = &mutation->place;
  int is_axis = mutation->operator_ == AD_OPERATOR_MORE_AXES || mutation->operator_ == AD_OPERATOR_FEWER_AXES;
  int of_one = is_axis ? !(AD_AXES(mutation->axis) & place->large) : place->ranks == 1;
  if (of_one) return "the types allow it over one rank, where it is the same program";
  if (place->move == AD_MOVE_DECLARE) return "a declaration moves no bytes, and all other types hold without this one";
  if (mutation->of_constant && is_same_on_all(place->from) && is_same_on_all(place->to))
    return "no gradient comes back through it, and without one R and I are the same";
  return NULL;
}

/* One step of the program with a mutation in the record: the context of take_recorded_step. */
typedef struct recorded_step {
  const ad_recipe *recipe;
  ad_mutation *mutation;
} recorded_step;

static ad_status take_recorded_step(void *context) {
  const recorded_step *recorded = context;
  return take_dry_step(recorded->recipe, recorded->mutation->place.rank, NULL, recorded->mutation);
}

/* Takes the step for a search of repairs. A conversion that is inserted before the mutation renumbers transitions; then
 * the mutation is not found, and the repair does not count. */
static ad_status take_mended_step(void *context) {
  const recorded_step *recorded = context;
  AD_TRY(take_recorded_step(context));
  return recorded->mutation->fired
             ? AD_OK
             : ad_fail(AD_INVALID, "the mutant's step did not reach the transition that the mutation changes");
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

/* Finds whether the place sums counts of its rank by which no loss is divided, on this rank or on another. */
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
  int fired = mutant->mutation.fired; /* the search for repairs resets it */
  if (status) status = ad_repair_report(status, take_mended_step, &recorded);
  mutant->mutation.fired = fired;
  /* refused by a type or by a shape */
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
             "the transition goes over one rank, so there is nothing to sum or to gather");
  else if (mutation->operator_ == AD_OPERATOR_FEWER_AXES && !(mutation->place.large & AD_AXES(mutation->axis)))
    snprintf(mutant->message, sizeof mutant->message, "`%s` has one rank", axis);
  else if (mutation->operator_ == AD_OPERATOR_OTHER_GROUP && (mutation->place.same & AD_AXES(mutation->axis)))
    snprintf(mutant->message, sizeof mutant->message, "all ranks along `%s` submit the same values", axis);
  else if (ad_place_is_count(&mutation->place))
    snprintf(mutant->message, sizeof mutant->message,
             "every judged number has the clean run's bits in two steps: each loss of this count takes its "
             "microbatch's share of it (per_microbatch), in which the mutation cancels, or it is the count of no loss");
  else
    snprintf(mutant->message, sizeof mutant->message,
             "every judged number has the clean run's bits in two steps: the values that the mutation adds or leaves "
             "out are zero, or the same on other ranks");
}
