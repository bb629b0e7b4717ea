/* Tests parameters of which each replica updates a part of its shards (HFSDP): the reductions that law 4 derives, sums
 * in every world and order of syncs, the norm, memory, and the known bugs. test_store.c tests how values are gathered,
 * test_leaves.c sums of leaves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "addend/store.h"
#include "array/transit.h"
#include "base/injection.h"
#include "gradients.h"
#include "reduce/known_bugs.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "says.h"

/* ---- the path of a gradient ---- */

/* Finds the path from P everywhere to these layouts, and returns its number of steps. */
static int path_to(const ad_mesh *mesh, const char *storage, const char *update, ad_path_step steps[AD_AXIS_COUNT],
                   int *early) {
  ad_layout gradient = ad_layout_all(mesh, AD_P), stored, updated;
  int count = -1;
  assert_int_equal(ad_layout_parse(mesh, storage, &stored), AD_OK);
  assert_int_equal(ad_layout_parse(mesh, update, &updated), AD_OK);
  assert_int_equal(ad_gradient_path(&gradient, &stored, &updated, steps, &count, early), AD_OK);
  return count;
}

static int is_step(ad_path_step step, ad_move move, ad_axis axis) {
  return step.move == move && step.axes == AD_AXES(axis);
}

static void a_gradient_is_scattered_to_its_shards_and_then_to_the_parts_of_replicas(void **state) {
  static const char *const meshes[] = {"dp_replicate=3 dp_shard=2 tp=2", "tp=2 dp_shard=2 dp_replicate=3",
                                       "dp_shard=1 dp_replicate=3 tp=2"};
  ad_path_step steps[AD_AXIS_COUNT];
  int early;
  for (size_t i = 0; i < 3; i++) { /* in one step if the axes are neighbours in the mesh, but for two layouts */
    ad_mesh *mesh;
    assert_int_equal(ad_mesh_create(meshes[i], &mesh), AD_OK);
    assert_int_equal(
        path_to(mesh, "dp_shard=S0 dp_replicate=R tp=R", "dp_shard=S0 dp_replicate=S0 tp=R", steps, &early), 3);
    assert_true(early == 1 && is_step(steps[0], AD_MOVE_REDUCE_SCATTER, AD_DP_SHARD));
    assert_true(is_step(steps[1], AD_MOVE_REDUCE_SCATTER, AD_DP_REPLICATE));
    assert_true(is_step(steps[2], AD_MOVE_ALL_REDUCE, AD_TP));
    assert_int_equal(path_to(mesh, "dp_shard=R dp_replicate=R tp=R", "dp_shard=R dp_replicate=S0 tp=R", steps, &early),
                     2);
    assert_true(early == 0 && is_step(steps[0], AD_MOVE_REDUCE_SCATTER, AD_DP_REPLICATE));
    ad_mesh_destroy(mesh);
  }
}

static void updates_that_no_path_leads_to_are_refused(void **state) {
  static const struct {
    const char *storage, *update;
    ad_status status;
  } cases[] = {
      {"dp_replicate=R dp_shard=S0", "dp_replicate=S0 dp_shard=S0", AD_TYPE}, /* dp_replicate outside */
      {"dp_replicate=R dp_shard=S0", "dp_shard=S0 dp_replicate=S1", AD_INVALID},
      {"dp_replicate=R dp_shard=S0", "dp_replicate=S0 dp_shard=R", AD_TYPE},
  };
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_comm_open_dry(0, 6, &comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_replicate=3 dp_shard=2", &mesh), AD_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_reducer *reducer = NULL;
    ad_param_spec w = {.size = sizeof w, .name = "w", .shape = {2, {8, 2}}, .layout = ad_layout_all(mesh, AD_R)};
    assert_int_equal(ad_layout_parse(mesh, cases[i].storage, &w.storage), AD_OK);
    assert_int_equal(ad_layout_parse(mesh, cases[i].update, &w.update), AD_OK);
    assert_int_equal(ad_reducer_create(comm, &w, 1, NULL, &reducer), cases[i].status);
    assert_says("w");
  }
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* ---- sums ---- */

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  size_t bucket_bytes;
  int reuses;
  ad_dtype reduce;  /* 0: f64, as all else */
  const char *sync; /* for each microbatch, the first letter of its sync */
} setting;

