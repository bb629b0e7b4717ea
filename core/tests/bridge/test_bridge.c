/* Tests bridges (which move a value from one mesh to another) on real ranks: the value arrives unchanged, backward is
 * the adjoint of forward, gradients that are partial on cp and tp are summed; known bugs change only what they are said
 * to change; and messages of what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/bridge.h"
#include "array/transit.h"
#include "base/random.h"
#include "bridge/known_bugs.h"
#include "bridge/route.h"
#include "ranks.h"
#include "says.h"
#include "layout/type.h"
#include "mesh/mesh.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { ROWS = 24, SEQ = 4, WIDTH = 3 };

typedef struct sides {
  const char *source, *destination; /* mesh strings */
  /* ranks in the world; first rank of the destination's mesh, 0: both meshes have the same ranks */
  int64_t ranks, first;
  ad_type on_tp; /* type of the value on tp of the destination */
  int64_t rows;
  int ragged;
} sides;

typedef struct joined {
  ad_comm *comm;
  ad_mesh *a, *b;
  ad_bridge *bridge;
  ad_array source, destination; /* the value on both sides */
  /* gradients on both sides; data is NULL if this rank is not on that side */
  ad_array source_gradient, destination_gradient;
} joined;

static ad_layout batch_on(const ad_mesh *mesh, ad_type other) {
  ad_layout layout = ad_layout_all(mesh, other);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  return layout;
}

static ad_layout destination_on(const ad_mesh *mesh, ad_type on_tp) {
  ad_layout layout = batch_on(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), on_tp);
  return layout;
}

static void give_memory(joined *j, ad_array *array) {
  if (array->layout.mesh) CHECK_OK(ad_array_create(j->comm, AD_F64, &array->shape, &array->layout, array));
}

static joined join(ad_comm *comm, const sides *s) {
  joined j = {.comm = comm};
  CHECK_OK(ad_mesh_create(s->source, &j.a));
  CHECK_OK(ad_mesh_create_pool(s->destination, s->first, &j.b));
  ad_layout from = batch_on(j.a, AD_I), to = destination_on(j.b, s->on_tp);
  ad_bridge_options options = {.size = sizeof options, .ragged = s->ragged};
  CHECK_OK(ad_bridge_create(comm, &from, &to, &options, &j.bridge));
  ad_shape shape = {3, {s->rows, SEQ, WIDTH}};
  CHECK_OK(ad_bridge_describe_at(j.bridge, AD_F64, &shape, AD_FORWARD, &j.source, &j.destination, NULL));
  CHECK_OK(
      ad_bridge_describe_at(j.bridge, AD_F64, &shape, AD_BACKWARD, &j.source_gradient, &j.destination_gradient, NULL));
  give_memory(&j, &j.source);
  give_memory(&j, &j.destination);
  give_memory(&j, &j.source_gradient);
  give_memory(&j, &j.destination_gradient);
  return j;
}

static void part(joined *j) {
  ad_array *arrays[] = {&j->source, &j->destination, &j->source_gradient, &j->destination_gradient};
  for (int i = 0; i < 4; i++)
    if (arrays[i]->layout.mesh) ad_array_destroy(j->comm, arrays[i]);
  ad_bridge_destroy(j->bridge);
  ad_mesh_destroy(j->a);
  ad_mesh_destroy(j->b);
}

/* ---- values ---- */

static int64_t first_row(const ad_array *array, int64_t rank) {
  ad_span part;
  return ad_layout_spans(&array->layout, 0, array->shape.dim[0], rank, &part, 1) ? part.first : 0;
}

/* The value's element by its index in the full value; each stream has other numbers. */
static double value_at(uint64_t stream, int64_t element) { return ad_random_normal(3, stream, (uint64_t)element); }

static void fill(const joined *j, ad_array *array, uint64_t stream) {
  if (!array->layout.mesh) return;
  int64_t first = first_row(array, ad_comm_rank(j->comm)) * SEQ * WIDTH;
  for (size_t i = 0; i < ad_array_numel(array); i++) ((double *)array->data)[i] = value_at(stream, first + (int64_t)i);
}

static int values_differ(const joined *j, const ad_array *array, double (*wanted)(int64_t element)) {
  if (!array->layout.mesh) return 0;
  int64_t first = first_row(array, ad_comm_rank(j->comm)) * SEQ * WIDTH;
  for (size_t i = 0; i < ad_array_numel(array); i++)
    if (!(fabs(((double *)array->data)[i] - wanted(first + (int64_t)i)) < 1e-12)) return 1;
  return 0;
}

static void check_values(const joined *j, const ad_array *array, double (*wanted)(int64_t element)) {
  CHECK(!values_differ(j, array, wanted));
}

static double left(int64_t element) { return value_at(1, element); }

/* Number of ranks with a replica of the value in the destination, each of which leaves an addend: the ranks over which
 * it is R. */
static int64_t addends;
/* The sum of the gradient's addends: replica number k contributes value_at(2 + k). */
static double summed(int64_t element) {
  double sum = 0;
  for (int64_t k = 0; k < addends; k++) sum += value_at(2 + (uint64_t)k, element);
  return sum;
}

static ad_axes partial_axes(const ad_array *gradient) { return ad_layout_axes_of(&gradient->layout, AD_P); }

