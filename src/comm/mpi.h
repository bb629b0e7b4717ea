/* Engine mpi: ranks that an MPI launcher started, on one or more nodes. Ranks of one node share a memory file, and
 * groups that lie on one node run on engine shm; groups that span nodes are what these files are for. There, every
 * member tells every other its call by mail (with the values themselves, if they are few); when all calls match, large
 * values move in slices: member k gets all addends of slice k, sums them in group order, and gives the result to all.
 *
 *   mpi_launcher.c  which launcher started this process, and the module that speaks its MPI
 *   mpi_join.c      joining: same version everywhere, who shares a node, the node's memory file
 *   mpi_mail.c      small messages to any rank at any time: calls, receipts, errors, leavings, searches for circles
 *   mpi_channel.c   the calls of a group, told and matched
 *   mpi_move.c      the values: parts of sums and blocks, from whom to whom
 *   mpi_wait.c      waiting, and finding out why a wait does not end
 *   mpi_engine.c    the engine's table
 *   mpi/            the modules; the only code that knows MPI */
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include "comm/mpi_transport.h"
#include "comm/shm.h"

enum {
  MAIL_INLINE = 8192,  // bytes for one member that travel with the call itself
  MPI_CALLS = 64,
  MPI_GRACE_MILLISECONDS = 2000  // from an error to the end of ranks that do not notice it
};

typedef enum mail_kind { MAIL_CALL, MAIL_RECEIPT, MAIL_ERROR, MAIL_LEFT, MAIL_SEARCH } mail_kind;

/* The start of every mail. */
typedef struct mail {
  uint32_t kind, from;
} mail;

/* A call, as its caller tells it to one other member. Behind it: an exchange's table, then values. */
typedef struct mail_call {
  mail head;
  ad_group_shape shape;
  ad_axes axes;
  uint64_t sequence, number;
  ad_signature signature;
  uint64_t in;                 // where in the node's file the caller's addends of the receiver's part are; 0: elsewhere
  uint64_t out;                // where in the file the receiver's block or slice belongs; 0: elsewhere
  uint64_t elements, expects;  // all_to_all: that the receiver gets, and gives
  uint32_t tag;                // of the values that follow
  uint32_t entries;            // exchange: messages for and from the receiver
  uint64_t values;             // bytes
  char site[AD_SITE_MAX];
} mail_call;

/* One message of an exchange between the caller and the receiver. */
typedef struct mail_message {
  uint64_t bytes;
  uint32_t dtype, sends;
} mail_message;

typedef enum mpi_receipt { RECEIPT_READ = 1, RECEIPT_WRITTEN = 2 } mpi_receipt;

/* The sender has read this rank's addends in the file, or written into its output there. */
typedef struct mail_receipt {
  mail head;
  uint32_t tag, what;
} mail_receipt;

typedef struct mail_error {
  mail head;
  int32_t rank;
  uint32_t status, cause;
  char text[AD_MESSAGE_MAX];
} mail_error;

typedef struct mail_left {
  mail head;
  uint32_t gave_up;  // calls that were under way
} mail_left;

/* The sender waits for the receiver's call; and somebody waits for the sender, and so on back to `origin`. */
typedef struct mail_search {
  mail head;
  uint32_t origin;
  uint64_t number;  // of the origin's searches
  ad_group_shape shape;
  uint64_t sequence;
  char text[AD_MESSAGE_MAX];
} mail_search;

/* A group with this rank in it. */
typedef struct mpi_channel {
  struct mpi_channel *next;
  ad_group_shape shape;
  uint32_t members, index;
  int is_local;            // on one node: engine shm's
  uint64_t next_sequence;  // of a group that spans nodes
  mail_call **early;       // [MPI_CALLS][members] told before this rank made the call
} mpi_channel;

/* What a call knows of one member. */
typedef struct mpi_member {
  mail_call *told;  // owned; of this rank itself: its own call
  const void *addends;
  void *sending, *receiving;  // requests for parts of the sum
  uint8_t awaited, received;  // receipts
  uint8_t receives_result;    // its block or slice is asked for, or needs not be
} mpi_member;

typedef enum mpi_stage { STAGE_TOLD, STAGE_COLLECTING, STAGE_DISTRIBUTING } mpi_stage;

/* A call of a spanning group under way. */
typedef struct mpi_call {
  ad_call *call;   // what is moved: the caller's, or `packed`
  ad_call *asked;  // the caller's
  ad_call packed;  // the caller's with the blocks of its segments one after another, in `pack`
  char *pack;      // grows
  size_t pack_bytes;
  mpi_channel *channel;
  struct mpi_call *next;
  uint64_t sequence;
  uint32_t tag, arrived;
  int mismatched;
  mpi_stage stage;
  mpi_member *members;  // grows
  uint32_t member_places;
  char *parts;  // received addends; grows
  size_t part_bytes;
  void **requests;  // blocks, slices, messages; those done are NULL
  size_t request_count, request_places;
} mpi_call;

typedef struct mpi_outgoing {
  struct mpi_outgoing *next;
  void *request;
  _Alignas(16) unsigned char bytes[];
} mpi_outgoing;

