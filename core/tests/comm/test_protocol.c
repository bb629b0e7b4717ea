/* Tests ranks whose calls do not match: every rank gets an error within 2 s, all get the same first one, and it names
 * both sides. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "ranks.h"
#include "says.h"

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group all;
  int64_t rank;
  float in[4096], out[4096 * 3];
} world;

static world *open_world(ad_comm *comm, const char *mesh) {
  world *w = calloc(1, sizeof *w);
  CHECK(w != NULL);
  w->comm = comm;
  w->rank = ad_comm_rank(comm);
  CHECK_OK(ad_mesh_create(mesh, &w->mesh));
  w->all = ad_mesh_group(w->mesh, AD_AXES_ALL, w->rank);
  return w;
}

static int close_world(world *w) {
  ad_mesh_destroy(w->mesh);
  free(w);
  return 0;
}

static ad_collective sum_of(world *w, size_t count, const char *site) {
  return (ad_collective){.size = sizeof(ad_collective),
                         .op = AD_ALL_REDUCE,
                         .group = w->all,
                         .in = w->in,
                         .out = w->out,
                         .count = count,
                         .dtype = AD_F32,
                         .site = site};
}

// Checks that the call fails, and that later calls fail with the same message.
static void fails(world *w, const ad_collective *call, ad_status expected) {
  double start = rank_seconds();
  ad_status status = ad_comm_run(w->comm, call);
  // On backend mpi a member that is not concerned may complete the call before the message arrives from another node.
  if (!status && !strcmp(ad_comm_backend(w->comm), "mpi")) status = ad_comm_barrier(w->comm, &w->all);
  CHECK_STATUS(status, expected);
  CHECK(rank_seconds() - start < RANK_HANGS);
  char message[2048];
  snprintf(message, sizeof message, "%s", ad_last_error());
  CHECK_STATUS(ad_comm_run(w->comm, call), expected);
  CHECK(!strcmp(ad_last_error(), message));
  CHECK_STATUS(ad_comm_health(w->comm), expected);
}
/* The same, with the facts of both sides. */
#define fails_on_all(world, call, expected, ...) (fails((world), (call), (expected)), CHECK_FACTS(__VA_ARGS__))

/* ---- calls that do not match ---- */

typedef struct difference {
  const char *facts[4];
  void (*change)(world *w, ad_collective *call);
  int is_large;
} difference;

static void change_op(world *w, ad_collective *call) { call->op = AD_BROADCAST; }
static void change_count(world *w, ad_collective *call) { call->count++; }
static void change_dtype(world *w, ad_collective *call) { call->dtype = AD_I32; }
static void change_accumulate(world *w, ad_collective *call) { call->accumulate = AD_F64; }
static void change_reduction(world *w, ad_collective *call) { call->reduction = AD_MAX; }
static void change_nothing(world *w, ad_collective *call) {}
static void change_ranges(world *w, ad_collective *call) {
  // the tree over leaves adds the second and the third member first, the tree over members does not
  static const int64_t starts[] = {0, 2, 3, 4};
  static const ad_leaf_ranges ranges = {4, starts};
  call->ranges = &ranges;
}

static const difference differences[] = {
    {{"all_reduce(sum)", "10 f32", "member 0"}, change_op, 0},
    {{"all_reduce(sum)", "10 f32", "11 f32"}, change_count, 0},
    {{"all_reduce(sum)", "10 f32", "10 i32"}, change_dtype, 0},
    {{"all_reduce(sum)", "10 f32", "in f64"}, change_accumulate, 0},
    {{"all_reduce(sum)", "all_reduce(max)"}, change_reduction, 0},
    {{"all_reduce(sum)", "10 f32", "two.c:2"}, change_ranges, 0},
    {{"all_reduce(sum)", "4000 f32", "4001 f32"}, change_count, 1},
};

static int differ(ad_comm *comm, void *context) {
  const difference *d = context;
  world *w = open_world(comm, "dp=3");
  ad_collective call = sum_of(w, d->is_large ? 4000 : 10, w->rank == 2 ? "two.c:2" : "others.c:1");
  CHECK_OK(ad_comm_barrier(comm, &w->all));
  if (w->rank == 2) d->change(w, &call);
  fails(w, &call, AD_MISMATCH);
  CHECK_FACTS_ALL(d->facts);
  CHECK_FACTS("others.c:1", "two.c:2", "call 2", "rank 2");
  return close_world(w);
}

