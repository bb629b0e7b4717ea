/* Engine shm: ranks are processes of one machine that map one nameless memory file. What its files share: the layout of
 * that file, and each rank's private view of it. Positions in the file are offsets, since ranks may map it at different
 * addresses.
 *
 *   shm_world.c    the file: made, joined, left; the first error of the world
 *   shm_memory.c   each rank's own region of it, for ad_comm_alloc and staging
 *   shm_map.c      mapping what peers made
 *   shm_channel.c  a channel for each group: every member publishes its calls in a ring of slots
 *   shm_work.c     all buffers in the file: the work is cut into chunks that any member takes
 *   shm_copy.c     what is copied from whom to whom
 *   shm_own.c      buffers elsewhere: each member does its own part, by reading its peers' memory or through staging
 *   shm_pull.c     reading a peer's memory: whether that is possible, and the reading
 *   shm_wait.c     spinning, yielding, sleeping, and finding out why a wait does not end
 *   shm_engine.c   the engine's table */
#ifndef COMM_SHM_H
#define COMM_SHM_H
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "base/kernels.h"
#include "comm/engine.h"
#include "comm/signature.h"

enum {
  SHM_LINE = 64,  // bytes of a cache line
  SHM_PAIR =
      128,  // lines are fetched in pairs: what different ranks write, or one at different times, lies so far apart
  SHM_RING = 64,       // calls of one group that a member may be ahead of another
  SHM_PAYLOAD = 8192,  // bytes of a call that fit into the slot itself
  SHM_INLINE_IN_FILE = 512,
  SHM_CHANNELS = 4096,  // different groups, a power of two
  SHM_RANKS_MAX = 512,
  SHM_CORES_MAX = 1024,
  SHM_STAGE = 128 * 1024,   // bytes of one half of a staging buffer
  SHM_BLOCK = 64 * 1024,    // bytes of each member's input that are reduced at a time
  SHM_PULL_MIN = 16 * 1024  // bytes of a piece of memory that are worth reading from a peer; see is_worth_pulling
};

typedef enum shm_state { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_DIED } shm_state;

/* One rank, as all see it. */
typedef struct shm_record {
  _Alignas(SHM_LINE) _Atomic uint32_t state;  // shm_state
  _Atomic uint32_t wake;                      // futex: changes when something happened that the rank may wait for
  _Atomic int32_t pid;
  uint32_t variant;  // the widest kernels it has
  // A long wait: odd while the rank is in one, and then it waits for this call of this channel.
  _Atomic uint64_t epoch;
  _Atomic uint64_t waits_channel, waits_sequence;
  int32_t exit_status;  // of a rank that left without closing; else 0
  // A word in the rank's own memory, at this address of its process, for the others to try to read. 0: they may not.
  uint64_t probe_at, probe_holds;
} shm_record;

typedef struct shm_entry {
  _Atomic uint32_t state;  // 0 free, 1 being written, 2 written
  uint32_t members;
  uint64_t channel;
  ad_group_shape shape;
} shm_entry;

/* The head of the file. */
typedef struct shm_control {
  uint64_t magic, file_bytes, ranks;
  uint64_t records_start, channels_start, channels_bytes, regions_start, region_bytes;
  uint64_t joining;   // of the ranks: those of this node, if the world has more
  uint64_t launcher;  // the process that started the ranks, or their parents; 0: each one's own parent did
  // One line that every call reads and hardly any writes.
  _Alignas(SHM_LINE) _Atomic uint32_t failed;  // 0 no, 1 being written, 2 the error below holds
  _Atomic uint32_t sleepers;
  _Alignas(SHM_LINE) _Atomic uint32_t joined;
  _Atomic uint32_t tried, unreadable;          // ranks that tried to read all others; whether one could not
  _Atomic uint64_t cores[SHM_CORES_MAX / 64];  // bits: those that any rank may run on
  _Atomic uint64_t channels_used;
  _Atomic uint64_t promised;         // bytes that ranks are making pages for and have not made yet
  uint32_t fail_status, fail_cause;  // ad_status: what calls return; what the failing rank gave as its reason
  int32_t fail_rank;
  char fail_text[AD_MESSAGE_MAX];
  shm_entry entries[SHM_CHANNELS];
} shm_control;

