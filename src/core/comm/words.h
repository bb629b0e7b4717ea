/* The words for what ranks find out about each other's calls. Engines that find the same say the same. */
#ifndef COMM_WORDS_H
#define COMM_WORDS_H
#include "comm/signature.h"
#include "mesh/group.h"

/* A call, as one member of the group told it to the others. */
typedef struct ad_told_call {
  const ad_signature *signature;  // NULL: the member has not told it
  ad_axes axes;
  const ad_group_shape *shape;
  const char *site;
  uint64_t number;  // of the member's own calls
} ad_told_call;

/* The block of an all_to_all that goes from one rank to another, as its sender or its receiver told it. */
typedef struct ad_told_block {
  int64_t rank;
  uint64_t elements;
  ad_told_call call;
} ad_told_block;

/* A message of an exchange, as its sender or its receiver told it. */
typedef struct ad_told_message {
  int64_t rank;
  int exists;  // 0: the rank told of none
  ad_dtype dtype;
  uint64_t bytes;
  const char *site;  // of the rank's exchange
} ad_told_message;

/* Each adds a text; `sequence` is the call's place among those of its group, from 0 on. */

/* "all_reduce(sum) of 4 f32 over dp_shard {0,1} at a.c:10" */
void ad_call_words(ad_text *text, const ad_told_call *call);
/* That what `members` members told is not the same call; `own` is the number of this rank's among them. */
void ad_mismatch_words(ad_text *text, uint64_t sequence, const ad_told_call *told, uint32_t members, uint32_t own);
/* That the two sides of an all_to_all's block do not agree. */
void ad_block_words(ad_text *text, uint64_t sequence, const ad_told_block *sent, const ad_told_block *received);
/* That the two sides of an exchange's message number n, among those between the two, do not agree. */
void ad_message_words(ad_text *text, uint64_t sequence, ad_axes axes, const ad_group_shape *shape, uint32_t n,
                      const ad_told_message *sent, const ad_told_message *received);
/* That the two sides of a transfer, `of` as its receiver told it, do not agree. */
void ad_transfer_words(ad_text *text, const ad_told_call *of, const ad_told_message *sent,
                       const ad_told_message *received);
/* For what a side of a transfer waits: "a message of rank 0 under tag 7, which rank 0 has not sent: receive of ..." */
void ad_transfer_wait_words(ad_text *text, const ad_told_call *call);
/* "rank 0 left the world while rank 1 waits for a message of rank 0 ..." */
void ad_transfer_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting, const ad_told_call *call);
/* That `rank` waits for `peer` in its call. */
void ad_wait_words(ad_text *text, uint32_t rank, uint32_t peer, uint64_t sequence, const ad_told_call *call);
/* That ranks wait in a circle. `waits`: their words, one wait after another with "; " between. */
void ad_circle_words(ad_text *text, const char *waits);
/* "rank 1 left the world (exit status 3)"; of exit status 0, which may also be one that is not known, nothing. */
void ad_leaving_words(ad_text *text, uint32_t rank, int exit_status);
/* The same, and that `waiting` waits for it in a call. */
void ad_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting, uint64_t sequence,
                   const ad_told_call *call);

#endif
