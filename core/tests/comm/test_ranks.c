/* Tests groups given as lists of ranks: in any order, several groups of the same ranks, made and
 * released many times. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ranks.h"
#include "says.h"

static void make(ad_comm *comm, const int64_t *ranks, int64_t count, ad_ranks **out) {
  CHECK_OK(ad_ranks_create(comm, ranks, count, out));
}

static void reversed(ad_comm *comm, ad_ranks **out) {
  int64_t ranks[16], size = ad_comm_size(comm);
  for (int64_t i = 0; i < size; i++) ranks[i] = size - 1 - i;
  make(comm, ranks, size, out);
}

static float sum_over(ad_comm *comm, const ad_ranks *ranks, float value) {
  float sum = -1;
  ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = &value, .out = &sum, .count = 1, .dtype = AD_F32};
  c.ranks = ranks;
  CHECK_OK(ad_comm_run(comm, &c));
  return sum;
}

/* ---- the order of members ---- */

// Runs every operation that has numbered members on a list in reverse order.
static int use_reversed(ad_comm *comm, void *context) {
  int64_t size = ad_comm_size(comm), rank = ad_comm_rank(comm), index = size - 1 - rank;
  int32_t own = (int32_t)rank, all[8], root = own, sent[8], received[8];
  ad_ranks *ranks;
  reversed(comm, &ranks);
  CHECK(ad_ranks_count(ranks) == size && ad_ranks_index(ranks, rank) == index);
  CHECK(ad_ranks_rank(ranks, 0) == size - 1 && ad_ranks_rank(ranks, size - 1) == 0);
  CHECK(ad_ranks_index(ranks, size) == -1 && ad_ranks_rank(ranks, size) == -1);
  ad_collective c = {
      .size = sizeof c, .op = AD_ALL_GATHER, .in = &own, .out = all, .count = 1, .dtype = AD_I32, .ranks = ranks};
  CHECK_OK(ad_comm_run(comm, &c));
  for (int i = 0; i < size; i++) CHECK(all[i] == size - 1 - i);
  c = (ad_collective){.size = sizeof c, .op = AD_BROADCAST, .in = &root, .out = &root, .count = 1, .ranks = ranks};
  c.dtype = AD_I32;
  CHECK_OK(ad_comm_run(comm, &c));
  CHECK(root == size - 1);
  for (int i = 0; i < size; i++) sent[i] = (int32_t)(100 * rank + i);
  c = (ad_collective){.size = sizeof c, .op = AD_ALL_TO_ALL, .in = sent, .out = received, .count = 1, .ranks = ranks};
  c.dtype = AD_I32;
  CHECK_OK(ad_comm_run(comm, &c));
  for (int i = 0; i < size; i++) CHECK(received[i] == 100 * (size - 1 - i) + index);
  c = (ad_collective){.size = sizeof c, .op = AD_REDUCE_SCATTER, .in = sent, .out = &own, .count = 1, .ranks = ranks};
  c.dtype = AD_I32;
  CHECK_OK(ad_comm_run(comm, &c));
  CHECK(own == 100 * size * (size - 1) / 2 + size * index);
  ad_ranks_release(ranks);
  ad_ranks_release(NULL);
  return 0;
}

static void members_are_numbered_in_their_order(void **state) {
  run_ranks(1, use_reversed, NULL);
  run_ranks(3, use_reversed, NULL);
  run_ranks(5, use_reversed, NULL);
}

// Reduces large values, in shared memory and elsewhere, on {4,0,2} of five ranks while {3,1} do the same.
static int use_some(ad_comm *comm, void *context) {
  static const int64_t even[] = {4, 0, 2}, odd[] = {3, 1};
  int is_odd = ad_comm_rank(comm) % 2;
  const int64_t count = is_odd ? 2 : 3;
  enum { LARGE = 100000 };
  ad_ranks *ranks;
  make(comm, is_odd ? odd : even, count, &ranks);
  for (int in_file = 0; in_file < 2; in_file++) {
    void *memory = malloc(LARGE * sizeof(float));
    if (in_file) {
      free(memory);
      CHECK_OK(ad_comm_alloc(comm, LARGE * sizeof(float), &memory));
    }
    float *values = memory;
    CHECK(values);
    for (int i = 0; i < LARGE; i++) values[i] = (float)(ad_comm_rank(comm) + i % 10);
    ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = values, .out = values, .count = LARGE};
    c.dtype = AD_F32;
    c.ranks = ranks;
    CHECK_OK(ad_comm_run(comm, &c));
    for (int i = 0; i < LARGE; i++) CHECK(values[i] == (float)((is_odd ? 4 : 6) + count * (i % 10)));
    if (in_file)
      ad_comm_free(comm, memory);
    else
      free(memory);
  }
  ad_ranks_release(ranks);
  return 0;
}

