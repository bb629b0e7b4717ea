/* Backend mpi: ranks that an MPI launcher started, on one or more nodes. Ranks of one node share a memory file, and
 * groups on one node use backend shm; the files here are for groups that span nodes. In such a group every member
 * announces its call to every other by mail: a small message, which has the values too if they are few. When all calls
 * match, large values move in slices: member k gets the addends of slice k (or a node's partial sums of them), adds
 * them up in the order of the tree, and sends the result to all members. This header declares the data that a rank
 * keeps about the world, its channels and its calls.
 *
 *   launcher.c  which launcher started this process, and the module that speaks its MPI
 *   join.c      joining: same version everywhere, which ranks share a node, the node's memory file
 *   mail.c      small messages to any rank at any time: calls, receipts, errors, ranks that leave, searches for circles
 *   channel.c   the calls of a group, announced and matched
 *   spans.c     which bytes of a call's buffers go to which member
 *   routes.c    which rank sums which addends and sends which values where, so that few bytes cross between nodes
 *   traffic.c   messages with values, and receipts for values that are read or written in the node's file
 *   addends.c   sums: addends and partial sums go to the ranks that sum them
 *   results.c   results and blocks go to the ranks that need them
 *   move.c      the values of a call, from its start to its end
 *   pack.c      replaces calls with segments by calls without segments
 *   transfer.c  messages from one rank to another
 *   progress.c  advances mail, values and the node's calls whenever a rank is inside a call
 *   search.c    searches for circles of waits
 *   query.c     whether a receive from any source can still get a message
 *   wait.c      waiting, and finding out why a wait does not end
 *   backend.c   the backend's table
 *   module/     the modules; the only code that knows MPI */
#ifndef COMM_MPI_WORLD_H
#define COMM_MPI_WORLD_H
#include "base/text.h"
#include "comm/mpi/mail.h"
#include "comm/mpi/routes.h"
#include "comm/mpi/transport.h"
#include "comm/shm/error.h"
#include "comm/shm/world.h"
#include "mesh/group.h"

enum { MPI_CALLS = 64 };

/* This rank's data about a group that contains this rank. */
typedef struct mpi_channel {
  struct mpi_channel *next;
  ad_group_shape shape;
  int64_t *ranks;  // owned: the ranks of a list
  uint32_t members, index;
  int is_local;            // 1: all members are on one node, and backend shm carries out its calls
  mpi_routes routes;       // which rank sends what to which rank, if the group spans nodes
  uint64_t next_sequence;  // sequence number of this rank's next call, if the group spans nodes
  mail_call **early;       // [MPI_CALLS][members]: calls that members announced before this rank made its own
} mpi_channel;

/* The data that a call keeps about one member of its group. */
typedef struct mpi_member {
  // owned: the call as the member announced it (for this rank itself: its own call); NULL: not announced yet
  mail_call *reported;
  const void *addends;                             // for this rank's slice: the member's addends, or the sum of its
                                                   // part of the tree
  size_t stride;                                   // bytes from one of the member's addends to the next, if it has
                                                   // several (leaf ranges)
  void *sending;                                   // request: this rank's addends of the member's slice, sent to the
                                                   // member that reads them
  void *receiving, *arriving;                      // requests that receive: the member's addends; its block or slice
  uint32_t awaited[RECEIPTS], received[RECEIPTS];  // receipts from the member, by kind: awaited; received so far
  uint8_t receives_result;                         // 1: its block or slice is requested already, or not needed
} mpi_member;

/* A partial sum that this rank forms for a member of another node: over the addends of this rank's part of the tree,
 * of that member's slice. */
typedef struct mpi_partial {
  uint32_t slice;
  char *sum, *received;  // `received` has memory for the addends of every member of the part, one after another
} mpi_partial;

typedef enum mpi_stage { STAGE_REPORTED, STAGE_PARTIALS, STAGE_COLLECTING, STAGE_DISTRIBUTING } mpi_stage;

