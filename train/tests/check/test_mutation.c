/* Tests that a mutation changes nothing but the operator: made with the true group and no factor, a transition
 * computes what it computes unplanted. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../../core/tests/array/values.h"
#include "array/array.h"
#include "array/packed.h"
#include "base/injection.h"
#include "check/mutation.h"
#include "kernels/nodes.h"
#include "ranks.h"
#include "base/random.h"
#include "layout/type.h"

enum { TRIALS = 400, SEED = 20, RANKS_MAX = 6 };

/* Whether the transition combines what several ranks submit; only such transitions have mistakes of this kind. */
static int puts_together(ad_move move) {
  return move != AD_MOVE_CONVERT && move != AD_MOVE_ONCE && move != AD_MOVE_DECLARE;
}

static uint64_t draw(int trial, uint64_t which, uint64_t below) {
  return ad_random_bits(SEED, (uint64_t)trial, which) % below;
}

static ad_type draw_sharded(int trial, uint64_t which) {
  int dim = (int)draw(trial, which, 2);
  return draw(trial, which + 1, 3) ? AD_S(dim) : AD_S_ZIGZAG(dim);
}

static ad_type as_drawn(ad_type type, int trial, uint64_t which) {
  return ad_type_is_sharded(type) ? draw_sharded(trial, which) : type;
}

typedef struct trial {
  ad_transit transit;
  ad_array in;
  double before; /* the old value of the result, to which a transition with `adds` adds */
  int64_t starts[RANKS_MAX + 1];
  ad_leaf_ranges ranges; /* where leaves are summed */
} trial;

/* How many values this rank submits (`results` 0) or gets: several or none only where leaves are summed. */
static size_t values_in(const trial *t, const ad_group *group, int64_t rank, int results) {
  ad_node nodes[AD_NODES_MAX];
  if (!t->ranges.leaves) return 1;
  int64_t from = results ? 0 : ad_group_index(group, rank), to = results ? ad_group_size(group) : from + 1;
  return ad_nodes_of(t->starts[from], t->starts[to] - t->starts[from], t->ranges.leaves, nodes);
}

static size_t values_here(ad_comm *comm, const trial *t, int results) {
  ad_group group = ad_array_group(comm, &t->in, t->transit.axes);
  return values_in(t, &group, ad_comm_rank(comm), results);
}

static ad_axes draw_axes(const ad_mesh *mesh, int number) {
  ad_axes named = ad_mesh_named(mesh), axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (draw(number, (uint64_t)axis + 50, 2)) axes |= AD_AXES(axis);
  return axes & named ? axes & named : named;
}

/* Draws a row of the transition table over random axes, a random shape, and cuts or copies on the other axes; returns 0
 * if the types that were drawn do not allow it. */
static int draw_trial(ad_comm *comm, const ad_mesh *mesh, int number, trial *t) {
  size_t count;
  const ad_transition *entry = &ad_transition_table(&count)[draw(number, 0, count)];
  ad_shape shape = {2, {(int64_t)draw(number, 1, 9), (int64_t)draw(number, 2, 9)}};
  ad_layout layout = ad_layout_all(mesh, (ad_type)draw(number, 3, 4));
  ad_array after;
  *t = (trial){0};
  t->transit =
      (ad_transit){.move = entry->move, .axes = draw_axes(mesh, number), .accumulate = AD_F64, .site = AD_HERE};
  t->transit.to = as_drawn(entry->to, number, 4);
  if (draw(number, 6, 2)) ad_layout_set(&layout, ad_mesh_named(mesh) & ~t->transit.axes, draw_sharded(number, 7));
  ad_layout_set(&layout, t->transit.axes, as_drawn(entry->from, number, 9));
  t->in = ad_array_describe(comm, AD_F64, &shape, &layout);
  if (!puts_together(entry->move)) return 0;
  return !ad_array_after(comm, &t->in, t->transit.move, t->transit.axes, t->transit.to, &after);
}