static void some_ranks_are_a_group(void **state) { run_ranks(5, use_some, NULL); }

/* ---- two groups of the same ranks ---- */

// Ranks call on two groups of the same ranks in different orders: with one sequence of calls for both, sums would be
// mixed up or calls would not match.
static int interleave(ad_comm *comm, void *context) {
  ad_ranks *first, *second;
  ad_request requests[40];
  static float in[40], out[40];
  int64_t rank = ad_comm_rank(comm), size = ad_comm_size(comm);
  reversed(comm, &first);
  reversed(comm, &second);
  for (int i = 0; i < 40; i++) {
    // Rank 0 runs all calls of the first group before those of the second; the other ranks alternate.
    int is_second = rank ? i % 2 : i >= 20, number = rank ? i / 2 : i % 20, k = 20 * is_second + number;
    in[k] = (float)(k + 1);
    ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = &in[k], .out = &out[k], .count = 1};
    c.dtype = AD_F32;
    c.ranks = is_second ? second : first;
    CHECK_OK(ad_comm_post(comm, &c, &requests[k]));
  }
  for (int k = 0; k < 40; k++) {
    CHECK_OK(ad_comm_wait(comm, &requests[k]));
    CHECK(out[k] == (float)(size * (k + 1)));
  }
  ad_ranks_release(second);
  ad_ranks_release(first);
  return 0;
}

static ad_status pass_many(ad_comm *comm, const ad_ranks *ranks, int receives, int64_t peer, float *value,
                           size_t count) {
  ad_transfer t = {.size = sizeof t, .ranks = ranks, .peer = peer, .tag = 1, .receives = receives, .count = count};
  t.dtype = AD_F32;
  if (receives)
    t.receive = value;
  else
    t.send = value;
  return ad_comm_transfer(comm, &t, NULL);
}

static ad_status pass(ad_comm *comm, const ad_ranks *ranks, int receives, int64_t peer, float *value) {
  return pass_many(comm, ranks, receives, peer, value, 1);
}

// The same for point-to-point transfers, beside transfers of the world.
static int interleave_transfers(ad_comm *comm, void *context) {
  ad_ranks *first, *second;
  float values[3] = {1, 2, 3}, got[3] = {0};
  reversed(comm, &first);
  reversed(comm, &second);
  const ad_ranks *groups[] = {first, second, NULL};
  for (int i = 0; i < 3 && !ad_comm_rank(comm); i++) CHECK_OK(pass(comm, groups[i], 0, i < 2 ? 0 : 1, &values[i]));
  for (int i = 2; i >= 0 && ad_comm_rank(comm); i--) {
    CHECK_OK(pass(comm, groups[i], 1, i == 2 ? 0 : AD_ANY_SOURCE, &got[i]));
    CHECK(got[i] == values[i]);
  }
  ad_ranks_release(first);
  ad_ranks_release(second);
  return 0;
}

// More groups than a rank has message lists (by group and tag): messages in one list are still distinguished.
static int send_on_many(ad_comm *comm, void *context) {
  enum { GROUPS = 200 };
  ad_ranks *groups[GROUPS];
  float value;
  for (int i = 0; i < GROUPS; i++) reversed(comm, &groups[i]);
  for (int i = 0; i < GROUPS && !ad_comm_rank(comm); i++) {
    value = (float)i;
    CHECK_OK(pass(comm, groups[i], 0, 0, &value));
  }
  for (int i = GROUPS - 1; i >= 0 && ad_comm_rank(comm); i--) {
    CHECK_OK(pass(comm, groups[i], 1, 1, &value));
    CHECK(value == (float)i);
  }
  for (int i = 0; i < GROUPS; i++) ad_ranks_release(groups[i]);
  return 0;
}

static void two_groups_of_the_same_ranks_have_two_sequences(void **state) {
  run_ranks(2, send_on_many, NULL);
  run_ranks(2, interleave, NULL);
  run_ranks(3, interleave, NULL);
  run_ranks(2, interleave_transfers, NULL);
}

