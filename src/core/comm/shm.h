/* Engine shm: ranks are processes of one machine that map one memory file without a name ("the file" below). This
 * header is what the engine's sources share: the layout of the file, and each rank's private view of it. Positions in
 * the file are offsets, since ranks may map it at different addresses.
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
 *   shm_engine.c   the engine's table
 *   watchdog.c     says which rank is where when ranks do not move */
#ifndef COMM_SHM_H
#define COMM_SHM_H
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "kernels/kernels.h"
#include "comm/engine.h"
#include "comm/signature.h"
#include "mesh/group.h"

enum {
  SHM_LINE = 64,  // bytes of a cache line
  // Bytes between fields that different ranks write, or one rank at different times: the processor fetches cache lines
  // in pairs, so that writing to one disturbs readers of its neighbour.
  SHM_PAIR = 128,
  SHM_RING = 64,             // calls of one group that a member may be ahead of another
  SHM_PAYLOAD = 8192,        // bytes of a call that fit into the slot itself
  SHM_INLINE_IN_FILE = 512,  // bytes up to which inputs that lie in the file are copied into the slot all the same
  SHM_CHANNELS = 4096,       // different groups, a power of two
  SHM_RANKS_MAX = 512,
  SHM_WORDS = 384,  // bytes of a sentence in a record
  SHM_CORES_MAX = 1024,
  SHM_STAGE = 128 * 1024,   // bytes of one half of a staging buffer
  SHM_BLOCK = 64 * 1024,    // bytes of each member's input that are reduced at a time
  SHM_PULL_MIN = 16 * 1024  // bytes of a piece of memory that are worth reading from a peer; see is_worth_pulling
};

typedef enum shm_state { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_DIED } shm_state;

/* One rank, as all ranks see it. */
typedef struct shm_record {
  _Alignas(SHM_LINE) _Atomic uint32_t state;  // shm_state
  _Atomic uint32_t wake;                      // futex: changes when something happens that the rank may wait for
  _Atomic int32_t pid;
  uint32_t variant;  // the widest kernels it has
  uint32_t trait;    // ad_trait_own
  // epoch is odd while the rank is in a long wait; the next two say for which call of which channel (0: of a group that
  // spans nodes, see waits_words).
  _Atomic uint64_t epoch;
  _Atomic uint64_t waits_channel, waits_sequence;
  int32_t exit_status;  // of a rank that left without closing; else 0
  // A word in the rank's own memory, at this address of its process, for the others to try to read. 0: they may not.
  uint64_t probe_at, probe_holds;
  // Calls that the rank has published; of the last one its channel and its place there. For the watchdog.
  _Alignas(SHM_LINE) _Atomic uint64_t calls;
  _Atomic uint64_t last_channel, last_sequence;
  // Of calls that span nodes, whose channel is 0: the last one; whom the rank waits for in which.
  uint32_t last_op;
  char last_site[AD_SITE_MAX], waits_words[SHM_WORDS];
} shm_record;

/* A group that some rank has called, in a hash table of the file: where its channel is. */
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
  uint64_t joining;   // how many ranks join this file: those of this node, if the world has several
  uint64_t launcher;  // the process that started the ranks or their parents; 0: each rank's own parent started it
  // One cache line that every call reads and that is hardly ever written.
  _Alignas(SHM_LINE) _Atomic uint32_t failed;  // 0 no, 1 being written, 2 the error below holds
  _Atomic uint32_t sleepers;
  _Alignas(SHM_LINE) _Atomic uint32_t joined;
  _Atomic uint32_t tried, unreadable;          // how many ranks tried to read all others' memory; 1: one could not
  _Atomic uint64_t cores[SHM_CORES_MAX / 64];  // bit i: some rank may run on core i
  _Atomic uint64_t channels_used;
  _Atomic uint64_t promised;         // bytes that ranks are making pages for and have not made yet
  uint32_t fail_status, fail_cause;  // ad_status: what calls return; what the failing rank gave as its reason
  int32_t fail_rank;
  char fail_text[AD_MESSAGE_MAX];
  shm_entry entries[SHM_CHANNELS];
} shm_control;

