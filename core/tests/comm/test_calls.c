/* Tests collective calls with a missing or wrong argument: they are refused by the argument's name, and nothing is
 * changed; and what a comm says of itself: bytes moved and its flight recorder. Calls that differ between ranks are in
 * test_protocol.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ranks.h"
#include "says.h"
#include "comm/shared.h"

#define refused(status, ...) (assert_int_equal((status), AD_INVALID), assert_says(__VA_ARGS__))

static ad_comm *open_alone(void) {
  ad_comm *comm;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  return comm;
}

static void a_comm_that_is_null_is_refused_by_name(void **state) {
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create("dp=1", &mesh), AD_OK);
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, 0);
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER, .group = group};
  ad_request request = {0};
  int done;
  void *memory;
  char *text;
  refused(ad_comm_run(NULL, &barrier), "comm", "NULL");
  refused(ad_comm_post(NULL, &barrier, &request), "comm", "NULL");
  refused(ad_comm_test(NULL, &request, &done), "comm", "NULL");
  refused(ad_comm_wait(NULL, &request), "comm", "NULL");
  refused(ad_comm_barrier(NULL, &group), "comm", "NULL");
  refused(ad_comm_health(NULL), "comm", "ad_comm_health", "NULL");
  refused(ad_comm_alloc(NULL, 8, &memory), "comm", "ad_comm_alloc", "NULL");
  refused(ad_comm_alloc_shared(NULL, &group, 8, &memory), "comm", "ad_comm_alloc_shared_at", "NULL");
  refused(ad_comm_flight_recorder(NULL, &text), "comm", "ad_comm_flight_recorder", "NULL");
  refused(ad_comm_missing(NULL, &text), "comm", "ad_comm_missing", "NULL");
  ad_comm_fail(NULL, AD_SYSTEM, "nobody hears this");
  ad_comm_free(NULL, NULL);
  ad_comm_close(NULL);
  ad_mesh_destroy(mesh);
}

static void a_missing_argument_is_refused_and_the_next_call_works(void **state) {
  ad_comm *comm = open_alone();
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create("dp=1", &mesh), AD_OK);
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, 0), no_mesh = {0};
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER, .group = group},
                astray = {.size = sizeof astray, .op = AD_ALL_REDUCE, .count = 1};
  ad_request request = {0};
  void *memory;
  refused(ad_comm_open(NULL), "out", "NULL");
  refused(ad_comm_open_alone(NULL), "out", "NULL");
  refused(ad_comm_open_dry(0, 1, NULL), "out", "NULL");
  refused(ad_comm_run(comm, NULL), "collective", "NULL");
  refused(ad_comm_run(comm, &astray), "all_reduce");
  refused(ad_comm_post(comm, &barrier, NULL), "out", "NULL");
  refused(ad_comm_test(comm, &request, NULL), "done", "NULL");
  refused(ad_comm_test(comm, NULL, &(int){0}), "request", "NULL");
  refused(ad_comm_wait(comm, NULL), "request", "NULL");
  refused(ad_comm_barrier(comm, NULL), "group", "NULL");
  refused(ad_comm_alloc(comm, 8, NULL), "out", "NULL");
  refused(ad_comm_alloc_shared(comm, NULL, 8, &memory), "group", "NULL");
  refused(ad_comm_alloc_shared(comm, &no_mesh, 8, &memory), "group->mesh", "NULL");
  refused(ad_comm_alloc_shared(comm, &group, 8, NULL), "out", "NULL");
  refused(ad_comm_flight_recorder(comm, NULL), "out", "NULL");
  assert_int_equal(ad_comm_run(comm, &barrier), AD_OK);
  assert_int_equal(ad_comm_barrier_at(comm, &group, NULL), AD_OK);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* Two transfers of one exchange must not overlap if one of them writes: their order is not defined. */
