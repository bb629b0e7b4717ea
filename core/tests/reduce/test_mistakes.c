/* Tests that each known mistake that can be planted in the reducer has an effect: a gradient wrong by the mistake's
 * factor, or ranks whose calls do not match. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "allocations.h"
#include "gradients.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "reduce/count.h"
#include "reduce/mistakes.h"
#include "says.h"

typedef struct mistake {
  const char *name, *mesh;
  int64_t ranks;
  size_t bucket_bytes;
  int shards, reuses;
} mistake;

static ad_mistake_scene scene;

static const ad_mistake *find(const char *name) {
  size_t count;
  const ad_mistake *list = ad_reduce_mistakes(&count);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(list[i].name, name)) return &list[i];
  CHECK(!"a record of that name");
  return NULL;
}

/* For each known mistake of the reducer, whether some test planted it. */
enum { RECORDS_MAX = 64 };
static int was_planted[RECORDS_MAX];

static void run_planted(mistake *planted, int (*function)(ad_comm *comm, void *context)) {
  size_t count;
  const ad_mistake *list = ad_reduce_mistakes(&count);
  was_planted[find(planted->name) - list] = 1;
  run_ranks(planted->ranks, function, planted);
}

static model *prepare(ad_comm *comm, const mistake *planted) {
  static model m;
  open_model(&m, comm, planted->mesh, AD_F64);
  if (planted->shards) shard_storage(&m);
  ad_reducer_options options = {
      .size = sizeof options, .bucket_bytes = planted->bucket_bytes, .reuses = planted->reuses};
  CHECK_OK(ad_reducer_create(comm, m.params, PARAMS, &options, &m.reducer));
  scene = (ad_mistake_scene){.rank = ad_comm_rank(comm), .microbatches = 2};
  ad_mistake_plant(find(planted->name), &scene);
  return &m;
}

/* Passes the seam at which a run tells that a step ends. */
static void end_step(void) { ad_seam_pass(AD_SEAM_GRADIENTS, NULL); }

static int finish(model *m) {
  ad_seams_clear();
  close_model(m);
  return 0;
}

