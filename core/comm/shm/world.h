/* The data that this process keeps for itself about the world: its mapping of the shared memory file, its channels
 * and its calls. */
#ifndef COMM_SHM_WORLD_H
#define COMM_SHM_WORLD_H
#include "comm/shm/call.h"

enum { SHM_KEPT = 16 };

/* A staging buffer with the whole input of a call. The call may be complete on this rank; the buffer is kept because
 * other members may read it until they have consumed the call. */
typedef struct shm_kept {
  shm_channel *channel;
  uint64_t sequence;
  void *staging;
} shm_kept;

typedef struct shm_block shm_block;
typedef struct shm_shared shm_shared;
typedef struct shm_transfers shm_transfers;

struct shm_transfer;

/* The functions and data about other nodes that backend mpi provides. */
typedef struct shm_outside {
  void *context;
  /* Copies the message of a matched receive into the receive's buffer. Returns 1 when that is complete, 0 if this
   * function must be called again. */
  int (*bring)(void *context, struct shm_transfer *t);
  const uint8_t *left;  // for each rank: not 0 if it has left
} shm_outside;

struct shm_world {
  shm_control *control;
  shm_record *records;
  char *base;
  int fd;
  uint32_t rank, ranks;
  uint32_t vain_tests;       // number of calls of shm_test that found their call incomplete
  int64_t next_look;         // by ad_now(): when shm_test next looks for ranks that died or left
  uint32_t spins, patience;  // how often a wait spins before the first yield; the first value of shm_call's `patience`
  int64_t sleep_longest;     // nanoseconds
  shm_channel **channels;    // hash table
  uint32_t channel_slots, channel_count;
  shm_channel *last_channel;
  shm_channel *lists, *released;  // channels of lists of ranks: lists in use; lists that this rank has released
  shm_transfers *transfers;       // owned
  shm_call calls[SHM_RING];
  uint64_t free_calls;                  // bit i: calls[i] is free
  shm_call *first, **last;              // calls in flight, oldest first
  shm_block *blocks;                    // blocks of this rank's region, in order of address
  shm_shared *shared;                   // memory, in any rank's region, that this rank shares with other ranks
  void *stagings[SHM_RING + SHM_KEPT];  // staging buffers that no call uses
  uint32_t staging_count, kept_count;
  shm_kept kept[SHM_KEPT];
  uint64_t *mapped;         // bit i: this rank has mapped the pages of piece i of the shared file; see map.c
  uint64_t probe;           // the word that other ranks try to read; see shm_record
  int pulls;                // 1: all ranks of this node can read each other's memory
  int crowded;              // 1: there are more ranks than cores that they may run on
  struct ad_watchdog *dog;  // owned; NULL: the launcher watches the ranks
  // In a world of several nodes: receives messages of other nodes, and knows which ranks have left. Else NULL.
  struct shm_outside *outside;
  int *processes;  // owned: a pidfd of each rank's process; NULL: the launcher watches the processes. See deaths.h
};

static inline void *ad_shm_at(const shm_world *world, uint64_t offset) { return world->base + offset; }
static inline int ad_shm_failed(const shm_world *world) {
  return __builtin_expect(atomic_load_explicit(&world->control->failed, memory_order_acquire) != 0, 0);
}

#endif
