/* Passes keys and values around the ranks that shard a sequence, one rank further in each step of the ring, which is
 * called a turn. Brings the gradients that they gather back to the rank that owns them. Transfers overlap with the
 * computation of the same turn.
 *
 * Gradients travel in the wide dtype. Rounded to bf16 at each hop, they would be rounded as often as the ring has
 * ranks; so the operation rounds them once at the end, as it rounds the gradients of a full sequence. */
#ifndef TENSOR_RING_H
#define TENSOR_RING_H
#include "tensor/heads.h"

typedef struct ring_pair {
  const void *k, *v;
} ring_pair;

/* A ring of ranks, as one of them sees it. */
typedef struct key_ring {
  ad_comm *comm;
  ad_group group;
  ad_dtype dtype; /* dtype of k and v */
  /* this rank's index, and the number of ranks */
  int64_t index, members;
  const size_t *counts; /* [members]: number of elements of each rank's k; v has as many */
  size_t most;          /* the largest of `counts` */
  const char *site;
  void *memory;  /* ad_ring_bytes of memory */
  ring_pair own; /* this rank's own k and v */
} key_ring;

/* Returns the bytes of the ring's buffers: for two arriving pairs, and for three pairs of gradients. */
size_t ad_ring_bytes(const key_ring *ring);
/* Returns the index of the rank whose keys and values this rank has in turn `turn`; in turn 0 it has its own. */
int64_t ad_ring_source(const key_ring *ring, int64_t turn);
/* Returns the keys and values that this rank has in this turn; valid after the wait for the previous turn. */
ring_pair ad_ring_pair(const key_ring *ring, int64_t turn);
/* Returns the dtype in which the gradients of k and v travel. */
ad_dtype ad_ring_wide(const key_ring *ring);
/* Return the buffers for this rank's addends of the gradients of this turn's k and v. */
void *ad_ring_d_k(const key_ring *ring, int64_t turn);
void *ad_ring_d_v(const key_ring *ring, int64_t turn);

/* Starts the transfers of a turn: sends this turn's pair to the next rank and receives the next turn's pair from the
 * previous rank. In backward the gradients of the previous turn travel, too. ad_ring_wait ends the transfers. */
ad_status ad_ring_post(const key_ring *ring, int64_t turn, int backward, ad_request *request) AD_CHECKED;
/* Waits for the transfers of a turn. In backward, then adds the sum that other ranks gathered for this turn's pair
 * to this rank's addends. */
ad_status ad_ring_wait(const key_ring *ring, int64_t turn, int backward, ad_request *request) AD_CHECKED;
/* Receives the gradients of this rank's own pair, after the last turn of backward. *d_k and *d_v are valid until the
 * memory is freed. */
ad_status ad_ring_come_home(const key_ring *ring, const void **d_k, const void **d_v) AD_CHECKED;

/* Argument of functions at the injection point AD_INJECT_RING: a pass of ring attention that is about to run. */
typedef struct ring_passing {
  const key_ring *ring;
  const ad_array *k; /* keys; values have the same shape and layout */
  int backward;
} ring_passing;

/* Argument of functions at the injection point AD_INJECT_RING_TURN: one step (turn) of the ring. A function may change
 * `columns`. */
typedef struct ring_turn_passing {
  const key_ring *ring;
  int64_t turn;
  int is_masked; /* the mask is causal: which keys a row sees depends on their positions */
  /* positions of this rank's own keys */
  const positions *own;
  positions *columns; /* positions that the keys of this turn are taken to have */
} ring_turn_passing;

#endif