/* ---- many groups, one after another ---- */

// Size in KiB of this rank's touched pages of the shared file.
static long shared_pages(void) {
  char line[256];
  long kib = -1;
  FILE *file = fopen("/proc/self/status", "r");
  CHECK(file);
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "RssShmem: %ld", &kib) == 1) break;
  fclose(file);
  CHECK(kib >= 0);
  return kib;
}

/* A channel of four ranks takes 2.2 MiB once its ring was used; a few lists exist at the same time, since ranks run
 * ahead of each other. Hundreds of channels that were not used again would take hundreds of MiB. */
#if defined(AD_SANITIZED)
enum { WARM = 50, TIMES = 300, GROWTH_KIB = 16 << 10 }; /* a sanitizer makes each list five times as slow */
#else
enum { WARM = 50, TIMES = 1000, GROWTH_KIB = 16 << 10 };
#endif

// An exchange of so many empty messages to itself that their table does not fit into a slot.
static void fill_table(ad_comm *comm, const ad_ranks *ranks, int64_t own) {
  enum { HALF = 1500 };
  static ad_message messages[2 * HALF];
  static float value;
  for (int i = 0; i < HALF; i++) {
    messages[i] = (ad_message){.peer = own, .send = &value};
    messages[HALF + i] = (ad_message){.peer = own, .receive = &value};
  }
  ad_collective c = {.size = sizeof c, .op = AD_EXCHANGE, .messages = messages, .message_count = 2 * HALF};
  c.dtype = AD_F32;
  c.ranks = ranks;
  CHECK_OK(ad_comm_run(comm, &c));
}

// Makes, uses and releases a list of two, three or four ranks: large messages, whose tables and staging are kept for a
// while; messages that are never received; some groups that are never used; and a group that one rank releases before
// the others' calls.
static void live_once(ad_comm *comm, int i) {
  static const int64_t lists[3][4] = {{3, 0, 2, 1}, {1, 0, 2}, {2, 3}};
  int which = i % 3;
  int64_t count = 4 - which, rank = ad_comm_rank(comm), own = -1;
  static float values[30000];
  ad_ranks *ranks;
  for (int64_t k = 0; k < count; k++)
    if (lists[which][k] == rank) own = k;
  if (own < 0) return;
  make(comm, lists[which], count, &ranks);
  if (i % 7 == 6) {
    ad_ranks_release(ranks);
    return;
  }
  for (int k = 0; k < 1 + i % 4 * 30; k++) CHECK(sum_over(comm, ranks, (float)(i + k)) == (float)(count * (i + k)));
  if (i % 5 == 2) fill_table(comm, ranks, own);
  if (i % 5 == 4) {
    size_t n = 30000;
    ad_collective c = {.size = sizeof c, .op = AD_BROADCAST, .in = values, .out = values, .count = n, .ranks = ranks};
    c.dtype = AD_F32;
    ad_request request;
    if (!own) values[n - 1] = (float)i;
    CHECK_OK(ad_comm_post(comm, &c, &request));
    if (i % 10 == 9) ad_ranks_release(ranks);  // the group exists until the call ends
    CHECK_OK(ad_comm_wait(comm, &request));
    CHECK(values[n - 1] == (float)i);
    if (i % 10 == 9) return;
  }
  if (!own) CHECK_OK(pass_many(comm, ranks, 0, 1, values, sizeof values / sizeof *values));
  if (own == 1 && i % 2) CHECK_OK(pass_many(comm, ranks, 1, AD_ANY_SOURCE, values, sizeof values / sizeof *values));
  ad_ranks_release(ranks);
}

static int live_on(ad_comm *comm, void *context) {
  for (int i = 0; i < WARM; i++) live_once(comm, i);
  sum_over(comm, NULL, 1);
  long before = shared_pages();
  int times = getenv("ADDEND_TEST_MPIRUN") ? TIMES / 5 : TIMES;
  for (int i = 0; i < times; i++) live_once(comm, i);
  sum_over(comm, NULL, 1);
  CHECK(shared_pages() <= before + GROWTH_KIB);
  return 0;
}

static void lists_are_made_and_released_without_end(void **state) { run_ranks(4, live_on, NULL); }