/* Draws a reduction of a packed array: several values one after another, over random axes. */
static int draw_packed(ad_comm *comm, const ad_mesh *mesh, int number, trial *t) {
  static const ad_segment segments[] = {{7, 3}, {2, 5}, {1, 1}, {0, 4}, {4, 0}, {12, 2}};
  static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_array after;
  int which = (int)draw(number, 0, 3);
  *t = (trial){0};
  t->transit = (ad_transit){.axes = draw_axes(mesh, number), .accumulate = AD_F64, .site = AD_HERE, .names = names};
  t->transit.move = which ? AD_MOVE_REDUCE_SCATTER : AD_MOVE_ALL_REDUCE;
  t->transit.to = which ? AD_S(0) : AD_R;
  t->transit.adds = which == 2;
  t->before = which == 2 ? 1.5 : 0;
  ad_layout_set(&layout, t->transit.axes, AD_P);
  t->in = ad_array_describe_packed(comm, AD_F64, segments, 6, &layout);
  return !ad_array_after(comm, &t->in, t->transit.move, t->transit.axes, t->transit.to, &after);
}

/* The same over leaves of a batch, of which ranks have several sums, or none. */
static int draw_leaves(ad_comm *comm, const ad_mesh *mesh, int number, trial *t) {
  if (!draw_packed(comm, mesh, number, t)) return 0;
  ad_group group = ad_array_group(comm, &t->in, t->transit.axes);
  int64_t size = ad_group_size(&group);
  t->ranges = (ad_leaf_ranges){.leaves = 1 + (int64_t)draw(number, 100, 20)};
  for (int64_t i = 0; i <= size; i++) t->starts[i] = (int64_t)draw(number, 101 + (uint64_t)i, 21) % t->ranges.leaves;
  t->starts[size] = t->ranges.leaves;
  for (int64_t i = size; i-- > 0;)
    if (t->starts[i] > t->starts[i + 1]) t->starts[i] = t->starts[i + 1];
  if (values_here(comm, t, 1) > 1) t->transit.adds = 0;
  return t->starts[0] < t->starts[size];
}

/* Allocates the results, filled with NaN or with the value to which the transition adds. */
static void give_result(ad_comm *comm, const trial *t, ad_array *out) {
  size_t count = values_here(comm, t, 1);
  CHECK_OK(ad_array_after(comm, &t->in, t->transit.move, t->transit.axes, t->transit.to, out));
  CHECK_OK(ad_comm_alloc(comm, count * ad_array_bytes(out), &out->data));
  for (size_t i = 0; i < count * ad_array_numel(out); i++) ((double *)out->data)[i] = t->transit.adds ? t->before : NAN;
}

/* Bits are compared: that a mutation has no effect is judged by bits too. */
static void compare(const ad_array *right, const ad_array *mutated, size_t values) {
  const double *a = right->data, *b = mutated->data;
  for (size_t i = 0; i < values * ad_array_numel(right); i++) CHECK(a[i] == b[i]);
}

/* Makes the mutation "one axis fewer" with an axis that the transition does not have: nothing may change. */
static void mutate_nothing(ad_comm *comm, const trial *t, const ad_place *place, const ad_array *right) {
  ad_mutation mutation = {.place = *place, .operator_ = AD_OPERATOR_FEWER_AXES};
  ad_array out;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (!(place->axes & AD_AXES(axis))) mutation.axis = (ad_axis)axis;
  give_result(comm, t, &out);
  ad_mutation_begin(&mutation);
  CHECK_OK(ad_transit_run(comm, &t->transit, &t->in, &out));
  ad_injections_clear();
  CHECK(mutation.fired && mutation.executions == 1);
  compare(right, &out, values_here(comm, t, 1));
  ad_array_destroy(comm, &out);
}

