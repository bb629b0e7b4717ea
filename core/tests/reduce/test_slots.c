/* Tests buckets that use the same memory slots one after another: the same sums from less memory, and a clear message
 * if memory is not a parameter's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "gradients.h"
#include "base/error.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  schedule steps;
} setting;

static const char *const meshes[] = {"dp_replicate=1 dp_shard=1", "dp_replicate=3 dp_shard=2", "dp_shard=5",
                                     "dp_shard=2 tp=2"};
static const int64_t sizes[] = {1, 6, 5, 4};
enum { MESHES = sizeof sizes / sizeof *sizes };

static void create(model *m, size_t bucket_bytes, int reuses, size_t window) {
  ad_reducer_options options = {
      .size = sizeof options, .bucket_bytes = bucket_bytes, .reuses = reuses, .window = window};
  shard_storage(m);
  CHECK_OK(ad_reducer_create(m->comm, m->params, PARAMS, &options, &m->reducer));
}

static schedule sent_schedule(int microbatches, ad_sync earlier) {
  schedule s = full_schedule(microbatches);
  for (int i = 0; i + 1 < microbatches; i++) s.sync[i] = earlier;
  return s;
}

/* Runs three steps each with tiny buckets, buckets of a few parameters, and one bucket. Sums and their order are those
 * of buckets with their own memory, so the bits are the same. */
static int sum_steps(ad_comm *comm, void *context) {
  const setting *s = context;
  static const size_t bucket_bytes[] = {1, 200, 0};
  static const ad_precision_policy narrow = {.reduce = AD_F16};
  for (int dtype = AD_F64; dtype <= AD_F32; dtype++) {
    for (int k = 0; k < 6; k++) {
      model own, reused;
      open_model(&own, comm, s->mesh, (ad_dtype)dtype);
      open_model(&reused, comm, s->mesh, (ad_dtype)dtype);
      for (int i = 0; i < PARAMS && k >= 3; i++)
        own.params[i].policy.reduce = reused.params[i].policy.reduce = narrow.reduce;
      create(&own, bucket_bytes[k % 3], 0, 0);
      create(&reused, bucket_bytes[k % 3], 1, 0);
      for (int step = 0; step < 3; step++) {
        for (int m = 0; m < s->steps.microbatches; m++) {
          for (int which = 0; which < 2; which++) {
            model *at = which ? &reused : &own;
            CHECK_OK(ad_reducer_begin_microbatch(at->reducer, s->steps.sync[m]));
            for (int p = PARAMS - 1; p >= 0; p--)
              if (s->steps.present[m] >> p & 1) add_gradient(at, p, m);
            CHECK_OK(ad_reducer_end_microbatch(at->reducer));
          }
        }
        CHECK_OK(ad_reducer_finish(own.reducer));
        CHECK_OK(ad_reducer_finish(reused.reducer));
        for (size_t p = 0; p < PARAMS; p++) {
          const ad_array *a = ad_reducer_gradient(own.reducer, p), *b = ad_reducer_gradient(reused.reducer, p);
          CHECK(ad_array_bytes(a) == ad_array_bytes(b) && !memcmp(a->data, b->data, ad_array_bytes(a)));
        }
        if (k < 3) CHECK(sums_are(&reused, &s->steps, 1));
      }
      close_model(&own);
      close_model(&reused);
    }
  }
  return 0;
}

static void on_every_mesh(int (*body)(ad_comm *comm, void *context), const schedule *steps) {
  for (int i = 0; i < MESHES; i++) {
    setting s = {meshes[i], sizes[i], *steps};
    run_ranks(s.ranks, body, &s);
  }
}

static void sums_have_the_bits_of_memory_of_their_own(void **state) {
  for (int sync = AD_SYNC_SHARD; sync <= AD_SYNC_ALL; sync++) {
    for (int microbatches = 1; microbatches <= 5; microbatches += 2) {
      schedule steps = sent_schedule(microbatches, (ad_sync)sync);
      on_every_mesh(sum_steps, &steps);
    }
  }
}