/* Where the other members find a member's input. */
typedef enum shm_place {
  SHM_INLINE,  // copied into the member's slot
  SHM_SHARED,  // where it is, since it lies in the file
  SHM_STAGED,  // in the member's staging buffer, piece after piece, in rounds
  SHM_PULLED   // in the member's own process, whose memory they read
} shm_place;

/* What a member tells the others of its call. Together with `published` it fills one cache line, the only one that
 * everybody has to look at. */
typedef struct shm_offer {
  ad_signature signature;
  uint64_t in;     // offset of the input or its staging; pulled: its address in the member's process
  uint64_t out;    // offset of the output; 0: elsewhere
  uint64_t table;  // offset of all_to_all's starts or exchange's messages; 0: none
  uint32_t place;  // shm_place
  uint32_t entries;
} shm_offer;

/* One call of one member. The member fills it and sets `published` last; it stays until all members have consumed the
 * call, which means that they need nothing of it any more. */
typedef struct shm_slot {
  _Alignas(SHM_PAIR) _Atomic uint64_t published;  // sequence + 1 of the call it holds
  shm_offer offer;
  _Alignas(SHM_LINE) uint64_t number;  // the rank's own number of the call
  ad_axes axes;
  char site[AD_SITE_MAX];
  _Alignas(SHM_PAIR) _Atomic uint32_t claimed;  // chunks of the member's part that some member has taken
  // Chunks of the member's part that are done. In a call in rounds: 1 when the member's part is done.
  _Alignas(SHM_PAIR) _Atomic uint32_t done;
  _Atomic uint32_t staged, reduced, copied;  // rounds that the member has finished; see shm_own.c
  uint32_t chunks;                           // of the member's part
  uint64_t stream;                           // bytes that pass through the member's staging buffer
  uint64_t result;                           // offset of the staging buffer of reduced pieces
  _Alignas(SHM_LINE) unsigned char payload[SHM_PAYLOAD];
} shm_slot;

/* A channel in the file: one of these for each member, then the slots, SHM_RING of each member. */
typedef struct shm_consumed {
  _Alignas(SHM_PAIR) _Atomic uint64_t calls;  // the member has consumed all calls before this one
} shm_consumed;

/* One message of an exchange, in the table that a member publishes. */
typedef struct shm_message {
  uint32_t peer;
  uint8_t sends, dtype;
  uint64_t bytes;
  uint64_t at;  // offset of the buffer; pulled: its address; staged: where the message starts in the stream
} shm_message;

/* This rank's view of a channel. */
typedef struct shm_channel {
  ad_group_shape shape;
  uint32_t members, index;
  shm_consumed *consumed;
  shm_slot *slots;
  uint64_t next_sequence;
  uint64_t consumed_by_all;  // calls that all members have consumed, when this rank last looked
  uint64_t finished;         // bit i: this rank needs nothing more of the call that comes i after its `consumed` one
  void *tables[SHM_RING];    // tables that are too large for the payload; freed when the slot is used again
} shm_channel;

/* How a call is carried out. */
typedef enum shm_mode {
  SHM_UNMATCHED,  // not decided: not all members have published it
  SHM_ALONE,      // all inputs are in the slots: each member computes its outputs alone
  SHM_CHUNKS,     // all buffers are in the file: members take chunks of the work
  SHM_ROUNDS,     // some buffers are not: each member does its own part
  SHM_AHEAD       // no call under way: an old one, which a member must consume before its slot can be used again
} shm_mode;

