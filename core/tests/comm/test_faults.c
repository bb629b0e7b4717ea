/* Lets every allocation fail once: in opening a comm, making channels, calls with large tables, and staging. Each time
 * the call fails with AD_MEMORY, nothing leaks (the harness looks), and the same call works afterwards. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "allocations.h"
#include "base/memory.h"
#include "ranks.h"
#include "says.h"

enum { COUNT = 40000, MESSAGES = 600, TRIES = 60 };

// Everything that a rank does; returns the first failure.
static ad_status use(ad_comm *comm, const ad_mesh *mesh, const float *in, float *out) {
  static ad_message messages[2 * MESSAGES];  // the table of so many messages does not fit into a slot
  void *memory;
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective sum = {
      .size = sizeof sum, .op = AD_ALL_REDUCE, .group = group, .in = in, .out = out, .count = COUNT, .dtype = AD_F32};
  AD_TRY(ad_comm_alloc(comm, 1000, &memory));
  ad_comm_free(comm, memory);
  AD_TRY(ad_comm_run(comm, &sum));
  for (size_t i = 0; i < MESSAGES; i++) {
    messages[i] = (ad_message){.send = in + i, .count = 1};
    messages[MESSAGES + i] = (ad_message){.receive = out + i, .count = 1};
  }
  ad_collective exchange = {
      .size = sizeof exchange, .op = AD_EXCHANGE, .group = group, .dtype = AD_F32, .messages = messages};
  exchange.message_count = 2 * MESSAGES;
  return ad_comm_run(comm, &exchange);
}

static ad_status open_use_close(const ad_mesh *mesh, const float *in, float *out) {
  ad_comm *comm;
  AD_TRY(ad_comm_open_alone(&comm));
  ad_status status = use(comm, mesh, in, out);
  ad_comm_close(comm);
  return status;
}

static int fail_each_allocation(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  float *in = calloc(COUNT, sizeof *in), *out = calloc(COUNT, sizeof *out);
  ad_status status = AD_MEMORY;
  CHECK(in && out);
  CHECK_OK(ad_mesh_create("dp=1", &mesh));
  long n = 1;
  for (; status && n < TRIES; n++) {
    ad_memory_fail_at(n);
    status = open_use_close(mesh, in, out);
    CHECK(reports_allocation(n, status));
  }
  CHECK(!status && n > 6);
  ad_mesh_destroy(mesh);
  free(in);
  free(out);
  return 0;
}

static void a_failed_allocation_leaves_nothing_behind(void **state) { run_ranks(1, fail_each_allocation, NULL); }

// One rank of two runs out of memory and reports it: the other rank does not hang.
static int fail_on_one(ad_comm *comm, void *context) {
  long n = *(const long *)context;
  ad_mesh *mesh;
  float *in = calloc(COUNT, sizeof *in), *out = calloc(COUNT, sizeof *out);
  CHECK(in && out);
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_collective sum = {
      .size = sizeof sum, .op = AD_ALL_REDUCE, .group = group, .in = in, .out = out, .count = COUNT, .dtype = AD_F32};
  if (ad_comm_rank(comm) == 1) ad_memory_fail_at(n);
  ad_status status = ad_comm_run(comm, &sum);
  ad_memory_fail_at(0);
  if (status == AD_MEMORY) ad_comm_fail(comm, status, ad_last_error());
  CHECK(!status || (status == AD_MEMORY) == (ad_comm_rank(comm) == 1));
  if (status && ad_comm_rank(comm) == 0) {
    CHECK(status == AD_PEER_FAILED);
    CHECK_SAYS("rank 1");
  }
  ad_mesh_destroy(mesh);
  free(in);
  free(out);
  return 0;
}

static void ranks_learn_that_one_ran_out_of_memory(void **state) {
  for (long n = 1; n < 8; n++) run_ranks(2, fail_on_one, &n);
}

static int ask_for_too_much(ad_comm *comm, void *context) {
  void *memory = NULL, *small;
  CHECK_STATUS(ad_comm_alloc(comm, SIZE_MAX / 2, &memory), AD_MEMORY);
  CHECK_STATUS(ad_comm_alloc(comm, (size_t)1 << 50, &memory), AD_MEMORY);
  CHECK(!memory);
  CHECK_OK(ad_comm_alloc(comm, 100, &small));
  for (int i = 0; i < 100; i++) CHECK(((char *)small)[i] == 0);
  memset(small, 1, 100);
  ad_comm_free(comm, small);
  CHECK_OK(ad_comm_alloc(comm, 100, &small));
  CHECK((uintptr_t)small % 64 == 0);
  for (int i = 0; i < 100; i++) CHECK(((char *)small)[i] == 0);
  ad_comm_free(comm, &memory);  // memory that the comm did not allocate is left alone
  return 0;
}

static void more_memory_than_there_is_is_an_error(void **state) { run_ranks(2, ask_for_too_much, NULL); }

static int call_wrongly(ad_comm *comm, void *context) {
  ad_mesh *mesh, *too_large, *other;
  float in[8] = {0}, out[8];
  size_t counts[2] = {1, SIZE_MAX};
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  CHECK_OK(ad_mesh_create("dp=3", &too_large));
  CHECK_OK(ad_mesh_create_pool("dp=1", 1 - ad_comm_rank(comm), &other));
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, 0);
  const ad_collective good = {
      .size = sizeof good, .op = AD_ALL_REDUCE, .group = group, .in = in, .out = out, .count = 8, .dtype = AD_F32};
  ad_collective bad[13];
  int n = 0;
  for (int i = 0; i < 13; i++) bad[i] = good;
  bad[n++].op = (ad_collective_op)77;
  bad[n++].dtype = (ad_dtype)(AD_BOOL + 1);
  bad[n++].accumulate = AD_BF16;
  bad[n++].reduction = (ad_reduction)(AD_BIT_XOR + 1);
  bad[n++].in = NULL;
  bad[n++].out = in + 1;
  bad[n++].group = ad_mesh_group(too_large, AD_AXES_ALL, 0);
  bad[n++].group = ad_mesh_group(other, AD_AXES_ALL, 1 - ad_comm_rank(comm));
  bad[n++].counts = counts;
  bad[n].op = AD_BROADCAST;
  bad[n++].root = 2;
  bad[n].op = AD_REDUCE_SCATTER;
  bad[n++].counts = counts;
  bad[n++].group.base = 1;
  // The group of the other rank's mesh, which does not have this rank.
  bad[n].group.axes = 0;
  bad[n].group.base = ad_comm_rank(comm);
  bad[n++].group.mesh = other;
  for (int i = 0; i < n; i++) CHECK_STATUS(ad_comm_run(comm, &bad[i]), AD_INVALID);
  ad_request unknown = {.id = 1000};
  CHECK_STATUS(ad_comm_run(comm, NULL), AD_INVALID);
  CHECK_STATUS(ad_comm_post(comm, NULL, &unknown), AD_INVALID);
  CHECK_SAYS("NULL");
  CHECK_STATUS(ad_comm_wait(comm, &unknown), AD_INVALID);
  CHECK_OK(ad_comm_run(comm, &good));  // the refused calls were not counted as calls
  ad_mesh_destroy(mesh);
  ad_mesh_destroy(too_large);
  ad_mesh_destroy(other);
  return 0;
}

static void a_wrong_call_is_refused_before_anything_happens(void **state) { run_ranks(2, call_wrongly, NULL); }

static int sum_all(ad_comm *comm, void *context) {
  double sum = (double)ad_comm_rank(comm) + 1;
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = &sum, .out = &sum, .count = 1, .dtype = AD_F64};
  CHECK(ad_mesh_size(ad_comm_mesh(comm)) == 3 && !strcmp(ad_mesh_text(ad_comm_mesh(comm)), "dp_shard=3"));
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(sum == 1 + 2 + 3);
  call.out = NULL;
  CHECK_STATUS(ad_comm_run(comm, &call), AD_INVALID);
  CHECK_SAYS("test_faults.c");
  return 0;
}

static void a_call_without_a_group_is_of_all_ranks_and_has_its_line(void **state) { run_ranks(3, sum_all, NULL); }

static void dry_checks_and_leaves_values(void **state) {
  ad_comm *comm;
  ad_mesh *mesh;
  float in[4] = {1, 2, 3, 4}, out[4] = {5, 6, 7, 8};
  void *memory;
  assert_int_equal(ad_comm_open_dry(1000000, 1000000, &comm), AD_INVALID);
  assert_int_equal(ad_comm_open_dry(999999, 1000000, &comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp=1000 tp=1000", &mesh), AD_OK);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = in, .out = out, .count = 4, .dtype = AD_F32, .site = AD_HERE};
  call.group = ad_mesh_group(mesh, AD_AXES_ALL, 999999);
  assert_int_equal(ad_comm_run(comm, &call), AD_OK);
  assert_true(out[0] == 5 && out[3] == 8);
  call.group = ad_mesh_group(mesh, AD_AXES_ALL & ~AD_AXES(AD_TP), 0);
  assert_int_equal(ad_comm_run(comm, &call), AD_INVALID);
  assert_int_equal(ad_comm_alloc(comm, 100, &memory), AD_OK);
  assert_int_equal((uintptr_t)memory % 64, 0);
  assert_int_equal(ad_comm_alloc(comm, 100, &memory), AD_OK);
  ad_comm_free(comm, memory);
  ad_comm_close(comm);
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(ranks_learn_that_one_ran_out_of_memory),
      cmocka_unit_test(more_memory_than_there_is_is_an_error),
      cmocka_unit_test(a_wrong_call_is_refused_before_anything_happens),
      cmocka_unit_test(a_call_without_a_group_is_of_all_ranks_and_has_its_line),
      cmocka_unit_test(dry_checks_and_leaves_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
