/* Tests packed arrays (several values one after another in one buffer): a transition of the packed array gives the same
 * as the transition of each value alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include "values.h"
#include "array/array.h"
#include "array/transit.h"
#include "ranks.h"
#include "says.h"
#include "layout/type.h"

/* Values with uneven parts, with fewer rows than ranks, with one row, without rows, and with empty rows. */
static const ad_segment segments[] = {{7, 3}, {2, 5}, {1, 1}, {0, 4}, {4, 0}, {12, 2}};
enum { VALUES = sizeof segments / sizeof *segments };

static ad_array describe_value(const ad_comm *comm, int value, const ad_layout *layout) {
  ad_shape shape = {2, {segments[value].rows, (int64_t)segments[value].row}};
  return ad_array_describe(comm, AD_F64, &shape, layout);
}

/* Allocates memory filled with NaN, so that elements which are not written show. */
static void give_memory(ad_comm *comm, ad_array *array) {
  CHECK_OK(ad_comm_alloc(comm, ad_array_bytes(array), &array->data));
  memset(array->data, 0xff, ad_array_bytes(array));
}

typedef struct trial {
  const char *mesh;
  int64_t ranks;
  const char *axes, *around; /* axes of the transition, and the layout of all axes before those are set */
} trial;

/* Runs the transition on one value alone, whose elements are at *in, and compares with those at *out. */
static void move_alone(ad_comm *comm, int value, const ad_layout *layout, const ad_transit *transit, const char **in,
                       const char **out) {
  ad_array alone = describe_value(comm, value, layout), after;
  CHECK_OK(ad_array_after(comm, &alone, transit->move, transit->axes, transit->to, &after));
  give_memory(comm, &alone);
  // this memory contains zeros; that of the packed result contained NaN
  CHECK_OK(ad_comm_alloc(comm, ad_array_bytes(&after), &after.data));
  memcpy(alone.data, *in, ad_array_bytes(&alone));
  CHECK_OK(ad_array_move(comm, &alone, transit->move, transit->axes, transit->to, 0, &after));
  CHECK(!memcmp(after.data, *out, ad_array_bytes(&after)));
  *in += ad_array_bytes(&alone);
  *out += ad_array_bytes(&after);
  ad_array_destroy(comm, &alone);
  ad_array_destroy(comm, &after);
}

static int can_be_posted(ad_move move) {
  return move == AD_MOVE_ALL_REDUCE || move == AD_MOVE_REDUCE_SCATTER || move == AD_MOVE_ALL_GATHER;
}

static void compare_posted(ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *moved) {
  ad_array posted = *moved;
  ad_request request;
  give_memory(comm, &posted);
  CHECK_OK(ad_array_post(comm, in, transit->move, transit->axes, transit->to, 0, &posted, &request));
  CHECK_OK(ad_comm_wait(comm, &request));
  CHECK(!memcmp(posted.data, moved->data, ad_array_bytes(moved)));
  ad_array_destroy(comm, &posted);
}

static void move_packed(ad_comm *comm, const ad_layout *layout, const ad_transit *transit) {
  ad_array in = ad_array_describe_packed(comm, AD_F64, segments, VALUES, layout), out;
  CHECK_OK(ad_array_after(comm, &in, transit->move, transit->axes, transit->to, &out));
  CHECK(out.segments == segments && out.segment_count == VALUES && out.shape.ndim == 1);
  give_memory(comm, &in);
  give_memory(comm, &out);
  fill_value(comm, &in, 3);
  CHECK_OK(ad_array_move(comm, &in, transit->move, transit->axes, transit->to, 0, &out));
  const char *from = in.data, *to = out.data;
  for (int value = 0; value < VALUES; value++) move_alone(comm, value, layout, transit, &from, &to);
  CHECK(from == (char *)in.data + ad_array_bytes(&in) && to == (char *)out.data + ad_array_bytes(&out));
  if (can_be_posted(transit->move)) compare_posted(comm, transit, &in, &out);
  ad_array_destroy(comm, &in);
  ad_array_destroy(comm, &out);
}

/* Returns 1 if packed arrays have this transition: they are sharded only by rows, and S(d) cannot be declared. */
static int is_for_packed(const ad_transition *entry) {
  int shardings = ad_type_is_sharded(entry->from) || ad_type_is_sharded(entry->to);
  return entry->move != AD_MOVE_ALL_TO_ALL && !(entry->move == AD_MOVE_DECLARE && shardings);
}

static int move_by_the_table(ad_comm *comm, void *context) {
  const trial *t = context;
  ad_mesh *mesh;
  size_t count;
  int tried = 0;
  CHECK_OK(ad_mesh_create(t->mesh, &mesh));
  const ad_transition *table = ad_transition_table(&count);
  for (size_t i = 0; i < count; i++) {
    ad_transit transit = {.move = table[i].move, .to = table[i].to};
    ad_layout layout;
    if (!is_for_packed(&table[i])) continue;
    CHECK_OK(ad_axes_parse(t->axes, &transit.axes));
    CHECK_OK(ad_layout_parse(mesh, t->around, &layout));
    ad_layout_set(&layout, transit.axes, table[i].from);
    move_packed(comm, &layout, &transit);
    tried++;
  }
  CHECK(tried == 12);
  ad_mesh_destroy(mesh);
  return 0;
}

