/* Tests groups of parameters with settings of their own: how far each microbatch reduces them, their buckets and
 * windows, and in a store which copies stay and which are released. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "addend/store.h"
#include "gradients.h"
#include "reduce/plan.h"
#include "says.h"

#define NONE AD_SYNC_NONE
#define SHARD AD_SYNC_SHARD
#define ALL AD_SYNC_ALL

static const size_t two_groups[PARAMS] = {1, 0, 2, 0, 2}; /* embedding 1; query and head 2 */

/* ---- sums ---- */

/* The syncs of three microbatches: of group 0, 1 and 2; the groups' ZeRO levels. */
typedef struct case_of_sync {
  const char *mesh;
  int ranks;
  ad_sync sync[3][3];
  int shards[3], reuses[3];
} case_of_sync;

static void create(model *m, ad_comm *comm, const case_of_sync *of, size_t bucket_bytes) {
  ad_reducer_group groups[2];
  open_model(m, comm, of->mesh, AD_F64);
  for (int p = 0; p < PARAMS; p++)
    if (of->shards[two_groups[p]]) ad_layout_set(&m->params[p].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  for (int g = 1; g < 3; g++)
    groups[g - 1] = (ad_reducer_group){.size = sizeof groups[0],
                                       .bucket_bytes = bucket_bytes,
                                       .reuses = of->reuses[g],
                                       .sync = of->sync[g],
                                       .sync_count = 3};
  ad_reducer_options options = {.size = sizeof options,
                                .bucket_bytes = bucket_bytes,
                                .reuses = of->reuses[0],
                                .groups = groups,
                                .group_count = 2,
                                .group_of = two_groups};
  CHECK_OK(ad_reducer_create(comm, m->params, PARAMS, &options, &m->reducer));
}

static void has_sums(model *m, const schedule *s) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *grad = ad_reducer_gradient(m->reducer, (size_t)p);
    CHECK(ad_layout_equal(&grad->layout, &m->params[p].storage));
    for (size_t i = 0; i < ad_array_numel(grad); i++)
      CHECK(number_at(grad->data, AD_F64, i) == expected_sum(m, s, p, result_start(m, p) + i));
  }
}

/* Every group has the right sum, whatever the others do, also where a gradient is absent in some microbatch. */
static int sums_in_two_steps(ad_comm *comm, void *context) {
  const case_of_sync *of = context;
  for (size_t bytes = 8; bytes <= 1 << 20; bytes *= 1 << 17) {
    model m;
    create(&m, comm, of, bytes);
    schedule s = full_schedule(3);
    for (int i = 0; i < 3; i++) s.sync[i] = of->sync[0][i];
    for (int step = 0; step < 2; step++) {
      s.present[1] = step ? 5 : (1u << PARAMS) - 1;
      CHECK_OK(run_step(&m, &s));
      has_sums(&m, &s);
    }
    close_model(&m);
  }
  return 0;
}

