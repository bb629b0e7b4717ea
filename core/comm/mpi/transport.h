/* What backend mpi needs from an MPI, as a table of functions that a loaded module fills. libaddend itself links no
 * MPI, and one build runs under each implementation whose module is installed. The module knows nothing of addend but
 * this file.
 *
 * The functions return no errors: an error inside MPI ends the job with MPI's own message (MPI_ERRORS_ARE_FATAL). */
#ifndef COMM_MPI_TRANSPORT_H
#define COMM_MPI_TRANSPORT_H
#include <stddef.h>
#include <stdint.h>

enum { AD_MPI_TRANSPORT_VERSION = 1 };
#define AD_MPI_TRANSPORT_SYMBOL "ad_mpi_transport_table"

/* Two separate kinds of messages: a message that is sent on one lane is never received on the other lane. */
typedef enum ad_mpi_lane { AD_LANE_MAIL, AD_LANE_DATA, AD_LANE_COUNT } ad_mpi_lane;

/* This process's rank, the number of ranks, and the largest message tag that MPI permits. */
typedef struct ad_mpi_place {
  int rank, size;
  int tag_max;
} ad_mpi_place;

typedef struct ad_mpi_transport {
  uint32_t version;  // AD_MPI_TRANSPORT_VERSION
  const char *name;  // the name of the MPI implementation
  /* Joins the job; blocks until all ranks have joined. Returns 1, or 0 if MPI was finalized in this process before. */
  int (*open)(ad_mpi_place *out);
  /* An all-gather: `in` has `bytes` bytes of this rank; `out` gets the bytes of all ranks, in order of rank. Blocks
   * until all ranks have called it. */
  void (*all_gather)(const void *in, size_t bytes, void *out);
  /* Start a message. Return a request, or NULL if there is no memory. The caller owns `memory`, and must not touch it
   * until test(request) is 1. Messages between two ranks on one lane with one tag arrive in order. */
  void *(*send)(ad_mpi_lane lane, int peer, int tag, const void *memory, size_t bytes);
  void *(*receive)(ad_mpi_lane lane, int peer, int tag, void *memory, size_t bytes);
  /* Returns 1 if the request is complete, and releases it then. Never blocks; moves bytes of all requests. */
  int (*test)(void *request);
  /* Cancels and releases a request that is not complete. Returns 1 if MPI certainly does not use the request's memory
   * again. */
  int (*cancel)(void *request);
  /* Returns 1 if a message with tag 0 can be received on this lane, and sets its sender and its size. Never blocks. */
  int (*probe)(ad_mpi_lane lane, int *peer, size_t *bytes);
  /* Kills all ranks of the job. */
  void (*abort)(int exit_status);
  /* Leaves the job; blocks until all ranks do. */
  void (*close)(void);
} ad_mpi_transport;

#endif
