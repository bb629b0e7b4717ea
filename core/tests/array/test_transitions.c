/* Tests the transitions of law 2 (collectives and conversions that change a type) on arrays, on real ranks: each is the
 * adjoint of its backward and keeps the value that the array represents; transitions that are not in the table are
 * refused. Parts are uneven, zigzag, nested and empty. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include "values.h"
#include "ranks.h"
#include "says.h"
#include "layout/transition.h"
#include "layout/type.h"

static const ad_type shardings[] = {AD_S(0), AD_S(1), AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1), AD_S_ZIGZAG(2)};
enum { SHARDINGS = sizeof shardings / sizeof *shardings };

static const ad_shape shapes[] = {
    {3, {5, 3, 2}}, {3, {1, 7, 4}}, {3, {12, 1, 11}}, {3, {6, 10, 12}}, {3, {0, 3, 5}}, {3, {2, 4, 0}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* One transition on one shape, in a layout that may be sharded on other axes already. */
typedef struct trial {
  ad_comm *comm;
  const ad_transition *entry;
  ad_axes axes;
  ad_type from, to;
  ad_array x, ax, y, aty;  // <A x, y> must equal <x, A' y>
} trial;

static int is_declared_sharded(const trial *t) {
  return t->entry->move == AD_MOVE_DECLARE && ad_type_is_sharded(t->to);
}

/* Describes x; for a declaration of S(d), `shape` is the sharded value's. */
static ad_status describe_x(trial *t, const ad_layout *around, const ad_shape *shape) {
  ad_layout layout = *around;
  ad_shape full = *shape;
  if (is_declared_sharded(t)) {
    ad_layout sharded = *around;
    ad_layout_set(&sharded, t->axes, t->to);
    full = ad_layout_local_shape(&sharded, shape, ad_comm_rank(t->comm));
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      int dim = ad_type_dim(around->type[axis]);
      if (dim >= 0) full.dim[dim] *= ad_mesh_axis_size(around->mesh, (ad_axis)axis);
    }
  }
  ad_layout_set(&layout, t->axes, t->from);
  return ad_array_create(t->comm, AD_F64, &full, &layout, &t->x);
}

static ad_status create_like(trial *t, const ad_array *description, ad_array *out) {
  return ad_array_create(t->comm, AD_F64, &description->shape, &description->layout, out);
}

/* ---- all_to_all V to V, whose counts say how many rows go where ---- */

enum { MEMBERS_MAX = 8 };

static int is_exchange(const trial *t) { return t->entry->move == AD_MOVE_ALL_TO_ALL && t->from == AD_V; }

/* Returns how many rows one member sends to another: none for some pairs of members, different numbers for others. */
static size_t rows_between(int64_t from, int64_t to) { return (size_t)((3 * from + 2 * to * to + 1) % 4); }

static int64_t count_rows(const trial *t, const ad_mesh *mesh, size_t send[MEMBERS_MAX], size_t receive[MEMBERS_MAX]) {
  ad_group group = ad_mesh_group(mesh, t->axes, ad_comm_rank(t->comm));
  int64_t own = ad_group_index(&group, ad_comm_rank(t->comm)), sum = 0;
  for (int64_t member = 0; member < ad_group_size(&group); member++) {
    send[member] = rows_between(own, member);
    receive[member] = rows_between(member, own);
    sum += (int64_t)send[member];
  }
  return sum;
}

static ad_status exchange(trial *t, const ad_array *in, const size_t *send, const size_t *receive, ad_array *out) {
  ad_group group = ad_mesh_group(in->layout.mesh, t->axes, ad_comm_rank(t->comm));
  ad_array like = *in;
  like.shape.dim[0] = 0;
  for (int64_t member = 0; member < ad_group_size(&group); member++) like.shape.dim[0] += (int64_t)receive[member];
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_dim(in->layout.type[axis]) == 0) like.shape.dim[0] *= ad_mesh_axis_size(in->layout.mesh, (ad_axis)axis);
  }
  AD_TRY(ad_array_create(t->comm, in->dtype, &like.shape, &in->layout, out));
  return ad_array_exchange(t->comm, in, t->axes, send, receive, out);
}

static ad_status describe_sent(trial *t, const ad_layout *around, const ad_shape *shape, int64_t rows) {
  ad_layout layout = *around;
  ad_shape full = *shape;
  ad_layout_set(&layout, t->axes, AD_V);
  full.dim[0] = rows;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_dim(layout.type[axis]) == 0) full.dim[0] *= ad_mesh_axis_size(layout.mesh, (ad_axis)axis);
  }
  return ad_array_create(t->comm, AD_F64, &full, &layout, &t->x);
}

