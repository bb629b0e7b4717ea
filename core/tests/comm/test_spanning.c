/* Tests backend mpi where groups span nodes, without an MPI: values on every kind of placement of few ranks, calls that
 * do not match, errors and leavings that ranks of other nodes learn of, and memory that ends. The same backend runs
 * under real launchers in tests/mpi. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "addend/helpers.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/mpi/join.h"
#include "kernels/nodes.h"
#include "nodes.h"
#include "ranks.h"
#include "says.h"
#include "tree_order.h"

ad_status __real_ad_mpi_load(const ad_mpi_transport **out);
ad_status __wrap_ad_mpi_load(const ad_mpi_transport **out);
ad_status __real_ad_new_bytes(size_t count, size_t size, void **out);
ad_status __wrap_ad_new_bytes(size_t count, size_t size, void **out);

ad_status __wrap_ad_mpi_load(const ad_mpi_transport **out) {
  *out = &nodes_transport;
  return AD_OK;
}

static size_t refused;  // allocations of so many elements find no memory; 0: none

ad_status __wrap_ad_new_bytes(size_t count, size_t size, void **out) {
  return refused && count == refused ? AD_MEMORY : __real_ad_new_bytes(count, size, out);
}

/* ---- values ---- */

enum { LARGE = 5003 };  // f32 values of a member that do not travel with the call itself

typedef struct world {
  ad_comm *comm;
  size_t rank, ranks, count;
  int in_file;
} world;

// Element i of what member k holds, or sends to member j.
static float value(size_t k, size_t j, size_t i) { return (float)((k * 7 + j * 5 + i * 3 + (i >> 4)) & 7); }

static float sum(const world *w, size_t i) {
  float all = 0;
  for (size_t k = 0; k < w->ranks; k++) all += value(k, 0, i);
  return all;
}

static float *take(const world *w, size_t count) {
  void *memory = NULL;
  if (w->in_file)
    CHECK_OK(ad_comm_alloc(w->comm, count * sizeof(float), &memory));
  else
    memory = rank_memory(count * sizeof(float));
  return memory;
}

static void give(const world *w, float *memory) {
  if (w->in_file)
    ad_comm_free(w->comm, memory);
  else
    rank_memory_free(memory);
}

static ad_collective call_of(const world *w, ad_collective_op op, const float *in, float *out) {
  return (ad_collective){.size = sizeof(ad_collective),
                         .op = op,
                         .in = in,
                         .out = out,
                         .count = w->count,
                         .dtype = AD_F32,
                         .root = (int64_t)w->ranks - 1};
}

// Runs an operation whose input has `ins` blocks and whose output `outs`, and checks element i of output block k.
static void runs(const world *w, ad_collective_op op, size_t ins, size_t outs,
                 float (*expected)(const world *w, size_t k, size_t i)) {
  float *in = take(w, ins * w->count), *out = take(w, outs * w->count);
  for (size_t j = 0; j < ins; j++)
    for (size_t i = 0; i < w->count; i++)
      in[j * w->count + i] = op == AD_ALL_TO_ALL ? value(w->rank, j, i) : value(w->rank, 0, j * w->count + i);
  ad_collective call = call_of(w, op, in, out);
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t k = 0; k < outs; k++)
    for (size_t i = 0; i < w->count; i++) CHECK(out[k * w->count + i] == expected(w, k, i));
  give(w, in);
  give(w, out);
}

static float summed(const world *w, size_t k, size_t i) { return sum(w, i); }
static float of_last(const world *w, size_t k, size_t i) { return value(w->ranks - 1, 0, i); }
static float own_sum(const world *w, size_t k, size_t i) { return sum(w, w->rank * w->count + i); }
static float of_each(const world *w, size_t k, size_t i) { return value(k, 0, i); }
static float for_this(const world *w, size_t k, size_t i) { return value(k, w->rank, i); }

