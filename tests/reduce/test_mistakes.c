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
  int shards;
} mistake;

static model *prepare(ad_comm *comm, const mistake *planted) {
  static model m;
  open_model(&m, comm, planted->mesh, AD_F64);
  if (planted->shards) shard_storage(&m);
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
  mistake shard = {"average-instead-of-sum:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 0};
  mistake replicate = {"average-instead-of-sum:dp_replicate", "dp_replicate=3 dp_shard=2", 6, 64, 0};
  run_ranks(6, halves, &shard);
  run_ranks(6, thirds, &replicate);
}

static void a_doubled_reduction_shows_the_axis(void **state) {
  mistake shard = {"double-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 0};
  mistake replicate = {"double-reduction:dp_replicate", "dp_replicate=3 dp_shard=2", 6, 64, 0};
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
      {"skip-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 0},
      {"skip-reduction:dp_replicate", "dp_replicate=3 dp_shard=1", 3, 64, 0},
      {"last-microbatch-only", "dp_replicate=3 dp_shard=1", 3, 0, 0},
      {"last-microbatch-only", "dp_shard=1", 1, 0, 0},
      {"first-step-unsynchronised", "dp_shard=5", 5, 0, 0},
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
  mistake first = {"first-step-unsynchronised", "dp_replicate=3 dp_shard=1", 3, 0, 0};
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
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 64, 0},
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 0, 0},
      {"bucket-size", "dp_replicate=3 dp_shard=1", 3, 0, 0},
      {"bucket-size", "dp_shard=5", 5, 64, 0},
      {"bucket-order", "dp_shard=2 tp=2", 4, 0, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
    run_ranks(mistakes[i].ranks, ends_in_mismatch, &mistakes[i]);
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
  CHECK_MESSAGE("cannot take one that is");
  CHECK_MESSAGE("dp_replicate=P");
  return finish(m);
}

static void a_partial_that_is_added_late_is_refused_by_its_type(void **state) {
  mistake late = {"partial-after-all-reduce", "dp_replicate=3 dp_shard=2", 6, 0, 1};
  run_ranks(6, is_refused_by_type, &late);
}

static int is_wrong_in_shards(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = shard_schedule(3);
  int wrong = 0;
  CHECK_OK(run_step(m, &s));
  wrong = !sums_are(m, &s, 1);
  CHECK_OK(ad_switch_set(NULL));
  // An empty or whole shard may be right; some rank's is not.
  int64_t any = wrong;
  ad_group all = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective call = {.op = AD_ALL_REDUCE, .group = all, .in = &any, .out = &any, .count = 1, .dtype = AD_I64};
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(any > 0);
  return finish(m);
}

static void mistakes_with_shards_show(void **state) {
  mistake mistakes[] = {
      {"both-factors-when-one-runs", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"bucket-reused-early", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"bucket-reused-early", "dp_shard=1", 1, 64, 1},
      {"padding-counted", "dp_replicate=1 dp_shard=2", 2, 0, 1},
      {"padding-counted", "dp_shard=3", 3, 0, 1},
      {"last-microbatch-only", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"average-instead-of-sum:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"skip-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"skip-reduction:dp_replicate", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"double-reduction:dp_shard", "dp_replicate=3 dp_shard=2", 6, 0, 1},
      {"first-step-unsynchronised", "dp_replicate=3 dp_shard=2", 6, 0, 1},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
    run_ranks(mistakes[i].ranks, is_wrong_in_shards, &mistakes[i]);
}

static int zeroes(ad_comm *comm, void *context) { return shows_factor(comm, context, 0); }

static void a_factor_read_in_the_wrong_width_is_exactly_zero(void **state) {
  mistake wide = {"factor-wrong-width", "dp_replicate=3 dp_shard=2", 6, 0, 1};
  run_ranks(6, zeroes, &wide);
}

static void a_sum_added_to_itself_shows_two_where_a_group_has_one_rank(void **state) {
  mistake alone = {"add-to-itself-in-group-of-one", "dp_replicate=1 dp_shard=3", 3, 0, 1};
  run_ranks(3, doubles, &alone);
}

/* Gradients of which bf16 does not hold the numbers. */
static double sum_of_thirds(model *m) {
  double memory[64], total = 0;
  CHECK_OK(ad_reducer_begin_microbatch(m->reducer, AD_SYNC_ALL));
  for (int p = 0; p < PARAMS; p++) {
    ad_array grad = describe_gradient(m, p);
    grad.data = memory;
    for (int i = 0; i < 64; i++) memory[i] = addend_of(m, p, ad_comm_rank(m->comm), 0, (size_t)i) / 3;
    CHECK_OK(ad_reducer_add(m->reducer, (size_t)p, &grad, AD_HERE));
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
  double planted = sum_of_thirds(m);
  CHECK_OK(ad_switch_set(NULL));
  double right = sum_of_thirds(m), error = fabs(planted - right);
  CHECK(error > 1e-6 && error < 0.1 * (fabs(right) + 100));
  return finish(m);
}

static void a_narrow_dtype_on_the_way_loses_digits(void **state) {
  mistake raw = {"bucket-by-raw-dtype", "dp_shard=3", 3, 0, 0}, narrow = {"narrow-accumulate", "dp_shard=3", 3, 0, 0};
  run_ranks(3, loses_digits, &raw);
  run_ranks(3, loses_digits, &narrow);
}

static int counts_replicas(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  double planted, right;
  schedule s = full_schedule(1);
  CHECK_OK(run_step(m, &s));
  ad_group all = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_reducer_norm(m->reducer, &all, &planted));
  CHECK_OK(ad_switch_set(NULL));
  CHECK_OK(ad_reducer_norm(m->reducer, &all, &right));
  CHECK(fabs(planted - sqrt(3) * right) <= 1e-12 * planted);
  return finish(m);
}

static void a_norm_that_counts_replicas_shows_their_root(void **state) {
  mistake counted = {"replica-counted-in-norm", "dp_replicate=3 dp_shard=2", 6, 0, 1};
  run_ranks(6, counts_replicas, &counted);
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
      cmocka_unit_test(a_partial_that_is_added_late_is_refused_by_its_type),
      cmocka_unit_test(mistakes_with_shards_show),
      cmocka_unit_test(a_factor_read_in_the_wrong_width_is_exactly_zero),
      cmocka_unit_test(a_sum_added_to_itself_shows_two_where_a_group_has_one_rank),
      cmocka_unit_test(a_narrow_dtype_on_the_way_loses_digits),
      cmocka_unit_test(a_norm_that_counts_replicas_shows_their_root),
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
