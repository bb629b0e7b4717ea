/* The ring of attention. In turn (step) t, rank i has the keys and values of rank i - t. Their gradients follow one
 * turn later: each rank adds its addends to the sum that arrives from the previous rank. Arriving pairs of k and v
 * alternate between two buffers. Gradients have three buffers: one is computed, one is sent and one arrives. */
#include "tensor/ring.h"

#include "base/injection.h"

enum { ARRIVING_PAIRS = 2, GRADIENT_PAIRS = 3, MESSAGES_MAX = 8 };

/* Returns how many buffers for arriving keys and values a ring needs: one in a ring of two ranks, where only one pair
 * ever arrives. */
static size_t arriving_pairs(const key_ring *ring) { return ring->members > 2 ? ARRIVING_PAIRS : 1; }

static int64_t wrapped(const key_ring *ring, int64_t index) {
  return ((index % ring->members) + ring->members) % ring->members;
}

int64_t ad_ring_source(const key_ring *ring, int64_t turn) { return wrapped(ring, ring->index - turn); }

ad_dtype ad_ring_wide(const key_ring *ring) { return ad_dtype_wide(ring->dtype); }

/* half_bytes returns the bytes of k, or of v, in a buffer; gradient_bytes those of one of their gradients. The buffers
 * of gradients come first in memory. */
static size_t half_bytes(const key_ring *ring) { return ring->most * ad_dtype_size(ring->dtype); }
static size_t gradient_bytes(const key_ring *ring) { return ring->most * ad_dtype_size(ad_ring_wide(ring)); }

size_t ad_ring_bytes(const key_ring *ring) {
  return 2 * (arriving_pairs(ring) * half_bytes(ring) + GRADIENT_PAIRS * gradient_bytes(ring));
}

static char *gradient_half(const key_ring *ring, size_t pair, int half) {
  return (char *)ring->memory + (2 * pair + (size_t)half) * gradient_bytes(ring);
}

/* Returns the buffer of k (half 0) or v (half 1) of the pair that arrived for this turn. */
static char *arrived(const key_ring *ring, int64_t turn, int half) {
  size_t pair = (size_t)(turn - 1) % arriving_pairs(ring);
  return gradient_half(ring, GRADIENT_PAIRS, 0) + (2 * pair + (size_t)half) * half_bytes(ring);
}

/* `gradient` returns one of two buffers of gradients, which alternate with the turns; `gathered` returns the buffer for
 * arriving gradients. `half` 0 is k, 1 is v. */
static char *gradient(const key_ring *ring, int64_t turn, int half) {
  return gradient_half(ring, (size_t)(turn % 2), half);
}
static char *gathered(const key_ring *ring, int half) { return gradient_half(ring, 2, half); }

ring_pair ad_ring_pair(const key_ring *ring, int64_t turn) {
  return turn ? (ring_pair){arrived(ring, turn, 0), arrived(ring, turn, 1)} : ring->own;
}
void *ad_ring_d_k(const key_ring *ring, int64_t turn) { return gradient(ring, turn, 0); }
void *ad_ring_d_v(const key_ring *ring, int64_t turn) { return gradient(ring, turn, 1); }

static int is_last(const key_ring *ring, int64_t turn) { return turn + 1 == ring->members; }

/* The messages that this rank sends and receives in one exchange. */
typedef struct mail_bag {
  ad_message list[MESSAGES_MAX];
  size_t count;
} mail_bag;

static void send(const key_ring *ring, mail_bag *mail, const void *data, size_t count) {
  mail->list[mail->count++] = (ad_message){.peer = wrapped(ring, ring->index + 1), .send = data, .count = count};
}

static void receive(const key_ring *ring, mail_bag *mail, void *data, size_t count) {
  mail->list[mail->count++] = (ad_message){.peer = wrapped(ring, ring->index - 1), .receive = data, .count = count};
}

/* Returns the number of elements of k, and of v, of this turn's pair. */
static size_t count_of(const key_ring *ring, int64_t turn) { return ring->counts[ad_ring_source(ring, turn)]; }

/* Returns the number of elements of a gradient, as a message counts them. All messages of an exchange have the keys'
 * dtype, so an element of a wider dtype counts as several. */
static size_t gradient_count(const key_ring *ring, int64_t turn) {
  return count_of(ring, turn) * (ad_dtype_size(ad_ring_wide(ring)) / ad_dtype_size(ring->dtype));
}

/* Adds four messages: two send this turn's k and v, two receive the next turn's. */
static void pass_pair(const key_ring *ring, int64_t turn, mail_bag *mail) {
  ring_pair pair = ad_ring_pair(ring, turn);
  send(ring, mail, pair.k, count_of(ring, turn));
  send(ring, mail, pair.v, count_of(ring, turn));
  for (int half = 0; half < 2; half++) receive(ring, mail, arrived(ring, turn + 1, half), count_of(ring, turn + 1));
}

/* Adds four messages: two send this turn's gradients, two receive the sums gathered for the next turn's pair. */
static void pass_gradients(const key_ring *ring, int64_t turn, mail_bag *mail) {
  for (int half = 0; half < 2; half++) send(ring, mail, gradient(ring, turn, half), gradient_count(ring, turn));
  for (int half = 0; half < 2; half++) receive(ring, mail, gathered(ring, half), gradient_count(ring, turn + 1));
}

static ad_status post(const key_ring *ring, const mail_bag *mail, ad_request *request) {
  *request = (ad_request){0};
  if (!mail->count) return AD_OK;
  ad_collective exchange = {.size = sizeof exchange,
                            .op = AD_EXCHANGE,
                            .group = ring->group,
                            .messages = mail->list,
                            .message_count = mail->count,
                            .dtype = ring->dtype,
                            .site = ring->site};
  return ad_comm_post(ring->comm, &exchange, request);
}

ad_status ad_ring_post(const key_ring *ring, int64_t turn, int backward, ad_request *request) {
  mail_bag mail = {.count = 0};
  if (!is_last(ring, turn)) pass_pair(ring, turn, &mail);
  if (backward && turn) pass_gradients(ring, turn - 1, &mail);
  return post(ring, &mail, request);
}

ad_status ad_ring_wait(const key_ring *ring, int64_t turn, int backward, ad_request *request) {
  AD_TRY(ad_comm_wait(ring->comm, request));
  if (!backward || !turn) return AD_OK;
  int adds = 1;
  ad_inject(AD_INJECT_RING_GATHERED, &adds);
  for (int half = 0; adds && half < 2; half++)
    ad_rows(ad_ring_wide(ring))->put(gradient(ring, turn, half), gathered(ring, half), 1, count_of(ring, turn), 1);
  return AD_OK;
}

ad_status ad_ring_come_home(const key_ring *ring, const void **d_k, const void **d_v) {
  mail_bag mail = {.count = 0};
  ad_request request;
  pass_gradients(ring, ring->members - 1, &mail);
  AD_TRY(post(ring, &mail, &request));
  AD_TRY(ad_comm_wait(ring->comm, &request));
  *d_k = gathered(ring, 0);
  *d_v = gathered(ring, 1);
  return AD_OK;
}