static void exchanges(const world *w) {
  float *in = take(w, w->count), *out = take(w, w->count);
  size_t next = (w->rank + 1) % w->ranks, previous = (w->rank + w->ranks - 1) % w->ranks;
  for (size_t i = 0; i < w->count; i++) in[i] = value(w->rank, 0, i);
  ad_message messages[] = {{.peer = (int64_t)next, .send = in, .count = w->count},
                           {.peer = (int64_t)previous, .receive = out, .count = w->count}};
  ad_collective call = {.size = sizeof call, .op = AD_EXCHANGE, .messages = messages, .message_count = 2};
  call.dtype = AD_F32;
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t i = 0; i < w->count; i++) CHECK(out[i] == value(previous, 0, i));
  give(w, in);
  give(w, out);
}

static int run_all(ad_comm *comm, void *context) {
  static const size_t counts[] = {1, 17, LARGE};
  CHECK(!strcmp(ad_comm_backend(comm), "mpi"));
  for (int c = 0; c < 6; c++) {
    const world w = {comm, (size_t)ad_comm_rank(comm), (size_t)ad_comm_size(comm), counts[c / 2], c % 2};
    runs(&w, AD_ALL_REDUCE, 1, 1, summed);
    runs(&w, AD_BROADCAST, 1, 1, of_last);
    runs(&w, AD_REDUCE_SCATTER, w.ranks, 1, own_sum);
    runs(&w, AD_ALL_GATHER, 1, w.ranks, of_each);
    runs(&w, AD_ALL_TO_ALL, w.ranks, w.ranks, for_this);
    exchanges(&w);
  }
  return 0;
}

// Placings in which each node has a part of the tree, in which nodes divide parts of the tree, and in which a node has
// every second rank; two nodes, and ten.
static void values_are_right_wherever_ranks_are(void **state) {
  static const char *const placings[] = {"aa",   "ab",    "aab",    "abb",    "aabb",
                                         "abab", "aaabb", "aabbcc", "abbcca", "abcdefghij"};
  for (size_t i = 0; i < sizeof placings / sizeof *placings; i++) run_on_nodes(placings[i], run_all, NULL);
}

static ad_status meet(ad_comm *comm) {
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER};
  return ad_comm_run(comm, &barrier);
}

/* ---- sums of leaves ---- */

// Leaves have fractions, so that their sum depends on the order of additions.
static float leaf_value(size_t leaf, size_t i) { return 1 + (float)ad_random_uniform(7, leaf, i); }
static double leaf_of(const void *element, size_t leaf) { return leaf_value(leaf, *(const size_t *)element); }
static double add_in_f32(const void *context, double a, double b) { return (float)(a + b); }

static float sum_of_leaves(size_t first, size_t end, size_t i) {
  return (float)in_node_order(&i, leaf_of, add_in_f32, first, end);
}

// Divides leaves among ranks: `each` leaves for every rank or, if `each` is 0, uneven numbers, of which some are 0.
static int64_t divide(const world *w, size_t each, int64_t *starts) {
  starts[0] = 0;
  for (size_t k = 0; k < w->ranks; k++) starts[k + 1] = starts[k] + (int64_t)(each ? each : (5 * k + w->count) % 8);
  return starts[w->ranks];
}

// Writes the sums of the nodes of leaves [first, end) of `leaves`, one after another, and returns their number.
static size_t sum_nodes(int64_t first, int64_t end, int64_t leaves, size_t numel, float *sums) {
  ad_node nodes[AD_NODES_MAX];
  size_t count = ad_nodes_of(first, end - first, leaves, nodes);
  for (size_t p = 0; p < count; p++)
    for (size_t i = 0; i < numel; i++)
      sums[p * numel + i] = sum_of_leaves((size_t)nodes[p].first, (size_t)(nodes[p].first + nodes[p].count), i);
  return count;
}

typedef enum scattering { WHOLE, BLOCKS, SEGMENTS } scattering;