static void make_exchange(trial *t, const ad_layout *around, const ad_shape *shape) {
  size_t send[MEMBERS_MAX], receive[MEMBERS_MAX];
  int64_t rows = count_rows(t, around->mesh, send, receive);
  CHECK_OK(describe_sent(t, around, shape, rows));
  fill_value(t->comm, &t->x, 1);
  CHECK_OK(exchange(t, &t->x, send, receive, &t->ax));
  ad_layout dual = ad_layout_dual(&t->ax.layout), dual_x = ad_layout_dual(&t->x.layout);
  CHECK_OK(ad_array_create(t->comm, AD_F64, &t->ax.shape, &dual, &t->y));
  fill_value(t->comm, &t->y, 2);
  CHECK_OK(exchange(t, &t->y, receive, send, &t->aty));
  CHECK(ad_layout_equal(&t->aty.layout, &dual_x) && ad_shape_equal(&t->aty.local, &t->x.local));
}

/* ---- all other transitions ---- */

static ad_status forward(trial *t, const ad_shape *shape) {
  ad_array after;
  AD_TRY(ad_array_after(t->comm, &t->x, t->entry->move, t->axes, t->to, &after));
  if (is_declared_sharded(t)) after.shape = *shape;
  AD_TRY(create_like(t, &after, &t->ax));
  return ad_array_move(t->comm, &t->x, t->entry->move, t->axes, t->to, AD_F64, &t->ax);
}

static ad_status backward(trial *t) {
  ad_array after;
  ad_layout dual = ad_layout_dual(&t->ax.layout), dual_x = ad_layout_dual(&t->x.layout);
  ad_type to = ad_type_dual(t->from);
  AD_TRY(ad_array_create(t->comm, AD_F64, &t->ax.shape, &dual, &t->y));
  fill_value(t->comm, &t->y, 2);
  AD_TRY(ad_array_after(t->comm, &t->y, t->entry->backward, t->axes, to, &after));
  if (t->entry->backward == AD_MOVE_DECLARE) after.shape = t->x.shape;
  CHECK(ad_layout_equal(&after.layout, &dual_x));
  AD_TRY(create_like(t, &after, &t->aty));
  return ad_array_move(t->comm, &t->y, t->entry->backward, t->axes, to, AD_F64, &t->aty);
}

static void destroy_trial(trial *t) {
  ad_array_destroy(t->comm, &t->x);
  ad_array_destroy(t->comm, &t->ax);
  ad_array_destroy(t->comm, &t->y);
  ad_array_destroy(t->comm, &t->aty);
}

static void make_move(trial *t, const ad_layout *around, const ad_shape *shape) {
  CHECK_OK(describe_x(t, around, shape));
  fill_value(t->comm, &t->x, 1);
  CHECK_OK(forward(t, shape));
  CHECK_OK(backward(t));
}

static void run_trial(trial *t, const ad_layout *around, const ad_shape *shape) {
  double left = 0, right = 0;
  (is_exchange(t) ? make_exchange : make_move)(t, around, shape);
  CHECK_OK(pair(t->comm, &t->ax, &t->y, &left));
  CHECK_OK(pair(t->comm, &t->x, &t->aty, &right));
  CHECK(fabs(left - right) <= 1e-12 * (1 + fabs(left)));
  destroy_trial(t);
}

static int is_sharded_kind(ad_type kind) { return kind == AD_S(0); }

typedef void (*trial_runner)(trial *t, const ad_layout *around, const ad_shape *shape);

static void for_each_to(trial *t, const ad_layout *around, const ad_shape *shape, trial_runner run) {
  for (int i = 0; i < (is_sharded_kind(t->entry->to) ? SHARDINGS : 1); i++) {
    t->to = is_sharded_kind(t->entry->to) ? shardings[i] : t->entry->to;
    int moves_nothing = ad_type_is_sharded(t->from) && t->to == t->from;
    if (!moves_nothing) run(t, around, shape);
  }
}

/* Runs every transition over `axes`, with S(d) along every dimension; the other axes have the types of `around`. */
static void for_each_entry(ad_comm *comm, const ad_layout *around, ad_axes axes, const ad_shape *shape,
                           trial_runner run) {
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  for (size_t entry = 0; entry < count; entry++) {
    trial t = {.comm = comm, .entry = &table[entry], .axes = axes};
    for (int i = 0; i < (is_sharded_kind(t.entry->from) ? SHARDINGS : 1); i++) {
      t.from = is_sharded_kind(t.entry->from) ? shardings[i] : t.entry->from;
      for_each_to(&t, around, shape, run);
    }
  }
}