static void release_on_a_hostile_backend(void **state) {
  setenv("ADDEND_HOSTILE", "3", 1);
  run_ranks(2, interleave, NULL);
  run_ranks(4, live_on, NULL);
  unsetenv("ADDEND_HOSTILE");
}

static void release_with_staging(void **state) {
  setenv("ADDEND_STAGING", "1", 1);
  run_ranks(4, live_on, NULL);
  run_ranks(5, use_some, NULL);
  unsetenv("ADDEND_STAGING");
}

// More lists than the shared file has places, so places must be used again; each list must still be distinguished from
// the others.
static int use_again(ad_comm *comm, void *context) {
  int64_t rank = ad_comm_rank(comm), both[2] = {0, 1};
  ad_ranks *kept[8] = {0};
  for (int i = 0; i < 6000; i++) {
    ad_ranks_release(kept[i % 8]);
    both[0] = i % 2;
    both[1] = 1 - both[0];
    make(comm, both, 2, &kept[i % 8]);
    if (i % 100) continue;
    float value = (float)(i + rank), in = value;
    ad_collective c = {.size = sizeof c, .op = AD_BROADCAST, .in = &in, .out = &value, .count = 1, .dtype = AD_F32};
    c.ranks = kept[i % 8];
    CHECK_OK(ad_comm_run(comm, &c));
    CHECK(value == (float)i);
  }
  // Some lists are released after the harness closed the comm: they belong to the process.
  for (int i = 0; i < 8; i++) ad_ranks_release(kept[i]);
  return 0;
}

static void channels_are_used_again(void **state) { run_ranks(2, use_again, NULL); }

// Rank 1 posts many calls and does not look at them for a while; rank 0 has completed them and must wait for rank 1
// before it uses their places in the ring again.
static int run_ahead(ad_comm *comm, void *context) {
  enum { CALLS = 60, ROUNDS = 3 };
  static float in[ROUNDS * CALLS], out[ROUNDS * CALLS];
  static ad_request requests[ROUNDS * CALLS];
  for (int list = 0; list < 4; list++) {
    ad_ranks *ranks;
    reversed(comm, &ranks);
    for (int i = 0; i < ROUNDS * CALLS; i++) {
      in[i] = (float)(1000 * list + i);
      ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = &in[i], .out = &out[i], .count = 1};
      c.dtype = AD_F32;
      c.ranks = ranks;
      CHECK_OK(ad_comm_post(comm, &c, &requests[i]));
      if (i % CALLS != CALLS - 1) continue;
      if (ad_comm_rank(comm)) usleep(30000);
      for (int k = i - CALLS + 1; k <= i; k++) CHECK_OK(ad_comm_wait(comm, &requests[k]));
      for (int k = i - CALLS + 1; k <= i; k++) CHECK(out[k] == 2 * in[k]);
    }
    ad_ranks_release(ranks);
  }
  return 0;
}

static void a_channel_that_is_used_again_is_as_a_new_one(void **state) { run_ranks(2, run_ahead, NULL); }

static int release_late(ad_comm *comm, void *context) {
  static const int64_t only[] = {0};
  ad_comm *other;
  ad_ranks *ranks;
  CHECK_OK(ad_comm_open_alone(&other));
  make(other, only, 1, &ranks);
  CHECK(sum_over(other, ranks, 4) == 4);
  float value = 0;
  CHECK_STATUS(pass(comm, ranks, 0, 0, &value), AD_INVALID);
  CHECK_LISTED();
  ad_comm_close(other);
  CHECK(ad_ranks_count(ranks) == 1);
  ad_ranks_release(ranks);
  return 0;
}

static void a_list_may_outlive_its_comm(void **state) { run_ranks(1, release_late, NULL); }

/* ---- errors ---- */