static void an_absent_gradient_takes_no_memory_of_another(void **state) {
  schedule steps = sent_schedule(3, AD_SYNC_SHARD);
  steps.present[0] = 0x1b;
  steps.present[1] = 0x0e;
  steps.present[2] = 0x11;
  on_every_mesh(sum_steps, &steps);
}

/* Ranks submit gradients in different orders, by writing in place or by copying: no rank waits for another. */
static int any_order(ad_comm *comm, void *context) {
  const setting *s = context;
  model m;
  open_model(&m, comm, s->mesh, AD_F32);
  create(&m, 1, 1, 0);
  for (int step = 0; step < 3; step++) {
    CHECK_OK(run_step(&m, &s->steps));
    CHECK(sums_are(&m, &s->steps, 1));
  }
  close_model(&m);
  return 0;
}

static void orders_of_their_own_take_more_memory_and_end(void **state) {
  schedule steps = sent_schedule(3, AD_SYNC_SHARD);
  on_every_mesh(any_order, &steps);
  setenv("ADDEND_HOSTILE", "5", 1);
  on_every_mesh(any_order, &steps);
  on_every_mesh(sum_steps, &steps);
  unsetenv("ADDEND_HOSTILE");
}

/* ---- how much memory slots take ---- */

enum { MANY = 12, ROWS = 6, WIDTH = 50 };

/* Creates a reducer of `count` parameters of one size, one in each bucket, from the last parameter to the first. */
static void open_some(ad_comm *comm, ad_mesh *mesh, const ad_reducer_options *given, int lasting, size_t count,
                      ad_reducer **out) {
  static const char *const names[MANY] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
  ad_param_spec specs[MANY];
  for (int i = 0; i < MANY; i++) {
    specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                               .name = names[i],
                               .shape = {2, {ROWS, WIDTH}},
                               .layout = ad_layout_all(mesh, AD_R)};
    specs[i].storage = specs[i].layout;
    ad_layout_set(&specs[i].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  }
  specs[0].lasting = lasting;
  ad_reducer_options options = *given;
  options.size = sizeof options;
  options.bucket_bytes = ROWS * WIDTH * sizeof(float);
  CHECK_OK(ad_reducer_create(comm, specs, count, &options, out));
}

static void open_with(ad_comm *comm, ad_mesh *mesh, const ad_reducer_options *given, int lasting, ad_reducer **out) {
  open_some(comm, mesh, given, lasting, MANY, out);
}

static void open_many(ad_comm *comm, ad_mesh *mesh, int reuses, size_t window, ad_reducer **out) {
  open_with(comm, mesh, &(ad_reducer_options){.reuses = reuses, .window = window}, 0, out);
}

static void step_in_order(ad_reducer *reducer, const int *order) {
  CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  for (int k = 0; k < MANY; k++) {
    ad_array target;
    int adds;
    CHECK_OK(ad_reducer_target(reducer, (size_t)order[k], &target, &adds));
    if (target.data) memset(target.data, 0, ad_array_bytes(&target));
    if (k + 1 == MANY || order[k] != order[k + 1]) CHECK_OK(ad_reducer_add(reducer, (size_t)order[k], &target));
  }
  CHECK_OK(ad_reducer_end_microbatch(reducer));
  CHECK_OK(ad_reducer_finish(reducer));
}

static const int backwards[MANY] = {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};

