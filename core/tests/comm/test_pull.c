/* Tests large values in ordinary memory, which are read directly from the process that holds them: what happens if that
 * process is gone, dies meanwhile, or unmaps its memory. That the values are right is tested in test_conformance.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "ranks.h"
#include "says.h"

enum { COUNT = 8 << 20, RANKS = 3 };  // COUNT: f32 values of each rank

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group all;
  float *in, *out;
} world;

static world open_world(ad_comm *comm) {
  world w = {.comm = comm};
  w.in = calloc(COUNT, sizeof *w.in);
  w.out = calloc((size_t)RANKS * COUNT, sizeof *w.out);
  CHECK(w.in && w.out);
  CHECK_OK(ad_mesh_create("dp=3", &w.mesh));
  w.all = ad_mesh_group(w.mesh, AD_AXES_ALL, ad_comm_rank(comm));
  return w;
}

static int close_world(world *w) {
  ad_mesh_destroy(w->mesh);
  free(w->in);
  free(w->out);
  return 0;
}

static ad_collective collective(const world *w, ad_collective_op op, const char *site) {
  return (ad_collective){.size = sizeof(ad_collective),
                         .op = op,
                         .group = w->all,
                         .in = w->in,
                         .out = w->out,
                         .count = COUNT,
                         .dtype = AD_F32,
                         .site = site};
}

// Tries whether the machine lets ranks read each other's memory; if not, all data is staged.
static int ranks_read_each_other(const world *w) {
  typedef struct place {
    int64_t pid, at;
  } place;
  int64_t word = 77, found = 0;
  place own = {getpid(), (int64_t)(intptr_t)&word}, all[RANKS];
  ad_collective gather = {
      .size = sizeof gather, .op = AD_ALL_GATHER, .group = w->all, .in = &own, .out = all, .count = 2, .dtype = AD_I64};
  CHECK_OK(ad_comm_run(w->comm, &gather));
  const place *next = &all[(ad_comm_rank(w->comm) + 1) % RANKS];
  struct iovec to = {&found, sizeof found}, from = {(void *)(intptr_t)next->at, sizeof found};
  int reads = process_vm_readv((pid_t)next->pid, &to, 1, &from, 1, 0) == sizeof found && found == word;
  CHECK_OK(ad_comm_barrier(w->comm, &w->all));
  return reads;
}

/* ---- memory that its owner unmaps ---- */

static int take_away(ad_comm *comm, void *context) {
  _Atomic int *is_taken = context;
  world w = open_world(comm);
  size_t bytes = COUNT * sizeof *w.in;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 1, bytes);
  if (ranks_read_each_other(&w)) {
    ad_collective call = collective(&w, AD_BROADCAST, "taken.c:1");
    ad_request request;
    call.root = 1;
    call.in = ad_comm_rank(comm) == 1 ? memory : NULL;
    call.out = memory;
    while (ad_comm_rank(comm) != 1 && !atomic_load(is_taken)) usleep(100);
    CHECK_OK(ad_comm_post(comm, &call, &request));
    if (ad_comm_rank(comm) == 1) {
      munmap(memory, bytes);
      atomic_store(is_taken, 1);
    }
    double start = rank_seconds();
    CHECK_STATUS(ad_comm_wait(comm, &request), AD_PEER_FAILED);
    CHECK(rank_seconds() - start < RANK_HANGS);
    CHECK_FACTS("rank 1");
    CHECK_FACTS("taken.c:1");
    CHECK_FACTS("33554432");
  }
  if (!atomic_load(is_taken) || ad_comm_rank(comm) != 1) munmap(memory, bytes);
  return close_world(&w);
}

static void memory_that_is_taken_away_is_an_error_that_names_both_ranks(void **state) {
  void *is_taken = mmap(NULL, sizeof(_Atomic int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(is_taken != MAP_FAILED);
  run_ranks(RANKS, take_away, is_taken);
  munmap(is_taken, sizeof(_Atomic int));
}

/* ---- owners that leave ---- */

static int post_and_leave(ad_comm *comm, void *context) {
  world w = open_world(comm);
  ad_collective call = collective(&w, AD_ALL_GATHER, "left.c:1");
  if (ad_comm_rank(comm) == 1) {
    ad_request request;
    CHECK_OK(ad_comm_post(comm, &call, &request));
  } else {
    CHECK_STATUS(ad_comm_run(comm, &call), AD_RANK_LEFT);
    CHECK_FACTS("rank 1");
    CHECK_FACTS("left.c:1");
  }
  return close_world(&w);
}

static void a_rank_that_left_with_its_input_unread_is_named(void **state) { run_ranks(RANKS, post_and_leave, NULL); }

/* ---- owners that die ---- */

typedef struct death {
  ad_collective_op op;
  long microseconds;  // time after the call was posted at which the rank dies; 0: before it looks at the call again
} death;

static void kill_in(long microseconds) {
  timer_t timer;
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
  struct itimerspec when = {.it_value.tv_nsec = microseconds * 1000};
  CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
  CHECK(!timer_settime(timer, 0, &when, NULL));
}

// Rank 1 dies; the other ranks continue until they get the error.
static int die_while_read(ad_comm *comm, void *context) {
  const death *d = context;
  world w = open_world(comm);
  ad_collective call = collective(&w, d->op, AD_HERE);
  ad_request request;
  CHECK_OK(ad_comm_barrier(comm, &w.all));
  double start = rank_seconds();
  ad_status status = ad_comm_post(comm, &call, &request);
  if (ad_comm_rank(comm) == 1) {
    if (!d->microseconds) raise(SIGKILL);
    kill_in(d->microseconds);
  }
  if (!status) status = ad_comm_wait(comm, &request);
  while (!status && rank_seconds() - start < RANK_HANGS) status = ad_comm_run(comm, &call);
  CHECK_STATUS(status, AD_RANK_DIED);
  CHECK(rank_seconds() - start < RANK_HANGS);
  CHECK_FACTS("rank 1", "signal 9", "SIGKILL");
  return close_world(&w);
}

static void dies_and_is_named(ad_collective_op op, long microseconds) {
  death d = {op, microseconds};
  ad_launch_result result = {.size = sizeof result};
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = die_while_read, .context = &d};
  assert_int_equal(ad_launch(&options, &result), AD_RANK_DIED);
  assert_int_equal(result.rank, 1);
  assert_int_equal(result.signal, SIGKILL);
  assert_text_says(result.message, "rank 1", "signal 9", "SIGKILL");
}

static void a_source_killed_before_it_is_read_is_named(void **state) {
  dies_and_is_named(AD_ALL_GATHER, 0);
  dies_and_is_named(AD_ALL_REDUCE, 0);
}

static void a_source_killed_while_it_is_read_is_named(void **state) {
  for (long microseconds = 500; microseconds < 40000; microseconds *= 4) {
    dies_and_is_named(AD_ALL_GATHER, microseconds);
    dies_and_is_named(AD_ALL_REDUCE, microseconds);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_that_is_taken_away_is_an_error_that_names_both_ranks),
      cmocka_unit_test(a_rank_that_left_with_its_input_unread_is_named),
      cmocka_unit_test(a_source_killed_before_it_is_read_is_named),
      cmocka_unit_test(a_source_killed_while_it_is_read_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
