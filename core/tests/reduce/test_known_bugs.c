/* Tests that each known bug of the reducer has an effect: a gradient wrong by the bug's factor, or ranks whose calls do
 * not match. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "addend/store.h"
#include "allocations.h"
#include "gradients.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "reduce/count.h"
#include "reduce/known_bugs.h"
#include "says.h"

typedef struct bug {
  const char *name, *mesh;
  int64_t ranks;
  size_t bucket_bytes;
  int shards, reuses;
} bug;

static ad_known_bug_scene scene;

static const ad_known_bug *find(const char *name) {
  size_t count;
  const ad_known_bug *list = ad_reduce_known_bugs(&count);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(list[i].name, name)) return &list[i];
  CHECK(!"a record of that name");
  return NULL;
}

/* For each known bug of the reducer, whether some test installed it. */
enum { RECORDS_MAX = 64 };
static int was_injected[RECORDS_MAX];

static void run_injected(bug *injected, int (*function)(ad_comm *comm, void *context)) {
  size_t count;
  const ad_known_bug *list = ad_reduce_known_bugs(&count);
  was_injected[find(injected->name) - list] = 1;
  run_ranks(injected->ranks, function, injected);
}

static model *prepare(ad_comm *comm, const bug *injected) {
  static model m;
  open_model(&m, comm, injected->mesh, AD_F64);
  if (injected->shards) shard_storage(&m);
  /* For bugs of groups: every second parameter is in one that is reduced completely in each of three microbatches. */
  const ad_sync sync[] = {AD_SYNC_ALL, AD_SYNC_ALL, AD_SYNC_ALL};
  int has_group = !strncmp(injected->name, "group-", strlen("group-"));
  const ad_reducer_group group = {.size = sizeof group, .sync = sync, .sync_count = 3};
  const size_t group_of[PARAMS] = {1, 0, 1, 0, 1};
  ad_reducer_options options = {.size = sizeof options,
                                .bucket_bytes = injected->bucket_bytes,
                                .reuses = injected->reuses,
                                .groups = &group,
                                .group_count = (size_t)has_group,
                                .group_of = has_group ? group_of : NULL};
  CHECK_OK(ad_reducer_create(comm, m.params, PARAMS, &options, &m.reducer));
  scene = (ad_known_bug_scene){.rank = ad_comm_rank(comm), .microbatches = 2};
  ad_known_bug_inject(find(injected->name), &scene);
  return &m;
}

/* Calls the injection point at the end of a step. */
static void end_step(void) { ad_inject(AD_INJECT_GRADIENTS, NULL); }

static int finish(model *m) {
  ad_injections_clear();
  close_model(m);
  return 0;
}

static int shows_factor(ad_comm *comm, const bug *injected, double factor) {
  model *m = prepare(comm, injected);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK(scene.fired && sums_are(m, &s, factor));
  return finish(m);
}

static int doubles(ad_comm *comm, void *context) { return shows_factor(comm, context, 2); }

static int is_wrong(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK(scene.fired && !sums_are(m, &s, 1));
  return finish(m);
}