/* A call in flight in a group that spans nodes. */
typedef struct mpi_call {
  ad_call *call;   // the call whose values are moved: the caller's, or `packed`
  ad_call *asked;  // the caller's call
  ad_call packed;  // the caller's call without segments: its blocks are contiguous in `pack`
  char *pack;      // memory of `packed`. Like the other arrays, it is kept for later calls and only grows.
  size_t pack_bytes;
  mpi_channel *channel;
  struct mpi_call *next;
  uint64_t sequence;
  uint32_t tag, arrived;  // tag: the first of the call's two message tags; arrived: how many members announced the call
  int mismatched;
  mpi_stage stage;
  mpi_member *members;
  uint32_t member_places;
  char *space;  // memory for received addends and partial sums
  size_t space_bytes, space_used;
  mpi_partial *partials;
  uint32_t partial_count, partial_places;
  // If this rank passes values on to the members of its node: it has done so for the values of the first passed_on - 1
  // members after this rank.
  uint32_t passed_on;
  uint32_t unasked;  // how many members this rank has not yet asked for their block or slice
  void **requests;   // requests in flight: addends for partial sums, then partial sums, blocks, slices, messages
  size_t request_count, request_places;
} mpi_call;

/* A mail that is being sent; the struct is kept until MPI has sent the mail. */
typedef struct mpi_outgoing {
  struct mpi_outgoing *next;
  void *request;
  _Alignas(16) unsigned char bytes[];
} mpi_outgoing;

/* What this rank waits for now. */
typedef struct mpi_waiting {
  uint64_t serial;           // counts this rank's waits
  const ad_call *call;       // the awaited call; NULL: none
  uint64_t first_search;     // number of the first search that this rank began in this wait
  int64_t since, next_look;  // by ad_now(): begin of the wait; when to look again why it does not end (0: a short wait)
} mpi_waiting;

struct mpi_world {
  const ad_mpi_transport *transport;
  shm_world *shm;
  uint32_t rank, ranks, nodes;
  uint32_t *node_of;  // for each rank: its node
  uint8_t *left;      // for each rank: 0: present; 1: it left; 2: it left with calls in flight
  uint32_t left_count;
  mpi_channel *channels, *last_channel;
  mpi_call calls[MPI_CALLS];
  uint64_t free_calls;      // bit i: calls[i] is free
  mpi_call *first, **last;  // calls in flight, oldest first
  mpi_outgoing *outbox;
  unsigned char *incoming;  // owned: the mail that is being received; NULL: none
  void *incoming_request;
  uint64_t calls_made, sends_made;
  struct mpi_send *sends, *spent;  // large messages to other nodes; `spent`: those that are complete
  shm_outside outside;
  mail_call **unknown;  // owned: calls that members announced on lists on which this rank has made no call yet
  size_t unknown_count;
  uint32_t tags;  // how many different values `tag` of calls has; each stands for two message tags
  // Each is 1 if: other nodes know the error; calls were abandoned after an error; MPI may still use the memory of
  // abandoned requests.
  int reported_error, gave_up, has_stray_requests;
  mpi_waiting waiting;
  uint64_t waits;             // number of waits that this rank has begun
  struct mpi_query *queries;  // owned: the last query of each rank; NULL: none has come yet
  uint64_t searches;          // number of searches that this rank has begun
  uint64_t *followed;         // for each rank: number of the last search of that rank that this rank sent on
};

/* Sets the error of the world, unless the world has an error already. */
static inline void ad_mpi_raise(mpi_world *world, ad_status status, const char *text) {
  ad_shm_raise(world->shm->control, world->rank, status, status, text);
}
/* Sets the error of the world: this rank has no memory for `what`. */
static inline void ad_mpi_raise_memory(mpi_world *world, const char *what) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "rank %u: no memory for %s", world->rank, what);
  ad_shm_raise(world->shm->control, world->rank, AD_PEER_FAILED, AD_MEMORY, words);
}
/* Returns 1 if the call is in flight in a group that spans nodes, so that backend mpi carries it out; 0 if backend
 * shm does. */
static inline int ad_mpi_is_mine(const mpi_world *world, const ad_call *call) {
  const mpi_call *c = call->backend;
  return c >= world->calls && c < world->calls + MPI_CALLS;
}
static inline int ad_mpi_on_node(const mpi_world *world, const mpi_channel *channel, uint32_t member) {
  return world->node_of[ad_shape_rank(&channel->shape, member)] == world->node_of[world->rank];
}

#endif
