/* The table of functions that an engine is. An engine moves bytes between the ranks of groups; it knows dtypes only to
 * reduce. comm.c validates, numbers and records every call before an engine sees it, once for all engines.
 *
 *   shm      processes of one machine, over shared memory   shm/backend.c
 *   mpi      ranks that an MPI launcher started             mpi/backend.c
 *   dry      one process that acts as any rank              dry.c
 *   hostile  for tests: wraps another engine                hostile.c
 *
 * A new engine is a file with such a table, and a line where ad_comm_open (open.c) chooses among them. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H
#include "base/text.h"
#include "comm/call.h"
#include "mesh/group.h"

/* A handle by which other ranks attach to memory that one rank made. Only the engine that wrote it can read it. */
typedef struct ad_shared_token {
  uint64_t memory, holders;
} ad_shared_token;

/* `world` is the engine's own view of the world, as it was given to ad_comm_create. One thread of a rank calls these
 * functions, never two at a time.
 *
 * Local: the function asks nothing of other ranks and never waits for them.
 * Errors of the world: AD_MISMATCH, AD_RANK_DIED, AD_RANK_LEFT, AD_CYCLE, AD_PEER_FAILED. The first one is kept. From
 * then on post and health give it on every rank, and test and wait for every call that is not complete, whose outputs
 * are undefined.
 * Errors of the rank alone (AD_MEMORY, AD_SYSTEM, AD_INVALID): the world goes on, and other ranks learn of them only if
 * they are told (fail). */
typedef struct ad_backend {
  const char *name; /* "shm", ...: what ad_comm_backend returns */

  /* ---- memory; none of these functions communicates ---- */

  /* Gives zeroed memory, 64-byte aligned, that this engine's collectives move best. The engine owns it and takes it
   * back at `free` or `close`. AD_MEMORY: *out is unchanged. */
  ad_status (*alloc)(void *world, size_t bytes, void **out);
  /* Takes back what alloc, share or attach gave; other pointers are ignored. No call under way may use the memory. */
  void (*free)(void *world, void *memory);
  /* 1 if all ranks of the group can attach to memory that one of them made; every member gets the same answer. NULL in
   * the table: no two ranks can, and share and attach are never called. */
  int (*shares)(void *world, const ad_group_shape *shape);
  /* Allocates memory as `alloc` does, for `holders` ranks, this one among them. The caller sends *token to the other
   * holders, which attach with it. Each holder frees its own view once; the memory goes with the last. AD_MEMORY. */
  ad_status (*share)(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out);
  /* Gives this rank's address of memory that another rank shared; `bytes` is what that rank gave to `share`. AD_MEMORY:
   * this rank then counts as a holder that has freed it. */
  ad_status (*attach)(void *world, size_t bytes, const ad_shared_token *token, void **out);

  /* ---- posting calls, and waiting for them ---- */

  /* Starts a call: a collective, or one side of a transfer (ad_op_is_transfer), of which any number may be under way.
   * The caller owns *call and its buffers and leaves both as they are until the call is complete; the engine may keep a
   * record of its own in call->engine, which is not NULL as long as the call is under way. Bytes may move from now on,
   * whenever any member is inside post, test or wait. Blocks only while a member of the group is 64 calls behind this
   * rank. Errors of the world, or of this rank alone: the call is then not under way. */
  ad_status (*post)(void *world, ad_call *call);
  /* Looks whether a call is complete; never blocks. May move bytes of any call that is under way. *done = 1: the
   * outputs hold the result, the buffers are the caller's again, call->engine is NULL. A complete call may be tested
   * again and is still complete. Errors of the world; *done then says nothing. */
  ad_status (*test)(void *world, ad_call *call, int *done);
  /* Blocks until the call is complete, as test says it, or until the world has an error, which is found and reported
   * within 2 seconds. Moves bytes of any call that is under way. */
  ad_status (*wait)(void *world, ad_call *call);
  /* Tells the engine that this rank makes no more calls on a list of ranks, and has none under way. Local. NULL in the
   * table: the engine keeps nothing for lists. */
  void (*release)(void *world, const ad_group_shape *list);

  /* ---- the state of all ranks, and leaving them ---- */

  /* Tells all ranks that this one failed, unless the world has an error already: then nothing happens. The error of
   * the world is then AD_PEER_FAILED with `message`, on this rank too. `cause` is this rank's reason, for the
   * launcher's report. Copies `message`; waits for no answer. */
  void (*fail)(void *world, ad_status cause, const char *message);
  /* Adds where the ranks are that this rank waits for. Another thread than the one that waits may call it. NULL in the
   * table: the engine does not know. */
  void (*missing)(void *world, ad_text *text);
  /* Returns AD_OK, or the error of the world. Never waits for a rank. */
  ad_status (*health)(void *world);
  /* Leaves the world and frees `world` with all memory it gave. Calls under way are given up: ranks that still need
   * this one for them get AD_RANK_LEFT. Shm and dry return at once; mpi waits until all ranks leave, since MPI ends in
   * all of them together, and ends those that do not come after an error. */
  void (*close)(void *world);
} ad_backend;

/* Makes a comm of an engine and its world, for ad_comm_open and the launcher. Takes `world`: it is closed on failure
 * too. */
ad_status ad_comm_create(const ad_backend *backend, void *world, int64_t rank, int64_t size, ad_comm **out) AD_CHECKED;

extern const ad_backend ad_backend_dry;
/* Wraps `backend` and takes its `world`, also on failure. *out is a world of ad_backend_hostile. The same seed misbehaves
 * in the same way. */
ad_status ad_hostile_create(const ad_backend *backend, void *world, uint64_t seed, void **out) AD_CHECKED;
extern const ad_backend ad_backend_hostile;

#endif