static void fill_addends(const joined *j, ad_array *gradient) {
  ad_layout to = ad_bridge_to(j->bridge), dual = ad_layout_dual(&to);
  addends = ad_mesh_ranks_over(j->b, ad_layout_axes_of(&dual, AD_P));
  if (!gradient->layout.mesh) return;
  int64_t rank = ad_comm_rank(j->comm);
  ad_group replicas = ad_mesh_group(gradient->layout.mesh, partial_axes(gradient), rank);
  fill(j, gradient, 2 + (uint64_t)ad_group_index(&replicas, rank));
}

static void go_there_and_back(joined *j) {
  fill(j, &j->source, 1);
  CHECK_OK(ad_bridge_forward_at(j->bridge, &j->source, &j->destination, NULL));
  check_values(j, &j->destination, left);
  fill_addends(j, &j->destination_gradient);
  CHECK_OK(ad_bridge_backward_at(j->bridge, &j->destination_gradient, &j->source_gradient, NULL));
  check_values(j, &j->source_gradient, summed);
}

static int there_and_back(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  go_there_and_back(&j);
  part(&j);
  return 0;
}

static void values_arrive_and_all_addends_come_back(void **state) {
  static sides worlds[] = {
      {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, /* fan-in: to fewer data-parallel parts */
      {"dp=2 tp=4", "dp=4 cp=2 tp=1", 8, 0, AD_I, ROWS, 0}, /* fan-out: to more data-parallel parts */
      {"dp=2 cp=2 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0},
      {"dp=4 tp=2", "dp=4 cp=1 tp=2", 8, 0, AD_I, ROWS, 0}, /* nothing is moved and nothing is summed */
      {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_R, ROWS, 0},
      {"tp=2 dp=2 cp=2", "cp=2 tp=4 dp=1", 8, 0, AD_R, ROWS, 0},
      {"cp=3 dp=2", "dp_replicate=2 tp=3", 6, 0, AD_I, ROWS, 0},
      {"dp=3 tp=2", "dp=2 cp=3", 6, 0, AD_I, 11, 1}, /* numbers of ranks that do not divide each other */
      {"dp=6", "tp=3 dp=2", 6, 0, AD_I, 4, 1},       /* some ranks have no row */
      {"dp=2 tp=2", "dp=2 cp=2", 8, 4, AD_I, ROWS, 0},
      {"dp=3", "dp=2", 5, 3, AD_I, 7, 1},
      {"dp=1", "dp=2 cp=3", 7, 1, AD_I, ROWS, 0},
  };
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, there_and_back, &worlds[i]);
}

/* ---- batches of different sizes: what was computed for one is not used for the next ---- */

/* Makes arrays for a batch with another number of rows on the same bridge. */
static void take_rows(joined *j, int64_t rows) {
  ad_array *arrays[] = {&j->source, &j->destination, &j->source_gradient, &j->destination_gradient};
  for (int i = 0; i < 4; i++)
    if (arrays[i]->layout.mesh) ad_array_destroy(j->comm, arrays[i]);
  ad_shape shape = {3, {rows, SEQ, WIDTH}};
  CHECK_OK(ad_bridge_describe_at(j->bridge, AD_F64, &shape, AD_FORWARD, &j->source, &j->destination, NULL));
  CHECK_OK(ad_bridge_describe_at(j->bridge, AD_F64, &shape, AD_BACKWARD, &j->source_gradient, &j->destination_gradient,
                                 NULL));
  for (int i = 0; i < 4; i++) give_memory(j, arrays[i]);
}

static int other_rows(ad_comm *comm, void *context) {
  const sides *s = context;
  joined j = join(comm, s);
  const int64_t rows[] = {s->rows, 2 * s->rows, s->rows, 3 * s->rows};
  for (int i = 0; i < 4; i++) {
    take_rows(&j, rows[i]);
    for (int turn = 0; turn < 2; turn++) go_there_and_back(&j);
  }
  part(&j);
  return 0;
}

static void batches_of_other_sizes_follow_each_other(void **state) {
  static sides worlds[] = {{"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0},
                           {"dp=3 tp=2", "dp=2 cp=3", 6, 0, AD_I, 1, 1}, /* a batch of one row: some ranks have none */
                           {"dp=1 tp=2", "dp=2", 2, 0, AD_I, 2, 0},
                           {"dp=3", "dp=2", 5, 3, AD_I, 1, 1}};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, other_rows, &worlds[i]);
}

/* On this bridge nothing is moved for some numbers of rows, and rows are moved for others. */
static void whether_rows_move_is_asked_of_each_batch(void **state) {
  ad_comm *comm;
  must(ad_comm_open_dry(0, 6, &comm));
  joined j = join(comm, &(sides){"dp=3 tp=2", "dp=2 cp=3", 6, 0, AD_I, ROWS, 1});
  for (int turn = 0; turn < 2; turn++) {
    must(ad_bridge_forward_at(j.bridge, &j.source, &j.destination, NULL));
    assert_false(ad_bridge_is_local(j.bridge, ROWS));
    assert_true(ad_bridge_is_local(j.bridge, 0));
  }
  part(&j);
  ad_comm_close(comm);
}

static int wrong_after_right(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  go_there_and_back(&j);
  ad_array wrong = j.source, other = j.source, bare = j.source;
  wrong.local.dim[0]++;
  CHECK_STATUS(ad_bridge_forward_at(j.bridge, &wrong, &j.destination, NULL), AD_INVALID);
  CHECK_LISTED();
  other.shape.dim[0] *= 2;
  CHECK_STATUS(ad_bridge_forward_at(j.bridge, &other, &j.destination, NULL), AD_INVALID);
  CHECK_LISTED();
  bare.data = NULL;
  CHECK_STATUS(ad_bridge_forward_at(j.bridge, &bare, &j.destination, NULL), AD_INVALID);
  CHECK_LISTED();
  ad_array retyped = j.destination_gradient;
  ad_layout_set(&retyped.layout, AD_AXES(AD_CP), AD_I);
  CHECK_STATUS(ad_bridge_backward_at(j.bridge, &retyped, &j.source_gradient, NULL), AD_TYPE);
  CHECK_STATUS(ad_bridge_forward_at(j.bridge, NULL, &j.destination, NULL), AD_INVALID);
  go_there_and_back(&j);
  part(&j);
  return 0;
}

static void what_is_wrong_is_refused_after_what_was_right(void **state) {
  static sides fan_in = {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0};
  run_ranks(8, wrong_after_right, &fan_in);
}

static void reverse(void *context, void *passing) {
  ad_route_passing *at = passing;
  for (size_t i = 0; i < at->sends; i++) at->routes[i].here = 0;
}

/* A mutation of the routes is gone once it is removed. */
static int right_after_wrong(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  go_there_and_back(&j);
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){reverse, NULL});
  CHECK_OK(ad_bridge_forward_at(j.bridge, &j.source, &j.destination, NULL));
  CHECK_OK(ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL));
  ad_injections_clear();
  go_there_and_back(&j);
  part(&j);
  return 0;
}