/* Where a member's input is for the others: in the slot, in the file, in staging in rounds, in its process. */
typedef enum shm_place { SHM_INLINE, SHM_SHARED, SHM_STAGED, SHM_PULLED } shm_place;

/* What a member says of its call: with `published` it fills the one line that everybody looks at. */
typedef struct shm_offer {
  ad_signature signature;
  uint64_t in;     // offset of the input or its staging; pulled: its address in the member's process
  uint64_t out;    // offset of the output; 0: elsewhere
  uint64_t table;  // offset of all_to_all's starts or exchange's messages; 0: none
  uint32_t place;  // shm_place
  uint32_t entries;
} shm_offer;

/* One call of one member. Written by it before `published`, kept until all members consumed the call. */
typedef struct shm_slot {
  _Alignas(SHM_PAIR) _Atomic uint64_t published;  // sequence + 1 of the call it holds
  shm_offer offer;
  _Alignas(SHM_LINE) uint64_t number;  // the rank's own number of the call
  ad_axes axes;
  char site[AD_SITE_MAX];
  _Alignas(SHM_PAIR) _Atomic uint32_t claimed;  // chunks of the member's part that were taken
  _Alignas(SHM_PAIR) _Atomic uint32_t done;     // chunks of its part that are done; in rounds: 1 when its part is
  _Atomic uint32_t staged, reduced, copied;     // rounds
  uint32_t chunks;                              // that its part has
  uint64_t stream;                              // bytes that pass its staging
  uint64_t result;                              // offset of the staging of reduced pieces
  _Alignas(SHM_LINE) unsigned char payload[SHM_PAYLOAD];
} shm_slot;

/* A channel in the file: a line per member, then the slots, member by member. */
typedef struct shm_consumed {
  _Alignas(SHM_PAIR) _Atomic uint64_t calls;  // all calls before this one are of no more use to the member
} shm_consumed;

/* One message of an exchange in a member's table. */
typedef struct shm_message {
  uint32_t peer;
  uint8_t sends, dtype;
  uint64_t bytes;
  uint64_t at;  // offset of the buffer, its address if pulled, or that of the message in the staged stream
} shm_message;

/* This rank's view of a channel. */
typedef struct shm_channel {
  struct shm_channel *next;  // of all
  ad_group_shape shape;
  uint32_t members, index;
  shm_consumed *consumed;
  shm_slot *slots;
  uint64_t next_sequence;
  uint64_t consumed_by_all;  // as last looked up
  uint64_t finished;         // bit i: call consumed + i is finished here
  void *tables[SHM_RING];    // too large for the payload; freed when the slot is used again
} shm_channel;

/* SHM_AHEAD: not under way, but a member must consume it before its slot can be used again. */
typedef enum shm_mode { SHM_UNMATCHED, SHM_ALONE, SHM_CHUNKS, SHM_ROUNDS, SHM_AHEAD } shm_mode;

/* A call under way. */
typedef struct shm_call {
  ad_call *call;
  shm_channel *channel;
  uint64_t sequence;
  struct shm_call *next;  // of those under way, in order
  uint32_t seen;          // members whose publication was seen
  uint32_t complete;      // members whose part was seen done
  shm_mode mode;
  // Among the members: an input is staged, one is pulled, an output is not in the file, an input is not inline, a
  // table.
  uint8_t any_staged, any_pulled, any_elsewhere, any_not_inline, any_table;
  uint8_t past;       // the members together touch more than the caches hold
  uint32_t patience;  // looks at the others before taking their chunks
  void *staging;
  // Rounds: of the call, that this member stages, that it fetches or pulls; and the next of each.
  uint32_t rounds, own_rounds, out_rounds;
  uint32_t next_in, next_reduce, next_out;
  uint8_t started, finished;  // rounds: this member's part
  uint32_t next_segment;      // of those that need no staging
  size_t reduced;             // elements of the own part, where no rounds are needed
  int64_t gone_since;         // by ad_now(): when a source's process was first found to be gone; 0: it was not
} shm_call;

typedef struct shm_block shm_block;
typedef struct shm_shared shm_shared;