// The ranks have the first leaves of the tree. If the tree has `beyond` more leaves, the result may be several nodes.
static void sum_leaves(const world *w, scattering how, size_t each, int64_t beyond) {
  enum { NODES_MAX = 6 };
  size_t numel = (how ? w->ranks : 1) * w->count, at = how ? w->rank * w->count : 0;
  float *in = take(w, NODES_MAX * numel), *out = take(w, NODES_MAX * w->count);
  int64_t starts[17], leaves = divide(w, each, starts);
  ad_node results[AD_NODES_MAX];
  const ad_leaf_ranges ranges = {leaves + beyond, starts};
  const ad_segment segment = {(int64_t)numel, 1};
  size_t given = sum_nodes(starts[w->rank], starts[w->rank + 1], leaves + beyond, numel, in);
  size_t count = ad_nodes_of(0, leaves, leaves + beyond, results);
  CHECK(count <= NODES_MAX && (beyond || count == 1));
  ad_collective call = call_of(w, how ? AD_REDUCE_SCATTER : AD_ALL_REDUCE, given ? in : NULL, out);
  call.ranges = &ranges;
  if (how == SEGMENTS) call.segments = &segment, call.segment_count = 1;
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t r = 0; r < count; r++)
    for (size_t i = 0; i < w->count; i++) {
      float expected = sum_of_leaves((size_t)results[r].first, (size_t)(results[r].first + results[r].count), at + i);
      CHECK(!memcmp(&out[r * w->count + i], &expected, sizeof expected));
    }
  give(w, in);
  give(w, out);
}

// Sums in place: the result overwrites a rank's first value, while the rank's other values may still be in the process
// of being sent.
static void sum_leaves_in_place(const world *w) {
  int64_t starts[17], leaves = divide(w, 0, starts);
  const ad_leaf_ranges ranges = {leaves, starts};
  float *memory = take(w, 6 * w->count);
  sum_nodes(starts[w->rank], starts[w->rank + 1], leaves, w->count, memory);
  ad_collective call = call_of(w, AD_ALL_REDUCE, memory, memory);
  call.ranges = &ranges;
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t i = 0; i < w->count; i++) CHECK(memory[i] == sum_of_leaves(0, (size_t)leaves, i));
  give(w, memory);
}

static int sum_leaves_in_all_ways(ad_comm *comm, void *context) {
  static const size_t counts[] = {3, 17, LARGE};
  for (int c = 0; c < 6; c++) {
    const world w = {comm, (size_t)ad_comm_rank(comm), (size_t)ad_comm_size(comm), counts[c / 2], c % 2};
    sum_leaves(&w, WHOLE, 1, 0);
    sum_leaves(&w, BLOCKS, 2, 0);
    for (int how = WHOLE; how <= SEGMENTS; how++)
      for (int64_t beyond = 0; beyond < 40; beyond += 13) sum_leaves(&w, (scattering)how, 0, beyond);
    sum_leaves_in_place(&w);
  }
  return 0;
}

static void leaves_are_summed_by_their_tree_wherever_ranks_are(void **state) {
  static const char *const placings[] = {"aaabb", "aaabbb", "abbccb", "aabbcc", "abcdefghij"};
  for (size_t i = 0; i < sizeof placings / sizeof *placings; i++)
    run_on_nodes(placings[i], sum_leaves_in_all_ways, NULL);
}

/* ---- lists of ranks, announced to a member before it makes its first call on them ---- */

static ad_ranks *list_of_all(ad_comm *comm) {
  int64_t ranks[16], size = ad_comm_size(comm);
  ad_ranks *list;
  for (int64_t i = 0; i < size; i++) ranks[i] = i;
  CHECK_OK(ad_ranks_create(comm, ranks, size, &list));
  return list;
}

// Rank 0 makes a call on each of three lists before rank 1 makes any, which makes none on the last list.
static int call_early(ad_comm *comm, void *context) {
  enum { LISTS = 3, CALLED = 2 };
  int64_t rank = ad_comm_rank(comm);
  ad_ranks *lists[LISTS];
  ad_request requests[LISTS];
  float in[LISTS] = {1, 2, 3}, out[LISTS];
  for (int i = 0; i < LISTS; i++) lists[i] = list_of_all(comm);
  for (int i = 0; i < LISTS; i++) {
    ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = in + i, .out = out + i, .count = 1};
    call.dtype = AD_F32;
    call.ranks = lists[i];
    if (i == 0 && rank == 1) CHECK_OK(meet(comm));
    if (rank == 0 || i < CALLED) CHECK_OK(ad_comm_post(comm, &call, &requests[i]));
  }
  if (rank == 0) CHECK_OK(meet(comm));
  for (int i = 0; i < CALLED; i++) {
    CHECK_OK(ad_comm_wait(comm, &requests[i]));
    CHECK(out[i] == 2 * in[i]);
  }
  for (int i = 0; i < LISTS; i++) ad_ranks_release(lists[i]);
  return 0;
}