static void what_is_right_stays_so_after_a_mutant(void **state) {
  static sides fan_in = {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0};
  run_ranks(8, right_after_wrong, &fan_in);
}

/* Forward, ranks 0 and 3 already have all rows that they and their replicas need, so their rows are not moved; backward
 * they are in a group with ranks whose rows move. */
static int stays_one_way(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  int stays = ad_bridge_is_local(j.bridge, ROWS);
  ad_array there = j.destination, back = j.source_gradient;
  CHECK(stays == (ad_comm_rank(comm) % 3 != 1));
  if (stays) j.destination.data = j.source.data;
  if (stays) j.source_gradient.data = j.destination_gradient.data;
  for (int turn = 0; turn < 2; turn++) go_there_and_back(&j);
  j.destination = there;
  j.source_gradient = back;
  part(&j);
  return 0;
}

static void rows_may_stay_one_way_and_move_the_other(void **state) {
  static sides crossed = {"dp=2 tp=3", "tp=3 dp=2", 6, 0, AD_I, ROWS, 0};
  run_ranks(6, stays_one_way, &crossed);
}

/* ---- several batches in flight ---- */

enum { IN_FLIGHT = 3, ROUNDS = 4, LONGEST_DELAY = 400 /* microseconds */ };

/* One batch that is posted without waiting, and the results of the waiting calls for the same batch. */
typedef struct traveller {
  /* arguments of the ad_bridge_post_ functions; data is NULL if this rank is not on that side */
  ad_array source, arrived, summed, returned;
  ad_array wanted_there, wanted_back;
  ad_request forward, backward;
} traveller;

static ad_array like(const joined *j, const ad_array *array, ad_layout layout) {
  ad_array own = {0};
  if (array->layout.mesh) CHECK_OK(ad_array_create(j->comm, AD_F64, &array->shape, &layout, &own));
  return own;
}

static traveller prepare(const joined *j) {
  ad_layout arrives = ad_bridge_arrives(j->bridge), summed = ad_layout_dual(&arrives);
  return (traveller){.source = like(j, &j->source, j->source.layout),
                     .arrived = like(j, &j->destination, arrives),
                     .summed = like(j, &j->destination_gradient, summed),
                     .returned = like(j, &j->source_gradient, j->source_gradient.layout),
                     .wanted_there = like(j, &j->destination, j->destination.layout),
                     .wanted_back = like(j, &j->source_gradient, j->source_gradient.layout)};
}

static void forget(const joined *j, traveller *t) {
  ad_array *arrays[] = {&t->source, &t->arrived, &t->summed, &t->returned, &t->wanted_there, &t->wanted_back};
  for (int i = 0; i < 6; i++)
    if (arrays[i]->layout.mesh) ad_array_destroy(j->comm, arrays[i]);
}

static void copy_bits(ad_array *to, const ad_array *from) {
  if (to->layout.mesh) memcpy(to->data, from->data, ad_array_bytes(from));
}

static void scale_by(ad_array *array, double factor) {
  for (size_t i = 0; array->layout.mesh && i < ad_array_numel(array); i++) ((double *)array->data)[i] *= factor;
}