static void what_an_exchange_receives_lands_in_memory_of_its_own(void **state) {
  ad_comm *comm = open_alone();
  ad_mesh *mesh;
  float cells[12] = {1, 2, 3, 4, 5, 6};
  assert_int_equal(ad_mesh_create("dp=1", &mesh), AD_OK);
  ad_message messages[] = {{.send = cells, .count = 4},
                           {.send = cells + 2, .count = 4}, /* two sends may read the same memory */
                           {.receive = cells + 6, .count = 4},
                           {.receive = cells + 5, .count = 4}};
  ad_collective exchange = {.size = sizeof exchange,
                            .op = AD_EXCHANGE,
                            .group = ad_mesh_group(mesh, AD_AXES_ALL, 0),
                            .messages = messages,
                            .message_count = 4,
                            .dtype = AD_F32};
  refused(ad_comm_run(comm, &exchange), "2", "3");
  messages[3].receive = cells + 8;
  messages[1] = (ad_message){.send = cells + 1, .count = 3}; /* this send ends where the receive begins */
  messages[3].count = 3;
  messages[2].receive = cells + 3;
  refused(ad_comm_run(comm, &exchange), "2", "0");
  messages[2].receive = cells + 4;
  assert_int_equal(ad_comm_run(comm, &exchange), AD_OK);
  assert_true(cells[4] == 1 && cells[7] == 4 && cells[8] == 2 && cells[10] == 4);
  messages[0].count = messages[1].count = messages[2].count = messages[3].count = 0;
  messages[2].receive = messages[3].receive = cells;
  assert_int_equal(ad_comm_run(comm, &exchange), AD_OK); /* without a receive nothing is written */
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

/* ---- leaf ranges ---- */

enum { LEAF_NUMEL = 3 };

/* A sum of the leaves 1 to 5 of 8, which one member submits as the three nodes [1], [2, 4) and [4, 6). */
static ad_collective sum_of_leaves(const ad_leaf_ranges *ranges, const float *in, float *out) {
  return (ad_collective){.size = sizeof(ad_collective),
                         .op = AD_ALL_REDUCE,
                         .in = in,
                         .out = out,
                         .count = LEAF_NUMEL,
                         .dtype = AD_F32,
                         .ranges = ranges};
}

static void set_integers(ad_collective *call) { call->dtype = AD_I32; }
static void set_maximum(ad_collective *call) { call->reduction = AD_MAX; }
static void set_gather(ad_collective *call) { call->op = AD_ALL_GATHER; }
static void set_wide_sums(ad_collective *call) { call->accumulate = AD_F64; }
static void set_narrow_output(ad_collective *call) { call->out_dtype = AD_BF16; }
static void set_scale(ad_collective *call) { call->in_scale = call->out_scale = 1; }
static void set_adds(ad_collective *call) { call->op = AD_REDUCE_SCATTER, call->adds = 1; }
static void set_same_buffer(ad_collective *call) { call->out = (float *)(uintptr_t)call->in; }

static void leaves_are_only_summed_as_they_are(void **state) {
  static const struct {
    void (*change)(ad_collective *call);
    const char *fact;
  } changes[] = {{set_integers, "ranges"}, {set_maximum, "ranges"}, {set_gather, "ranges"},
                 {set_wide_sums, "f64"},   {set_scale, "1"},        {set_narrow_output, "bf16"},
                 {set_adds, "adds"},       {set_same_buffer, "out"}};
  ad_comm *comm = open_alone();
  void *memory;
  assert_int_equal(ad_comm_alloc(comm, 6 * LEAF_NUMEL * sizeof(float), &memory), AD_OK);
  float *in = memory, *out = in + 3 * LEAF_NUMEL, elsewhere[3 * LEAF_NUMEL];
  const ad_leaf_ranges ranges = {8, (int64_t[]){1, 6}};
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    ad_collective call = sum_of_leaves(&ranges, in, out);
    changes[i].change(&call);
    refused(ad_comm_run(comm, &call), changes[i].fact);
  }
  ad_collective call = sum_of_leaves(&ranges, elsewhere, out);
  refused(ad_comm_run(comm, &call), "ad_comm_alloc");
  call = sum_of_leaves(&ranges, in, elsewhere);
  refused(ad_comm_run(comm, &call), "ad_comm_alloc");
  for (int i = 0; i < 3 * LEAF_NUMEL; i++) in[i] = (float)i;
  call = sum_of_leaves(&ranges, in, out);
  assert_int_equal(ad_comm_run(comm, &call), AD_OK);
  assert_memory_equal(out, in, 3 * LEAF_NUMEL * sizeof *in);
  ad_comm_close(comm);
}

/* Rank 0 submits two sums, and rank 1 one sum or none. */
static int sum_elsewhere(ad_comm *comm, void *context) {
  const ad_leaf_ranges ranges[] = {{4, (int64_t[]){0, 3, 4}}, {4, (int64_t[]){0, 4, 4}}};
  float in[2 * LEAF_NUMEL] = {0}, out[LEAF_NUMEL];
  for (int i = 0; i < 2; i++) {
    ad_collective call = sum_of_leaves(&ranges[i], in, out);
    CHECK_STATUS(ad_comm_run(comm, &call), AD_INVALID);
    CHECK_FACTS("ad_comm_alloc");
  }
  return 0;
}