/* This rank's view of the world. */
typedef struct shm_world {
  shm_control *control;
  shm_record *records;
  char *base;
  int fd;
  uint32_t rank, ranks;
  uint32_t vain_tests;
  uint32_t spins, patience;  // before the first yield; see shm_call
  int64_t sleep_longest;     // nanoseconds
  shm_channel **channels;    // hash table
  uint32_t channel_slots, channel_count;
  shm_channel *last_channel;
  shm_call calls[SHM_RING];
  uint64_t free_calls;       // bits
  shm_call *first, **last;   // under way
  shm_block *blocks;         // of the own region, in order of address
  shm_shared *shared;        // memory of any region that several ranks hold
  void *stagings[SHM_RING];  // unused ones
  uint32_t staging_count;
  uint64_t *mapped;  // bits: of which 2 MiB of the file a peer's buffer was mapped
  uint64_t probe;    // see shm_record
  int pulls;         // all ranks of this node can read each other's memory
  int crowded;       // there are more ranks than cores that they may run on
} shm_world;

static inline void *ad_shm_at(const shm_world *world, uint64_t offset) { return world->base + offset; }
static inline int ad_shm_failed(const shm_world *world) {
  return __builtin_expect(atomic_load_explicit(&world->control->failed, memory_order_acquire) != 0, 0);
}
static inline shm_slot *ad_shm_slot_at(const shm_channel *channel, uint32_t member, uint64_t sequence) {
  return &channel->slots[(size_t)member * SHM_RING + sequence % SHM_RING];
}
static inline shm_slot *ad_shm_slot(const shm_call *c, uint32_t member) {
  return ad_shm_slot_at(c->channel, member, c->sequence);
}
/* The offset of memory in the file, 0 if it lies elsewhere or is empty. */
uint64_t ad_shm_offset(const shm_world *world, const void *memory, size_t bytes);

/* ---- shm_world.c ---- */

/* Makes the file for `ranks` ranks; *fd and the mapping are the caller's. region_bytes 0: the machine's memory. */
ad_status ad_shm_make(uint32_t ranks, size_t region_bytes, int inherited, int *fd, shm_control **out) AD_CHECKED;
void ad_shm_unmake(int fd, shm_control *control);
/* Maps the file of a world that another process made. The caller keeps fd. */
ad_status ad_shm_map(int fd, shm_control **out) AD_CHECKED;
/* Joins as `rank` and waits for the others. Takes fd and mapping, also on failure. */
ad_status ad_shm_join(int fd, shm_control *control, uint32_t rank, shm_world **out) AD_CHECKED;
shm_record *ad_shm_records(shm_control *control);
/* Sets the error of the world and wakes everybody, unless there is one already. */
void ad_shm_raise(shm_control *control, uint32_t rank, ad_status status, ad_status cause, const char *text);
/* Fails with the error of the world. */
ad_status ad_shm_error(const shm_control *control);
extern const ad_engine ad_engine_shm;

/* ---- shm_memory.c ---- */

ad_status ad_shm_alloc(shm_world *world, size_t bytes, void **out) AD_CHECKED;
void ad_shm_free(shm_world *world, void *memory);
/* As the engine's share and attach; ad_shm_free takes the memory of both. */
ad_status ad_shm_share(shm_world *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) AD_CHECKED;
ad_status ad_shm_attach(shm_world *world, size_t bytes, const ad_shared_token *token, void **out) AD_CHECKED;
/* Buffers for ordinary memory: two halves of SHM_STAGE for input, then two for results. */
ad_status ad_shm_take_staging(shm_world *world, void **out) AD_CHECKED;
void ad_shm_give_staging(shm_world *world, void *staging);
void ad_shm_free_all(shm_world *world);

/* ---- shm_map.c ---- */

ad_status ad_shm_map_begin(shm_world *world) AD_CHECKED;
void ad_shm_map_end(shm_world *world);
/* Maps the large buffers of a matched reduction, once each. */
void ad_shm_map_buffers(shm_world *world, const shm_call *c);
/* Maps memory of which another rank told. */
void ad_shm_map_shared(const shm_world *world, const void *memory, size_t bytes);

/* ---- shm_channel.c ---- */