static void calls_on_lists_are_kept_until_a_member_makes_its_own(void **state) { run_on_nodes("ab", call_early, NULL); }

/* ---- calls that do not match, and errors ---- */

typedef struct difference {
  size_t sent, received;  // elements; 0: the side has no message
  ad_dtype dtype;         // of the receiver's call; the sender's is f32
  ad_status expected;
} difference;

static int exchange_unlike(ad_comm *comm, void *context) {
  const difference *d = context;
  float values[LARGE + 1] = {0};
  int64_t rank = ad_comm_rank(comm), last = ad_comm_size(comm) - 1;
  ad_message message = {.peer = rank ? 0 : last, .count = rank ? d->received : d->sent};
  ad_collective call = {.size = sizeof call, .op = AD_EXCHANGE, .messages = &message, .dtype = AD_F32, .site = "e.c:1"};
  if (rank == 0) message.send = values;
  if (rank == last) message.receive = values, call.dtype = d->dtype;
  call.message_count = (rank == 0 || rank == last) && message.count;
  ad_status status = ad_comm_run(comm, &call);
  // A member that the messages do not concern may complete the call before it learns of the error.
  if (!status && rank && rank != last && d->expected) status = meet(comm);
  CHECK_STATUS(status, d->expected);
  if (d->expected) CHECK_FACTS("message 1", "rank 0", "e.c:1");
  return 0;
}

static void messages_of_an_exchange_match_in_number_bytes_and_dtype(void **state) {
  static const difference cases[] = {
      {7, 7, AD_F32, AD_OK},           {LARGE, LARGE, AD_F32, AD_OK},       {7, 8, AD_F32, AD_MISMATCH},
      {7, 7, AD_I32, AD_MISMATCH},     {7, 0, AD_F32, AD_MISMATCH},         {0, 7, AD_F32, AD_MISMATCH},
      {LARGE, 7, AD_F32, AD_MISMATCH}, {7, LARGE + 1, AD_F32, AD_MISMATCH},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_on_nodes("aab", exchange_unlike, (void *)&cases[i]);
}

// Rank 1 sends itself two messages, and receives as many of them as the context says.
static int send_to_itself(ad_comm *comm, void *context) {
  const size_t *received = context;
  float in = 1, out[2];
  int64_t rank = ad_comm_rank(comm);
  ad_message messages[] = {{.peer = rank, .send = &in, .count = 1},
                           {.peer = rank, .send = &in, .count = 1},
                           {.peer = rank, .receive = &out[0], .count = 1},
                           {.peer = rank, .receive = &out[1], .count = 1}};
  ad_collective call = {.size = sizeof call, .op = AD_EXCHANGE, .messages = messages, .dtype = AD_F32};
  if (rank == 1) call.message_count = 2 + *received;
  ad_status status = ad_comm_run(comm, &call);
  if (!status && *received < 2) status = meet(comm);  // rank 0 may complete the call before it learns of the error
  CHECK_STATUS(status, *received < 2 ? AD_MISMATCH : AD_OK);
  if (status) CHECK_FACTS("rank 1", "2", *received ? "1" : "0");
  return 0;
}

static void a_rank_receives_all_messages_to_itself(void **state) {
  for (size_t received = 0; received <= 2; received++) run_on_nodes("ab", send_to_itself, &received);
}

static int fail_while_others_wait(ad_comm *comm, void *context) {
  float in = 1, out;
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = &in, .out = &out, .count = 1, .dtype = AD_F32};
  if (ad_comm_rank(comm) == 0) {
    usleep(300000);  // the others are likely to wait
    ad_comm_fail(comm, AD_NUMBER, "the loss of step 7 is NaN");
  }
  for (int i = 0; i < 2; i++) {
    CHECK_STATUS(ad_comm_run(comm, &call), AD_PEER_FAILED);
    CHECK_FACTS("rank 0", "step 7", "NaN");
  }
  return 0;
}

