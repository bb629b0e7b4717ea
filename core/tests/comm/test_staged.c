/* Tests values that fit staging memory in one round: a rank that is done may continue and change its buffer while
 * others have not yet read what it sent. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>
#include "ranks.h"

enum { RANKS = 3, CALLS = 40, LATE = RANKS - 1, DELAY = 20000 /* microseconds */ };

/* Bytes to each other rank: small enough for a slot, for one staging buffer, just fitting, and just too large, given
 * two other ranks. */
static const size_t sizes[] = {1000, 9000, 100000, 262144, 262145, 600000};
enum { SIZES = sizeof sizes / sizeof *sizes };

static size_t bytes_of(int call) { return sizes[call % SIZES]; }

/* The byte that one rank sends to another in a call. */
static unsigned char value_of(int64_t from, int64_t to, int call) {
  return (unsigned char)(1 + 7 * call + 50 * from + 11 * to);
}

typedef struct sent {
  unsigned char *send[RANKS], *receive[RANKS];
  ad_message messages[2 * RANKS];
  ad_request request;
} sent;

static unsigned char *memory_of(size_t bytes) {
  unsigned char *memory = calloc(1, bytes);
  CHECK(memory);
  return memory;
}

static void post(ad_comm *comm, const ad_group *group, int call, sent *out) {
  int64_t own = ad_comm_rank(comm);
  size_t bytes = bytes_of(call), count = 0;
  for (int64_t peer = 0; peer < RANKS; peer++) {
    if (peer == own) continue;
    out->send[peer] = memory_of(bytes);
    out->receive[peer] = memory_of(bytes);
    for (size_t i = 0; i < bytes; i++) out->send[peer][i] = value_of(own, peer, call);
    out->messages[count] = (ad_message){.peer = peer, .send = out->send[peer], .count = bytes / 4};
    out->messages[count + 1] = (ad_message){.peer = peer, .receive = out->receive[peer], .count = bytes / 4};
    count += 2;
  }
  ad_collective exchange = {.size = sizeof exchange,
                            .op = AD_EXCHANGE,
                            .group = *group,
                            .messages = out->messages,
                            .message_count = count,
                            .dtype = AD_F32};
  CHECK_OK(ad_comm_post(comm, &exchange, &out->request));
}

static void finish(ad_comm *comm, int call, sent *of) {
  int64_t own = ad_comm_rank(comm);
  CHECK_OK(ad_comm_wait(comm, &of->request));
  for (int64_t peer = 0; peer < RANKS; peer++) {
    if (peer == own) continue;
    for (size_t i = 0; i < bytes_of(call); i++) of->send[peer][i] = 0;
    size_t read = bytes_of(call) / 4 * 4;
    for (size_t i = 0; i < read; i++) CHECK(of->receive[peer][i] == value_of(peer, own, call));
    free(of->send[peer]);
    free(of->receive[peer]);
  }
}

/* The last rank posts a number of calls and does not look at them for a while. */
static int run_ahead(ad_comm *comm, void *context) {
  const int *at_once = context;
  static sent calls[CALLS];
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp=3", &mesh));
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  int together = ad_comm_rank(comm) == LATE ? *at_once : 1;
  for (int first = 0; first < CALLS; first += together) {
    int end = first + together < CALLS ? first + together : CALLS;
    for (int call = first; call < end; call++) post(comm, &group, call, &calls[call]);
    if (together > 1) usleep(DELAY);
    for (int call = first; call < end; call++) finish(comm, call, &calls[call]);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void what_was_sent_is_read_however_late(void **state) {
  int few = 5, many = CALLS; /* fewer calls than the backend keeps, and more */
  run_ranks(RANKS, run_ahead, &few);
  run_ranks(RANKS, run_ahead, &many);
  setenv("ADDEND_STAGING", "1", 1);
  run_ranks(RANKS, run_ahead, &few);
  run_ranks(RANKS, run_ahead, &many);
  unsetenv("ADDEND_STAGING");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_sent_is_read_however_late)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