ad_status ad_shm_channel(shm_world *world, const ad_call *call, shm_channel **out) AD_CHECKED;
void ad_shm_channels_free(shm_world *world);
/* Whether the slot of the channel's next call is free to be written. */
int ad_shm_ring_free(shm_channel *channel);
/* Writes the call into its slot and publishes it. */
ad_status ad_shm_publish(shm_world *world, shm_call *c) AD_CHECKED;
/* 1 when all members published matching calls; the mode is then set. A mismatch is raised. */
int ad_shm_match(shm_world *world, shm_call *c);
/* The call is of no more use to this member. */
void ad_shm_consume(shm_call *c);
/* The first member that a call cannot be completed without and that has not done what is needed; -1: none. */
int64_t ad_shm_lacking(const shm_call *c, uint32_t from);
/* "call 5 of dp_shard {0,1}, all_reduce(sum) of 4 f32 at a.c:10" */
void ad_shm_call_words(ad_text *text, const shm_slot *slot, const ad_group_shape *shape);

/* ---- shm_work.c, shm_own.c: each moves what can be moved now; 1 when the call is complete for this member ---- */

int ad_shm_work_chunks(shm_world *world, shm_call *c);
int ad_shm_work_rounds(shm_world *world, shm_call *c);
int ad_shm_work_alone(shm_world *world, shm_call *c);
/* The world's error: this rank's last one. */
void ad_shm_raise_own(shm_world *world, ad_status cause);
/* The number of chunks in this member's part. */
uint32_t ad_shm_chunks(const ad_call *call);
/* How many elements member k reduces: its part. */
size_t ad_shm_part(const ad_call *call, uint32_t k);
/* Of the elements that follow element `at` of the part, how many are neighbours in the whole; *whole: where they start.
 */
size_t ad_shm_run(const ad_call *call, uint32_t k, size_t at, size_t *whole);

/* Copies to where an output lies. */
static inline void ad_shm_copy_out(const shm_call *c, void *to, const void *from, size_t bytes) {
  (c->past ? ad_copy_past : ad_copy)(to, from, bytes);
}

/* ---- shm_copy.c ---- */

/* Bytes on their way from one member to another. */
typedef struct shm_segment {
  uint32_t source;
  const char *from;  // NULL: in the source's staging
  int pulled;        // `from` is an address in the source's process
  char *to;
  size_t bytes;
  uint64_t stream;  // where it starts in the source's stream
} shm_segment;
uint32_t ad_shm_segments(const shm_world *world, const shm_call *c, uint32_t destination);
/* Number n of those that `destination` receives. */
shm_segment ad_shm_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n);
/* Copies bytes [start, start + bytes) of this member's stream to `to`. */
void ad_shm_copy_stream(const shm_call *c, uint64_t start, size_t bytes, char *to);
/* Fills the member's table at `table`; the number of bytes it needs. */
size_t ad_shm_table_bytes(const ad_call *call);
void ad_shm_fill_table(const shm_world *world, const shm_call *c, const shm_offer *offer, void *table);
/* 0 and the sentence, if what one member sends is not what another receives. */
int ad_shm_tables_match(const shm_world *world, const shm_call *c, ad_text *sentence);

/* ---- shm_pull.c ---- */

/* Before this rank joins: lets the others read its memory, and gives them a word to try it on. */
void ad_shm_pull_allow(shm_world *world);
/* After all have joined: tries to read that word of each. When all have tried, `decide` gives all the same answer, in
 * world->pulls. */
void ad_shm_pull_try(shm_world *world);
void ad_shm_pull_decide(shm_world *world);
void ad_shm_pull_end(const shm_world *world);
/* Reads `bytes` at address `from` of the member's process. 0: they could not be read; the world then has an error, or
 * the member is being found dead and it is to be tried again. */
int ad_shm_pull(shm_world *world, shm_call *c, uint32_t member, uint64_t from, void *to, size_t bytes);

/* ---- shm_wait.c ---- */

/* Until ready() is true: progresses all calls, spins, yields, sleeps. `blocking` (or NULL) is the call waited for. */
ad_status ad_shm_wait(shm_world *world, int (*ready)(shm_world *world, void *subject), void *subject,
                      const shm_call *blocking) AD_CHECKED;
/* The world's error: rank `rank`, without which the call cannot be completed, has left. */
void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank);
/* Something happened that members of the channel may wait for. */
void ad_shm_wake(shm_world *world, const shm_channel *channel);
void ad_shm_wake_all(shm_control *control);

/* ---- shm_engine.c ---- */

/* Moves what can be moved of all calls under way. */
void ad_shm_progress(shm_world *world);

#endif