/* Sums the destination's gradient over its replicas, as it must be before it is posted. */
static void take_sum(const joined *j, ad_array *summed) {
  const ad_array *addends_of = &j->destination_gradient;
  if (!summed->layout.mesh) return;
  ad_axes axes = partial_axes(addends_of) & ~partial_axes(summed);
  copy_bits(summed, addends_of);
  if (axes) CHECK_OK(ad_array_move_at(j->comm, addends_of, AD_MOVE_ALL_REDUCE, axes, AD_I, AD_F64, summed, NULL));
}

/* Computes the wanted results by the calls that wait; `factor` makes each batch different. */
static void take_wanted(joined *j, traveller *t, double factor) {
  fill(j, &j->source, 1);
  scale_by(&j->source, factor);
  copy_bits(&t->source, &j->source);
  CHECK_OK(ad_bridge_forward_at(j->bridge, &j->source, &j->destination, NULL));
  copy_bits(&t->wanted_there, &j->destination);
  fill_addends(j, &j->destination_gradient);
  scale_by(&j->destination_gradient, factor);
  take_sum(j, &t->summed);
  CHECK_OK(ad_bridge_backward_at(j->bridge, &j->destination_gradient, &j->source_gradient, NULL));
  copy_bits(&t->wanted_back, &j->source_gradient);
}

static uint64_t draw_below(ad_comm *comm, uint64_t *drawn, uint64_t below) {
  return ad_random_bits(5, (uint64_t)ad_comm_rank(comm), (*drawn)++) % below;
}

static void post(joined *j, traveller *t, int backward, uint64_t *drawn) {
  usleep((useconds_t)draw_below(j->comm, drawn, LONGEST_DELAY));
  if (backward)
    CHECK_OK(ad_bridge_post_backward_at(j->bridge, &t->summed, &t->returned, &t->backward, NULL));
  else
    CHECK_OK(ad_bridge_post_forward_at(j->bridge, &t->source, &t->arrived, &t->forward, NULL));
}

/* Waits for all transfers, on each rank in its own random order. */
static void wait_for_all(joined *j, traveller *t, uint64_t *drawn) {
  ad_request *requests[2 * IN_FLIGHT];
  for (int i = 0; i < IN_FLIGHT; i++) {
    requests[2 * i] = &t[i].forward;
    requests[2 * i + 1] = &t[i].backward;
  }
  for (uint64_t left_over = 2 * IN_FLIGHT; left_over > 0; left_over--) {
    uint64_t next = draw_below(j->comm, drawn, left_over);
    CHECK_OK(ad_comm_wait(j->comm, requests[next]));
    requests[next] = requests[left_over - 1];
  }
}

static void check_bits(const ad_array *is, const ad_array *wanted) {
  if (is->layout.mesh) CHECK(!memcmp(is->data, wanted->data, ad_array_bytes(wanted)));
}

static void one_round(joined *j, traveller *t, int round, uint64_t *drawn) {
  for (int i = 0; i < IN_FLIGHT; i++) take_wanted(j, &t[i], round * IN_FLIGHT + i + 1);
  for (int i = 0; i <= IN_FLIGHT; i++) { /* values are posted one batch ahead of gradients */
    if (i < IN_FLIGHT) post(j, &t[i], 0, drawn);
    if (i) post(j, &t[i - 1], 1, drawn);
  }
  wait_for_all(j, t, drawn);
  for (int i = 0; i < IN_FLIGHT; i++) {
    check_bits(&t[i].arrived, &t[i].wanted_there);
    check_bits(&t[i].returned, &t[i].wanted_back);
  }
}

static int many_at_once(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  traveller travellers[IN_FLIGHT];
  uint64_t drawn = 0;
  for (int i = 0; i < IN_FLIGHT; i++) travellers[i] = prepare(&j);
  for (int round = 0; round < ROUNDS; round++) one_round(&j, travellers, round, &drawn);
  for (int i = 0; i < IN_FLIGHT; i++) forget(&j, &travellers[i]);
  part(&j);
  return 0;
}

static void what_is_posted_has_the_bits_of_what_is_waited_for(void **state) {
  static sides worlds[] = {
      {"dp=2 tp=2", "dp=2 cp=2", 8, 4, AD_I, ROWS, 0},
      {"dp=2 tp=2", "dp=1 cp=2 tp=2", 8, 4, AD_R, ROWS, 0},
      {"dp=3", "cp=2", 5, 3, AD_I, ROWS, 0},
      {"dp=3", "dp=2", 5, 3, AD_I, 7, 1},
      {"dp=1", "dp=2 cp=3", 7, 1, AD_I, ROWS, 0},
      {"dp=5", "dp=2", 7, 5, AD_I, 3, 1}, /* some ranks have no row */
      {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0},
  };
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, many_at_once, &worlds[i]);
  setenv("ADDEND_HOSTILE", "7", 1);
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, many_at_once, &worlds[i]);
  unsetenv("ADDEND_HOSTILE");
}

/* A mutation: the all-reduce is left out, and the result's type stays P. */
static void leave_sum_out(void *context, void *passing) {
  ad_transit_passing *at = passing;
  if (at->transit->move != AD_MOVE_ALL_REDUCE && at->transit->move != AD_MOVE_REDUCE_SCATTER) return;
  ad_layout_set(&at->out->layout, at->transit->axes, AD_P);
  at->handled = 1;
}