/* Sums of leaves over too many, too few or other ranks are some numbers; a sum that is doubled is a multiple. */
static void mutate_leaves(ad_comm *comm, const trial *t, const ad_place *place, const ad_array *right) {
  static const ad_operator operators[] = {AD_OPERATOR_LEFT_OUT, AD_OPERATOR_DOUBLED, AD_OPERATOR_MORE_AXES,
                                          AD_OPERATOR_FEWER_AXES, AD_OPERATOR_OTHER_GROUP};
  size_t count = values_here(comm, t, 1), start = 0, numel = ad_array_numel(right);
  ad_packed_stretch(right, ad_comm_rank(comm), (size_t)(place->what[0] - 'a'), &start, &numel);
  for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
    ad_mutation mutation = {.place = *place, .operator_ = operators[k], .axis = AD_DP_SHARD};
    int adds_axis = mutation.operator_ == AD_OPERATOR_MORE_AXES || mutation.operator_ == AD_OPERATOR_OTHER_GROUP;
    ad_array out;
    if (adds_axis && place->axes & AD_AXES(AD_DP_SHARD)) continue;
    give_result(comm, t, &out);
    ad_mutation_begin(&mutation);
    CHECK_OK(ad_transit_run(comm, &t->transit, &t->in, &out));
    ad_injections_clear();
    for (size_t i = 0; i < count * ad_array_numel(right); i++) {
      double expected = ((double *)right->data)[i], found = ((double *)out.data)[i];
      int is_mutated = i % ad_array_numel(right) >= start && i % ad_array_numel(right) < start + numel;
      if (is_mutated && mutation.operator_ == AD_OPERATOR_DOUBLED && !t->transit.adds)
        expected *= (double)place->ranks;
      else if (is_mutated)
        expected = isfinite(found) ? found : expected;
      CHECK(found == expected);
    }
    ad_array_destroy(comm, &out);
  }
}

static void try_one(ad_comm *comm, trial *t) {
  ad_array right;
  ad_places places = {0};
  size_t count = values_here(comm, t, 0);
  t->ranges.starts = t->starts;
  if (t->ranges.leaves) t->transit.ranges = &t->ranges;
  CHECK_OK(ad_comm_alloc(comm, count * ad_array_bytes(&t->in), &t->in.data));
  for (size_t i = 0; i < count * ad_array_numel(&t->in); i++)
    ((double *)t->in.data)[i] = ad_random_normal(SEED, (uint64_t)ad_comm_rank(comm), i);
  give_result(comm, t, &right);
  ad_places_watch(&places);
  CHECK_OK(ad_transit_run(comm, &t->transit, &t->in, &right));
  ad_injections_clear();
  CHECK(places.count == (t->transit.names ? 6 : 1));
  for (size_t i = 0; i < places.count; i++) mutate_nothing(comm, t, &places.list[i], &right);
  if (t->ranges.leaves) mutate_leaves(comm, t, &places.list[t->ranges.leaves % 6], &right);
  ad_places_release(&places);
  ad_array_destroy(comm, &right);
  ad_array_destroy(comm, &t->in);
}

typedef int drawer(ad_comm *comm, const ad_mesh *mesh, int number, trial *t);

static int try_many(ad_comm *comm, const char *text, drawer *drawn, unsigned wanted_moves) {
  ad_mesh *mesh;
  unsigned moves = 0;
  CHECK_OK(ad_mesh_create(text, &mesh));
  for (int number = 0; number < TRIALS; number++) {
    trial t;
    if (!drawn(comm, mesh, number, &t)) continue;
    moves |= 1u << t.transit.move;
    try_one(comm, &t);
  }
  CHECK(moves == wanted_moves);
  ad_mesh_destroy(mesh);
  return 0;
}

enum {
  SUMS = 1 << AD_MOVE_ALL_REDUCE | 1 << AD_MOVE_REDUCE_SCATTER,
  ALL = SUMS | 1 << AD_MOVE_ALL_GATHER | 1 << AD_MOVE_ALL_TO_ALL
};

static int try_arrays(ad_comm *comm, void *context) { return try_many(comm, context, draw_trial, ALL); }
static int try_packed(ad_comm *comm, void *context) { return try_many(comm, context, draw_packed, SUMS); }
static int try_leaves(ad_comm *comm, void *context) { return try_many(comm, context, draw_leaves, SUMS); }

static void the_true_group_gives_what_the_transition_gives(void **state) {
  run_ranks(6, try_arrays, "dp_shard=2 tp=3");
  run_ranks(6, try_arrays, "dp_replicate=2 tp=3 cp=1");
  run_ranks(5, try_arrays, "tp=5");
  run_ranks(1, try_arrays, "tp=1");
}

static void one_value_of_several_is_computed_and_the_others_are_sent(void **state) {
  run_ranks(6, try_packed, "dp_shard=2 tp=3");
  run_ranks(3, try_packed, "dp_shard=3");
}