static void every_transition_does_to_each_value_what_it_does_to_it_alone(void **state) {
  trial trials[] = {{"tp=3", 3, "tp", "tp=R"},
                    {"tp=1", 1, "tp", "tp=R"},
                    {"dp_shard=2 tp=2", 4, "dp_shard tp", "dp_shard=R tp=R"},
                    {"dp_shard=2 tp=3", 6, "dp_shard", "dp_shard=R tp=V"},
                    {"dp_shard=2 tp=3", 6, "tp", "dp_shard=S0 tp=R"}};
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) run_ranks(trials[i].ranks, move_by_the_table, &trials[i]);
}

/* ---- law 6 (like adds to like): sums that are added to others ---- */

static ad_status add_sum(ad_comm *comm, const ad_array *in, ad_array *out) {
  ad_transit transit = {.move = AD_MOVE_REDUCE_SCATTER, .axes = AD_AXES(AD_DP_SHARD), .to = AD_S(0), .adds = 1};
  transit.site = AD_HERE;
  return ad_transit_run(comm, &transit, in, out);
}

static int add_sums(ad_comm *comm, void *context) {
  const ad_segment *packed = context;
  ad_mesh *mesh;
  ad_shape shape = {2, {5, 3}};
  CHECK_OK(ad_mesh_create("dp_replicate=2 dp_shard=2", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array in = ad_array_describe(comm, AD_F64, &shape, &layout), first, other;
  if (packed) in = ad_array_describe_packed(comm, AD_F64, packed, VALUES, &layout);
  CHECK_OK(ad_array_after(comm, &in, AD_MOVE_REDUCE_SCATTER, AD_AXES(AD_DP_SHARD), AD_S(0), &first));
  give_memory(comm, &in);
  give_memory(comm, &first);
  fill_value(comm, &in, 9);
  CHECK_OK(ad_array_move(comm, &in, AD_MOVE_REDUCE_SCATTER, AD_AXES(AD_DP_SHARD), AD_S(0), 0, &first));
  other = first;
  give_memory(comm, &other);
  memcpy(other.data, first.data, ad_array_bytes(&first));
  // An array that was also reduced over dp_replicate cannot be added to one that was not, nor can a scaled one.
  ad_layout_set(&other.layout, AD_AXES(AD_DP_REPLICATE), AD_R);
  CHECK_STATUS(add_sum(comm, &in, &other), AD_TYPE);
  CHECK_SAYS("dp_replicate=R");
  other.layout = first.layout;
  other.scale = 2;
  CHECK_STATUS(add_sum(comm, &in, &other), AD_TYPE);
  CHECK_SAYS("2", "-2");
  other.scale = 0;
  CHECK_OK(add_sum(comm, &in, &other));
  for (size_t i = 0; i < ad_array_numel(&first); i++) CHECK(((double *)other.data)[i] == 2 * ((double *)first.data)[i]);
  ad_array_destroy(comm, &in);
  ad_array_destroy(comm, &first);
  ad_array_destroy(comm, &other);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_sum_is_added_only_to_one_of_its_layout_and_scale(void **state) {
  run_ranks(4, add_sums, NULL);
  run_ranks(4, add_sums, (void *)(uintptr_t)segments);
}

static int add_otherwise(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {1, {4}};
  double data[4] = {1, 2, 3, 4};
  CHECK_OK(ad_mesh_create("tp=1", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array in = ad_array_describe(comm, AD_F64, &shape, &layout), out;
  in.data = data;
  ad_transit transit = {.move = AD_MOVE_ALL_REDUCE, .axes = AD_AXES(AD_TP), .to = AD_R, .adds = 1};
  CHECK_OK(ad_array_after(comm, &in, transit.move, transit.axes, transit.to, &out));
  out.data = data;
  CHECK_STATUS(ad_transit_run(comm, &transit, &in, &out), AD_INVALID);
  CHECK_SAYS("all_reduce", "reduce_scatter");
  ad_mesh_destroy(mesh);
  return 0;
}

static void only_a_reduce_scatter_adds(void **state) { run_ranks(1, add_otherwise, NULL); }

/* ---- transitions that packed arrays do not have ---- */

typedef struct dry_world {
  ad_comm *comm;
  ad_mesh *mesh;
} dry_world;

static int open_dry(void **state) {
  static dry_world w;
  *state = &w;
  return ad_mesh_create("dp_shard=3 tp=4", &w.mesh) || ad_comm_open_dry(1, 12, &w.comm) ? -1 : 0;
}

static int close_dry(void **state) {
  dry_world *w = *state;
  ad_comm_close(w->comm);
  ad_mesh_destroy(w->mesh);
  return 0;
}

static void a_packed_array_is_sharded_by_rows_alone(void **state) {
  const dry_world *w = *state;
  static const ad_type shardings[] = {AD_S_ZIGZAG(0), AD_S(1)};
  for (int i = 0; i < 2; i++) {
    ad_layout layout = ad_layout_all(w->mesh, AD_R);
    ad_array in = ad_array_describe_packed(w->comm, AD_F64, segments, VALUES, &layout), out;
    assert_int_equal(ad_array_after(w->comm, &in, AD_MOVE_CONVERT, AD_AXES(AD_TP), shardings[i], &out), AD_TYPE);
    ad_layout_set(&layout, AD_AXES(AD_TP), shardings[i]);
    in = ad_array_describe_packed(w->comm, AD_F64, segments, VALUES, &layout);
    ad_array to = in;
    assert_int_equal(ad_array_move(w->comm, &in, AD_MOVE_ALL_GATHER, AD_AXES(AD_TP), AD_R, 0, &to), AD_TYPE);
  }
  assert_listed();
}

/* 3 rows sharded over 2 ranks and then over 3 have other parts than 3 rows sharded over 6 ranks; for 12 rows the parts
 * are the same. */
static int gather_over_two_axes(ad_comm *comm, void *context) {
  static const ad_segment rows[] = {{12, 2}, {3, 1}};
  ad_axes axes = AD_AXES(AD_DP_SHARD) | AD_AXES(AD_TP);
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp_shard=2 tp=3", &mesh));
  for (size_t count = 1; count <= 2; count++) {
    ad_layout layout = ad_layout_all(mesh, AD_R);
    ad_layout_set(&layout, axes, AD_S(0));
    ad_array in = ad_array_describe_packed(comm, AD_F64, rows, count, &layout), out;
    CHECK_OK(ad_array_after(comm, &in, AD_MOVE_ALL_GATHER, axes, AD_R, &out));
    give_memory(comm, &in);
    give_memory(comm, &out);
    CHECK_STATUS(ad_array_move(comm, &in, AD_MOVE_ALL_GATHER, axes, AD_R, 0, &out), count == 1 ? AD_OK : AD_INVALID);
    ad_array_destroy(comm, &in);
    ad_array_destroy(comm, &out);
  }
  CHECK_SAYS("3", "1");
  ad_mesh_destroy(mesh);
  return 0;
}

static void rows_that_are_sharded_unevenly_on_two_axes_do_not_travel_together(void **state) {
  run_ranks(6, gather_over_two_axes, NULL);
}

static void a_packed_array_does_not_add_to_one_of_other_rows(void **state) {
  const dry_world *w = *state;
  static const ad_segment a[] = {{4, 3}, {2, 2}}, b[] = {{2, 2}, {4, 3}};
  ad_layout layout = ad_layout_all(w->mesh, AD_R);
  ad_array to = ad_array_describe_packed(w->comm, AD_F64, a, 2, &layout);
  ad_array from = ad_array_describe_packed(w->comm, AD_F64, b, 2, &layout);
  assert_int_equal(ad_array_add(&to, &from), AD_INVALID);
  assert_listed();
  from.segments = a;
  assert_int_equal(ad_array_add(&to, &from), AD_OK);
}

static void what_needs_one_value_refuses_several(void **state) {
  const dry_world *w = *state;
  size_t rows[4] = {8, 1, 2, 0};
  ad_layout layout = ad_layout_all(w->mesh, AD_V);
  ad_array in = ad_array_describe_packed(w->comm, AD_F64, segments, VALUES, &layout), out = in;
  assert_int_equal(ad_array_exchange(w->comm, &in, AD_AXES(AD_TP), rows, rows, &out), AD_INVALID);
  assert_int_equal(ad_array_after(w->comm, &in, AD_MOVE_DECLARE, AD_AXES(AD_TP), AD_S(0), &out), AD_INVALID);
  assert_listed();
  layout = ad_layout_all(w->mesh, AD_R);
  in = ad_array_describe_packed(w->comm, AD_F64, segments, VALUES, &layout);
  assert_int_equal(ad_array_full(w->comm, &in, &out), AD_INVALID);
  in.shape.dim[0]++;
  in.local.dim[0]++;
  out = in;
  assert_int_equal(ad_array_move(w->comm, &in, AD_MOVE_ONCE, AD_AXES(AD_TP), AD_P, 0, &out), AD_INVALID);
  assert_says("ad_array_describe_packed");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_transition_does_to_each_value_what_it_does_to_it_alone),
      cmocka_unit_test(a_sum_is_added_only_to_one_of_its_layout_and_scale),
      cmocka_unit_test(only_a_reduce_scatter_adds),
      cmocka_unit_test_setup_teardown(a_packed_array_is_sharded_by_rows_alone, open_dry, close_dry),
      cmocka_unit_test(rows_that_are_sharded_unevenly_on_two_axes_do_not_travel_together),
      cmocka_unit_test_setup_teardown(a_packed_array_does_not_add_to_one_of_other_rows, open_dry, close_dry),
      cmocka_unit_test_setup_teardown(what_needs_one_value_refuses_several, open_dry, close_dry),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