static int make_nonsense(ad_comm *comm, void *context) {
  int64_t rank = ad_comm_rank(comm), twice[] = {rank, rank}, outside[] = {rank, 2}, others[] = {1 - rank};
  ad_ranks *ranks;
  CHECK_STATUS(ad_ranks_create(comm, twice, 2, &ranks), AD_INVALID);
  CHECK_LISTED();
  CHECK_STATUS(ad_ranks_create(comm, outside, 2, &ranks), AD_INVALID);
  CHECK_SAYS("0", "1");
  CHECK_STATUS(ad_ranks_create(comm, others, 1, &ranks), AD_INVALID);
  CHECK_LISTED();
  CHECK_STATUS(ad_ranks_create(comm, twice, 0, &ranks), AD_INVALID);
  CHECK_STATUS(ad_ranks_create(comm, twice, 3, &ranks), AD_INVALID);
  reversed(comm, &ranks);
  ad_collective both = {.size = sizeof both, .op = AD_BARRIER, .ranks = ranks};
  both.group = ad_mesh_group(ad_comm_mesh(comm), AD_AXES_ALL, rank);
  CHECK_STATUS(ad_comm_run(comm, &both), AD_INVALID);
  CHECK_LISTED();
  ad_ranks_release(ranks);
  return 0;
}

static void nonsense_is_refused(void **state) { run_ranks(2, make_nonsense, NULL); }

// Each rank calls on the list on which the other one does not: the message names both lists, in their order.
static int call_crosswise(ad_comm *comm, void *context) {
  ad_ranks *first, *second;
  reversed(comm, &first);
  reversed(comm, &second);
  ad_collective c = {.size = sizeof c, .op = AD_BARRIER, .ranks = ad_comm_rank(comm) ? first : second};
  CHECK_STATUS(ad_comm_run(comm, &c), AD_CYCLE);
  CHECK_FACTS("{1,0}");
  ad_ranks_release(first);
  ad_ranks_release(second);
  return 0;
}

static int call_differently(ad_comm *comm, void *context) {
  ad_ranks *ranks;
  float value = 0, sum;
  reversed(comm, &ranks);
  ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = &value, .out = &sum, .count = 1, .dtype = AD_F32};
  c.op = ad_comm_rank(comm) ? AD_ALL_REDUCE : AD_BROADCAST;
  c.ranks = ranks;
  CHECK_STATUS(ad_comm_run(comm, &c), AD_MISMATCH);
  CHECK_FACTS("call 1", "{2,1,0}");
  ad_ranks_release(ranks);
  return 0;
}

static int leave(ad_comm *comm, void *context) {
  ad_ranks *ranks;
  float value = 0;
  reversed(comm, &ranks);
  if (ad_comm_rank(comm) == 2) return 0;
  ad_collective c = {.size = sizeof c, .op = AD_BARRIER, .ranks = ranks};
  ad_status status = ad_comm_rank(comm) ? ad_comm_run(comm, &c) : pass(comm, ranks, 1, 0, &value);
  CHECK(status == AD_RANK_LEFT);
  CHECK_FACTS("{2,1,0}");
  ad_ranks_release(ranks);
  return 0;
}

static void errors_name_the_list(void **state) {
  run_ranks(2, call_crosswise, NULL);
  run_ranks(3, call_differently, NULL);
  run_ranks(3, leave, NULL);
}

static int record(ad_comm *comm, void *context) {
  char *text;
  ad_ranks *ranks;
  reversed(comm, &ranks);
  sum_over(comm, ranks, 1);
  ad_ranks_release(ranks);
  void *noise[100];  // overwrites the memory where the list was
  for (int i = 0; i < 100; i++) CHECK(noise[i] = memset(malloc(40 + (size_t)i), 1, 40 + (size_t)i));
  CHECK_OK(ad_comm_flight_recorder(comm, &text));
  for (int i = 0; i < 100; i++) free(noise[i]);
  CHECK_TEXT_SAYS(text, "all_reduce(sum)", "1 f32", "{2,1,0}", "core/tests/comm/test_ranks.c");
  free(text);
  return 0;
}

static void the_flight_recorder_outlives_the_list(void **state) { run_ranks(3, record, NULL); }

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(members_are_numbered_in_their_order),
      cmocka_unit_test(some_ranks_are_a_group),
      cmocka_unit_test(two_groups_of_the_same_ranks_have_two_sequences),
      cmocka_unit_test(lists_are_made_and_released_without_end),
      cmocka_unit_test(release_on_a_hostile_backend),
      cmocka_unit_test(release_with_staging),
      cmocka_unit_test(channels_are_used_again),
      cmocka_unit_test(a_channel_that_is_used_again_is_as_a_new_one),
      cmocka_unit_test(a_list_may_outlive_its_comm),
      cmocka_unit_test(nonsense_is_refused),
      cmocka_unit_test(errors_name_the_list),
      cmocka_unit_test(the_flight_recorder_outlives_the_list),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