static int shows_factor(ad_comm *comm, const mistake *planted, double factor) {
  model *m = prepare(comm, planted);
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
  mistake mistakes[] = {
      {"last-microbatch-only", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"last-microbatch-only", "dp_shard=1", 1, 0, 0, 0},
      {"first-step-unsynchronised", "dp_shard=5", 5, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) run_planted(&mistakes[i], is_wrong);
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
  mistake first = {"first-step-unsynchronised", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0};
  run_planted(&first, recovers);
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
  mistake mistakes[] = {
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 64, 0, 0},
      {"bucket-order", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"bucket-size", "dp_replicate=3 dp_shard=1", 3, 0, 0, 0},
      {"bucket-size", "dp_shard=5", 5, 64, 0, 0},
      {"bucket-order", "dp_shard=2 tp=2", 4, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) run_planted(&mistakes[i], ends_in_mismatch);
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
  mistake late = {"partial-after-all-reduce", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0};
  run_planted(&late, is_refused_by_type);
}

/* With the mistake the shard of some rank is wrong; a rank whose shard is empty or whole may be right, and may have
 * nothing to change. */
static int is_wrong_in_shards(ad_comm *comm, void *context) {
  model *m = prepare(comm, context);
  schedule s = shard_schedule(3);
  CHECK_OK(run_step(m, &s));
  int64_t any[] = {!sums_are(m, &s, 1), scene.fired};
  ad_seams_clear();
  ad_group all = ad_mesh_group(m->mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = all, .in = any, .out = any, .count = 2, .dtype = AD_I64};
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(any[0] > 0 && any[1] > 0);
  return finish(m);
}

static void mistakes_with_shards_show(void **state) {
  mistake mistakes[] = {
      {"both-factors-when-one-runs", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"bucket-reused-early", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"bucket-reused-early", "dp_shard=1", 1, 64, 1, 0},
      {"slot-filled-again", "dp_replicate=3 dp_shard=2", 6, 64, 1, 1},
      {"slot-filled-again", "dp_shard=5", 5, 64, 1, 1},
      {"padding-counted", "dp_replicate=1 dp_shard=2", 2, 0, 1, 0},
      {"padding-counted", "dp_shard=3", 3, 0, 1, 0},
      {"last-microbatch-only", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
      {"first-step-unsynchronised", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) run_planted(&mistakes[i], is_wrong_in_shards);
}

static int zeroes(ad_comm *comm, void *context) { return shows_factor(comm, context, 0); }

static void a_factor_read_in_the_wrong_width_is_exactly_zero(void **state) {
  mistake wide = {"factor-wrong-width", "dp_replicate=3 dp_shard=2", 6, 0, 1, 0};
  run_planted(&wide, zeroes);
}

static void a_sum_added_to_itself_shows_two_where_a_group_has_one_rank(void **state) {
  mistake alone = {"add-to-itself-in-group-of-one", "dp_replicate=1 dp_shard=3", 3, 0, 1, 0};
  run_planted(&alone, doubles);
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
  double planted = sum_of_thirds(m);
  CHECK(scene.fired);
  ad_seams_clear();
  double right = sum_of_thirds(m), error = fabs(planted - right);
  CHECK(error > 1e-6 && error < 0.1 * (fabs(right) + 100));
  return finish(m);
}

static void a_narrow_dtype_on_the_way_loses_digits(void **state) {
  mistake raw = {"bucket-by-raw-dtype", "dp_shard=3", 3, 0, 0, 0},
          narrow = {"narrow-accumulate", "dp_shard=3", 3, 0, 0, 0};
  run_planted(&raw, loses_digits);
  run_planted(&narrow, loses_digits);
}

/* Rank 0 hands in f32 gradients and the other ranks bf16 ones, under a contract that brings both to bf16. */
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

/* A rank's bucket follows from the contract; with the mistake it follows from the dtype that the
 * rank's backward left. */
static int goes_by_own_bucket(ad_comm *comm, void *context) {
  const mistake *planted = context;
  for (int is_planted = 0; is_planted < 2; is_planted++) {
    static model m;
    schedule s = full_schedule(1);
    open_model(&m, comm, planted->mesh, AD_BF16);
    m.dtype = AD_F32; /* dtype of the sums */
    scene = (ad_mistake_scene){.rank = ad_comm_rank(comm)};
    if (is_planted && !ad_comm_rank(comm)) ad_mistake_plant(find(planted->name), &scene);
    create_reducer(&m, 0);
    ad_seams_clear();
    CHECK(scene.fired == (is_planted && !ad_comm_rank(comm)));
    ad_status status = step_of_mixed(&m);
    CHECK_STATUS(status, is_planted ? AD_MISMATCH : AD_OK);
    if (is_planted) CHECK_SAYS("f32");
    if (is_planted) CHECK_SAYS("bf16");
    CHECK(is_planted || sums_are(&m, &s, 1));
    close_model(&m);
  }
  return 0;
}

static void ranks_whose_gradients_differ_in_width_are_stopped_where_that_chooses_buckets(void **state) {
  mistake wide = {"bucket-by-wide-gradient", "dp_shard=3", 3, 0, 0, 0};
  run_planted(&wide, goes_by_own_bucket);
}

/* Passes the divisor seam as a tape does: the step has 9 rows, 3 in the first microbatch and 6 in the second. */
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
      ad_seam_pass(AD_SEAM_PHASE, &microbatch);
      CHECK_OK(ad_reducer_begin_microbatch(m->reducer, microbatch ? AD_SYNC_ALL : AD_SYNC_NONE));
      ad_seam_pass(AD_SEAM_DIVISOR, &divisor);
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
  mistake means = {"mean-of-microbatch-means", "dp_shard=3", 3, 0, 0, 0};
  run_planted(&means, divides_by_own_count);
}

/* This test runs last. */
static void every_record_of_the_list_was_planted(void **state) {
  size_t count;
  const ad_mistake *list = ad_reduce_mistakes(&count);
  assert_true(count <= RECORDS_MAX);
  for (size_t i = 0; i < count; i++)
    if (!was_planted[i]) fail_msg("%s is planted by no test", list[i].name);
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
  ad_seams_clear();
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
    assert_true(tells_allocation(n, status));
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
      cmocka_unit_test(mistakes_with_shards_show),
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
      cmocka_unit_test(every_record_of_the_list_was_planted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