static void buckets_of_a_window_hold_two(void **state) {
  size_t bucket = ROWS * WIDTH * sizeof(float), sums = MANY * bucket / 2;
  ad_comm *comm;
  ad_mesh *mesh;
  CHECK_OK(ad_comm_open_dry(0, 2, &comm));
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  for (size_t window = 0; window <= 4; window++) {
    ad_reducer *own, *reused;
    open_many(comm, mesh, 0, 0, &own);
    open_many(comm, mesh, 1, window, &reused);
    for (int step = 0; step < 3; step++) {
      step_in_order(own, backwards);
      step_in_order(reused, backwards);
      assert_int_equal(ad_reducer_bytes(own), MANY * bucket + sums);
      assert_int_equal(ad_reducer_sum_bytes(reused), sums);
      assert_int_equal(ad_reducer_bytes(reused), (window ? window : 2) * bucket + sums);
      assert_int_equal(ad_reducer_window_needed(reused, 0), 0);
    }
    assert_int_equal(reused->windows[0].count, window ? window : 2);
    for (size_t i = 0; i < reused->windows[0].count; i++) /* planned, so that any machine can plan any model */
      assert_null(reused->windows[0].slots[i].memory);
    ad_reducer_destroy(own);
    ad_reducer_destroy(reused);
  }
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* At least two slots are needed, so slots save nothing for two buckets of one size. */
static void buckets_that_would_save_nothing_have_memory_of_their_own(void **state) {
  size_t bucket = ROWS * WIDTH * sizeof(float);
  ad_comm *comm;
  ad_mesh *mesh;
  CHECK_OK(ad_comm_open_dry(0, 2, &comm));
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  for (size_t count = 1; count <= 3; count++) {
    ad_reducer *reducer;
    open_some(comm, mesh, &(ad_reducer_options){.reuses = 1}, 0, count, &reducer);
    size_t own = count < 3 ? count * bucket : 0; /* slots are allocated when they are first used */
    for (size_t i = 0; i < count; i++) assert_int_equal(ad_reducer_bucket(reducer, i).window, count < 3 ? -1 : 0);
    assert_int_equal(ad_reducer_bytes(reducer) - ad_reducer_sum_bytes(reducer), own);
    ad_reducer_destroy(reducer);
  }
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* The gradient of `a` is begun first and completed last, as the gradient of an embedding that is also the head. */
typedef struct first_job {
  int is_dry, lasting; /* lasting: the reducer knows that this gradient lasts */
} first_job;

static int first_and_last(ad_comm *comm, void *context) {
  const first_job *job = context;
  int tied[MANY + 1] = {0, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  size_t bucket = ROWS * WIDTH * sizeof(float);
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  for (size_t window = 0; window <= 2; window++) {
    ad_reducer *reducer;
    ad_status status = AD_OK;
    open_with(comm, mesh, &(ad_reducer_options){.reuses = 1, .window = window}, job->lasting, &reducer);
    CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
    for (int k = 0; k <= MANY && !status; k++) {
      ad_array target;
      int adds;
      status = ad_reducer_target(reducer, (size_t)tied[k], &target, &adds);
      if (status) break;
      if (target.data) memset(target.data, 0, ad_array_bytes(&target));
      if (k) CHECK_OK(ad_reducer_add(reducer, (size_t)tied[k], &target));
    }
    int is_small = window == 1 && !job->lasting;
    if (is_small && !job->is_dry) {
      CHECK(status == AD_INVALID);
      CHECK_SAYS("l", "a", "1 buckets", "window 1", "2");
    } else {
      CHECK_OK(status);
      CHECK_OK(ad_reducer_end_microbatch(reducer));
      CHECK_OK(ad_reducer_finish(reducer));
      size_t slots = window ? window : 2, open = 1;
      if (window && !job->lasting) slots = 1; /* `a` holds the other of the two slots that exist or are needed */
      CHECK(ad_reducer_window_needed(reducer, 0) == (is_small ? 2 : 0));
      CHECK(ad_reducer_bytes(reducer) - ad_reducer_sum_bytes(reducer) == (slots + open) * bucket);
      ad_bucket_plan last = ad_reducer_bucket(reducer, MANY - 1);
      CHECK(last.lasting == job->lasting && last.window == (job->lasting ? -1 : 0));
      CHECK(last.overtaken == (job->lasting ? 0 : MANY - 1));
    }
    ad_reducer_destroy(reducer);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void window_of_one_that_is_open(int lasting) {
  first_job job = {.lasting = lasting};
  run_ranks(2, first_and_last, &job);
  ad_comm *comm;
  job.is_dry = 1;
  CHECK_OK(ad_comm_open_dry(0, 2, &comm));
  assert_int_equal(first_and_last(comm, &job), 0);
  ad_comm_close(comm);
}

static void a_window_that_is_too_small_is_reported_with_one_that_fits(void **state) { window_of_one_that_is_open(0); }

static void a_gradient_that_is_known_to_last_has_memory_of_its_own(void **state) { window_of_one_that_is_open(1); }

/* ---- calls in a wrong order ---- */

static int misuse(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  ad_array first, target;
  int adds;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  open_many(comm, mesh, 1, 0, &reducer);
  CHECK(ad_reducer_begin_microbatch(reducer, AD_SYNC_NONE) == AD_INVALID);
  CHECK_SAYS("reuses");
  CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_SHARD));
  for (size_t p = MANY; p-- > 0;) {
    CHECK_OK(ad_reducer_target(reducer, p, &target, &adds));
    if (p == MANY - 1) first = target;
    memset(target.data, 0, ad_array_bytes(&target));
    CHECK_OK(ad_reducer_add(reducer, p, &target));
  }
  CHECK_OK(ad_reducer_end_microbatch(reducer));
  CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  CHECK(ad_reducer_add(reducer, MANY - 1, &first) == AD_INVALID);
  CHECK_SAYS("l");
  CHECK_OK(ad_reducer_target(reducer, MANY - 1, &target, &adds));
  memset(target.data, 0, ad_array_bytes(&target));
  CHECK_OK(ad_reducer_add(reducer, MANY - 1, &target));
  CHECK_OK(ad_reducer_end_microbatch(reducer));
  CHECK_OK(ad_reducer_finish(reducer));
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

static void what_is_no_longer_a_target_is_refused(void **state) { run_ranks(2, misuse, NULL); }

/* Backend hostile: a read of a gradient's memory after its bucket was sent gives NaN. */
static int read_late(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  ad_array target;
  const float *late = NULL;
  int adds;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  open_many(comm, mesh, 1, 0, &reducer);
  CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  for (size_t p = MANY; p-- > 0;) {
    CHECK_OK(ad_reducer_target(reducer, p, &target, &adds));
    if (p == MANY - 3) CHECK(late && target.data == late && isnan(late[7]));
    if (p == MANY - 1) late = target.data;
    memset(target.data, 0, ad_array_bytes(&target));
    CHECK_OK(ad_reducer_add(reducer, p, &target));
  }
  CHECK_OK(ad_reducer_end_microbatch(reducer));
  CHECK_OK(ad_reducer_finish(reducer));
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

static void backend_hostile_poisons_what_was_sent(void **state) {
  setenv("ADDEND_HOSTILE", "3", 1);
  run_ranks(2, read_late, NULL);
  unsetenv("ADDEND_HOSTILE");
}

/* A bucket keeps the largest number of other buckets of its window that were begun between its claim and its send,
 * because this number says how many slots are right. */
static void the_largest_number_that_overtook_is_kept(void **state) {
  static const struct {
    uint64_t claims, claim;
    size_t overtaken;
  } sends[] = {{1, 0, 0}, {5, 1, 3}, {7, 5, 3}, {8, 7, 3}, {12, 8, 3}, {13, 8, 4}, {14, 13, 4}};
  ad_window window = {.count = 1};
  ad_bucket bucket = {.turn = {.window = 0}}, own = {.turn = {.window = -1}};
  ad_reducer reducer = {.windows = &window};
  for (size_t i = 0; i < sizeof sends / sizeof *sends; i++) {
    window.claims = sends[i].claims;
    bucket.turn.claim = sends[i].claim;
    ad_slot_send_off(&reducer, &bucket);
    assert_int_equal(bucket.turn.overtaken, sends[i].overtaken);
    assert_int_equal(bucket.turn.launch, i);
  }
  ad_slot_send_off(&reducer, &own);
  assert_int_equal(own.turn.overtaken, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_have_the_bits_of_memory_of_their_own),
      cmocka_unit_test(an_absent_gradient_takes_no_memory_of_another),
      cmocka_unit_test(orders_of_their_own_take_more_memory_and_end),
      cmocka_unit_test(buckets_of_a_window_hold_two),
      cmocka_unit_test(buckets_that_would_save_nothing_have_memory_of_their_own),
      cmocka_unit_test(a_window_that_is_too_small_is_reported_with_one_that_fits),
      cmocka_unit_test(a_gradient_that_is_known_to_last_has_memory_of_its_own),
      cmocka_unit_test(what_is_no_longer_a_target_is_refused),
      cmocka_unit_test(backend_hostile_poisons_what_was_sent),
      cmocka_unit_test(the_largest_number_that_overtook_is_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
