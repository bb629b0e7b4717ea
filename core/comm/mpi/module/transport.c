/* The loadable module: wraps an MPI implementation as backend mpi's table of functions. Its source is the same for all
 * implementations, and is compiled once with each implementation's compiler wrapper. */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include "comm/mpi/transport.h"

enum { PIECE = 1 << 30 };  // bytes of a piece; MPI counts are int

/* A message that is sent or received, in pieces. */
typedef struct request {
  int pieces, complete;
  MPI_Request each[];
} request;

static MPI_Comm lanes[AD_LANE_COUNT];
static int initialized_here;

static int tag_max(void) {
  void *value;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  return found ? *(int *)value : 32767;
}

static int transport_open(ad_mpi_place *out) {
  int is_initialized, is_finalized, level;
  MPI_Finalized(&is_finalized);
  if (is_finalized) return 0;
  MPI_Initialized(&is_initialized);
  if (!is_initialized) MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  initialized_here = !is_initialized;
  for (int i = 0; i < AD_LANE_COUNT; i++) MPI_Comm_dup(MPI_COMM_WORLD, &lanes[i]);
  MPI_Comm_rank(MPI_COMM_WORLD, &out->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &out->size);
  out->tag_max = tag_max();
  return 1;
}

static void transport_all_gather(const void *in, size_t bytes, void *out) {
  MPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, lanes[AD_LANE_MAIL]);
}

static request *make_request(size_t bytes) {
  size_t pieces = bytes ? (bytes + PIECE - 1) / PIECE : 1;
  request *made = malloc(sizeof *made + pieces * sizeof made->each[0]);
  if (made) *made = (request){(int)pieces, 0};
  return made;
}

static int piece_bytes(const request *r, int i, size_t bytes) {
  return i + 1 < r->pieces ? PIECE : (int)(bytes - (size_t)i * PIECE);
}

static void *transport_send(ad_mpi_lane lane, int peer, int tag, const void *memory, size_t bytes) {
  request *r = make_request(bytes);
  for (int i = 0; r && i < r->pieces; i++)
    MPI_Isend((const char *)memory + (size_t)i * PIECE, piece_bytes(r, i, bytes), MPI_BYTE, peer, tag, lanes[lane],
              &r->each[i]);
  return r;
}

static void *transport_receive(ad_mpi_lane lane, int peer, int tag, void *memory, size_t bytes) {
  request *r = make_request(bytes);
  for (int i = 0; r && i < r->pieces; i++)
    MPI_Irecv((char *)memory + (size_t)i * PIECE, piece_bytes(r, i, bytes), MPI_BYTE, peer, tag, lanes[lane],
              &r->each[i]);
  return r;
}

static int transport_test(void *given) {
  request *r = given;
  for (; r->complete < r->pieces; r->complete++) {
    int done = 0;
    MPI_Test(&r->each[r->complete], &done, MPI_STATUS_IGNORE);
    if (!done) return 0;
  }
  free(r);
  return 1;
}

static int transport_cancel(void *given) {
  request *r = given;
  int all = 1;
  for (int i = r->complete; i < r->pieces; i++) {
    int done = 0;
    MPI_Cancel(&r->each[i]);
    MPI_Test(&r->each[i], &done, MPI_STATUS_IGNORE);
    all &= done;
  }
  free(r);
  return all;
}

static int transport_probe(ad_mpi_lane lane, int *peer, size_t *bytes) {
  int found = 0, count;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, 0, lanes[lane], &found, &status);
  if (!found) return 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *peer = status.MPI_SOURCE;
  *bytes = (size_t)count;
  return 1;
}

static void transport_abort(int exit_status) { MPI_Abort(MPI_COMM_WORLD, exit_status); }

static void transport_close(void) {
  if (initialized_here) MPI_Finalize();
}

extern const ad_mpi_transport ad_mpi_transport_table;
#if defined(OPEN_MPI)
#define IMPLEMENTATION "Open MPI"
#elif defined(MPICH_VERSION)
#define IMPLEMENTATION "MPICH"
#else
#define IMPLEMENTATION "an MPI"
#endif
__attribute__((visibility("default"))) const ad_mpi_transport ad_mpi_transport_table = {
    .version = AD_MPI_TRANSPORT_VERSION,
    .name = IMPLEMENTATION,
    .open = transport_open,
    .all_gather = transport_all_gather,
    .send = transport_send,
    .receive = transport_receive,
    .test = transport_test,
    .cancel = transport_cancel,
    .probe = transport_probe,
    .abort = transport_abort,
    .close = transport_close,
};