typedef struct setting {
  const char *mesh, *around, *axes;
  int64_t ranks;
  trial_runner run;
} setting;

static int on_each_rank(ad_comm *comm, void *context) {
  const setting *s = context;
  ad_mesh *mesh;
  ad_layout around;
  ad_axes axes;
  CHECK_OK(ad_mesh_create(s->mesh, &mesh));
  CHECK_OK(ad_layout_parse(mesh, s->around, &around));
  CHECK_OK(ad_axes_parse(s->axes, &axes));
  for (int i = 0; i < SHAPES; i++) for_each_entry(comm, &around, axes, &shapes[i], s->run);
  ad_mesh_destroy(mesh);
  return 0;
}

static void run_settings(trial_runner run) {
  setting settings[] = {
      {"tp=1", "tp=R", "tp", 1, run},
      {"tp=2", "tp=R", "tp", 2, run},
      {"tp=3", "tp=R", "tp", 3, run},
      {"tp=5", "tp=R", "tp", 5, run},
      {"dp_replicate=3 dp_shard=1", "dp=R", "dp", 3, run},
      {"dp_replicate=2 dp_shard=2", "dp=R", "dp", 4, run},
      {"tp=2 dp_replicate=3", "tp=S0 dp_replicate=R", "dp_replicate", 6, run},
      {"cp=3 tp=2", "cp=S1z tp=R", "tp", 6, run},
  };
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    run_ranks(settings[i].ranks, on_each_rank, &settings[i]);
  }
}

static void every_entry_is_the_adjoint_of_its_backward(void **state) { run_settings(run_trial); }

/* ---- a transition keeps the value ---- */

static void full_of(ad_comm *comm, const ad_array *in, ad_array *out) {
  ad_layout uncut = ad_layout_all(in->layout.mesh, AD_R);
  CHECK_OK(ad_array_create(comm, in->dtype, &in->shape, &uncut, out));
  CHECK_OK(ad_array_full(comm, in, out));
}

static void run_keeping_trial(trial *t, const ad_layout *around, const ad_shape *shape) {
  if (t->entry->move == AD_MOVE_DECLARE) return;  // a declaration changes what the value means
  if (is_exchange(t)) return;                     // a varying value has no full value; its rows are tested below
  ad_array before, now;
  CHECK_OK(describe_x(t, around, shape));
  fill_value(t->comm, &t->x, 3);
  CHECK_OK(forward(t, shape));
  full_of(t->comm, &t->x, &before);
  full_of(t->comm, &t->ax, &now);
  const double *a = before.data, *b = now.data;
  for (size_t i = 0; i < ad_array_numel(&before); i++) CHECK(fabs(a[i] - b[i]) <= 1e-12);
  ad_array_destroy(t->comm, &before);
  ad_array_destroy(t->comm, &now);
  destroy_trial(t);
}

static void every_transition_keeps_the_value(void **state) { run_settings(run_keeping_trial); }

/* Checks a rank's part of a value in which each element is its own index in the full value. */
static void check_own_part(const ad_array *array, int64_t rank) {
  ad_span spans[3][32];
  int counts[3];
  const double *data = array->data;
  for (int dim = 0; dim < 3; dim++) {
    counts[dim] = ad_layout_spans(&array->layout, dim, array->shape.dim[dim], rank, spans[dim], 32);
  }
  for (int a = 0; a < counts[0]; a++)
    for (int64_t i = spans[0][a].first; i < spans[0][a].first + spans[0][a].count; i++)
      for (int b = 0; b < counts[1]; b++)
        for (int64_t j = spans[1][b].first; j < spans[1][b].first + spans[1][b].count; j++)
          for (int c = 0; c < counts[2]; c++)
            for (int64_t k = spans[2][c].first; k < spans[2][c].first + spans[2][c].count; k++) {
              CHECK(*data++ == (double)((i * array->shape.dim[1] + j) * array->shape.dim[2] + k));
            }
}

