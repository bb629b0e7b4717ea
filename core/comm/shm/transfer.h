/* Transfers in flight on this rank, and messages that came to this rank and wait for a receive. */
#ifndef COMM_SHM_TRANSFER_H
#define COMM_SHM_TRANSFER_H
#include "comm/shm/call.h"
#include "comm/shm/envelope.h"

enum { SHM_BUCKETS = 64 };

/* One side of a transfer. */
typedef struct shm_transfer {
  shm_call under;             // the fields that all calls have; must come first; mode is SHM_TRANSFER
  struct shm_transfer *next;  // the next transfer in the same list
  shm_envelope envelope;      // a send's own envelope; in a matched receive: the envelope of its message
  shm_parcel *parcel;         // a send's parcel; NULL: the envelope has all bytes
  int64_t since, retry;       // for a send, by ad_now(): when its envelope was enqueued; when copying is tried again
  uint8_t is_put, is_matched, is_mine;  // 1: envelope is in the queue; message is matched; parcel is taken by this side
  void *bringing;                       // backend mpi's record of a message that comes from another node
} shm_transfer;

/* A message that came to this rank before a receive for it was posted. */
typedef struct shm_message_kept {
  struct shm_message_kept *next;
  shm_envelope envelope;
} shm_message_kept;

/* This rank's transfers, and the messages that wait for a receive. Receives and messages are in buckets by a hash of
 * group and tag, oldest first. */
typedef struct shm_transfers {
  shm_transfer *receives[SHM_BUCKETS], **receives_end[SHM_BUCKETS];
  shm_message_kept *messages[SHM_BUCKETS], **messages_end[SHM_BUCKETS];
  shm_transfer *outbox, **outbox_end;  // sends whose envelopes wait for a free cell in a queue
  shm_transfer *sends, **sends_end;    // incomplete sends whose envelopes are in queues
  shm_transfer *matched;               // receives whose messages could not be read yet
  shm_transfer *free;
  shm_message_kept *free_messages;
  shm_parcel *parcels, *on_the_way;  // free parcels; parcels whose messages may not have been received yet
  uint64_t *sent, *got;              // for each rank: number of messages put into its queue; number that came from it
} shm_transfers;

ad_status ad_shm_transfers_begin(shm_world *world) AD_CHECKED;
/* Gives up all transfers that are not complete, and frees everything. */
void ad_shm_transfers_end(shm_world *world);
/* Posts one side of a transfer; part of the backend's function `post`. */
ad_status ad_shm_post_transfer(shm_world *world, ad_call *call) AD_CHECKED;
/* Takes all envelopes out of this rank's queue, and completes transfers that can be completed. */
void ad_shm_progress_transfers(shm_world *world);
/* Returns 1 if the call is complete; call->backend is then NULL. If a send's message is not taken for a while, copies
 * the bytes, which completes the send. */
int ad_shm_transfer_done(shm_world *world, ad_call *call);
/* Delivers a message that came to this rank to the first receive that matches it, or keeps it for a later receive. */
ad_status ad_shm_deliver(shm_world *world, const shm_envelope *envelope) AD_CHECKED;
/* Drops the kept messages of a list of ranks (`group`) on which this rank receives nothing more. */
void ad_shm_drop_messages(shm_world *world, uint64_t group);

/* ---- in transfer_wait.c: waiting for the other side of a transfer ---- */

/* Returns 1 if the peer, as far as this rank sees, has not yet sent (for a receive) or taken (for a send) the
 * message. */
int ad_shm_waits_for_peer(const shm_world *world, const shm_transfer *t);
/* Makes this rank's wait for a transfer visible to the other ranks. */
void ad_shm_show_transfer(shm_world *world, const shm_call *c);
/* Sets the world's error if the rank of the transfer's other side has left and the call still needs it. */
void ad_shm_look_for_left_peer(shm_world *world, const shm_call *c);
/* Describes the transfer for error messages. Fills *signature, to which the result points. */
static inline ad_reported_call ad_shm_reported_transfer(const shm_transfer *t, ad_signature *signature) {
  const ad_call *call = t->under.call;
  ad_signature_take(call, signature);
  return (ad_reported_call){signature, call->axes, &call->shape, call->site, call->number};
}

/* ---- in parcel.c: parcels, which describe messages too long for an envelope ---- */

/* Takes a free parcel, in state POSTED. */
ad_status ad_shm_take_parcel(shm_world *world, shm_parcel **out) AD_CHECKED;
/* Ends the sender's use of a parcel whose message was copied or received; the parcel becomes free as soon as the
 * message is received. */
void ad_shm_leave_parcel(shm_world *world, shm_parcel *parcel);
/* Copies a message into memory in the shared memory file. On AD_MEMORY the parcel is unchanged. */
ad_status ad_shm_copy_into_parcel(shm_world *world, shm_parcel *parcel, const void *from, size_t bytes) AD_CHECKED;

#endif
