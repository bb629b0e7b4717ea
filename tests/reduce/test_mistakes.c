/* Each known mistake that can be planted in the reducer shows: as a wrong number with its own factor, or as ranks that
 * do not call the same thing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "../reduce/gradients.h"
#include "base/memory.h"
#include "base/switches.h"

typedef struct mistake {
  const char *name, *mesh;
  int64_t ranks;
  size_t bucket_bytes;
} mistake;

static model *prepare(ad_comm *comm, const mistake *planted) {
  static model m;
  open_model(&m, comm, planted->mesh, AD_F64);
  create_reducer(&m, planted->bucket_bytes);
  CHECK_OK(ad_switch_set(planted->name));
  return &m;
}

static int finish(model *m) {
  CHECK_OK(ad_switch_set(NULL));
  close_model(m);
  return 0;
}

static int shows_factor(ad_comm *comm, const mistake *planted, double factor) {
  model *m = prepare(comm, planted);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK(sums_are(m, &s, factor));
  return finish(m);
}

static int halves(ad_comm *comm, void *context) { return shows_factor(comm, context, 0.5); }
static int thirds(ad_comm *comm, void *context) { return shows_factor(comm, context, 1.0 / 3); }
static int doubles(ad_comm *comm, void *context) { return shows_factor(comm, context, 2); }
static int triples(ad_comm *comm, void *context) { return shows_factor(comm, context, 3); }

static void an_average_shows_one_over_the_axis(void **state) {
  mistake shard = {"average-instead-of-sum:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0};
  mistake replicate = {"average-instead-of-sum:dp_replicate", "dp_replicate=3 dp_shard=2", 6, 64};
  run_ranks(6, halves, &shard);
  run_ranks(6, thirds, &replicate);
}

static void a_doubled_reduction_shows_the_axis(void **state) {
  mistake shard = {"double-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0};
  mistake replicate = {"double-reduction:dp_replicate", "dp_replicate=3 dp_shard=2", 6, 64};
  run_ranks(6, doubles, &shard);
  run_ranks(6, triples, &replicate);
}

static int is_wrong(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK(!sums_are(m, &s, 1));
  return finish(m);
}

static void a_wrong_sum_is_wrong_on_every_rank(void **state) {
  mistake mistakes[] = {
      {"skip-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0},
      {"skip-reduction:dp_replicate", "dp_replicate=3 dp_shard=1", 3, 64},
      {"last-microbatch-only", "dp_replicate=3 dp_shard=1", 3, 0},
      {"last-microbatch-only", "dp_shard=1", 1, 0},
      {"first-step-unsynchronised", "dp_shard=5", 5, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) run_ranks(mistakes[i].ranks, is_wrong, &mistakes[i]);
}

static int recovers(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(m, &s));
  CHECK_OK(run_step(m, &s));
  CHECK(sums_are(m, &s, 1));
  return finish(m);
}

static void only_the_first_step_is_unsynchronised(void **state) {
  mistake first = {"first-step-unsynchronised", "dp_replicate=3 dp_shard=1", 3, 0};
  run_ranks(3, recovers, &first);
}

/* The last microbatch reduces, so that its calls may fail. */
static ad_status try_step(model *m) {
  double memory[64] = {0};
  AD_TRY(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (int p = PARAMS; p-- > 0;) {
    ad_array grad = describe_gradient(m, p);
    grad.data = memory;
    for (int i = 0; i < 64; i++) memory[i] = addend_of(m, p, ad_comm_rank(m->comm), 0, (size_t)i);
    AD_TRY(ad_reducer_add(m->reducer, (size_t)p, &grad, AD_HERE));
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
  CHECK_MESSAGE("do not match");
  ad_reducer_destroy(m->reducer);
  ad_mesh_destroy(m->mesh);
  return 0;
}

static void ranks_that_reduce_different_things_are_stopped(void **state) {
  mistake mistakes[] = {
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 64},
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 0},
      {"bucket-size", "dp_replicate=3 dp_shard=1", 3, 0},
      {"bucket-size", "dp_shard=5", 5, 64},
      {"bucket-order", "dp_shard=2 tp=2", 4, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
    run_ranks(mistakes[i].ranks, ends_in_mismatch, &mistakes[i]);
}

/* ---- counts ---- */

static int count_tokens(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_count *count;
  int64_t tokens, rank = ad_comm_rank(comm), local = rank == 1 ? 0 : 100 + rank;
  CHECK_OK(ad_mesh_create("dp_replicate=3 dp_shard=1", &mesh));
  ad_group all = ad_mesh_group(mesh, AD_AXES_DP, rank);
  CHECK_OK(ad_count_create(comm, &count));
  for (int step = 0; step < 3; step++) {
    CHECK_OK(ad_count_post(count, &all, local + step, AD_HERE));
    CHECK_STATUS(ad_count_post(count, &all, local, AD_HERE), AD_INVALID);
    CHECK_OK(ad_count_wait(count, &tokens));
    CHECK_STATUS(ad_count_wait(count, &tokens), AD_INVALID);
    CHECK(tokens == 202 + 3 * step);
  }
  CHECK_OK(ad_switch_set("local-count"));
  CHECK_OK(ad_count_post(count, &all, local, AD_HERE));
  CHECK_OK(ad_count_wait(count, &tokens));
  CHECK(tokens == local);
  ad_count_destroy(count);
  CHECK_OK(ad_switch_set(NULL));
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_count_is_summed_unless_that_mistake_is_planted(void **state) { run_ranks(3, count_tokens, NULL); }

/* As a run does that fails between the two calls: the others have their sum all the same. */
static int leave_a_count(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_count *count;
  int64_t tokens = 0;
  CHECK_OK(ad_mesh_create("dp_shard=3", &mesh));
  ad_group all = ad_mesh_group(mesh, AD_AXES_DP, ad_comm_rank(comm));
  CHECK_OK(ad_count_create(comm, &count));
  CHECK_OK(ad_count_post(count, &all, 5, AD_HERE));
  if (ad_comm_rank(comm) != 1) CHECK_OK(ad_count_wait(count, &tokens));
  CHECK(tokens == (ad_comm_rank(comm) == 1 ? 0 : 15));
  ad_count_destroy(count);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_count_that_nobody_waits_for_is_still_summed(void **state) { run_ranks(3, leave_a_count, NULL); }

static void no_allocation_that_fails_in_a_count_is_left_behind(void **state) {
  ad_comm *comm;
  ad_count *count = NULL;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY && n < 100; n++) {
    ad_memory_fail_at(n);
    status = ad_count_create(comm, &count);
    ad_memory_fail_at(0);
  }
  assert_int_equal(status, AD_OK);
  ad_count_destroy(count);
  ad_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_average_shows_one_over_the_axis),
      cmocka_unit_test(a_doubled_reduction_shows_the_axis),
      cmocka_unit_test(a_wrong_sum_is_wrong_on_every_rank),
      cmocka_unit_test(only_the_first_step_is_unsynchronised),
      cmocka_unit_test(ranks_that_reduce_different_things_are_stopped),
      cmocka_unit_test(a_count_is_summed_unless_that_mistake_is_planted),
      cmocka_unit_test(a_count_that_nobody_waits_for_is_still_summed),
      cmocka_unit_test(no_allocation_that_fails_in_a_count_is_left_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