static int sharded_numbers(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  for (int s = 0; s < SHAPES; s++)
    for (int c = 0; c < SHARDINGS; c++) {
      ad_layout layout = ad_layout_all(mesh, AD_R);
      ad_array full, sharded;
      CHECK_OK(ad_array_create(comm, AD_F64, &shapes[s], &layout, &full));
      for (size_t i = 0; i < ad_array_numel(&full); i++) ((double *)full.data)[i] = (double)i;
      CHECK_OK(ad_array_after(comm, &full, AD_MOVE_CONVERT, AD_AXES(AD_TP), shardings[c], &sharded));
      CHECK_OK(ad_array_create(comm, AD_F64, &sharded.shape, &sharded.layout, &sharded));
      CHECK_OK(ad_array_move(comm, &full, AD_MOVE_CONVERT, AD_AXES(AD_TP), shardings[c], AD_F64, &sharded));
      check_own_part(&sharded, ad_comm_rank(comm));
      ad_array_destroy(comm, &full);
      ad_array_destroy(comm, &sharded);
    }
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_part_holds_the_elements_that_its_spans_name(void **state) { run_ranks(3, sharded_numbers, NULL); }

/* Three members exchange rows: 0 sends 2 rows to 1 and 1 row to 2; 1 sends nothing; 2 sends 1 row to each. */
static int send_numbered_rows(ad_comm *comm, void *context) {
  static const size_t sent[3][3] = {{0, 2, 1}, {0, 0, 0}, {1, 1, 1}};
  static const double expected[3][6] = {{20, 20}, {0, 0, 1, 1, 21, 21}, {2, 2, 22, 22}};
  static const int64_t rows_in[] = {3, 0, 3}, rows_out[] = {1, 3, 2};
  ad_mesh *mesh;
  int64_t rank = ad_comm_rank(comm);
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), AD_V);
  ad_array in, out;
  CHECK_OK(ad_array_create(comm, AD_F64, &(ad_shape){2, {rows_in[rank], 2}}, &layout, &in));
  CHECK_OK(ad_array_create(comm, AD_F64, &(ad_shape){2, {rows_out[rank], 2}}, &layout, &out));
  for (size_t i = 0; i < ad_array_numel(&in); i++) ((double *)in.data)[i] = (double)(10 * rank) + (double)(i / 2);
  size_t receive[3] = {sent[0][rank], sent[1][rank], sent[2][rank]};
  CHECK_OK(ad_array_exchange(comm, &in, AD_AXES(AD_TP), sent[rank], receive, &out));
  CHECK(out.shape.dim[0] == rows_out[rank] && out.local.dim[0] == rows_out[rank]);
  CHECK(!memcmp(out.data, expected[rank], ad_array_bytes(&out)));
  ad_array_destroy(comm, &in);
  ad_array_destroy(comm, &out);
  ad_mesh_destroy(mesh);
  return 0;
}

static void rows_go_where_the_counts_say(void **state) { run_ranks(3, send_numbered_rows, NULL); }

/* ---- transitions that are refused ---- */

typedef struct dry_world {
  ad_comm *comm;
  ad_mesh *mesh;
} dry_world;

static int open_dry(void **state) {
  static dry_world world;
  if (ad_mesh_create("tp=3", &world.mesh) || ad_comm_open_dry(1, 3, &world.comm)) return -1;
  *state = &world;
  return 0;
}

static int close_dry(void **state) {
  dry_world *world = *state;
  ad_comm_close(world->comm);
  ad_mesh_destroy(world->mesh);
  return 0;
}

static void what_is_missing_in_the_table_is_refused(void **state) {
  dry_world *world = *state;
  static const ad_type types[] = {AD_R, AD_I, AD_V, AD_P, AD_S(0), AD_S(1), AD_S_ZIGZAG(1)};
  int refused = 0;
  char text[16];
  for (int move = 0; move < AD_MOVE_COUNT; move++)
    for (size_t f = 0; f < sizeof types; f++)
      for (size_t t = 0; t < sizeof types; t++) {
        ad_layout layout = ad_layout_all(world->mesh, AD_R);
        ad_layout_set(&layout, AD_AXES(AD_TP), types[f]);
        ad_array in = ad_array_describe(world->comm, AD_F64, &shapes[0], &layout), out = in, untouched = in;
        const ad_transition *entry = ad_transition_find((ad_move)move, types[f], types[t]);
        if (entry && types[f] == AD_V && types[t] == AD_V) continue;  // all_to_all V to V needs counts
        int legal = entry && (types[f] != types[t] || !ad_type_is_sharded(types[f]));
        ad_status status = ad_array_after(world->comm, &in, (ad_move)move, AD_AXES(AD_TP), types[t], &out);
        assert_int_equal(status, legal ? AD_OK : AD_TYPE);
        if (legal) continue;
        refused++;
        assert_memory_equal(&out, &untouched, sizeof out);
        assert_int_equal(ad_array_move(world->comm, &in, (ad_move)move, AD_AXES(AD_TP), types[t], AD_F64, &out),
                         AD_TYPE);
        assert_facts(ad_last_error(), "test_transitions.c", "tp", ad_type_print(types[f], text, sizeof text));
      }
  assert_true(refused > 200);
}