static void a_mismatch_is_an_error_on_all_ranks(void **state) {
  for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) run_ranks(3, differ, (void *)&differences[i]);
}

// Rank 2 passes other ranges of leaves than ranks 0 and 1. In a reduce_scatter one hash covers the leaves and the
// counts.
static int differ_in_leaves(ad_comm *comm, void *context) {
  const ad_collective_op *op = context;
  world *w = open_world(comm, "dp=3");
  int64_t starts[] = {0, w->rank == 2 ? 4 : 2, w->rank == 2 ? 6 : 3, w->rank == 2 ? 8 : 4};
  const ad_leaf_ranges ranges = {starts[3], starts};
  ad_collective call = sum_of(w, 10, AD_HERE);
  call.op = *op;
  call.ranges = &ranges;
  fails_on_all(w, &call, AD_MISMATCH, "rank 2", "10 f32");
  return close_world(w);
}

static void a_mismatch_of_leaves_is_an_error_on_all_ranks(void **state) {
  run_ranks(3, differ_in_leaves, &(ad_collective_op){AD_ALL_REDUCE});
  run_ranks(3, differ_in_leaves, &(ad_collective_op){AD_REDUCE_SCATTER});
}

// Rank 2 computes while ranks 0 and 1 disagree, and gets the error at its next call.
static int differ_aside(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=2 tp=2");
  ad_group dp = ad_mesh_group(w->mesh, AD_AXES_DP, w->rank), tp = ad_mesh_group(w->mesh, AD_AXES(AD_TP), w->rank);
  ad_collective call = sum_of(w, w->rank == 2 ? 5 : 6, AD_HERE);
  if (w->rank == 1) usleep(300000);
  call.group = w->rank == 1 ? tp : dp;
  fails_on_all(w, &call, AD_MISMATCH, "rank 0", "rank 2");
  return close_world(w);
}

static void a_rank_of_another_group_learns_at_its_next_call(void **state) { run_ranks(4, differ_aside, NULL); }

static int differ_in_counts(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_collective_op op = *(const ad_collective_op *)context;
  size_t counts[3] = {1, 2, 3}, receive[3] = {w->rank + 1u, w->rank + 1u, w->rank + 1u};
  if (w->rank == 1) counts[2] = op == AD_ALL_TO_ALL ? 3 : 0, counts[0] = 4;
  ad_collective call = {
      .size = sizeof call, .op = op, .group = w->all, .in = w->in, .out = w->out, .counts = counts, .dtype = AD_F32};
  if (op == AD_ALL_TO_ALL) call.receive_counts = receive;
  if (w->rank == 1) usleep(300000);  // the two ranks that agree are both in the call when the difference is found
  const char *nodes = getenv("ADDEND_TEST_NODES"); /* of two nodes each has one rank that speaks for it */
  if (op == AD_ALL_TO_ALL)
    fails_on_all(w, &call, AD_MISMATCH, "rank 1", "4 elements", "rank 0", "receives 1");
  else
    fails_on_all(w, &call, AD_MISMATCH, "rank 1", nodes && *nodes == '2' ? "6 f32" : "ranks 0,2", "6 f32");
  return close_world(w);
}

static void differing_counts_are_a_mismatch(void **state) {
  for (ad_collective_op op = AD_REDUCE_SCATTER; op <= AD_ALL_TO_ALL; op++) run_ranks(3, differ_in_counts, &op);
}

static int send_to_nobody(ad_comm *comm, void *context) {
  world *w = open_world(comm, "pp=3");
  ad_message send = {.peer = 2, .send = w->in, .count = 7}, receive = {.peer = 0, .receive = w->out, .count = 8};
  ad_collective call = {.size = sizeof call, .op = AD_EXCHANGE, .group = w->all, .dtype = AD_F32};
  const int *both = context;
  if (w->rank == 0) call.messages = &send, call.message_count = 1;
  if (w->rank == 2 && *both) call.messages = &receive, call.message_count = 1;
  fails_on_all(w, &call, AD_MISMATCH, "message 1", "rank 0", "rank 2", "7 f32", *both ? "8 f32" : "test_protocol.c");
  return close_world(w);
}

static void a_message_needs_its_other_side(void **state) {
  for (int both = 0; both < 2; both++) run_ranks(3, send_to_nobody, &both);
}

/* ---- circles of waiting ranks ---- */