static void open_spread(model *m, ad_comm *comm, const setting *s) {
  open_model(m, comm, s->mesh, AD_F64);
  shard_storage(m);
  shard_updates(m);
  for (int i = 0; i < PARAMS; i++)
    m->params[i].policy = (ad_precision_policy){.param = AD_F64, .reduce = s->reduce, .accumulate = AD_F64};
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = s->bucket_bytes, .reuses = s->reuses};
  CHECK_OK(ad_reducer_create(comm, m->params, PARAMS, &options, &m->reducer));
}

static schedule schedule_of(const char *sync) {
  schedule s = {.microbatches = (int)strlen(sync)};
  for (int i = 0; i < s.microbatches; i++) {
    s.present[i] = (1u << PARAMS) - 1;
    s.sync[i] = sync[i] == 'n' ? AD_SYNC_NONE : sync[i] == 's' ? AD_SYNC_SHARD : AD_SYNC_ALL;
  }
  if (s.microbatches > 1) s.present[0] &= ~1u; /* the embedding has no gradient in the first microbatch */
  return s;
}

/* Checks the norm: each distinct element counts once. */
static void check_norm(const model *m, const schedule *s) {
  double squares = 0, norm;
  ad_group everyone = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(m->comm));
  for (int p = 0; p < PARAMS; p++)
    for (int64_t i = 0; i < ad_shape_numel(&param_shapes[p]); i++) squares += pow(expected_sum(m, s, p, (size_t)i), 2);
  CHECK_OK(ad_reducer_norm(m->reducer, &everyone, &norm));
  CHECK(fabs(norm - sqrt(squares)) <= 1e-12 * norm);
}

/* Runs a step whose gradients are not written in place. On backend dry they have no data. */
static ad_status submit_step(model *m, const schedule *s) {
  int odd = (int)(ad_comm_rank(m->comm) % 2);
  for (int i = 0; i < s->microbatches; i++) {
    CHECK_OK(ad_reducer_begin_microbatch(m->reducer, s->sync[i]));
    for (int k = 0; k < PARAMS; k++) {
      int p = odd ? k : PARAMS - 1 - k;
      ad_array grad = describe_gradient(m, p);
      if (!(s->present[i] >> p & 1)) continue;
      if (ad_comm_is_dry(m->comm))
        CHECK_OK(ad_reducer_add(m->reducer, (size_t)p, &grad));
      else
        add_gradient(m, p, i);
    }
    CHECK_OK(ad_reducer_end_microbatch(m->reducer));
  }
  return ad_reducer_finish(m->reducer);
}

static int sum(ad_comm *comm, void *context) {
  const setting *s = context;
  model m;
  ad_comm *dry;
  model planned;
  schedule steps = schedule_of(s->sync);
  open_spread(&m, comm, s);
  for (int step = 0; step < 2; step++) CHECK_OK(s->reduce == AD_F32 ? submit_step(&m, &steps) : run_step(&m, &steps));
  CHECK(sums_are(&m, &steps, 1));
  if (ad_mesh_axis_size(m.mesh, AD_TP) == 1) check_norm(&m, &steps);
  CHECK_OK(ad_comm_open_dry(ad_comm_rank(comm), ad_comm_size(comm), &dry));
  open_spread(&planned, dry, s);
  for (int step = 0; step < 2; step++) CHECK_OK(submit_step(&planned, &steps));
  CHECK(ad_reducer_bytes(m.reducer) == ad_reducer_bytes(planned.reducer));
  close_model(&planned);
  ad_comm_close(dry);
  close_model(&m);
  return 0;
}

static const char *const worlds[] = {"dp_replicate=2 dp_shard=2",      "dp_replicate=3 dp_shard=2",
                                     "dp_replicate=2 dp_shard=3",      "dp_shard=2 dp_replicate=3",
                                     "dp_replicate=3 dp_shard=1",      "dp_replicate=3",
                                     "dp_replicate=2 dp_shard=2 tp=2", "dp_replicate=2 tp=2 dp_shard=2"};

static void sum_in(const char *mesh, const setting *like) {
  setting s = *like;
  ad_mesh *of;
  assert_int_equal(ad_mesh_create(mesh, &of), AD_OK);
  s.mesh = mesh;
  s.ranks = ad_mesh_size(of);
  ad_mesh_destroy(of);
  run_ranks(s.ranks, sum, &s);
}

