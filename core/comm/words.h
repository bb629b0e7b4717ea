/* The sentences of errors about calls that do not match, ranks that wait in a circle and ranks that left. All backends
 * use the same words. */
#ifndef COMM_WORDS_H
#define COMM_WORDS_H
#include "comm/signature.h"
#include "mesh/group.h"

/* A call as one member of the group published it to the others. */
typedef struct ad_reported_call {
  const ad_signature *signature;  // NULL: the member has not published it
  ad_axes axes;
  const ad_group_shape *shape;
  const char *site;
  uint64_t number;  // counts the member's own calls
} ad_reported_call;

/* The block of an all_to_all that goes from one rank to another, as its sender or its receiver published it. */
typedef struct ad_reported_block {
  int64_t rank;
  uint64_t elements;
  ad_reported_call call;
} ad_reported_block;

/* A message of an exchange, as its sender or its receiver published it. */
typedef struct ad_reported_message {
  int64_t rank;
  int exists;  // 0: the rank has no such message
  ad_dtype dtype;
  uint64_t bytes;
  const char *site;  // the call site of the rank's exchange
} ad_reported_message;

/* Each function below appends a sentence to `text`; `sequence` counts the calls of the group from 0. */

/* Appends a call as "all_reduce(sum) of 4 f32 over dp_shard {0,1} at a.c:10". */
void ad_call_words(ad_text *text, const ad_reported_call *call);
/* Says that the `members` members of a group did not make the same call; `own` is this rank's index in the group. */
void ad_mismatch_words(ad_text *text, uint64_t sequence, const ad_reported_call *reported, uint32_t members,
                       uint32_t own);
/* Says that sender and receiver of one block of an all_to_all disagree about its size. */
void ad_block_words(ad_text *text, uint64_t sequence, const ad_reported_block *sent, const ad_reported_block *received);
/* Says that the sender and the receiver of a message of an exchange disagree; `n` counts the messages between these two
 * ranks. */
void ad_message_words(ad_text *text, uint64_t sequence, ad_axes axes, const ad_group_shape *shape, uint32_t n,
                      const ad_reported_message *sent, const ad_reported_message *received);
/* Says that the sender and the receiver of a transfer disagree; `of` is the transfer as its receiver posted it. */
void ad_transfer_words(ad_text *text, const ad_reported_call *of, const ad_reported_message *sent,
                       const ad_reported_message *received);
/* Says for what one side of a transfer waits, as "a message of rank 0 under tag 7, which rank 0 has not sent:
 * receive of ..." */
void ad_transfer_wait_words(ad_text *text, const ad_reported_call *call);
/* Says that the other side of a transfer left, as "rank 0 left the world while rank 1 waits for a message of rank 0
 * ..." */
void ad_transfer_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting,
                            const ad_reported_call *call);
/* Says that rank `rank` waits for rank `peer` in the call. */
void ad_wait_words(ad_text *text, uint32_t rank, uint32_t peer, uint64_t sequence, const ad_reported_call *call);
/* Says that ranks wait for each other in a circle (a deadlock). `waits` has the sentences on their waits, joined by "; ". */
void ad_circle_words(ad_text *text, const char *waits);
/* Says "rank 1 left the world (exit status 3)". An exit status of 0 may mean that it is unknown, so it is not
 * mentioned. */
void ad_leaving_words(ad_text *text, uint32_t rank, int exit_status);
/* Says that a rank left while rank `waiting` waits for it in a call. */
void ad_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting, uint64_t sequence,
                   const ad_reported_call *call);

#endif