static void refuse_addends_from(const char *source) {
  ad_comm *comm;
  must(ad_comm_open_dry(0, 8, &comm));
  joined j = join(comm, &(sides){source, "dp=2 cp=2 tp=2", 8, 0, AD_R, ROWS, 0});
  must(ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL));
  ad_layout to = ad_bridge_to(j.bridge);
  j.destination_gradient.layout = ad_layout_dual(&to);
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){leave_sum_out, NULL});
  ad_status status = ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL);
  ad_injections_clear();
  assert_int_equal(status, AD_TYPE);
  assert_says("cp,tp", "all_reduce", "P-");
  part(&j);
  ad_comm_close(comm);
}

static void addends_that_were_not_summed_do_not_go_back(void **state) {
  refuse_addends_from("dp=4 tp=2");
  refuse_addends_from("dp=8"); /* here each rank keeps its own rows, so nothing is moved */
}

/* ---- gradients that each rank sums for the rows it keeps ---- */

typedef struct kept {
  sides sides;
  int is_kept;
} kept;

typedef struct seen_sum {
  ad_move move;
  int sums, routes, ordinal, backward;
} seen_sum;

static void see_sum(void *context, void *passing) {
  seen_sum *seen = context;
  const ad_transit *transit = ((ad_transit_passing *)passing)->transit;
  seen->move = transit->move;
  seen->ordinal = transit->ordinal;
  seen->backward = transit->backward;
  seen->sums++;
}
static void see_route(void *context, void *passing) { ((seen_sum *)context)->routes++; }

static int sums_what_it_keeps(ad_comm *comm, void *context) {
  const kept *k = context;
  joined j = join(comm, &k->sides);
  seen_sum seen = {0};
  fill_addends(&j, &j.destination_gradient);
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){see_sum, &seen});
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){see_route, &seen});
  CHECK_OK(ad_bridge_backward_numbered(j.bridge, &j.destination_gradient, &j.source_gradient, 5, "here"));
  ad_injections_clear();
  CHECK(seen.sums == ad_bridge_has_destination(j.bridge));
  CHECK(!seen.sums || (seen.ordinal == 5 && seen.backward));
  CHECK(!seen.sums || seen.move == (k->is_kept ? AD_MOVE_REDUCE_SCATTER : AD_MOVE_ALL_REDUCE));
  CHECK(!k->is_kept || !seen.routes);
  check_values(&j, &j.source_gradient, summed);
  part(&j);
  return 0;
}

/* In one batch each rank keeps the rows that it sums, in the next one it does not. */
static int keeps_in_turn(ad_comm *comm, void *context) {
  static const kept turns[] = {{{.rows = 6}, 1}, {{.rows = 10}, 0}, {{.rows = 6}, 1}};
  joined j = join(comm, context);
  for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
    take_rows(&j, turns[i].sides.rows);
    CHECK(ad_bridge_keeps_rows(j.bridge, turns[i].sides.rows) == turns[i].is_kept);
    go_there_and_back(&j);
  }
  part(&j);
  return 0;
}

static void whether_rows_are_kept_is_asked_of_each_batch(void **state) {
  static sides world = {"dp=6", "dp=3 cp=2", 6, 0, AD_I, 6, 1};
  run_ranks(world.ranks, keeps_in_turn, &world);
}