static int wrong_order(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=2 tp=2");
  ad_group dp = ad_mesh_group(w->mesh, AD_AXES_DP, w->rank), tp = ad_mesh_group(w->mesh, AD_AXES(AD_TP), w->rank);
  ad_collective call = sum_of(w, 3, AD_HERE);
  // Rank 0 waits for 1 on tp, 1 for 3 on dp, 3 for 2 on tp, 2 for 0 on dp.
  call.group = w->rank == 0 || w->rank == 3 ? tp : dp;
  fails_on_all(w, &call, AD_CYCLE, "rank 0", "rank 1", "rank 2", "rank 3");
  CHECK_FACTS("tp", "{0,1}");
  CHECK_FACTS("dp_replicate", "dp_shard", "{1,3}");
  return close_world(w);
}

static int wrong_group(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_mesh *pool;
  CHECK_OK(ad_mesh_create_pool("dp=2", 0, &pool));
  ad_collective call = sum_of(w, 3, AD_HERE);
  if (w->rank == 1) call.group = ad_mesh_group(pool, AD_AXES_ALL, 1);
  fails_on_all(w, &call, AD_CYCLE, "{0,1,2}", "{0,1}");
  ad_mesh_destroy(pool);
  return close_world(w);
}

static int wrong_order_of_three(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_mesh *pools[2], *whole = w->mesh;
  CHECK_OK(ad_mesh_create_pool("dp=2", 0, &pools[0]));
  CHECK_OK(ad_mesh_create_pool("dp=2", 1, &pools[1]));
  // Rank 0 waits for 1 in {0,1}, 1 for 2 in {1,2}, 2 for 0 in {0,1,2}.
  const ad_mesh *mesh = w->rank == 2 ? whole : pools[w->rank];
  ad_collective call = sum_of(w, 3, AD_HERE);
  call.group = ad_mesh_group(mesh, AD_AXES_ALL, w->rank);
  fails_on_all(w, &call, AD_CYCLE, "rank 1", "rank 2");
  for (int i = 0; i < 2; i++) ad_mesh_destroy(pools[i]);
  return close_world(w);
}

static void a_circle_of_waits_is_an_error_that_names_its_ranks(void **state) {
  run_ranks(4, wrong_order, NULL);
  run_ranks(3, wrong_group, NULL);
  run_ranks(3, wrong_order_of_three, NULL);
}

// Ranks that post calls in different orders are no circle, since a post does not wait.
static int posted_in_any_order(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=2 tp=2");
  ad_collective first = sum_of(w, 1024, AD_HERE), second = first;
  second.out = w->out + 1024;
  first.group = ad_mesh_group(w->mesh, w->rank % 3 ? AD_AXES_DP : AD_AXES(AD_TP), w->rank);
  second.group = ad_mesh_group(w->mesh, w->rank % 3 ? AD_AXES(AD_TP) : AD_AXES_DP, w->rank);
  ad_request a, b;
  CHECK_OK(ad_comm_post(comm, &first, &a));
  CHECK_OK(ad_comm_post(comm, &second, &b));
  usleep(300000);
  CHECK_OK(ad_comm_wait(comm, &a));
  CHECK_OK(ad_comm_wait(comm, &b));
  return close_world(w);
}

static void posting_in_any_order_is_no_circle(void **state) { run_ranks(4, posted_in_any_order, NULL); }

// A rank that computes for long while others wait is no error.
static int compute_for_long(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  if (w->rank == 1) usleep(1500000);
  CHECK_OK(ad_comm_barrier(comm, &w->all));
  return close_world(w);
}

static void waiting_for_a_rank_that_computes_is_no_error(void **state) { run_ranks(3, compute_for_long, NULL); }

/* ---- ranks that leave or fail ---- */

static int leave_early(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_collective call = sum_of(w, 3, "stay.c:1");
  if (w->rank != 1) fails_on_all(w, &call, AD_RANK_LEFT, "rank 1", "stay.c:1");
  return close_world(w);
}

static void waiting_for_a_rank_that_returned_is_an_error(void **state) { run_ranks(3, leave_early, NULL); }

// A rank posts its part and leaves: if its buffer is in shared memory or in the slot, the others do not need the rank
// any more.
static int post_and_leave(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  size_t count = *(const size_t *)context;
  float *in, *out;
  CHECK_OK(ad_comm_alloc(comm, count * sizeof *in, (void **)&in));
  CHECK_OK(ad_comm_alloc(comm, count * sizeof *in, (void **)&out));
  for (size_t i = 0; i < count; i++) in[i] = (float)(w->rank + 1);
  ad_collective call = sum_of(w, count, AD_HERE);
  call.in = in;
  call.out = out;
  ad_request request;
  CHECK_OK(ad_comm_post(comm, &call, &request));
  if (w->rank != 1) {
    CHECK_OK(ad_comm_wait(comm, &request));
    for (size_t i = 0; i < count; i++) CHECK(out[i] == 6);
  }
  return close_world(w);
}