static void a_failure_ends_the_waits_of_all_nodes(void **state) {
  run_on_nodes("aab", fail_while_others_wait, NULL);
  run_on_nodes("abb", fail_while_others_wait, NULL);
}

static int leave_early(ad_comm *comm, void *context) {
  float in = 1, out;
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = &in, .out = &out, .count = 1, .dtype = AD_F32};
  call.site = "stay.c:1";
  if (ad_comm_rank(comm) == 1) return 0;
  CHECK_STATUS(ad_comm_run(comm, &call), AD_RANK_LEFT);
  CHECK_FACTS("rank 1", "stay.c:1");
  return 0;
}

static void who_left_is_named_on_all_nodes(void **state) { run_on_nodes("abb", leave_early, NULL); }

/* ---- circles of waits ---- */

typedef enum circle { RECEIVES, RECEIVES_FROM_ANY, SUMS } circle;

// Each rank waits to receive from the next one, or from any; or ranks make calls on two lists in different orders.
static int wait_in_a_circle(ad_comm *comm, void *context) {
  const circle kind = *(const circle *)context;
  int64_t rank = ad_comm_rank(comm), next = (rank + 1) % ad_comm_size(comm);
  float in = 1, out;
  ad_ranks *lists[] = {list_of_all(comm), list_of_all(comm)};
  ad_transfer receive = {.size = sizeof receive, .peer = kind == RECEIVES ? next : AD_ANY_SOURCE, .receive = &out};
  receive.count = 1;
  receive.dtype = AD_F32;
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = &in, .out = &out, .count = 1, .dtype = AD_F32};
  call.ranks = lists[rank % 2];
  CHECK_STATUS(kind == SUMS ? ad_comm_run(comm, &call) : ad_comm_transfer(comm, &receive, NULL), AD_CYCLE);
  CHECK_FACTS("rank 1", "test_spanning.c");
  if (kind == RECEIVES) CHECK_FACTS("rank 0", "rank 2");  // of the sums, the first circle that is found is reported
  for (int i = 0; i < 2; i++) ad_ranks_release(lists[i]);
  return 0;
}

static void circles_of_waits_are_found_across_nodes(void **state) {
  for (circle kind = RECEIVES; kind <= SUMS; kind++) run_on_nodes("aab", wait_in_a_circle, &kind);
}

/* ---- a message whose receiver leaves ---- */

// Rank 0 sends to rank 1, which leaves; the sender has memory for a copy of the message, or none.
static int send_to_who_leaves(ad_comm *comm, void *context) {
  static float values[LARGE];
  const int *has_memory = context;
  ad_transfer send = {.size = sizeof send, .peer = 1, .tag = 4, .send = values, .count = LARGE, .dtype = AD_F32};
  send.site = "gone.c:1";
  if (ad_comm_rank(comm) != 0) return 0;
  refused = *has_memory ? 0 : sizeof values;
  ad_status status = ad_comm_transfer(comm, &send, NULL);
  refused = 0;
  CHECK_STATUS(status, *has_memory ? AD_OK : AD_RANK_LEFT);
  if (status) CHECK_FACTS("rank 1", "rank 0", "gone.c:1", "5003 f32");
  return 0;
}

static void a_message_that_nobody_can_take_any_more_is_copied_or_an_error(void **state) {
  for (int has_memory = 0; has_memory < 2; has_memory++) run_on_nodes("ab", send_to_who_leaves, &has_memory);
}

/* ---- memory that ends on one rank ---- */

enum { MESSAGES = 40 };  // more than a table without its own memory holds

