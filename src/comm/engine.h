/* The table of functions that an engine is. Engines move bytes between the ranks of groups; they know dtypes only to
 * reduce. Validation, numbering and recording are done above, in comm.c, once for all of them.
 *
 * Engines: shm (processes of one machine), dry (nothing moves), hostile (tests: wraps another and misbehaves as far as
 * the contract allows). An engine for several machines has its place beside them: its own file and its own line in
 * ad_comm_open. */
#ifndef COMM_ENGINE_H
#define COMM_ENGINE_H
#include "comm/call.h"

/* What a rank tells the others for them to find its memory; means something to its engine only. */
typedef struct ad_shared_token {
  uint64_t memory, holders;
} ad_shared_token;

typedef struct ad_engine {
  const char *name;
  /* Memory that collectives move best: zeroed, 64-byte aligned, the engine's until free or close. Local. AD_MEMORY. */
  ad_status (*alloc)(void *world, size_t bytes, void **out);
  /* Frees what alloc gave; a pointer it did not give is left alone. Local. */
  void (*free)(void *world, void *memory);
  /* Starts a call. The call stays where it is, unchanged, until it is done; the engine may keep its own record in
   * call->engine. Blocks only while the group is more than 64 calls behind. An error of the world (mismatch, death...),
   * or AD_MEMORY: the call is then not under way. */
  ad_status (*post)(void *world, ad_call *call);
  /* *done = 1 if the call is complete: outputs hold, buffers are the caller's again, call->engine is released. Never
   * blocks; moves bytes of any call under way. Errors of the world. Also for a call that is already done. */
  ad_status (*test)(void *world, ad_call *call, int *done);
  /* Blocks until the call is done or the world has an error. */
  ad_status (*wait)(void *world, ad_call *call);
  /* Tells all ranks that this one failed, if no error was told before: their next call and its own return
   * AD_PEER_FAILED with the message. `cause` is for the launcher. */
  void (*fail)(void *world, ad_status cause, const char *message);
  /* AD_OK, or the first error of the world. Never blocks. */
  ad_status (*health)(void *world);
  /* Leaves the world and frees everything; calls under way are given up. */
  void (*close)(void *world);
  /* Whether all ranks of the group can attach to each other's memory. Local. NULL: no two ranks can. */
  int (*shares)(void *world, const ad_group_shape *shape);
  /* As alloc, for `holders` ranks, this one among them: the others attach with what *token says. Each frees it once;
   * the memory goes with the last. Local. */
  ad_status (*share)(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out);
  /* This rank's address of it; `bytes` as in share. Local. AD_MEMORY: it then counts as freed by this rank. */
  ad_status (*attach)(void *world, size_t bytes, const ad_shared_token *token, void **out);
} ad_engine;

/* What ad_comm_open and the launcher make a comm of. Takes `world`: closed on failure too. */
ad_status ad_comm_create(const ad_engine *engine, void *world, int64_t rank, int64_t size, ad_comm **out) AD_CHECKED;

extern const ad_engine ad_engine_dry;
/* Wraps `engine`; takes `world`, also on failure. The same seed misbehaves in the same way. */
ad_status ad_hostile_create(const ad_engine *engine, void *world, uint64_t seed, void **out) AD_CHECKED;
extern const ad_engine ad_engine_hostile;

#endif