/* A call under way. */
typedef struct shm_call {
  ad_call *call;
  shm_channel *channel;
  uint64_t sequence;
  struct shm_call *next;  // of those under way, in order
  uint32_t seen;          // members whose publication was seen
  uint32_t complete;      // members whose part was seen done
  shm_mode mode;
  // 1: some member's input is staged, or pulled; some output is not in the file; some input is not inline; some member
  // has a table.
  uint8_t any_staged, any_pulled, any_elsewhere, any_not_inline, any_table;
  uint8_t past;       // outputs are written past the caches
  uint32_t patience;  // how often this rank still looks whether the others are done before it takes their chunks
  void *staging;
  // In rounds: how many the call has, how many of them this member stages, and in how many it fetches results from
  // others; then the next round of staging, of reducing, and of fetching or copying.
  uint32_t rounds, own_rounds, out_rounds;
  uint32_t next_in, next_reduce, next_out;
  uint8_t started, finished;  // in rounds: this member's part
  uint32_t next_segment;      // of the copies that need no staging
  size_t reduced;             // elements of the own part that are reduced, where inputs are pulled
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
  uint32_t vain_tests;       // calls of shm_test that found nothing complete
  uint32_t spins, patience;  // looks before the first yield; what shm_call's patience starts from
  int64_t sleep_longest;     // nanoseconds
  shm_channel **channels;    // hash table
  uint32_t channel_slots, channel_count;
  shm_channel *last_channel;
  shm_call calls[SHM_RING];
  uint64_t free_calls;       // bit i: calls[i] is free
  shm_call *first, **last;   // under way
  shm_block *blocks;         // of the own region, in order of address
  shm_shared *shared;        // memory of any region that several ranks hold
  void *stagings[SHM_RING];  // staging buffers that no call uses
  uint32_t staging_count;
  uint64_t *mapped;         // bit i: this rank has mapped the pages of piece i of the file; see shm_map.c
  uint64_t probe;           // see shm_record
  int pulls;                // all ranks of this node can read each other's memory
  int crowded;              // there are more ranks than cores that they may run on
  struct ad_watchdog *dog;  // owned; NULL: the launcher watches
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
/* The offset of a buffer in the file; 0 if it lies elsewhere or is empty. */
uint64_t ad_shm_offset(const shm_world *world, const void *memory, size_t bytes);

/* ---- shm_world.c ---- */

/* Makes the file for `ranks` ranks and maps it; ad_shm_unmake closes *fd and unmaps *out. region_bytes: of each rank's
 * region; 0: as large as the machine's memory. `inherited`: programs that a rank becomes by exec keep the descriptor.
 */
ad_status ad_shm_make(uint32_t ranks, size_t region_bytes, int inherited, int *fd, shm_control **out) AD_CHECKED;
void ad_shm_unmake(int fd, shm_control *control);
/* Maps the file of a world that another process made. The caller keeps fd. */
ad_status ad_shm_map(int fd, shm_control **out) AD_CHECKED;
/* Joins as `rank` and waits for the others. Takes fd and the mapping `control`, also on failure. */
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
/* The engine's share and attach; ad_shm_free frees the memory of both. */
ad_status ad_shm_share(shm_world *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) AD_CHECKED;
ad_status ad_shm_attach(shm_world *world, size_t bytes, const ad_shared_token *token, void **out) AD_CHECKED;
/* Staging buffers, through which values pass that lie outside the file: two halves of SHM_STAGE bytes for inputs, then
 * two for results. */
ad_status ad_shm_take_staging(shm_world *world, void **out) AD_CHECKED;
void ad_shm_give_staging(shm_world *world, void *staging);
void ad_shm_free_all(shm_world *world);

/* ---- shm_map.c ---- */

ad_status ad_shm_map_begin(shm_world *world) AD_CHECKED;
void ad_shm_map_end(shm_world *world);
/* Maps the pages of the large buffers of a matched reduction, of each only the first time. */
void ad_shm_map_buffers(shm_world *world, const shm_call *c);
/* Maps the pages of memory that another rank shared. */
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
/* This member needs nothing of the call any more. */
void ad_shm_consume(shm_call *c);
/* The first member, from number `from` on, that has not yet done what this rank waits for in the call; -1: none. */
int64_t ad_shm_lacking(const shm_call *c, uint32_t from);
/* "call 5 of dp_shard {0,1}, all_reduce(sum) of 4 f32 at a.c:10" */
void ad_shm_call_words(ad_text *text, const shm_slot *slot, const ad_group_shape *shape);

/* ---- shm_work.c, shm_own.c: each moves what can be moved now; 1 when the call is complete for this member ---- */

int ad_shm_work_chunks(shm_world *world, shm_call *c);
int ad_shm_work_rounds(shm_world *world, shm_call *c);
int ad_shm_work_alone(shm_world *world, shm_call *c);
/* Makes this rank's last error that of the world. */
void ad_shm_raise_own(shm_world *world, ad_status cause);
/* The number of chunks in this member's part. */
uint32_t ad_shm_chunks(const ad_call *call);
/* How many elements member k reduces: the size of its part. */
size_t ad_shm_part(const ad_call *call, uint32_t k);
/* As ad_call_run, of member k's part: how many elements from its element `at` on are neighbours in the whole; *whole:
 * where they start there. */
size_t ad_shm_run(const ad_call *call, uint32_t k, size_t at, size_t *whole);

/* Copies to an output of the call, past the caches if the call writes so. */
static inline void ad_shm_copy_out(const shm_call *c, void *to, const void *from, size_t bytes) {
  (c->past ? ad_copy_past : ad_copy)(to, from, bytes);
}

/* ---- shm_copy.c ---- */

/* A piece of a copy: bytes that go from one member to another in one run. */
typedef struct shm_segment {
  uint32_t source;
  const char *from;  // NULL: in the source's staging
  int pulled;        // 1: `from` is an address in the source's process
  char *to;
  size_t bytes;
  uint64_t stream;  // where it starts in the source's stream: the bytes that pass its staging, one after another
} shm_segment;
/* How many segments `destination` receives. */
uint32_t ad_shm_segments(const shm_world *world, const shm_call *c, uint32_t destination);
/* Segment number n of them. */
shm_segment ad_shm_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n);
/* Copies bytes [start, start + bytes) of this member's stream to `to`. */
void ad_shm_copy_stream(const shm_call *c, uint64_t start, size_t bytes, char *to);
/* Bytes of the table that this member publishes with its call: counts of an all_to_all, messages of an exchange. */
size_t ad_shm_table_bytes(const ad_call *call);
/* Fills it. */
void ad_shm_fill_table(const shm_world *world, const shm_call *c, const shm_offer *offer, void *table);
/* 1 if what members send is what others receive; else 0, with the sentence that says what differs. */
int ad_shm_tables_match(const shm_world *world, const shm_call *c, ad_text *sentence);