static void a_wrong_sum_is_wrong_on_every_rank(void **state) {
  bug bugs[] = {
      {"last-microbatch-only", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"last-microbatch-only", "dp_shard=1", 1, 0, 0, 0},
      {"first-step-unsynchronised", "dp_shard=5", 5, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) run_injected(&bugs[i], is_wrong);
}

static int recovers(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK(scene.fired && !sums_are(m, &s, 1));
  end_step();
  CHECK_OK(run_step(m, &s));
  CHECK(sums_are(m, &s, 1));
  return finish(m);
}

static void only_the_first_step_is_unsynchronised(void **state) {
  bug first = {"first-step-unsynchronised", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0};
  run_injected(&first, recovers);
}

/* A step whose only microbatch reduces; its calls may fail. */
static ad_status try_step(model *m) {
  double memory[64] = {0};
  AD_TRY(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (int p = PARAMS; p-- > 0;) {
    ad_array grad = describe_gradient(m, p);
    grad.data = memory;
    for (int i = 0; i < 64; i++) memory[i] = addend_of(m, p, ad_comm_rank(m->comm), 0, (size_t)i);
    AD_TRY(ad_reducer_add(m->reducer, (size_t)p, &grad));
  }
  AD_TRY(ad_reducer_end_microbatch(m->reducer));
  return ad_reducer_finish(m->reducer);
}

static int ends_in_mismatch(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = full_schedule(1);
  ad_status status = try_step(m);
  CHECK(status || !sums_are(m, &s, 1));
  CHECK_STATUS(status, AD_MISMATCH);
  CHECK_FACTS("all_reduce");
  ad_reducer_destroy(m->reducer);
  ad_mesh_destroy(m->mesh);
  return 0;
}

static void ranks_that_reduce_different_things_are_stopped(void **state) {
  bug bugs[] = {
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 64, 0, 0},
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"bucket-size", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"bucket-size", "dp_shard=5", 5, 64, 0, 0},
      {"bucket-order", "dp_shard=2 tp=2", 4, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) run_injected(&bugs[i], ends_in_mismatch);
}

/* ---- sharded storage ---- */

static schedule shard_schedule(int microbatches) {
  schedule s = full_schedule(microbatches);
  for (int i = 0; i + 1 < microbatches; i++) s.sync[i] = AD_SYNC_SHARD;
  return s;
}

static int is_refused_by_type(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = shard_schedule(2);
  CHECK_STATUS(run_step(m, &s), AD_TYPE);
  CHECK_LISTED();
  CHECK_SAYS("dp_replicate=P");
  return finish(m);
}

static void a_partial_that_is_added_late_is_refused_by_its_type(void **state) {
  bug late = {"partial-after-all-reduce", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0};
  run_injected(&late, is_refused_by_type);
}

/* Checks that at least one rank has a wrong shard under the bug. A rank whose shard is empty or whole may be right, and
 * may have nothing to change. */
static int is_wrong_in_shards(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = shard_schedule(3);
  CHECK_OK(run_step(m, &s));
  int64_t any[] = {!sums_are(m, &s, 1), scene.fired};
  ad_injections_clear();
  ad_group all = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = all, .in = any, .out = any, .count = 2, .dtype = AD_I64};
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(any[0] > 0 && any[1] > 0);
  return finish(m);
}

static void bugs_with_shards_show(void **state) {
  bug bugs[] = {
      {"both-factors-when-one-runs", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"bucket-reused-early", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"bucket-reused-early", "dp_shard=1", 1, 64, 1, 0},
      {"slot-filled-again", "dp_replicate=3 dp_shard=2", 6, 64, 1, 1},
      {"slot-filled-again", "dp_shard=5", 5, 64, 1, 1},
      {"padding-counted", "dp_replicate=1 dp_shard=2", 2, 0, 1, 0},
      {"padding-counted", "dp_shard=3", 3, 0, 1, 0},
      {"last-microbatch-only", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"first-step-unsynchronised", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"group-sum-lost", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"group-sum-lost", "dp_shard=1", 1, 0, 0, 0},
      {"group-launched-late", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"group-launched-late", "dp_replicate=3 dp_shard=1", 3, 64, 0, 0},
  };
  for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) run_injected(&bugs[i], is_wrong_in_shards);
}

/* Returns 1 if the copies that stay have what was written last. Those of parameter 0 stay; others are released. */
static int copies_are_new(const ad_store *store) {
  const ad_array *copy = ad_store_compute(store, 0);
  int are = 1;
  for (size_t i = 0; i < ad_array_numel(copy); i++) are &= number_at(copy->data, AD_F64, i) == 3;
  return are;
}

static int keeps_old_copies(ad_comm *comm, void *context) {
  const size_t group_of[PARAMS] = {1};
  const ad_store_group group = {.size = sizeof group};
  const bug *injected = context;
  model m;
  ad_store *store;
  open_model(&m, comm, injected->mesh, AD_F64);
  shard_storage(&m);
  for (int with = 0; with < 2; with++) {
    /* Without a group that is released nothing takes the copies for released ones. */
    ad_store_options options = {.size = sizeof options, .compute = AD_F64, .releases = with, .groups = &group};
    options.group_count = 1;
    options.group_of = group_of;
    CHECK_OK(ad_store_create(comm, m.params, PARAMS, &options, &store));
    CHECK_OK(ad_store_refresh(store, AD_MASTERS_WRITTEN));
    scene = (ad_known_bug_scene){.rank = ad_comm_rank(comm)};
    ad_known_bug_inject(find(injected->name), &scene);
    ad_array *master = ad_store_master(store, 0);
    for (size_t i = 0; i < ad_array_numel(master); i++) put_number(master->data, AD_F64, i, 3);
    CHECK_OK(ad_store_refresh(store, AD_MASTERS_UPDATED));
    CHECK(scene.fired == with && copies_are_new(store) == !with);
    ad_injections_clear();
    ad_store_destroy(store);
  }
  close_model(&m);
  return 0;
}

