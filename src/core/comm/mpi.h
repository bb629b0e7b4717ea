/* Engine mpi: ranks that an MPI launcher started, on one or more nodes. Ranks of one node share a memory file, and
 * groups that lie on one node run on engine shm; these files are for groups that span nodes. There, every member tells
 * every other its call by mail: a small message, with the values themselves if they are few. When all calls match,
 * large values move in slices: member k gets all addends of slice k, sums them in group order, and gives the result to
 * all.
 *
 *   mpi_launcher.c  which launcher started this process, and the module that speaks its MPI
 *   mpi_join.c      joining: same version everywhere, who shares a node, the node's memory file
 *   mpi_mail.c      small messages to any rank at any time: calls, receipts, errors, leavings, searches for circles
 *   mpi_channel.c   the calls of a group, told and matched
 *   mpi_move.c      the values: parts of sums and blocks, from whom to whom
 *   mpi_pack.c      calls with segments as calls without
 *   mpi_wait.c      waiting, and finding out why a wait does not end
 *   mpi_engine.c    the engine's table
 *   mpi/            the modules; the only code that knows MPI */
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include "comm/mpi_transport.h"
#include "comm/shm.h"
#include "mesh/group.h"

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
  uint64_t in;   // offset in the node's file of the caller's addends for the receiver; 0: they lie elsewhere
  uint64_t out;  // offset in the file of where the receiver's block or slice belongs; 0: elsewhere
  uint64_t elements, expects;  // all_to_all: elements that the caller sends to the receiver, and expects from it
  uint32_t tag;                // of the messages in which large values follow
  uint32_t entries;            // exchange: messages between the two, in the table
  uint64_t values;             // bytes of the values in this mail
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

/* Looks for a circle of waits. The sender waits for the receiver to make a call; some rank waits for the sender,
 * another for that one, and so on back to `origin`, which began the search. If it comes home to `origin`, they form a
 * circle. */
typedef struct mail_search {
  mail head;
  uint32_t origin;
  uint64_t number;       // of the search, among the origin's
  ad_group_shape shape;  // the group and the number of the call that the sender waits for
  uint64_t sequence;
  char text[AD_MESSAGE_MAX];  // the waits so far, for the message
} mail_search;

/* A group with this rank in it. */
typedef struct mpi_channel {
  struct mpi_channel *next;
  ad_group_shape shape;
  uint32_t members, index;
  int is_local;            // 1: all members are on one node, and engine shm carries out its calls
  uint64_t next_sequence;  // of this rank's calls, if the group spans nodes
  mail_call **early;       // [MPI_CALLS][members]: calls that members told before this rank made its own
} mpi_channel;

/* What a call knows of one member. */
typedef struct mpi_member {
  mail_call *told;  // owned; NULL: not told yet; for this rank itself: its own call
  const void *addends;
  void *sending, *receiving;  // requests for parts of the sum
  uint8_t awaited, received;  // receipts, as bits of mpi_receipt
  uint8_t receives_result;    // 1: its block or slice is asked for, or there is none to ask for
} mpi_member;

typedef enum mpi_stage { STAGE_TOLD, STAGE_COLLECTING, STAGE_DISTRIBUTING } mpi_stage;

/* A call of a spanning group under way. */
typedef struct mpi_call {
  ad_call *call;   // what is moved: the caller's, or `packed`
  ad_call *asked;  // the caller's
  ad_call packed;  // the caller's call as one without segments, whose blocks lie one after another in `pack`
  char *pack;      // kept for later calls; only grows, as do the other arrays
  size_t pack_bytes;
  mpi_channel *channel;
  struct mpi_call *next;
  uint64_t sequence;
  uint32_t tag, arrived;
  int mismatched;
  mpi_stage stage;
  mpi_member *members;
  uint32_t member_places;
  char *parts;  // received addends
  size_t part_bytes;
  void **requests;  // under way: of blocks, slices, messages
  size_t request_count, request_places;
} mpi_call;

/* A mail that is being sent; its memory stays until MPI has sent it. */
typedef struct mpi_outgoing {
  struct mpi_outgoing *next;
  void *request;
  _Alignas(16) unsigned char bytes[];
} mpi_outgoing;

/* What this rank waits for now. */
typedef struct mpi_waiting {
  const ad_call *call;       // NULL: it waits for nothing
  uint64_t first_search;     // the first of its searches that was begun in this wait
  int64_t since, next_look;  // by ad_now(); 0: no long wait yet
} mpi_waiting;

