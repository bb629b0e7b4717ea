/* A backend is this table of functions. It moves bytes between the ranks of groups; it knows dtypes only to reduce.
 * comm.c validates, numbers and records every call before a backend sees it, once for all backends.
 *
 *   shm      processes of one machine, over shared memory   shm/backend.c
 *   mpi      ranks that an MPI launcher started             mpi/backend.c
 *   dry      one process that acts as any rank              dry.c
 *   hostile  for tests: wraps another backend                hostile.c
 *
 * A new backend is a file with such a table, and a line where ad_comm_open (open.c) chooses among them. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H
#include "base/text.h"
#include "comm/call.h"
#include "mesh/group.h"

/* A handle by which other ranks attach to memory that one rank made. Only the backend that wrote the handle can read
 * it. */
typedef struct ad_shared_token {
  uint64_t memory, holders;
} ad_shared_token;

/* The functions' argument `world` is the backend's own data, which ad_comm_create was given. Only one thread of a
 * rank at a time calls the functions. Errors of the world are AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT, AD_CYCLE and
 * AD_PEER_FAILED. The world keeps the first such error. From then on, on every rank, post and health return this error,
 * and so do test and wait for every call that is not complete; the outputs of such calls are undefined. Errors of one
 * rank alone are AD_MEMORY, AD_SYSTEM and AD_INVALID: the world continues, and other ranks learn of such an error only
 * if this rank calls `fail`. */
typedef struct ad_backend {
  const char *name; /* the backend's name, such as "shm", which ad_comm_backend returns */

  /* ---- memory; none of these functions communicates ---- */

  /* Sets *out to zeroed memory, 64-byte aligned, that this backend's collectives move best. The backend owns the memory
   * and releases it at `free` or `close`. If there is no memory, returns AD_MEMORY and leaves *out unchanged. */
  ad_status (*alloc)(void *world, size_t bytes, void **out);
  /* Releases memory that alloc, share or attach returned; other pointers are ignored. No call in flight may use the
   * memory. */
  void (*free)(void *world, void *memory);
  /* Returns 1 if all ranks of the group can attach to memory that one of them made; all members get the same answer.
   * NULL in the table: no two ranks can share memory, and share and attach are never called. */
  int (*shares)(void *world, const ad_group_shape *shape);
  /* Allocates memory as `alloc` does, for `holders` ranks including this rank. The caller sends *token to the other
   * holders, which attach with it. Each holder calls `free` once; the last call releases the memory. Returns AD_MEMORY
   * if there is no memory. */
  ad_status (*share)(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out);
  /* Sets *out to the address, in this process, of memory that another rank shared; `bytes` is the size that was given
   * to `share`. If it returns AD_MEMORY, this rank counts as a holder that has freed the memory. */
  ad_status (*attach)(void *world, size_t bytes, const ad_shared_token *token, void **out);

  /* ---- posting calls, and waiting for them ---- */

  /* Starts a call: a collective, or one side of a transfer (ad_op_is_transfer). Any number of calls may be in flight.
   * The caller owns *call and its buffers and leaves all of them unchanged until the call is complete. The backend may
   * keep its own record in call->backend, which is not NULL as long as the call is in flight. From now on bytes may
   * move whenever any member is inside post, test or wait. Blocks only while a member of the group is 64 calls behind
   * this rank. After an error (of the world or of this rank alone) the call is not in flight. */
  ad_status (*post)(void *world, ad_call *call);
  /* Finds out whether a call is complete; never blocks. May move bytes of any call that is in flight. Sets *done to
   * 1 if the call is complete: then the outputs contain the result, the caller may use the call's buffers again, and
   * call->backend is NULL. A complete call may be tested again. If the world has an error, returns it, and *done is
   * meaningless. */
  ad_status (*test)(void *world, ad_call *call, int *done);
  /* Blocks until the call is complete (see test) or the world has an error. An error is found and reported within 2
   * seconds. Moves bytes of any call that is in flight. */
  ad_status (*wait)(void *world, ad_call *call);
  /* Informs the backend that this rank makes no more calls on the group `list`, which is a list of ranks, and has
   * none in flight on it. Does not communicate. NULL in the table: the backend keeps no data about lists. */
  void (*release)(void *world, const ad_group_shape *list);

  /* ---- the state of the world, and leaving it ---- */

  /* Reports to all ranks that this rank failed: the error of the world is then AD_PEER_FAILED with `message`, on this
   * rank too. Does nothing if the world has an error already. `cause` is this rank's reason, for the launcher's report.
   * Copies `message`; waits for no answer. */
  void (*fail)(void *world, ad_status cause, const char *message);
  /* Appends to the text what those ranks are doing for which this rank waits. May be called from another thread than
   * the waiting one. NULL in the table: the backend does not know. */
  void (*missing)(void *world, ad_text *text);
  /* Returns AD_OK, or the error of the world. Never waits for a rank. */
  ad_status (*health)(void *world);
  /* Leaves the world and frees `world` with all its memory. Calls in flight are given up: ranks that still need this
   * rank in such a call get AD_RANK_LEFT. Backends shm and dry return immediately. Backend mpi waits until all ranks
   * leave, since MPI ends in all ranks together; after an error it kills the ranks that do not leave in time. */
  void (*close)(void *world);
} ad_backend;

/* Makes a comm from a backend and its world, for ad_comm_open and the launcher. Takes ownership of `world`; on failure
 * closes it. */
ad_status ad_comm_create(const ad_backend *backend, void *world, int64_t rank, int64_t size, ad_comm **out) AD_CHECKED;

extern const ad_backend ad_backend_dry;
/* Wraps `backend` and takes ownership of its `world`, also on failure. *out becomes a world of ad_backend_hostile,
 * which misbehaves at random; the same seed gives the same misbehaviour. */
ad_status ad_hostile_create(const ad_backend *backend, void *world, uint64_t seed, void **out) AD_CHECKED;
extern const ad_backend ad_backend_hostile;

#endif