static void each_replica_gets_the_sum_of_its_part_whatever_the_syncs(void **state) {
  static const char *const syncs[] = {"a", "ssa", "nsa", "asa", "aa", "sasna"};
  for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
    setting s = {.sync = syncs[w % 6], .bucket_bytes = w % 2 ? 64 : 0};
    sum_in(worlds[w], &s);
    s.sync = syncs[(w + 3) % 6];
    s.reduce = AD_F32; /* sums are rounded on their way, so later steps have their own memory */
    sum_in(worlds[w], &s);
  }
}

static void sums_are_the_same_where_buckets_take_memory_in_turn(void **state) {
  for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
    setting s = {.sync = w % 2 ? "ssa" : "asa", .bucket_bytes = 64, .reuses = 1, .reduce = w % 2 ? AD_F32 : AD_F64};
    sum_in(worlds[w], &s);
  }
}

static void nothing_is_read_before_it_is_there(void **state) {
  setenv("ADDEND_HOSTILE", "3", 1);
  setting s = {.sync = "sasa", .bucket_bytes = 64, .reuses = 1};
  sum_in("dp_replicate=3 dp_shard=2", &s);
  unsetenv("ADDEND_HOSTILE");
}

static void the_second_reduce_scatter_is_of_the_last_microbatch_and_halves_no_more_than_it_must(void **state) {
  ad_comm *comm;
  model m;
  setting s = {.mesh = "dp_replicate=3 dp_shard=2", .sync = "a"};
  assert_int_equal(ad_comm_open_dry(0, 6, &comm), AD_OK);
  open_spread(&m, comm, &s);
  assert_int_equal(ad_reducer_plan_count(m.reducer), 2);
  ad_reduction_plan first = ad_reducer_plan(m.reducer, 0), second = ad_reducer_plan(m.reducer, 1);
  assert_true(first.early && first.move == AD_MOVE_REDUCE_SCATTER && first.axes == AD_AXES(AD_DP_SHARD));
  assert_true(!second.early && second.move == AD_MOVE_REDUCE_SCATTER && second.axes == AD_AXES(AD_DP_REPLICATE));
  /* of 5 + 7 + 4 + 0 + 3 rows rank 0 has 2 + 3 + 2 + 0 + 1, and of these 0 + 1 + 0 + 0 + 0 */
  assert_int_equal(first.bytes, (15 + 7 + 8 + 12) * 8);
  assert_int_equal(second.bytes, (2 * 3 + 3 + 2 * 2 + 4) * 8);
  assert_int_equal(ad_reducer_sum_bytes(m.reducer), second.bytes + 1 * 8);
  close_model(&m);
  s.mesh = "dp_replicate=3"; /* nothing is scattered over dp_shard, so nothing early */
  open_spread(&m, comm, &s);
  first = ad_reducer_plan(m.reducer, 0);
  assert_int_equal(ad_reducer_plan_count(m.reducer), 1);
  assert_true(!first.early && first.move == AD_MOVE_REDUCE_SCATTER && first.axes == AD_AXES(AD_DP_REPLICATE));
  close_model(&m);
  ad_comm_close(comm);
}

/* ---- known bugs ---- */

static ad_known_bug_scene scene;

static void inject(const char *name) {
  size_t count, i = 0;
  const ad_known_bug *bugs = ad_reduce_spread_bugs(&count);
  while (i < count && strcmp(bugs[i].name, name) != 0) i++;
  CHECK(i < count);
  scene = (ad_known_bug_scene){.microbatches = 3};
  ad_known_bug_inject(&bugs[i], &scene);
}

/* Returns 1 if `own` is 1 on some rank of the mesh. */
static int on_any(const model *m, int own) {
  int64_t any = own;
  ad_group all = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(m->comm));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = all, .in = &any, .out = &any, .count = 1, .dtype = AD_I64};
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(m->comm, &call));
  return any > 0;
}

static int counts_earlier_twice(ad_comm *comm, void *context) {
  model m;
  schedule steps = schedule_of("ssa");
  setting s = {.mesh = "dp_replicate=2 dp_shard=3"};
  open_spread(&m, comm, &s);
  inject(context);
  CHECK_OK(run_step(&m, &steps));
  ad_injections_clear();
  CHECK(scene.fired && on_any(&m, !sums_are(&m, &steps, 1)));
  for (int p = 0; p < PARAMS; p++) { /* the first two microbatches count twice */
    const ad_array *grad = ad_reducer_gradient(m.reducer, (size_t)p);
    schedule last = steps;
    last.present[0] = last.present[1] = 0;
    for (size_t i = 0; i < ad_array_numel(grad); i++) {
      size_t at = result_start(&m, p) + i;
      double want = 2 * expected_sum(&m, &steps, p, at) - expected_sum(&m, &last, p, at);
      CHECK(fabs(((const double *)grad->data)[i] - want) <= 1e-9);
    }
  }
  close_model(&m);
  return 0;
}