typedef struct mpi_world {
  const ad_mpi_transport *transport;
  shm_world *shm;
  uint32_t rank, ranks, nodes;
  uint32_t *node_of;  // of each rank
  uint8_t *left;      // of each rank: 0, or 1 if it left, 2 if it left with calls under way
  uint32_t left_count;
  mpi_channel *channels, *last_channel;
  mpi_call calls[MPI_CALLS];
  uint64_t free_calls;
  mpi_call *first, **last;
  mpi_outgoing *outbox;
  unsigned char *incoming;
  void *incoming_request;
  uint64_t calls_made;
  uint32_t tags;  // how many different tags calls use, two message tags each
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

/* Sends one mail: a copy of head, table and values, one after another. If it cannot be sent, the world gets an error.
 */
void ad_mpi_send_mail(mpi_world *world, uint32_t to, const void *head, size_t head_bytes, const void *table,
                      size_t table_bytes, const void *values, size_t value_bytes);
/* Receives all mail that is there and acts on it; frees mail that was sent. */
void ad_mpi_progress_mail(mpi_world *world);
/* Waits until all mail is sent, but no longer than a second. */
void ad_mpi_flush(mpi_world *world);
/* Tells the ranks of other nodes of the world's error, if this rank is the one that caused it. */
void ad_mpi_tell_error(mpi_world *world);
void ad_mpi_free_mail(mpi_world *world);

/* ---- mpi_channel.c ---- */

ad_status ad_mpi_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) AD_CHECKED;
void ad_mpi_channels_free(mpi_world *world);
/* Tells the other members of the call, and takes what they told of theirs before. */
ad_status ad_mpi_tell(mpi_world *world, mpi_call *c) AD_CHECKED;
/* Acts on another member's call, and takes the memory of `told`. A mismatch becomes the world's error. */
void ad_mpi_told(mpi_world *world, mail_call *told);
/* The call under way with this tag; NULL: none. */
mpi_call *ad_mpi_find_call(mpi_world *world, uint32_t tag);
/* Whether this rank has made call number `sequence` of the group. */
int ad_mpi_has_made(mpi_world *world, const ad_group_shape *shape, uint64_t sequence);
void ad_mpi_call_words(ad_text *text, const mail_call *told);
/* Sets the error of the world, unless there is one already. */
void ad_mpi_raise(mpi_world *world, ad_status status, const char *text);

/* ---- mpi_move.c ---- */

typedef struct mpi_span {
  char *at;
  size_t bytes;
} mpi_span;
/* This rank's addends of member k's part. */
mpi_span ad_mpi_addends_for(const ad_call *call, uint32_t k);
/* The block or slice that this rank gives to member k, and where the one belongs that k gives to this rank. */
mpi_span ad_mpi_result_for(const ad_call *call, uint32_t k);
mpi_span ad_mpi_result_from(const ad_call *call, uint32_t k);
/* Bytes of an exchange's messages to member k. */
size_t ad_mpi_sent_bytes(const ad_call *call, uint32_t k);
/* 1: the values are few and travel with the call, and every member forms the whole result itself. */
int ad_mpi_is_small(const ad_call *call);
/* Before the call is told: makes room for members, requests and received addends. */
ad_status ad_mpi_reserve(mpi_call *c) AD_CHECKED;
/* Moves the values that can be moved now; 1 when the call is complete. */
int ad_mpi_move(mpi_world *world, mpi_call *c);
/* Gives up all requests of the call. */
void ad_mpi_abandon(mpi_world *world, mpi_call *c);

/* ---- mpi_pack.c ---- */

/* A call with segments is moved as another one, whose blocks lie one after another in memory of the engine: ad_mpi_pack
 * makes it and copies the inputs there, before ad_mpi_reserve; ad_mpi_unpack copies the outputs back when it is
 * complete. Calls without segments are left as they are. */
ad_status ad_mpi_pack(mpi_call *c) AD_CHECKED;
void ad_mpi_unpack(mpi_call *c);

/* ---- mpi_wait.c ---- */

/* Until the call is complete or the world has an error. */
ad_status ad_mpi_wait(mpi_world *world, ad_call *call) AD_CHECKED;
/* Acts on a search of another rank: sends it on if this rank waits too; if it began here, there is a circle. */
void ad_mpi_follow_search(mpi_world *world, const mail_search *search);

/* ---- mpi_engine.c ---- */

/* Moves what can be moved of all calls under way, on the node and between nodes. */
void ad_mpi_progress(mpi_world *world);
/* 1: a call under way of a group that spans nodes; 0: one of engine shm. */
static inline int ad_mpi_is_mine(const mpi_world *world, const ad_call *call) {
  const mpi_call *c = call->engine;
  return c >= world->calls && c < world->calls + MPI_CALLS;
}
static inline int ad_mpi_on_node(const mpi_world *world, const mpi_channel *channel, uint32_t member) {
  return world->node_of[ad_shape_rank(&channel->shape, member)] == world->node_of[world->rank];
}

#endif