static void ranks_with_other_numbers_of_sums_sum_in_comm_memory(void **state) { run_ranks(2, sum_elsewhere, NULL); }

static void ranges_of_leaves_follow_one_another(void **state) {
  static const struct {
    int64_t leaves, starts[2];
    const char *fact;
  } wrong[] = {{0, {0, 0}, "0"},          {-1, {0, 1}, "-1"},
               {8, {-1, 4}, "starts[0]"}, {8, {4, 3}, "starts[1]"},
               {8, {4, 9}, "starts[1]"},  {8, {9, 9}, "starts[0]"},
               {8, {4, 4}, "all_reduce"}, {INT64_MAX, {0, 1}, "9223372036854775807"}};
  ad_comm *comm = open_alone();
  float in[LEAF_NUMEL] = {1, 2, 3}, out[LEAF_NUMEL];
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const ad_leaf_ranges ranges = {wrong[i].leaves, wrong[i].starts};
    ad_collective call = sum_of_leaves(&ranges, in, out);
    refused(ad_comm_run(comm, &call), wrong[i].fact);
  }
  ad_comm *many;
  int64_t starts[601];
  for (int64_t i = 0; i <= 600; i++) starts[i] = 3 * i;  // most ranks have two sums
  assert_int_equal(ad_comm_open_dry(0, 600, &many), AD_OK);
  ad_collective of_many = sum_of_leaves(&(ad_leaf_ranges){1800, starts}, in, out);
  refused(ad_comm_run(many, &of_many), "1024");
  ad_comm_close(many);
  const ad_leaf_ranges no_starts = {8, NULL}, one = {8, (int64_t[]){4, 8}};
  ad_collective call = sum_of_leaves(&no_starts, in, out);
  refused(ad_comm_run(comm, &call), "starts");
  call = sum_of_leaves(&one, in, out);
  assert_int_equal(ad_comm_run(comm, &call), AD_OK);
  assert_memory_equal(out, in, sizeof in);
  ad_comm_close(comm);
}

static int sum_on_rank(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  float in[6] = {1, 2, 3, 4, 5, 6}, out[6];
  char *text;
  CHECK_OK(ad_mesh_create("dp=3", &mesh));
  ad_collective sum = {.size = sizeof sum,
                       .op = AD_ALL_REDUCE,
                       .group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm)),
                       .in = in,
                       .out = out,
                       .count = 6,
                       .dtype = AD_F32,
                       .site = "here.c:7"};
  CHECK(ad_comm_bytes(comm) == 0);
  CHECK_OK(ad_comm_run(comm, &sum));
  CHECK(ad_comm_bytes(comm) == sizeof in + sizeof out);
  CHECK_OK(ad_comm_run(comm, &sum));
  CHECK(ad_comm_bytes(comm) == 2 * (sizeof in + sizeof out));
  CHECK_OK(ad_comm_flight_recorder(comm, &text));
  const char *first = strstr(text, "#1 all_reduce(sum) of 6 f32"), *second = strstr(text, "#2 all_reduce(sum)");
  CHECK(first && second && first < second);
  CHECK(strstr(text, "{0,1,2}") && strstr(text, "at here.c:7"));
  CHECK(!strstr(text, "#3"));
  free(text);
  int64_t own = ad_comm_rank(comm);
  ad_message messages[] = {{.peer = own, .send = in, .count = 5}, {.peer = own, .receive = out, .count = 5}};
  ad_collective exchange = {
      .size = sizeof exchange, .op = AD_EXCHANGE, .group = sum.group, .messages = messages, .message_count = 2};
  exchange.dtype = AD_F32;
  uint64_t before = ad_comm_bytes(comm);
  CHECK_OK(ad_comm_run(comm, &exchange));
  CHECK(ad_comm_bytes(comm) == before + 10 * sizeof *in);
  ad_mesh_destroy(mesh);
  return 0;
}

static void bytes_and_the_flight_recorder_report_every_collective(void **state) { run_ranks(3, sum_on_rank, NULL); }

