/* Transfers under way on this rank, and the messages that came for it and wait for a receive. */
#ifndef COMM_SHM_TRANSFER_H
#define COMM_SHM_TRANSFER_H
#include "comm/shm/call.h"
#include "comm/shm/envelope.h"

enum { SHM_BUCKETS = 64 };

/* One side of a transfer. */
typedef struct shm_transfer {
  shm_call under;                       // what a wait for it looks at; its mode is SHM_TRANSFER
  struct shm_transfer *next;            // in the one list that it stands in
  shm_envelope envelope;                // a send's own; of a receive that is matched the message's
  shm_parcel *parcel;                   // a send's; NULL: the envelope has it all
  int64_t since, retry;                 // a send: by ad_now(), when its envelope was put; when a copy is tried again
  uint8_t is_put, is_matched, is_mine;  // is_mine: the receiver has taken the message
  void *bringing;                       // of who brings a message from another node
} shm_transfer;

/* A message that no receive has wanted yet. */
typedef struct shm_message_kept {
  struct shm_message_kept *next;
  shm_envelope envelope;
} shm_message_kept;

/* Lists by group and tag, each in order of time. */
typedef struct shm_transfers {
  shm_transfer *receives[SHM_BUCKETS], **receives_end[SHM_BUCKETS];
  shm_message_kept *messages[SHM_BUCKETS], **messages_end[SHM_BUCKETS];
  shm_transfer *outbox, **outbox_end;  // sends whose envelopes found the queue full
  shm_transfer *sends, **sends_end;    // whose envelopes are put, and that are not complete
  shm_transfer *matched;               // receives whose messages could not be read yet
  shm_transfer *free;
  shm_message_kept *free_messages;
  shm_parcel *parcels, *on_the_way;  // free; copied, and not received when last looked at
  uint64_t *sent, *got;              // of each rank: messages that were put for it; that came from it
} shm_transfers;

ad_status ad_shm_transfers_begin(shm_world *world) AD_CHECKED;
/* Gives up what is under way, and frees everything. */
void ad_shm_transfers_end(shm_world *world);
/* The engine's post. */
ad_status ad_shm_post_transfer(shm_world *world, ad_call *call) AD_CHECKED;
/* Empties the queue and moves what can be moved. */
void ad_shm_progress_transfers(shm_world *world);
/* 1: the call is complete; call->engine is then NULL. A send that nobody takes is copied, after a while. */
int ad_shm_transfer_done(shm_world *world, ad_call *call);
/* A message that came to this rank: its receive, or the messages that wait for one, have it from now on. */
ad_status ad_shm_deliver(shm_world *world, const shm_envelope *envelope) AD_CHECKED;
/* This rank receives nothing more on the list. */
void ad_shm_drop_messages(shm_world *world, uint64_t group);

/* ---- transfer_wait.c ---- */

/* Whether the other side has done nothing yet, as far as this rank sees. */
int ad_shm_waits_for_peer(const shm_world *world, const shm_transfer *t);
/* Shows the other ranks what this one waits for. */
void ad_shm_show_transfer(shm_world *world, const shm_call *c);
/* Makes it the world's error that the other side, without which the call cannot be completed, has left. */
void ad_shm_look_for_left_peer(shm_world *world, const shm_call *c);
/* The transfer, for messages; `signature` is room for it. */
static inline ad_told_call ad_shm_told_transfer(const shm_transfer *t, ad_signature *signature) {
  const ad_call *call = t->under.call;
  *signature = ad_signature_of(call);
  return (ad_told_call){signature, call->axes, &call->shape, call->site, call->number};
}

/* ---- parcel.c ---- */

/* A parcel in state POSTED. */
ad_status ad_shm_take_parcel(shm_world *world, shm_parcel **out) AD_CHECKED;
/* The parcel is on its way, or received: it becomes free when it is. */
void ad_shm_leave_parcel(shm_world *world, shm_parcel *parcel);
/* Copies a message into memory of the file. AD_MEMORY: the parcel is as it was. */
ad_status ad_shm_copy_into_parcel(shm_world *world, shm_parcel *parcel, const void *from, size_t bytes) AD_CHECKED;

#endif
