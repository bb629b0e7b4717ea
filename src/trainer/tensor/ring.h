/* Passing keys and values around the ranks that cut a sequence, one rank further with each turn, and the gradients that
 * they gather back home. A transfer is under way while its turn computes.
 *
 * Gradients travel in the wide dtype of keys and values: rounded to bf16 at each of the ring's hops they would be off
 * by as many roundings as there are members, where one at the end, by the operation, is what a whole sequence has too.
 */
#ifndef TENSOR_RING_H
#define TENSOR_RING_H
#include "tensor/heads.h"

typedef struct ring_pair {
  const void *k, *v;
} ring_pair;

typedef struct key_ring {
  ad_comm *comm;
  ad_group group;
  ad_dtype dtype; /* of k and v */
  int64_t index, members;
  const size_t *counts; /* elements of k, and of v, of each member */
  size_t most;          /* of them */
  const char *site;
  void *memory; /* ad_ring_bytes */
  ring_pair own;
} key_ring;

/* Of the memory for the pairs that arrive, two at a time, and for three pairs of gradients. */
size_t ad_ring_bytes(const key_ring *ring);
/* Whose keys and values a rank has in its turn `turn`, from 0: its own first. */
int64_t ad_ring_source(const key_ring *ring, int64_t turn);
/* The pair of this turn; NULL, NULL before its transfer was waited for. */
ring_pair ad_ring_pair(const key_ring *ring, int64_t turn);
/* The dtype of the gradients. */
ad_dtype ad_ring_wide(const key_ring *ring);
/* Where this rank puts its addends of the gradients of this turn's k and v. */
void *ad_ring_d_k(const key_ring *ring, int64_t turn);
void *ad_ring_d_v(const key_ring *ring, int64_t turn);

/* Starts the transfers of a turn: its pair to the next rank, the next turn's from the one before; backward, the
 * gradients of the turn before too. Wait for it at the end of the turn. */
ad_status ad_ring_post(const key_ring *ring, int64_t turn, int backward, ad_request *request) AD_CHECKED;
/* Waits; backward, what other ranks gathered for this turn's pair is added to this rank's addends. */
ad_status ad_ring_wait(const key_ring *ring, int64_t turn, int backward, ad_request *request) AD_CHECKED;
/* After the last turn: brings the gradients of the own pair home; *d_k and *d_v are valid until the memory goes. */
ad_status ad_ring_come_home(const key_ring *ring, const void **d_k, const void **d_v) AD_CHECKED;

/* What passes the seam AD_SEAM_RING. */
typedef struct ring_passing {
  const key_ring *ring;
  const ad_array *k; /* v is like it */
  int backward;
} ring_passing;

/* What passes the seam AD_SEAM_RING_TURN. */
typedef struct ring_turn_passing {
  const key_ring *ring;
  int64_t turn;
  int is_masked; /* which of the keys a row sees depends on their positions */
  const positions *own;
  positions *columns; /* that the keys of this turn are taken to stand at */
} ring_turn_passing;

#endif