static void sums_of_leaves_are_computed_by_the_tree_over_leaves(void **state) {
  run_ranks(6, try_leaves, "dp_shard=2 tp=3");
  run_ranks(5, try_leaves, "dp_shard=5");
}

/* ---- a mistake in the first microbatch only ---- */

enum { LENGTH = 6 };

static int only_in_the_first(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  trial t = {.transit = {.move = AD_MOVE_ALL_REDUCE, .to = AD_R, .accumulate = AD_F64, .site = AD_HERE}};
  ad_shape shape = {1, {LENGTH}};
  ad_places places = {0};
  ad_array right, out;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  t.transit.axes = AD_AXES(AD_TP);
  t.in = ad_array_describe(comm, AD_F64, &shape, &layout);
  CHECK_OK(ad_comm_alloc(comm, ad_array_bytes(&t.in), &t.in.data));
  for (size_t i = 0; i < LENGTH; i++) ((double *)t.in.data)[i] = (double)(ad_comm_rank(comm) + 1) * (double)(i + 1);
  give_result(comm, &t, &right);
  give_result(comm, &t, &out);
  ad_places_watch(&places);
  CHECK_OK(ad_transit_run(comm, &t.transit, &t.in, &right));
  ad_injections_clear();
  CHECK(places.count == 1);
  ad_mutation mutation = {.place = places.list[0], .operator_ = AD_OPERATOR_FIRST_MICROBATCH_ONLY};
  ad_mutation_begin(&mutation);
  for (int step = 0; step < 2; step++) {
    mutation.executions = 0;
    for (int m = 0; m < 3; m++) {
      CHECK_OK(ad_transit_run(comm, &t.transit, &t.in, &out));
      CHECK(mutation.fired && mutation.executions == m + 1);
      compare(m ? &t.in : &right, &out, 1);
    }
  }
  ad_injections_clear();
  ad_places_release(&places);
  ad_array_destroy(comm, &out);
  ad_array_destroy(comm, &right);
  ad_array_destroy(comm, &t.in);
  ad_mesh_destroy(mesh);
  return 0;
}

static void what_is_done_in_the_first_microbatch_only_is_done_there_in_every_step(void **state) {
  run_ranks(3, only_in_the_first, NULL);
}

/* ---- collectives on a program's own arrays, without a tape ---- */

/* A collective that is not on a tape is found in the step by the call site that it is given. */
static int by_its_site(ad_comm *comm, void *context) {
  static const char site[] = "load.c:9, tokens of the experts";
  ad_mesh *mesh;
  ad_places places = {0};
  ad_array in, out;
  ad_shape shape = {1, {LENGTH}};
  ad_request request;
  CHECK_OK(ad_mesh_create("dp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_axes dp = AD_AXES(AD_DP_SHARD);
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &in));
  CHECK_OK(ad_array_after(comm, &in, AD_MOVE_ALL_REDUCE, dp, AD_R, &out));
  CHECK_OK(ad_comm_alloc(comm, ad_array_bytes(&out), &out.data));
  ad_places_watch(&places);
  CHECK_OK(ad_array_move_at(comm, &in, AD_MOVE_ALL_REDUCE, dp, AD_R, AD_F64, &out, site));
  CHECK_OK(ad_array_post_at(comm, &in, AD_MOVE_ALL_REDUCE, dp, AD_R, AD_F64, &out, &request, site));
  ad_injections_clear();
  CHECK_OK(ad_comm_wait(comm, &request));
  CHECK(places.count == 1 && places.list[0].times == 2);
  CHECK(places.list[0].phase == AD_PLACE_STEP && places.list[0].ordinal == -1);
  CHECK(!strcmp(places.list[0].what, site));
  ad_places_release(&places);
  ad_array_destroy(comm, &out);
  ad_array_destroy(comm, &in);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_move_outside_a_tape_is_known_by_its_site(void **state) { run_ranks(3, by_its_site, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_true_group_gives_what_the_transition_gives),
      cmocka_unit_test(one_value_of_several_is_computed_and_the_others_are_sent),
      cmocka_unit_test(sums_of_leaves_are_computed_by_the_tree_over_leaves),
      cmocka_unit_test(what_is_done_in_the_first_microbatch_only_is_done_there_in_every_step),
      cmocka_unit_test(a_move_outside_a_tape_is_known_by_its_site),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