static void copies_that_stay_are_old_if_they_are_taken_for_released_ones(void **state) {
  bug stale = {"group-copies-stale", "dp_shard=2", 2, 0, 1, 0};
  run_injected(&stale, keeps_old_copies);
}

static int zeroes(ad_comm *comm, void *context) { return shows_factor(comm, context, 0); }

static void a_factor_read_in_the_wrong_width_is_exactly_zero(void **state) {
  bug wide = {"factor-wrong-width", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0};
  run_injected(&wide, zeroes);
}

static void a_sum_added_to_itself_shows_two_where_a_group_has_one_rank(void **state) {
  bug alone = {"add-to-itself-in-group-of-one", "dp_replicate=1 dp_shard=3", 3, 0, 1, 0};
  run_injected(&alone, doubles);
}

/* Reduces gradients that bf16 cannot represent; returns the sum of all results. */
static double sum_of_thirds(model *m) {
  double memory[64], total = 0;
  CHECK_OK(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (int p = 0; p < PARAMS; p++) {
    ad_array grad = describe_gradient(m, p);
    grad.data = memory;
    for (int i = 0; i < 64; i++) memory[i] = addend_of(m, p, ad_comm_rank(m->comm), 0, (size_t)i) / 3;
    CHECK_OK(ad_reducer_add(m->reducer, (size_t)p, &grad));
  }
  CHECK_OK(ad_reducer_end_microbatch(m->reducer));
  CHECK_OK(ad_reducer_finish(m->reducer));
  for (size_t p = 0; p < PARAMS; p++) {
    const ad_array *grad = ad_reducer_gradient(m->reducer, p);
    for (size_t i = 0; i < ad_array_numel(grad); i++) total += number_at(grad->data, grad->dtype, i);
  }
  return total;
}

static int loses_digits(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  double injected = sum_of_thirds(m);
  CHECK(scene.fired);
  ad_injections_clear();
  double right = sum_of_thirds(m), error = fabs(injected - right);
  CHECK(error > 1e-6 && error < 0.1 * (fabs(right) + 100));
  return finish(m);
}

static void a_narrow_dtype_on_the_way_loses_digits(void **state) {
  bug raw = {"bucket-by-raw-dtype", "dp_shard=3", 3, 0, 0, 0}, narrow = {"narrow-accumulate", "dp_shard=3", 3, 0, 0, 0};
  run_injected(&raw, loses_digits);
  run_injected(&narrow, loses_digits);
}

/* Rank 0 submits f32 gradients and the other ranks bf16 ones, under a precision policy that converts both to bf16. */
static ad_status step_of_mixed(model *m) {
  uint16_t narrow[64];
  float wide[64];
  AD_TRY(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (int p = PARAMS; p-- > 0;) {
    int is_wide = ad_comm_rank(m->comm) == 0;
    ad_array grad = describe_gradient(m, p);
    for (int i = 0; i < 64; i++) wide[i] = (float)addend_of(m, p, ad_comm_rank(m->comm), 0, (size_t)i);
    ad_cast(narrow, AD_BF16, wide, AD_F32, 64);
    grad.dtype = is_wide ? AD_F32 : AD_BF16;
    grad.data = is_wide ? (void *)wide : narrow;
    AD_TRY(ad_reducer_add(m->reducer, (size_t)p, &grad));
  }
  AD_TRY(ad_reducer_end_microbatch(m->reducer));
  return ad_reducer_finish(m->reducer);
}

/* The precision policy decides in which bucket a gradient is; with the bug, the dtype of the gradient that the rank's
 * backward produced decides. */
static int goes_by_own_bucket(ad_comm *comm, void *context) {
  const bug *injected = context;
  for (int is_injected = 0; is_injected < 2; is_injected++) {
    static model m;
    schedule s = full_schedule(1);
    open_model(&m, comm, injected->mesh, AD_BF16);
    m.dtype = AD_F32; /* dtype of the sums */
    scene = (ad_known_bug_scene){.rank = ad_comm_rank(comm)};
    if (is_injected && !ad_comm_rank(comm)) ad_known_bug_inject(find(injected->name), &scene);
    create_reducer(&m, 0);
    ad_injections_clear();
    CHECK(scene.fired == (is_injected && !ad_comm_rank(comm)));
    ad_status status = step_of_mixed(&m);
    CHECK_STATUS(status, is_injected ? AD_MISMATCH : AD_OK);
    if (is_injected) CHECK_SAYS("f32");
    if (is_injected) CHECK_SAYS("bf16");
    CHECK(is_injected || sums_are(&m, &s, 1));
    close_model(&m);
  }
  return 0;
}

static void ranks_whose_gradients_differ_in_width_are_stopped_where_that_chooses_buckets(void **state) {
  bug wide = {"bucket-by-wide-gradient", "dp_shard=3", 3, 0, 0, 0};
  run_injected(&wide, goes_by_own_bucket);
}

/* Calls the injection point of divisors as a tape does: the step has 9 rows, 3 in the first microbatch and 6 in the
 * second. */
static int divides_by_own_count(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  ad_count *count;
  int64_t total;
  ad_layout addends = ad_layout_all(m->mesh, AD_P);
  CHECK_OK(ad_count_create(comm, &addends, 2, &count));
  CHECK_OK(ad_count_post(count, (int64_t[]){1, 2}));
  CHECK_OK(ad_count_wait(count, &total));
  CHECK(total == 9);
  for (int step = 0; step < 2; step++) {
    for (size_t microbatch = 0; microbatch < 2; microbatch++) {
      ad_divisor_passing divisor = {.count = count, .total = (double)total};
      ad_inject(AD_INJECT_PHASE, &microbatch);
      CHECK_OK(ad_reducer_begin_microbatch(m->reducer, microbatch ? AD_SYNC_ALL : AD_SYNC_NONE));
      ad_inject(AD_INJECT_DIVISOR, &divisor);
      /* the divisor of a mean of two microbatch means */
      CHECK(scene.fired && divisor.total == (microbatch ? 6 : 3) * 2);
      CHECK_OK(ad_reducer_end_microbatch(m->reducer));
    }
    CHECK_OK(ad_reducer_finish(m->reducer));
    end_step();
  }
  ad_count_destroy(count);
  return finish(m);
}

static void a_mean_of_means_divides_by_the_own_count(void **state) {
  bug means = {"mean-of-microbatch-means", "dp_shard=3", 3, 0, 0, 0};
  run_injected(&means, divides_by_own_count);
}

/* This test runs last. */
static void every_bug_of_the_list_was_injected(void **state) {
  size_t count;
  const ad_known_bug *list = ad_reduce_known_bugs(&count);
  assert_true(count <= RECORDS_MAX);
  for (size_t i = 0; i < count; i++)
    if (!was_injected[i]) fail_msg("%s is installed by no test", list[i].name);
}

/* ---- counts of tokens ---- */

static int count_tokens(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_count *count;
  int64_t tokens, rank = ad_comm_rank(comm), local = rank == 1 ? 0 : 100 + rank;
  CHECK_OK(ad_mesh_create("dp_replicate=3 dp_shard=1 tp=1", &mesh));
  ad_layout layout;
  CHECK_OK(ad_layout_parse(mesh, "dp=P tp=I", &layout));
  CHECK_OK(ad_count_create(comm, &layout, 2, &count));
  CHECK_STATUS(ad_count_wait(count, &tokens), AD_INVALID);
  for (int step = 0; step < 3; step++) {
    int64_t locals[2] = {local + step, rank};
    CHECK_OK(ad_count_post(count, locals));
    CHECK_STATUS(ad_count_post(count, locals), AD_INVALID);
    CHECK(ad_layout_equal(&ad_count_array(count)->layout, &layout));
    CHECK(ad_count_of(count, 0) == -1);
    for (int again = 0; again < 2; again++) {
      tokens = 0;
      CHECK_OK(ad_count_wait(count, &tokens));
      CHECK(tokens == 202 + 3 * step + 3);
    }
    CHECK_OK(ad_count_wait(count, NULL));
    CHECK(ad_count_of(count, 0) == 202 + 3 * step && ad_count_of(count, 1) == 3 && ad_count_of(count, 2) == -1);
    CHECK(ad_count_array(count)->layout.type[AD_DP_REPLICATE] == AD_R);
    CHECK(ad_count_array(count)->layout.type[AD_TP] == AD_I);
  }
  ad_count_destroy(count);
  ad_injections_clear();
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_count_is_summed_over_the_axes_on_which_it_is_an_addend(void **state) { run_ranks(3, count_tokens, NULL); }

/* A rank that fails between posting a count and waiting for it: the other ranks still get their sum. */
static int leave_a_count(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_count *count;
  int64_t tokens = 0;
  CHECK_OK(ad_mesh_create("dp_shard=3", &mesh));
  ad_layout addends = ad_layout_all(mesh, AD_P);
  CHECK_OK(ad_count_create(comm, &addends, 1, &count));
  CHECK_OK(ad_count_post(count, &(int64_t){5}));
  if (ad_comm_rank(comm) != 1) CHECK_OK(ad_count_wait(count, &tokens));
  CHECK(tokens == (ad_comm_rank(comm) == 1 ? 0 : 15));
  ad_count_destroy(count);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_count_that_nobody_waits_for_is_still_summed(void **state) { run_ranks(3, leave_a_count, NULL); }

static void no_allocation_that_fails_in_a_count_is_left_behind(void **state) {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_count *count = NULL;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp=1", &mesh), AD_OK);
  ad_layout addends = ad_layout_all(mesh, AD_P);
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY && n < 100; n++) {
    ad_memory_fail_at(n);
    status = ad_count_create(comm, &addends, 3, &count);
    assert_true(reports_allocation(n, status));
  }
  assert_int_equal(status, AD_OK);
  ad_count_destroy(count);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* A count with a layout that has no meaning is refused when it is made. */
static void a_count_is_an_addend_or_the_same_everywhere(void **state) {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_count *count = NULL;
  ad_layout layout;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp=1 tp=1", &mesh), AD_OK);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(ad_layout_parse(mesh, i ? "dp=P tp=V" : "dp=S0 tp=R", &layout), AD_OK);
    assert_int_equal(ad_count_create(comm, &layout, 1, &count), AD_TYPE);
    assert_says(i ? "tp" : "dp_replicate", i ? "V" : "S(0)");
  }
  layout = ad_layout_all(mesh, AD_P);
  assert_int_equal(ad_count_create(comm, &layout, 0, &count), AD_INVALID);
  assert_null(count);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_partial_that_is_added_late_is_refused_by_its_type),
      cmocka_unit_test(bugs_with_shards_show),
      cmocka_unit_test(copies_that_stay_are_old_if_they_are_taken_for_released_ones),
      cmocka_unit_test(a_factor_read_in_the_wrong_width_is_exactly_zero),
      cmocka_unit_test(a_sum_added_to_itself_shows_two_where_a_group_has_one_rank),
      cmocka_unit_test(a_narrow_dtype_on_the_way_loses_digits),
      cmocka_unit_test(ranks_whose_gradients_differ_in_width_are_stopped_where_that_chooses_buckets),
      cmocka_unit_test(a_wrong_sum_is_wrong_on_every_rank),
      cmocka_unit_test(only_the_first_step_is_unsynchronised),
      cmocka_unit_test(ranks_that_reduce_different_things_are_stopped),
      cmocka_unit_test(a_count_is_summed_over_the_axes_on_which_it_is_an_addend),
      cmocka_unit_test(a_count_that_nobody_waits_for_is_still_summed),
      cmocka_unit_test(no_allocation_that_fails_in_a_count_is_left_behind),
      cmocka_unit_test(a_count_is_an_addend_or_the_same_everywhere),
      cmocka_unit_test(a_mean_of_means_divides_by_the_own_count),
      cmocka_unit_test(every_bug_of_the_list_was_injected),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
