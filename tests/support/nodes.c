/* A transport for backend mpi whose messages lie in memory that all ranks map, and starting ranks on it. A message is
 * copied when it is sent; a receive takes the first message that fits, and receives take messages in the order in which
 * they were started, as in MPI. */
#include "nodes.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "comm/mpi/join.h"
#include "ranks.h"

enum { RANKS = 16, GATHERED = 1024, TAG_MAX = 32767 };
static const size_t room = (size_t)256 << 20;  // bytes of all messages of a run

/* A message on its way, in the memory that all ranks map at one address. */
typedef struct message {
  struct message *next;
  int lane, from, tag;
  size_t bytes;
  unsigned char values[];
} message;

typedef struct office {
  pthread_mutex_t lock;
  pthread_barrier_t all;
  int ranks;
  size_t used;
  message *first[RANKS], **end[RANKS];  // the messages to each rank, oldest first
  char gathered[RANKS][GATHERED];
} office;

typedef struct request {
  struct request *next;
  int is_complete, lane, peer, tag;
  void *memory;
  size_t bytes;
} request;

static office *shared;
static int own_rank;
static request *receives;  // those that wait for a message, oldest first

/* ---- the transport ---- */

static int nodes_open(ad_mpi_place *out) {
  *out = (ad_mpi_place){own_rank, shared->ranks, TAG_MAX};
  return 1;
}

static void nodes_all_gather(const void *in, size_t bytes, void *out) {
  CHECK(bytes <= GATHERED);
  memcpy(shared->gathered[own_rank], in, bytes);
  pthread_barrier_wait(&shared->all);
  for (int i = 0; i < shared->ranks; i++) memcpy((char *)out + (size_t)i * bytes, shared->gathered[i], bytes);
  pthread_barrier_wait(&shared->all);
}

static request *make_request(request given) {
  request *made = malloc(sizeof *made);
  CHECK(made != NULL);
  *made = given;
  return made;
}

static void *nodes_send(ad_mpi_lane lane, int peer, int tag, const void *memory, size_t bytes) {
  pthread_mutex_lock(&shared->lock);
  message *sent = (message *)((char *)(shared + 1) + shared->used);
  shared->used += (sizeof *sent + bytes + 15) / 16 * 16;
  CHECK(shared->used <= room);
  *sent = (message){.lane = lane, .from = own_rank, .tag = tag, .bytes = bytes};
  if (bytes) memcpy(sent->values, memory, bytes);
  *shared->end[peer] = sent;
  shared->end[peer] = &sent->next;
  pthread_mutex_unlock(&shared->lock);
  return make_request((request){.is_complete = 1});
}

static void *nodes_receive(ad_mpi_lane lane, int peer, int tag, void *memory, size_t bytes) {
  request **end = &receives;
  while (*end) end = &(*end)->next;
  return *end = make_request((request){.lane = lane, .peer = peer, .tag = tag, .memory = memory, .bytes = bytes});
}

// Takes the first message that fits the receive. Returns 0 if there is none yet.
static int take_message(const request *r) {
  message **link = &shared->first[own_rank];
  while (*link && ((*link)->lane != r->lane || (*link)->from != r->peer || (*link)->tag != r->tag))
    link = &(*link)->next;
  const message *found = *link;
  if (!found) return 0;
  CHECK(found->bytes == r->bytes);
  if (r->bytes) memcpy(r->memory, found->values, r->bytes);
  if (shared->end[own_rank] == &(*link)->next) shared->end[own_rank] = link;
  *link = found->next;
  return 1;
}

static int nodes_test(void *given) {
  request *r = given;
  pthread_mutex_lock(&shared->lock);
  for (request **link = &receives; *link;) {
    request *waiting = *link;
    waiting->is_complete = take_message(waiting);
    if (waiting->is_complete)
      *link = waiting->next;
    else
      link = &waiting->next;
  }
  pthread_mutex_unlock(&shared->lock);
  if (!r->is_complete) return 0;
  free(r);
  return 1;
}

static int nodes_cancel(void *given) {
  request **link = &receives;
  while (*link && *link != given) link = &(*link)->next;
  if (*link) *link = (*link)->next;
  free(given);
  return 1;
}

static int nodes_probe(ad_mpi_lane lane, int *peer, size_t *bytes) {
  pthread_mutex_lock(&shared->lock);
  const message *found = shared->first[own_rank];
  while (found && (found->lane != (int)lane || found->tag != 0)) found = found->next;
  if (found) *peer = found->from, *bytes = found->bytes;
  pthread_mutex_unlock(&shared->lock);
  return found != NULL;
}

static void nodes_abort(int exit_status) { _exit(exit_status); }

static void nodes_close(void) {}

const ad_mpi_transport nodes_transport = {
    .version = AD_MPI_TRANSPORT_VERSION,
    .name = "no MPI",
    .open = nodes_open,
    .all_gather = nodes_all_gather,
    .send = nodes_send,
    .receive = nodes_receive,
    .test = nodes_test,
    .cancel = nodes_cancel,
    .probe = nodes_probe,
    .abort = nodes_abort,
    .close = nodes_close,
};

/* ---- starting ranks ---- */

static void open_office(int ranks) {
  pthread_mutexattr_t lock;
  pthread_barrierattr_t all;
  void *memory =
      mmap(NULL, sizeof *shared + room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_true(memory != MAP_FAILED && ranks <= RANKS);
  shared = memory;
  shared->ranks = ranks;
  pthread_mutexattr_init(&lock);
  pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&shared->lock, &lock);
  pthread_barrierattr_init(&all);
  pthread_barrierattr_setpshared(&all, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->all, &all, (unsigned)ranks);
  for (int i = 0; i < ranks; i++) shared->end[i] = &shared->first[i];
}

static void be_rank(int rank, char node, int (*function)(ad_comm *comm, void *context), void *context) {
  const char name[2] = {node};
  ad_comm *comm;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(RANK_HANGS);
  own_rank = rank;
  setenv("ADDEND_NODE", name, 1);
  CHECK_OK(ad_mpi_open(&comm));
  int status = function(comm, context);
  ad_comm_close(comm);
  rank_leaks_check();
  fflush(NULL);
  _exit(status);
}

// Waits for all ranks. The first one that fails, by its exit status or a signal, ends the others. Returns its wait status.
static int wait_for_ranks(const pid_t *pids, int ranks) {
  int failed = 0, status;
  for (int ended = 0; ended < ranks; ended++) {
    wait(&status);
    if (!status || failed) continue;
    failed = status;
    for (int i = 0; i < ranks; i++) kill(pids[i], SIGKILL);
  }
  return failed;
}

void run_on_nodes_at(const char *nodes, int (*function)(ad_comm *comm, void *context), void *context, const char *file,
                     int line) {
  pid_t pids[RANKS];
  int ranks = (int)strlen(nodes);
  open_office(ranks);
  fflush(NULL);
  for (int rank = 0; rank < ranks; rank++) {
    pids[rank] = fork();
    assert_true(pids[rank] >= 0);
    if (!pids[rank]) be_rank(rank, nodes[rank], function, context);
  }
  int failed = wait_for_ranks(pids, ranks);
  munmap(shared, sizeof *shared + room);
  if (!failed) return;
  print_error("%s:%d: on nodes %s: a rank ended with wait status %d\n", file, line, nodes, failed);
  _fail(file, line);
}