static int record_many(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  char *text;
  size_t lines = 0;
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  for (int i = 0; i < 300; i++) CHECK_OK(ad_comm_barrier(comm, &group));
  CHECK_OK(ad_comm_flight_recorder(comm, &text));
  for (const char *c = text; *c; c++) lines += *c == '#';
  CHECK(lines == 256);
  CHECK(strstr(text, "#45 ") && !strstr(text, "#44 ") && strstr(text, "#300 "));
  free(text);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_flight_recorder_keeps_the_last_256(void **state) { run_ranks(2, record_many, NULL); }

static int differ_from_two(ad_comm *comm, void *context) {
  atomic_int *posted = context;
  ad_request request;
  ad_mesh *mesh;
  float value[2] = {0};
  CHECK_OK(ad_mesh_create("dp=3", &mesh));
  ad_collective sum = {
      .size = sizeof sum, .op = AD_ALL_REDUCE, .in = value, .out = value, .count = 1, .dtype = AD_F32, .site = "here"};
  sum.group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_comm_barrier(comm, &sum.group));
  if (ad_comm_rank(comm) == 1) {
    sum.count = 2;
    while (atomic_load(posted) < 2) usleep(1000);
    CHECK_STATUS(ad_comm_run(comm, &sum), AD_MISMATCH);
  } else {
    CHECK_OK(ad_comm_post(comm, &sum, &request));
    atomic_fetch_add(posted, 1);
    CHECK_STATUS(ad_comm_wait(comm, &request), AD_MISMATCH);
  }
  CHECK_SAYS("0", "2", "all_reduce", "1", "f32");
  CHECK_SAYS("rank 1", "all_reduce", "2", "f32");
  ad_mesh_destroy(mesh);
  return 0;
}

static void one_rank_calls_and_several_call(void **state) {
  atomic_int *posted = mmap(NULL, sizeof *posted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(posted != MAP_FAILED);
  run_ranks(3, differ_from_two, posted);
  munmap(posted, sizeof *posted);
}

static int fail_and_call_again(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  float value = 0;
  ad_collective sum = {.size = sizeof sum,
                       .op = AD_ALL_REDUCE,
                       .group = group,
                       .in = &value,
                       .out = &value,
                       .count = 1,
                       .dtype = AD_F32};
  if (ad_comm_rank(comm)) sum.count = 0;
  CHECK_STATUS(ad_comm_run(comm, &sum), AD_MISMATCH);
  CHECK_LISTED();
  CHECK_STATUS(ad_comm_barrier(comm, &group), AD_MISMATCH);
  CHECK_LISTED();
  ad_mesh_destroy(mesh);
  return 0;
}

static void an_error_says_what_became_of_the_comm(void **state) { run_ranks(2, fail_and_call_again, NULL); }

/* Backend hostile poisons the first cache line of memory that is freed; here the test does. */
static void memory_of_any_size_has_a_line_on_backend_dry(void **state) {
  ad_comm *comm;
  void *memory[3];
  assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
  for (size_t i = 0; i < 3; i++) assert_int_equal(ad_comm_alloc(comm, i * 8, &memory[i]), AD_OK);
  for (size_t i = 0; i < 3; i++) memset(memory[i], 0xff, 64);
  for (size_t i = 0; i < 3; i++) ad_comm_free(comm, memory[i]);
  ad_comm_close(comm);
}

/* Backend dry stays dry with ADDEND_HOSTILE set: it has no data that could be poisoned. */
static void backend_dry_is_never_hostile(void **state) {
  ad_comm *comm;
  setenv("ADDEND_HOSTILE", "3", 1);
  assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
  assert_string_equal(ad_comm_backend(comm), "dry");
  ad_comm_close(comm);
  unsetenv("ADDEND_HOSTILE");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_comm_that_is_null_is_refused_by_name),
      cmocka_unit_test(a_missing_argument_is_refused_and_the_next_call_works),
      cmocka_unit_test(what_an_exchange_receives_lands_in_memory_of_its_own),
      cmocka_unit_test(leaves_are_only_summed_as_they_are),
      cmocka_unit_test(ranks_with_other_numbers_of_sums_sum_in_comm_memory),
      cmocka_unit_test(ranges_of_leaves_follow_one_another),
      cmocka_unit_test(bytes_and_the_flight_recorder_report_every_collective),
      cmocka_unit_test(the_flight_recorder_keeps_the_last_256),
      cmocka_unit_test(one_rank_calls_and_several_call),
      cmocka_unit_test(an_error_says_what_became_of_the_comm),
      cmocka_unit_test(memory_of_any_size_has_a_line_on_backend_dry),
      cmocka_unit_test(backend_dry_is_never_hostile),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