static void every_group_has_its_sum(void **state) {
  case_of_sync cases[] = {
      {"dp_replicate=3 dp_shard=2", 6, {{SHARD, SHARD, ALL}, {ALL, ALL, ALL}, {NONE, NONE, ALL}}, {1, 1, 1}, {1, 0, 0}},
      {"dp_replicate=2 dp_shard=3", 6, {{NONE, NONE, ALL}, {SHARD, ALL, ALL}, {ALL, NONE, ALL}}, {0, 1, 1}, {0, 1, 0}},
      {"dp_replicate=1 dp_shard=3", 3, {{ALL, ALL, ALL}, {NONE, SHARD, ALL}, {ALL, SHARD, ALL}}, {1, 0, 1}, {1, 0, 1}},
      {"dp_replicate=3 dp_shard=1", 3, {{NONE, ALL, ALL}, {ALL, NONE, ALL}, {SHARD, NONE, ALL}}, {1, 1, 0}, {0, 0, 0}},
      {"dp_replicate=2 dp_shard=2 tp=2", 8, {{SHARD, NONE, ALL}, {NONE, NONE, ALL}, {ALL, ALL, ALL}}, {1, 0, 0}, {0}},
      {"dp_replicate=1 dp_shard=1", 1, {{NONE, ALL, ALL}, {ALL, NONE, ALL}, {SHARD, NONE, ALL}}, {1, 1, 0}, {0, 0, 0}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_ranks(cases[i].ranks, sums_in_two_steps, &cases[i]);
}

/* ---- buckets ---- */

static int groups_share_no_bucket(ad_comm *comm, void *context) {
  case_of_sync of = {"dp_shard=2", 2, {{NONE, NONE, ALL}, {ALL, ALL, ALL}, {ALL, ALL, ALL}}, {1, 1, 1}, {0}};
  model m;
  create(&m, comm, &of, 1 << 20);
  /* norm and nothing; and, since groups 1 and 2 say the same, embedding, query and head */
  CHECK(ad_reducer_bucket_count(m.reducer) == 2);
  for (size_t i = 0; i < 2; i++) {
    ad_bucket_plan bucket = ad_reducer_bucket(m.reducer, i);
    CHECK(bucket.param_count == (bucket.group ? 3 : 2));
    CHECK(bucket.group <= 1);
  }
  close_model(&m);
  return 0;
}

static void groups_that_say_the_same_share_buckets(void **state) { run_ranks(2, groups_share_no_bucket, NULL); }

/* ---- when groups are reduced ---- */

typedef struct posts {
  int microbatch, count[3][3]; /* [microbatch][bucket's group]: steps of paths that were posted */
  const ad_reducer *reducer;
} posts;

static void count_post(void *context, ad_bucket_event event, const ad_bucket_step *step) {
  posts *p = context;
  if (event == AD_BUCKET_POST && step->move != AD_MOVE_ALL_REDUCE)
    p->count[p->microbatch][ad_reducer_bucket(p->reducer, (size_t)step->bucket).group]++;
}

static int reduces_as_its_sync_says(ad_comm *comm, void *context) {
  const ad_sync sync[3][3] = {{NONE, SHARD, ALL}, {ALL, NONE, ALL}, {SHARD, SHARD, ALL}};
  const ad_reducer_group groups[] = {{.size = sizeof *groups, .sync = sync[1], .sync_count = 3},
                                     {.size = sizeof *groups, .sync = sync[2], .sync_count = 3}};
  posts seen = {0};
  model m;
  open_model(&m, comm, "dp_replicate=2 dp_shard=2", AD_F64);
  shard_storage(&m);
  ad_reducer_options options = {.size = sizeof options,
                                .groups = groups,
                                .group_count = 2,
                                .group_of = two_groups,
                                .trace = count_post,
                                .trace_context = &seen};
  CHECK_OK(ad_reducer_create(comm, m.params, PARAMS, &options, &m.reducer));
  seen.reducer = m.reducer;
  schedule s = full_schedule(3);
  for (; seen.microbatch < 3; seen.microbatch++) {
    s.sync[seen.microbatch] = sync[0][seen.microbatch];
    run_microbatch(&m, &s, seen.microbatch);
    for (int g = 0; g < 3; g++) CHECK(seen.count[seen.microbatch][g] == (sync[g][seen.microbatch] != NONE));
  }
  CHECK_OK(ad_reducer_finish(m.reducer));
  close_model(&m);
  return 0;
}

static void a_group_is_reduced_when_its_sync_says(void **state) { run_ranks(4, reduces_as_its_sync_says, NULL); }

/* ---- mistakes ---- */

static ad_status try_group(ad_comm *comm, const ad_reducer_group *group, const size_t *group_of,
                           const ad_leaf_options *leaves) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F64);
  ad_reducer_options options = {
      .size = sizeof options, .groups = group, .group_count = 1, .group_of = group_of, .leaves = leaves};
  ad_status status = ad_reducer_create(comm, m.params, PARAMS, &options, &m.reducer);
  close_model(&m);
  return status;
}

static int refuses(ad_comm *comm, void *context) {
  const ad_sync early[] = {NONE, SHARD}, kept[] = {NONE, ALL}, wrong[] = {(ad_sync)7, ALL};
  const ad_leaf_options leaves = {.leaves = 2, .rounds = 2, .sync = kept};
  const size_t far[PARAMS] = {0, 0, 2, 0, 0}, near[PARAMS] = {0, 0, 1, 0, 0};
  ad_reducer_group group = {.size = sizeof group};
  CHECK(try_group(comm, &group, far, NULL) == AD_INVALID);
  CHECK_SAYS("2", "2", "0", "1");
  CHECK(try_group(comm, NULL, near, NULL) == AD_INVALID);
  CHECK_SAYS("group_count", "1", "NULL");
  group.sync = early;
  CHECK(try_group(comm, &group, near, NULL) == AD_INVALID);
  CHECK_SAYS("0", "NULL");
  group.sync_count = 2;
  CHECK(try_group(comm, &group, near, NULL) == AD_INVALID);
  CHECK_SAYS("1", "1", "1", "AD_SYNC_ALL");
  group.sync = wrong;
  CHECK(try_group(comm, &group, near, NULL) == AD_INVALID);
  CHECK_SAYS("1", "7", "0", "AD_SYNC_SHARD");
  group.sync = kept;
  CHECK(try_group(comm, &group, near, &leaves) == AD_INVALID);
  CHECK_SAYS("1", "leaves", "NULL");
  group.reuses = 1;
  CHECK(try_group(comm, &group, near, NULL) == AD_INVALID);
  CHECK_SAYS("1", "0", "0", "reuses", "0");
  return 0;
}