static void a_rank_may_leave_after_its_part_is_posted(void **state) {
  for (size_t count = 10; count < 1000000; count *= 1000) run_ranks(3, post_and_leave, &count);
}

static int fail_one(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_collective call = sum_of(w, 3, AD_HERE);
  if (w->rank == 2) {
    usleep(100000);
    ad_comm_fail(comm, AD_NUMBER, "the loss of step 7 is NaN");
  }
  fails_on_all(w, &call, AD_PEER_FAILED, "rank 2", "step 7", "NaN");
  return w->rank == 2 ? 5 : 3;
}

static void a_failing_rank_reports_to_all(void **state) {
  ad_launch_options options = {.size = sizeof options, .ranks = 3, .function = fail_one};
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(ad_launch(&options, &result), AD_PEER_FAILED);
  assert_int_equal(result.status, AD_NUMBER);
  assert_int_equal(result.rank, 2);
  assert_int_equal(result.exit_status, 5);
  assert_string_equal(result.message, "rank 2: the loss of step 7 is NaN");
}

/* ---- the flight recorder ---- */

static int dump(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=2");
  char path[512], line[1024];
  setenv("ADDEND_FLIGHT_DIR", context, 1);
  for (int i = 0; i < 300; i++) CHECK_OK(ad_comm_barrier_at(comm, &w->all, "loop.c:9"));
  ad_collective call = sum_of(w, w->rank ? 3 : 4, "end.c:1");
  fails_on_all(w, &call, AD_MISMATCH, "3 f32", "4 f32");
  snprintf(path, sizeof path, "%s/flight-%d.txt", (const char *)context, (int)w->rank);
  FILE *file = fopen(path, "r");
  CHECK(file != NULL);
  int lines = 0, barriers = 0, last = 0;
  while (fgets(line, sizeof line, file)) {
    lines++;
    line[strcspn(line, "\n")] = 0;
    if (barriers == 0)  // the sentence of one: all would take longer than a rank may live after an error
      barriers += !says_wrong(line, SAYS_FACTS("loop.c:9"), __FILE__, "a barrier in the dump of calls");
    else
      barriers += strstr(line, "loop.c:9") != NULL;
    last = *line == '#' &&
           !says_wrong(line, SAYS_FACTS("#301", "all_reduce(sum)", "end.c:1"), __FILE__, "the last call in the dump");
  }
  fclose(file);
  CHECK(lines == 257 && barriers == 255 && last);
  remove(path);
  return close_world(w);
}

static void the_last_256_calls_are_dumped_with_an_error(void **state) {
  char folder[] = "/tmp/addend-flight-XXXXXX";
  assert_non_null(mkdtemp(folder));
  run_ranks(2, dump, folder);
  assert_int_equal(rmdir(folder), 0);
}

/* ---- calls that match: these tests must not report an error ---- */

static int no_difference(ad_comm *comm, void *context) {
  world *w = open_world(comm, "dp=3");
  ad_collective call = sum_of(w, 10, AD_HERE);
  change_nothing(w, &call);
  CHECK_OK(ad_comm_run(comm, &call));
  return close_world(w);
}

static void equal_calls_match(void **state) { run_ranks(3, no_difference, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_calls_match),
      cmocka_unit_test(a_mismatch_is_an_error_on_all_ranks),
      cmocka_unit_test(a_mismatch_of_leaves_is_an_error_on_all_ranks),
      cmocka_unit_test(a_rank_of_another_group_learns_at_its_next_call),
      cmocka_unit_test(differing_counts_are_a_mismatch),
      cmocka_unit_test(a_message_needs_its_other_side),
      cmocka_unit_test(a_circle_of_waits_is_an_error_that_names_its_ranks),
      cmocka_unit_test(posting_in_any_order_is_no_circle),
      cmocka_unit_test(waiting_for_a_rank_that_computes_is_no_error),
      cmocka_unit_test(waiting_for_a_rank_that_returned_is_an_error),
      cmocka_unit_test(a_rank_may_leave_after_its_part_is_posted),
      cmocka_unit_test(a_failing_rank_reports_to_all),
      cmocka_unit_test(the_last_256_calls_are_dumped_with_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