/* ---- shm_pull.c ---- */

/* Before this rank joins: permits the others to read its memory, and gives them a word on which to try it. */
void ad_shm_pull_allow(shm_world *world);
/* When all ranks have joined: tries to read that word of each. When all have tried, ad_shm_pull_decide gives the
 * answer, the same on all ranks, in world->pulls. */
void ad_shm_pull_try(shm_world *world);
void ad_shm_pull_decide(shm_world *world);
/* Takes the permission back. */
void ad_shm_pull_end(const shm_world *world);
/* Reads `bytes` at address `from` of the member's process. 0: they could not be read. Then either the world has an
 * error, or the member's process is gone and its death is not reported yet: the caller tries again later. */
int ad_shm_pull(shm_world *world, shm_call *c, uint32_t member, uint64_t from, void *to, size_t bytes);

/* ---- shm_wait.c ---- */

/* Waits until ready(world, subject) is true: spins, then yields, then sleeps. ready() itself moves calls on. `blocking`
 * is the call that is waited for; NULL: all ranks' joining. AD_OK, or the error of the world. */
ad_status ad_shm_wait(shm_world *world, int (*ready)(shm_world *world, void *subject), void *subject,
                      const shm_call *blocking) AD_CHECKED;
/* Makes it the world's error that rank `rank`, without which the call cannot be completed, has left. */
void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank);
/* The group whose channel starts at this offset; NULL: there is none. */
const shm_entry *ad_shm_entry(const shm_control *control, uint64_t channel);
/* Wakes members of the channel that sleep, since something happened that they may wait for; ad_shm_wake_all all ranks.
 */
void ad_shm_wake(shm_world *world, const shm_channel *channel);
void ad_shm_wake_all(shm_control *control);

/* ---- shm_engine.c ---- */

/* Moves what can be moved of all calls under way. */
void ad_shm_progress(shm_world *world);

#endif