static void what_contradicts_itself_is_refused(void **state) { run_ranks(1, refuses, NULL); }

static int counts_microbatches(ad_comm *comm, void *context) {
  case_of_sync of = {"dp_shard=1", 1, {{NONE, NONE, ALL}, {ALL, ALL, ALL}, {NONE, ALL, ALL}}, {0}, {0}};
  model m;
  create(&m, comm, &of, 0);
  schedule s = full_schedule(3);
  for (int i = 0; i < 3; i++) s.sync[i] = ALL;
  run_microbatch(&m, &s, 0);
  CHECK(ad_reducer_finish(m.reducer) == AD_INVALID);
  CHECK_SAYS("1", "1", "3");
  run_microbatch(&m, &s, 1);
  CHECK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_SHARD) == AD_INVALID);
  CHECK_SAYS("AD_SYNC_ALL", "1", "2", "1");
  run_microbatch(&m, &s, 2);
  CHECK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL) == AD_INVALID);
  CHECK_SAYS("3", "1", "3");
  CHECK_OK(ad_reducer_finish(m.reducer));
  has_sums(&m, &s);
  close_model(&m);
  return 0;
}

static void a_step_has_as_many_microbatches_as_the_lists(void **state) { run_ranks(1, counts_microbatches, NULL); }

/* ---- copies ---- */

/* Writes masters that say which update they are of. */
static void update(ad_store *store, int param, double value) {
  ad_array *master = ad_store_master(store, (size_t)param);
  for (size_t i = 0; i < ad_array_numel(master); i++) put_number(master->data, AD_F64, i, value + param);
}

static void has_copy(const ad_store *store, int param, double value) {
  const ad_array *copy = ad_store_compute(store, (size_t)param);
  CHECK(copy->data != NULL);
  for (size_t i = 0; i < ad_array_numel(copy); i++) CHECK(number_at(copy->data, AD_F64, i) == value + param);
}

/* All parameters are of one unit. Group 0 is released, group 1 stays; group 2 is released, and gathered ahead by
 * itself. */
static int copies_stay_or_are_released(ad_comm *comm, void *context) {
  model m;
  ad_store *store;
  const ad_store_group groups[] = {{.size = sizeof *groups}, {.size = sizeof *groups, .releases = 1, .prefetch = 2}};
  open_model(&m, comm, context, AD_F64);
  shard_storage(&m);
  for (int p = 0; p < PARAMS; p++) m.params[p].unit = p / 3;
  ad_store_options options = {.size = sizeof options,
                              .compute = AD_F64,
                              .releases = 1,
                              .groups = groups,
                              .group_count = 2,
                              .group_of = two_groups};
  CHECK_OK(ad_store_create(comm, m.params, PARAMS, &options, &store));
  for (int step = 1; step <= 3; step++) {
    for (int p = 0; p < PARAMS; p++) update(store, p, step * 10);
    CHECK_OK(ad_store_refresh(store, AD_MASTERS_UPDATED));
    has_copy(store, 0, step * 10);
    for (int p = 1; p < PARAMS; p++) CHECK(ad_store_compute(store, (size_t)p)->data == NULL);
    for (int pass = 0; pass < 2; pass++) {
      CHECK_OK(ad_store_begin_pass(store, pass ? AD_BACKWARD : AD_FORWARD));
      for (int k = 0; k < PARAMS; k++) {
        int p = pass ? PARAMS - 1 - k : k;
        CHECK_OK(ad_store_acquire(store, (size_t)p));
        has_copy(store, p, step * 10);
        has_copy(store, 0, step * 10);
        ad_store_release(store, (size_t)p);
      }
      CHECK_OK(ad_store_end_pass(store));
    }
  }
  ad_store_destroy(store);
  close_model(&m);
  return 0;
}

static void only_what_is_released_is_gathered_at_its_uses(void **state) {
  run_ranks(2, copies_stay_or_are_released, "dp_shard=2");
  run_ranks(6, copies_stay_or_are_released, "dp_replicate=2 dp_shard=3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_group_has_its_sum),
      cmocka_unit_test(groups_that_say_the_same_share_buckets),
      cmocka_unit_test(a_group_is_reduced_when_its_sync_says),
      cmocka_unit_test(what_contradicts_itself_is_refused),
      cmocka_unit_test(a_step_has_as_many_microbatches_as_the_lists),
      cmocka_unit_test(only_what_is_released_is_gathered_at_its_uses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