/* Gives every element of the masters its place in the full value, and returns 1 if the values do not have these. */
static int gathers_wrongly(ad_comm *comm, const char *bug) {
  model m;
  ad_store *store;
  setting s = {.mesh = "dp_replicate=3 dp_shard=2"};
  int wrong = 0;
  open_spread(&m, comm, &s);
  CHECK_OK(ad_store_create(comm, m.params, PARAMS, NULL, &store));
  if (bug) inject(bug);
  for (size_t p = 0; p < PARAMS; p++) {
    ad_array *master = ad_store_master(store, p);
    for (size_t i = 0; i < ad_array_numel(master); i++)
      ((double *)master->data)[i] = 1 + (double)(result_start(&m, (int)p) + i);
  }
  CHECK_OK(ad_store_refresh(store, AD_MASTERS_UPDATED));
  ad_injections_clear();
  for (size_t p = 0; p < PARAMS; p++) {
    const ad_array *value = ad_store_value(store, p);
    ad_span rows = {0};
    ad_layout_spans(&value->layout, 0, value->shape.dim[0], ad_comm_rank(comm), &rows, 1);
    size_t row = value->shape.ndim > 1 ? (size_t)value->shape.dim[1] : 1;
    for (size_t i = 0; i < ad_array_numel(value); i++)
      wrong |= ((const double *)value->data)[i] != 1 + (double)((size_t)rows.first * row + i);
  }
  wrong = on_any(&m, wrong);
  CHECK(!bug || on_any(&m, scene.fired));
  ad_store_destroy(store);
  close_model(&m);
  return wrong;
}

static int has_wrong_values(ad_comm *comm, void *context) {
  CHECK(gathers_wrongly(comm, context));
  CHECK(!gathers_wrongly(comm, NULL));
  return 0;
}

static void known_bugs_show(void **state) {
  static const struct {
    const char *name;
    int (*function)(ad_comm *comm, void *context);
  } bugs[] = {{"summed-over-replicas-twice", counts_earlier_twice},
              {"updated-parts-not-gathered", has_wrong_values},
              {"updated-parts-in-other-order", has_wrong_values}};
  size_t count;
  ad_reduce_spread_bugs(&count);
  assert_int_equal(count, sizeof bugs / sizeof *bugs);
  for (size_t i = 0; i < count; i++) run_ranks(6, bugs[i].function, (void *)(uintptr_t)bugs[i].name);
}

/* Leaves the gather out of the record, as a program would that forgot it: the result then has the layout of the parts. */
static void forget(void *context, void *passing) {
  ad_transit_passing *pass = passing;
  if (pass->transit->move != AD_MOVE_ALL_GATHER) return;
  pass->handled = 1;
  pass->out->layout = pass->in->layout;
}

static int is_refused(ad_comm *comm, void *context) {
  model m;
  ad_store *store;
  setting s = {.mesh = "dp_replicate=3 dp_shard=2"};
  open_spread(&m, comm, &s);
  CHECK_OK(ad_store_create(comm, m.params, PARAMS, NULL, &store));
  ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){forget, NULL});
  CHECK_STATUS(ad_store_refresh(store, AD_MASTERS_UPDATED), AD_TYPE);
  CHECK_SAYS("embedding", "dp_replicate=S0", "dp_replicate=R");
  ad_injections_clear();
  ad_store_destroy(store);
  close_model(&m);
  return 0;
}

static void a_gather_that_is_left_out_is_refused_by_type(void **state) { run_ranks(6, is_refused, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_gradient_is_scattered_to_its_shards_and_then_to_the_parts_of_replicas),
      cmocka_unit_test(updates_that_no_path_leads_to_are_refused),
      cmocka_unit_test(each_replica_gets_the_sum_of_its_part_whatever_the_syncs),
      cmocka_unit_test(sums_are_the_same_where_buckets_take_memory_in_turn),
      cmocka_unit_test(nothing_is_read_before_it_is_there),
      cmocka_unit_test(the_second_reduce_scatter_is_of_the_last_microbatch_and_halves_no_more_than_it_must),
      cmocka_unit_test(known_bugs_show),
      cmocka_unit_test(a_gather_that_is_left_out_is_refused_by_type),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