/* What this rank waits for now. */
typedef struct mpi_waiting {
  const ad_call *call;       // NULL: nothing
  uint64_t first_search;     // of this wait
  int64_t since, next_look;  // by ad_now(); 0: no long wait yet
} mpi_waiting;

typedef struct mpi_world {
  const ad_mpi_transport *transport;
  shm_world *shm;
  uint32_t rank, ranks, nodes;
  uint32_t *node_of;  // of each rank
  uint8_t *left;      // each rank: 0, or 1: it left, or 2: with calls under way
  uint32_t left_count;
  mpi_channel *channels, *last_channel;
  mpi_call calls[MPI_CALLS];
  uint64_t free_calls;
  mpi_call *first, **last;
  mpi_outgoing *outbox;
  unsigned char *incoming;
  void *incoming_request;
  uint64_t calls_made;
  uint32_t tags;  // different ones
  int told_error, gave_up, has_stray_requests;
  mpi_waiting waiting;
  uint64_t searches;   // begun by this rank
  uint64_t *followed;  // of each rank: the last search that was followed
} mpi_world;

/* ---- mpi_launcher.c ---- */

/* Loads the module for the launcher that started this process. */
ad_status ad_mpi_load(const ad_mpi_transport **out) AD_CHECKED;
/* Whether an MPI launcher started this process as a rank. */
int ad_mpi_launched(void);
/* AD_INVALID if the launcher started several ranks and MPI, of another make, sees only this one. */
ad_status ad_mpi_check_ranks(const ad_mpi_transport *transport, int64_t joined) AD_CHECKED;

/* ---- mpi_join.c ---- */

ad_status ad_mpi_open(ad_comm **out) AD_CHECKED;
extern const ad_engine ad_engine_mpi;

/* ---- mpi_mail.c ---- */

/* Sends a copy of head + (values); an error here is one of the world. */
void ad_mpi_send_mail(mpi_world *world, uint32_t to, const void *head, size_t head_bytes, const void *table,
                      size_t table_bytes, const void *values, size_t value_bytes);
/* Receives and acts on what is there, forgets what was sent. */
void ad_mpi_progress_mail(mpi_world *world);
/* Until all mail is on its way, but no longer than a second. */
void ad_mpi_flush(mpi_world *world);
/* Tells other nodes of this rank's error. */
void ad_mpi_tell_error(mpi_world *world);
void ad_mpi_free_mail(mpi_world *world);

/* ---- mpi_channel.c ---- */

ad_status ad_mpi_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) AD_CHECKED;
void ad_mpi_channels_free(mpi_world *world);
/* Tells the others, and takes what they told before. */
ad_status ad_mpi_tell(mpi_world *world, mpi_call *c) AD_CHECKED;
/* Takes the mail; a mismatch is raised. */
void ad_mpi_told(mpi_world *world, mail_call *told);
mpi_call *ad_mpi_find_call(mpi_world *world, uint32_t tag);
/* Whether this rank has made call number `sequence` of the group. */
int ad_mpi_has_made(mpi_world *world, const ad_group_shape *shape, uint64_t sequence);
void ad_mpi_call_words(ad_text *text, const mail_call *told);
void ad_mpi_raise(mpi_world *world, ad_status status, const char *text);

/* ---- mpi_move.c ---- */

typedef struct mpi_span {
  char *at;
  size_t bytes;
} mpi_span;
/* This rank's addends of member k's part. */
mpi_span ad_mpi_addends_for(const ad_call *call, uint32_t k);
/* Of the block or slice that this rank gives to member k, and that k gives to it. */
mpi_span ad_mpi_result_for(const ad_call *call, uint32_t k);
mpi_span ad_mpi_result_from(const ad_call *call, uint32_t k);
/* Of an exchange's messages for member k. */
size_t ad_mpi_sent_bytes(const ad_call *call, uint32_t k);
/* The values are few and travel with the call: everybody sums for himself. */
int ad_mpi_is_small(const ad_call *call);
/* Before the call is told: room for parts. */
/* A call with segments is moved as one whose blocks lie one after another: before, and after. */
ad_status ad_mpi_pack(mpi_call *c) AD_CHECKED;
void ad_mpi_unpack(mpi_call *c);
ad_status ad_mpi_reserve(mpi_call *c) AD_CHECKED;
/* Moves what can be moved; 1 when the call is complete. */
int ad_mpi_move(mpi_world *world, mpi_call *c);
/* Gives up all requests of the call. */
void ad_mpi_abandon(mpi_world *world, mpi_call *c);

/* ---- mpi_wait.c ---- */

ad_status ad_mpi_wait(mpi_world *world, ad_call *call) AD_CHECKED;
void ad_mpi_follow_search(mpi_world *world, const mail_search *search);

/* ---- mpi_engine.c ---- */

void ad_mpi_progress(mpi_world *world);
static inline int ad_mpi_is_mine(const mpi_world *world, const ad_call *call) {
  const mpi_call *c = call->engine;
  return c >= world->calls && c < world->calls + MPI_CALLS;
}
static inline int ad_mpi_on_node(const mpi_world *world, const mpi_channel *channel, uint32_t member) {
  return world->node_of[ad_shape_rank(&channel->shape, member)] == world->node_of[world->rank];
}

#endif