// A large sum, an exchange of many messages and a large transfer with the other rank; returns the first failure.
static ad_status use_all(ad_comm *comm) {
  static float in[LARGE], out[LARGE];
  ad_message messages[2 * MESSAGES];
  int64_t peer = 1 - ad_comm_rank(comm);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = in, .out = out, .count = LARGE, .dtype = AD_F32};
  AD_TRY(ad_comm_run(comm, &call));
  for (size_t i = 0; i < MESSAGES; i++) {
    messages[i] = (ad_message){.peer = peer, .send = in + i, .count = 1};
    messages[MESSAGES + i] = (ad_message){.peer = peer, .receive = out + i, .count = 1};
  }
  ad_collective exchange = {.size = sizeof exchange, .op = AD_EXCHANGE, .messages = messages, .dtype = AD_F32};
  exchange.message_count = 2 * MESSAGES;
  AD_TRY(ad_comm_run(comm, &exchange));
  ad_transfer transfer = {.size = sizeof transfer, .peer = peer, .count = LARGE, .dtype = AD_F32};
  if (peer) transfer.send = in;
  if (!peer) transfer.receive = out;
  return ad_comm_transfer(comm, &transfer, NULL);
}

// Allocation number n of rank 1 fails. Rank 1 reports it if its call returns it; otherwise the backend does.
static int fail_an_allocation(ad_comm *comm, void *context) {
  const long n = *(const long *)context;
  int fails = ad_comm_rank(comm) == 1;
  ad_memory_fail_at(fails ? n : 0);
  ad_status status = use_all(comm);
  ad_memory_fail_at(0);
  if (status == AD_MEMORY) ad_comm_fail(comm, status, ad_last_error());
  CHECK(!status || status == AD_PEER_FAILED || (fails && status == AD_MEMORY));
  if (status == AD_PEER_FAILED) CHECK_FACTS("rank 1");
  return 0;
}

static void a_failed_allocation_is_reported_on_all_nodes_and_leaves_nothing(void **state) {
  for (long n = 1; n <= 40; n++) run_on_nodes("ab", fail_an_allocation, &n);
}

/* ---- the module that speaks a launcher's MPI ---- */

static void a_module_that_cannot_be_loaded_is_named(void **state) {
  const ad_mpi_transport *transport = NULL;
  setenv("ADDEND_MPI_MODULE", "/nowhere/module.so", 1);
  assert_int_equal(__real_ad_mpi_load(&transport), AD_SYSTEM);
  assert_facts(ad_last_error(), "/nowhere/module.so");
  setenv("ADDEND_MPI_MODULE", "unheard-of", 1);
  assert_int_equal(__real_ad_mpi_load(&transport), AD_SYSTEM);
  assert_facts(ad_last_error(), "libaddend-mpi-unheard-of.so");
  unsetenv("ADDEND_MPI_MODULE");
  setenv("SLURM_PROCID", "2", 1);
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  assert_int_equal(__real_ad_mpi_load(&transport), AD_INVALID);
  assert_facts(ad_last_error(), "2", "4", "--mpi=pmix");
  unsetenv("SLURM_PROCID");
  unsetenv("SLURM_STEP_NUM_TASKS");
  assert_null(transport);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_right_wherever_ranks_are),
      cmocka_unit_test(leaves_are_summed_by_their_tree_wherever_ranks_are),
      cmocka_unit_test(calls_on_lists_are_kept_until_a_member_makes_its_own),
      cmocka_unit_test(messages_of_an_exchange_match_in_number_bytes_and_dtype),
      cmocka_unit_test(a_rank_receives_all_messages_to_itself),
      cmocka_unit_test(a_failure_ends_the_waits_of_all_nodes),
      cmocka_unit_test(who_left_is_named_on_all_nodes),
      cmocka_unit_test(circles_of_waits_are_found_across_nodes),
      cmocka_unit_test(a_message_that_nobody_can_take_any_more_is_copied_or_an_error),
      cmocka_unit_test(a_failed_allocation_is_reported_on_all_nodes_and_leaves_nothing),
      cmocka_unit_test(a_module_that_cannot_be_loaded_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