static void rows_are_summed_where_they_are_kept(void **state) {
  static kept worlds[] = {
      {{"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, 1},
      {{"dp=8", "dp=2 cp=2 tp=2", 8, 0, AD_R, ROWS, 0}, 1},
      {{"dp=3", "cp=3", 3, 0, AD_I, ROWS, 0}, 1},
      {{"dp=3", "cp=3", 3, 0, AD_I, 7, 1}, 1},
      {{"dp=3", "cp=3", 3, 0, AD_I, 2, 1}, 1},      /* one rank has no row */
      {{"dp=4", "dp=2 cp=2", 4, 0, AD_I, 7, 1}, 1}, /* parts of 1, 2, 2 and 2 rows */
      {{"dp=2 tp=2", "cp=2 tp=2", 4, 0, AD_I, ROWS, 0}, 1},
      {{"dp=3", "dp=1 cp=2", 5, 3, AD_I, ROWS, 0}, 0},           /* the meshes have other ranks */
      {{"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_R, ROWS, 0}, 0}, /* ranks of tp keep the same rows */
      {{"dp=4 tp=2", "dp=2 tp=2 cp=2", 8, 0, AD_I, ROWS, 0}, 0}, /* the slices have another order */
      {{"dp=2 tp=2", "dp=2 cp=2", 4, 0, AD_I, ROWS, 0}, 0},      /* both ranks of tp keep all rows */
  };
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
    run_ranks(worlds[i].sides.ranks, sums_what_it_keeps, &worlds[i]);
}

/* A value that is wanted as R at the destination arrives as I, and is converted there, so that its gradient has
 * addends. */
static void arrives_as(const char *destination, ad_type on_tp, ad_axes same) {
  ad_comm *comm;
  must(ad_comm_open_dry(0, 16, &comm));
  joined j = join(comm, &(sides){"dp=2 tp=2", destination, 16, 4, on_tp, ROWS, 0});
  ad_layout is = ad_bridge_arrives(j.bridge);
  assert_int_equal(ad_layout_axes_of(&is, AD_I) & ad_mesh_named(j.b), same);
  assert_int_equal(ad_layout_axes_of(&is, AD_S(0)), AD_AXES_DP);
  part(&j);
  ad_comm_close(comm);
}

static void a_value_arrives_the_same_on_every_replica(void **state) {
  arrives_as("dp=2 cp=2", AD_I, AD_AXES(AD_CP));
  arrives_as("dp=2 cp=1", AD_I, AD_AXES(AD_CP));
  arrives_as("dp=1 cp=2 tp=2", AD_R, AD_AXES(AD_CP) | AD_AXES(AD_TP));
  arrives_as("dp=4", AD_I, 0);
}

/* ---- backward is the adjoint of forward ---- */

static double dot_here(const ad_array *a, const ad_array *b) {
  double sum = 0;
  for (size_t i = 0; i < ad_array_numel(a); i++) sum += ((const double *)a->data)[i] * ((const double *)b->data)[i];
  return sum;
}

static double over_all_ranks(const joined *j, double sum) {
  double all = 0;
  int64_t rank = ad_comm_rank(j->comm);
  ad_mesh *world;
  char text[32];
  snprintf(text, sizeof text, "dp=%lld", (long long)ad_comm_size(j->comm));
  CHECK_OK(ad_mesh_create(text, &world));
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = ad_mesh_group(world, AD_AXES_ALL, rank),
                        .in = &sum,
                        .out = &all};
  call.count = 1;
  call.dtype = AD_F64;
  call.reduction = AD_SUM;
  CHECK_OK(ad_comm_run(j->comm, &call));
  ad_mesh_destroy(world);
  return all;
}

/* The inner product <a, b>, in which replicas count once: of the axes on which both are replicated, one rank counts. */
static double dot(const joined *j, const ad_array *a, const ad_array *b) {
  int64_t rank = ad_comm_rank(j->comm);
  if (!a->layout.mesh) return over_all_ranks(j, 0);
  ad_axes same = ad_layout_same_axes(&a->layout) & ad_layout_same_axes(&b->layout);
  ad_group replicas = ad_mesh_group(a->layout.mesh, same, rank);
  return over_all_ranks(j, ad_group_index(&replicas, rank) == 0 ? dot_here(a, b) : 0);
}

/* Tests <A x, y> = <x, A' y>; y is summed over the replicas, each of which contributed an addend. */
static int is_adjoint(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  fill(&j, &j.source, 1);
  fill_addends(&j, &j.destination_gradient);
  CHECK_OK(ad_bridge_forward_at(j.bridge, &j.source, &j.destination, NULL));
  double there = dot(&j, &j.destination, &j.destination_gradient);
  CHECK_OK(ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL));
  CHECK(fabs(there - dot(&j, &j.source, &j.source_gradient)) < 1e-12 * ROWS * SEQ * WIDTH);
  part(&j);
  return 0;
}

static void backward_is_the_adjoint_of_forward(void **state) {
  static sides worlds[] = {
      {"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, {"dp=2 tp=4", "dp=4 cp=2 tp=1", 8, 0, AD_I, ROWS, 0},
      {"dp=4 tp=2", "dp=4 tp=2", 8, 0, AD_I, ROWS, 0},      {"dp=2 tp=2", "dp=1 cp=2 tp=2", 4, 0, AD_R, ROWS, 0},
      {"dp=3 tp=2", "dp=2 cp=3", 6, 0, AD_I, 11, 1},        {"dp=3", "dp=2", 5, 3, AD_I, 7, 1},
  };
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) run_ranks(worlds[i].ranks, is_adjoint, &worlds[i]);
}

/* Each cp rank's gradient is zero outside its positions of the sequence, as the backward of the sharding leaves it; the
 * sum that comes back is the full gradient. */
static int chunks_come_back_full(ad_comm *comm, void *context) {
  joined j = join(comm, context);
  int64_t rank = ad_comm_rank(comm), cp = ad_mesh_axis_size(j.b, AD_CP), own = ad_mesh_position(j.b, rank, AD_CP);
  fill(&j, &j.destination_gradient, 1);
  for (size_t i = 0; i < ad_array_numel(&j.destination_gradient); i++)
    if ((int64_t)i / WIDTH % SEQ % cp != own) ((double *)j.destination_gradient.data)[i] = 0;
  CHECK_OK(ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL));
  check_values(&j, &j.source_gradient, left);
  part(&j);
  return 0;
}

static void a_gradient_that_is_zero_outside_each_ranks_chunks_comes_back_full(void **state) {
  static sides worlds[] = {{"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0},
                           {"dp=2 tp=4", "dp=4 cp=2 tp=1", 8, 0, AD_I, ROWS, 0},
                           {"dp=2 tp=3", "dp=2 cp=3", 6, 0, AD_I, ROWS, 0}};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
    run_ranks(worlds[i].ranks, chunks_come_back_full, &worlds[i]);
}

/* ---- known bugs ---- */

typedef struct injected {
  sides sides;
  unsigned shown; /* AD_NEED_ bits: what this bridge has, forward and backward, that a known bug may need */
  const ad_known_bug *bug;
} injected;

static void see(void *context, void *passing) { *(unsigned *)context |= ad_bridge_known_bugs_show(passing); }

static int shows_what_is_reported(ad_comm *comm, void *context) {
  const injected *p = context;
  joined j = join(comm, &p->sides);
  unsigned shown = 0;
  ad_injection_set(AD_INJECT_ROUTES, (ad_injection){see, &shown});
  fill(&j, &j.source, 1);
  CHECK_OK(ad_bridge_forward_at(j.bridge, &j.source, &j.destination, NULL));
  fill_addends(&j, &j.destination_gradient);
  CHECK_OK(ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL));
  ad_injections_clear();
  CHECK(shown == p->shown);
  part(&j);
  return 0;
}

/* Under the mutation, either some rank receives something else or the exchange does not match. */
static int changes_what_arrives(ad_comm *comm, void *context) {
  const injected *p = context;
  joined j = join(comm, &p->sides);
  ad_known_bug_scene scene = {.rank = ad_comm_rank(comm)};
  int shows = !(p->bug->needs & ~AD_NEED_TOKENS & ~p->shown);
  ad_known_bug_inject(p->bug, &scene);
  fill(&j, &j.source, 1);
  CHECK_OK(ad_bridge_forward_at(j.bridge, &j.source, &j.destination, NULL));
  int differs = values_differ(&j, &j.destination, left);
  fill_addends(&j, &j.destination_gradient);
  ad_status status = ad_bridge_backward_at(j.bridge, &j.destination_gradient, &j.source_gradient, NULL);
  ad_injections_clear();
  if (status) {
    CHECK(shows && p->bug->needs & AD_NEED_SLICES_GATHERED_ON_CP);
    CHECK_LISTED();
    part(&j);
    return 0;
  }
  differs |= values_differ(&j, &j.source_gradient, summed);
  CHECK((over_all_ranks(&j, scene.fired) > 0) == shows);
  CHECK((over_all_ranks(&j, differs) > 0) == shows);
  part(&j);
  return 0;
}

static void known_bugs_show_where_it_is_documented(void **state) {
  enum {
    ORDER = AD_NEED_SLICES_OUT_OF_ORDER,
    TOGETHER = AD_NEED_SLICES_GATHERED,
    ON_CP = AD_NEED_SLICES_ON_CP | AD_NEED_SLICES_GATHERED_ON_CP
  };
  static injected worlds[] = {
      /* the sum leaves each rank its own slice of rows */
      {{"dp=4 tp=2", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, 0, NULL},
      {{"dp=4 tp=2", "dp=2 tp=2 cp=2", 8, 0, AD_I, ROWS, 0}, ORDER, NULL},
      {{"tp=2 dp=4", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, 0, NULL},
      {{"dp=2 tp=4", "dp=4 cp=2 tp=1", 8, 0, AD_I, ROWS, 0}, ORDER | TOGETHER | ON_CP, NULL},
      {{"tp=4 dp=2", "cp=2 dp=4", 8, 0, AD_I, ROWS, 0}, TOGETHER | ON_CP, NULL},
      {{"dp=2 tp=2", "dp=4", 4, 0, AD_I, ROWS, 0}, TOGETHER, NULL},
      {{"dp=2 tp=4", "dp=2 cp=2 tp=2", 8, 0, AD_I, ROWS, 0}, 0, NULL},
      {{"dp=3 tp=2", "dp=2 cp=3", 6, 0, AD_I, 11, 1}, 0, NULL},
      {{"dp=2", "dp=4 cp=2", 10, 2, AD_I, ROWS, 0}, ORDER | TOGETHER | AD_NEED_SLICES_ON_CP, NULL},
  };
  size_t count;
  const ad_known_bug *bugs = ad_bridge_known_bugs(&count);
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
    run_ranks(worlds[i].sides.ranks, shows_what_is_reported, &worlds[i]);
    for (size_t k = 0; k < count; k++) {
      worlds[i].bug = &bugs[k];
      run_ranks(worlds[i].sides.ranks, changes_what_arrives, &worlds[i]);
    }
  }
}

/* ---- what is refused ---- */

static void is_refused(const char *source, const char *from, const char *destination, const char *to, int64_t first,
                       int64_t rows, ad_status status) {
  ad_comm *comm;
  ad_mesh *a, *b;
  ad_layout layouts[2];
  ad_bridge *bridge = NULL;
  ad_array arrays[2];
  must(ad_comm_open_dry(0, 32, &comm));
  must(ad_mesh_create(source, &a));
  must(ad_mesh_create_pool(destination, first, &b));
  must(ad_layout_parse(a, from, &layouts[0]));
  must(ad_layout_parse(b, to, &layouts[1]));
  ad_status is = ad_bridge_create(comm, &layouts[0], &layouts[1], NULL, &bridge);
  /* the check before any rank starts gives the same message */
  assert_int_equal(ad_bridge_check(&layouts[0], &layouts[1], NULL), is);
  if (!is)
    is =
        ad_bridge_describe_at(bridge, AD_F32, &(ad_shape){2, {rows, 3}}, AD_FORWARD, &arrays[0], &arrays[1], "ocr.c:1");
  assert_int_equal(is, status);
  ad_bridge_destroy(bridge);
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
  ad_comm_close(comm);
}
#define refused(source, from, destination, to, first, rows, status, ...) \
  (is_refused((source), (from), (destination), (to), (first), (rows), (status)), assert_says(__VA_ARGS__))

static void what_cannot_be_joined_is_refused_with_its_numbers(void **state) {
  refused("dp=4 tp=2", "dp=S0 tp=I", "dp=2 cp=2", "dp=S0 cp=R", 0, 8, AD_INVALID, "dp_shard=4 tp=2", "dp_shard=2 cp=2",
          "8 ranks", "0", "7", "3");
  refused("dp=4", "dp=S0", "dp=4", "dp=S0", 2, 8, AD_INVALID, "dp_shard=4", "0", "3", "2", "5");
  refused("pp=2 dp=2", "pp=I dp=S0", "dp=4", "dp=S0", 0, 8, AD_INVALID, "pp=2");
  refused("dp=2 cp=2", "dp=S0 cp=R", "dp=4", "dp=S0", 0, 8, AD_TYPE, "cp", "R");
  refused("dp=2 cp=2", "dp=S0 cp=S1", "dp=4", "dp=S0", 0, 8, AD_TYPE, "cp", "S(1)");
  refused("dp=2 tp=2", "dp=S0 tp=P", "dp=4", "dp=S0", 0, 8, AD_TYPE, "tp", "P");
  refused("dp=2 tp=2", "dp=I tp=I", "dp=4", "dp=S0", 0, 8, AD_TYPE, "dp_shard", "I");
  refused("dp=4", "dp=S0", "dp=2 cp=2", "dp=S0 cp=I", 0, 8, AD_TYPE, "cp", "I", "R");
  refused("dp=4", "dp=S0", "dp=2 tp=2", "dp=S0 tp=S1", 0, 8, AD_TYPE, "tp", "S(1)");
  refused("dp=3 tp=2", "dp=S0 tp=I", "dp=2 cp=3", "dp=S0 cp=R", 0, 6, AD_INVALID, "3 parts", "2", "4 parts");
  refused("dp=4", "dp=S0", "dp=2 cp=2", "dp=S0 cp=R", 0, 10, AD_INVALID, "ocr.c:1", "10 rows", "4 parts", "8",
          "12 rows");
}

static int64_t multiple_of(const char *source, const char *destination, int ragged) {
  ad_mesh *a, *b;
  int64_t multiple = -1;
  ad_bridge_options options = {.size = sizeof options, .ragged = ragged};
  must(ad_mesh_create(source, &a));
  must(ad_mesh_create(destination, &b));
  ad_layout from = batch_on(a, AD_I), to = destination_on(b, AD_I);
  must(ad_bridge_check(&from, &to, &options));
  must(ad_bridge_rows_multiple(&from, &to, &options, &multiple));
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
  return multiple;
}

static void rows_are_a_multiple_of_the_parts_of_the_side_that_has_more(void **state) {
  assert_int_equal(multiple_of("dp=4", "dp=2 cp=2", 0), 4);
  assert_int_equal(multiple_of("dp=2 tp=3", "dp=6", 0), 6);
  assert_int_equal(multiple_of("dp=3 tp=2", "dp=2 cp=3", 1), 1);
}

/* Joining a pool of a million ranks takes no longer than joining one of two. */
static void a_bridge_of_a_million_ranks_is_arithmetic(void **state) {
  ad_comm *comm;
  ad_mesh *a, *b;
  ad_route routes[64];
  must(ad_comm_open_dry(777777, 1 << 20, &comm));
  must(ad_mesh_create("dp=32768 tp=32", &a));
  must(ad_mesh_create("dp=8192 cp=16 tp=8", &b));
  ad_layout from = batch_on(a, AD_I), to = destination_on(b, AD_I);
  assert_int_equal(ad_bridge_receives(&from, &to, 1 << 16, 777777, routes, 64), 4);
  assert_int_equal(ad_bridge_sends(&from, &to, 1 << 16, 777777, routes, 64), 4);
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_arrive_and_all_addends_come_back),
      cmocka_unit_test(batches_of_other_sizes_follow_each_other),
      cmocka_unit_test(whether_rows_move_is_asked_of_each_batch),
      cmocka_unit_test(what_is_wrong_is_refused_after_what_was_right),
      cmocka_unit_test(what_is_right_stays_so_after_a_mutant),
      cmocka_unit_test(rows_may_stay_one_way_and_move_the_other),
      cmocka_unit_test(what_is_posted_has_the_bits_of_what_is_waited_for),
      cmocka_unit_test(addends_that_were_not_summed_do_not_go_back),
      cmocka_unit_test(rows_are_summed_where_they_are_kept),
      cmocka_unit_test(whether_rows_are_kept_is_asked_of_each_batch),
      cmocka_unit_test(a_value_arrives_the_same_on_every_replica),
      cmocka_unit_test(backward_is_the_adjoint_of_forward),
      cmocka_unit_test(a_gradient_that_is_zero_outside_each_ranks_chunks_comes_back_full),
      cmocka_unit_test(known_bugs_show_where_it_is_documented),
      cmocka_unit_test(what_cannot_be_joined_is_refused_with_its_numbers),
      cmocka_unit_test(rows_are_a_multiple_of_the_parts_of_the_side_that_has_more),
      cmocka_unit_test(a_bridge_of_a_million_ranks_is_arithmetic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