static void rows_without_counts_are_refused(void **state) {
  dry_world *world = *state;
  ad_layout layout = ad_layout_all(world->mesh, AD_V);
  ad_array in = ad_array_describe(world->comm, AD_F64, &shapes[0], &layout), out = in;
  assert_int_equal(ad_array_after(world->comm, &in, AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_V, &out), AD_INVALID);
  assert_says("ad_array_exchange");
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_V, 0, &out), AD_INVALID);
}

static void counts_that_do_not_fit_are_refused(void **state) {
  dry_world *world = *state;
  ad_layout layout = ad_layout_all(world->mesh, AD_V), replicated = ad_layout_all(world->mesh, AD_R);
  ad_array in = ad_array_describe(world->comm, AD_F64, &shapes[0], &layout), out = in, untouched = in;
  static const size_t fits[] = {2, 0, 3}, short_of[] = {2, 0, 2}, receive[] = {7, 0, 0};
  assert_int_equal(ad_array_exchange(world->comm, &in, AD_AXES(AD_TP), short_of, receive, &out), AD_INVALID);
  assert_says("4 rows");
  ad_array full = ad_array_describe(world->comm, AD_F64, &shapes[0], &replicated);
  assert_int_equal(ad_array_exchange(world->comm, &full, AD_AXES(AD_TP), fits, receive, &out), AD_TYPE);
  assert_memory_equal(&out, &untouched, sizeof out);
  assert_int_equal(ad_array_exchange(world->comm, &in, AD_AXES(AD_TP), fits, receive, &out), AD_OK);
  assert_int_equal(out.local.dim[0], 7);
}

static void own_rows_that_do_not_all_arrive_are_refused(void **state) {
  double values[] = {1, 2, 3};
  const size_t sent[] = {3}, received[] = {2};
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  assert_int_equal(ad_mesh_create("tp=1", &mesh), AD_OK);
  ad_layout layout = ad_layout_all(mesh, AD_V);
  ad_array in = ad_array_describe(comm, AD_F64, &(ad_shape){1, {3}}, &layout), out = in;
  double memory[3];
  in.data = values;
  out.data = memory;
  assert_int_equal(ad_array_exchange(comm, &in, AD_AXES(AD_TP), sent, received, &out), AD_INVALID);
  assert_says("3 rows", "2 rows");
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

static void a_wrongly_described_result_is_refused(void **state) {
  dry_world *world = *state;
  ad_layout layout = ad_layout_all(world->mesh, AD_P);
  ad_array in = ad_array_describe(world->comm, AD_F64, &shapes[0], &layout), out;
  assert_int_equal(ad_array_after(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, &out), AD_OK);
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, 0, &out), AD_OK);
  ad_array other = out;
  other.dtype = AD_I32;
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, 0, &other), AD_INVALID);
  assert_says("out", "i32", "f64", "all_reduce");
  // A sum may change dtype and scale; a transition that sums nothing keeps both.
  other = out;
  other.dtype = AD_F16;
  other.scale = 4;
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, 0, &other), AD_OK);
  ad_array again;
  assert_int_equal(ad_array_after(world->comm, &other, AD_MOVE_CONVERT, AD_AXES(AD_TP), AD_S(0), &again), AD_OK);
  assert_int_equal(again.scale, 4);
  again.scale = 0;
  assert_int_equal(ad_array_move(world->comm, &other, AD_MOVE_CONVERT, AD_AXES(AD_TP), AD_S(0), 0, &again), AD_INVALID);
  assert_says("out", "f16", "2^0", "2^-4");
  other = out;
  other.layout = in.layout;
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, 0, &other), AD_INVALID);
  other = out;
  other.shape.dim[0] = 4;
  assert_int_equal(ad_array_move(world->comm, &in, AD_MOVE_ALL_REDUCE, AD_AXES(AD_TP), AD_R, 0, &other), AD_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_entry_is_the_adjoint_of_its_backward),
      cmocka_unit_test(every_transition_keeps_the_value),
      cmocka_unit_test(a_part_holds_the_elements_that_its_spans_name),
      cmocka_unit_test(rows_go_where_the_counts_say),
      cmocka_unit_test_setup_teardown(rows_without_counts_are_refused, open_dry, close_dry),
      cmocka_unit_test_setup_teardown(counts_that_do_not_fit_are_refused, open_dry, close_dry),
      cmocka_unit_test(own_rows_that_do_not_all_arrive_are_refused),
      cmocka_unit_test_setup_teardown(what_is_missing_in_the_table_is_refused, open_dry, close_dry),
      cmocka_unit_test_setup_teardown(a_wrongly_described_result_is_refused, open_dry, close_dry),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
