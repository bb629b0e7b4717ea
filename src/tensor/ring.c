/* The ring. Turn t of rank i has the keys and values of rank i - t. The gradients of a rank's keys and values follow
 * them one turn behind: each rank adds its own to what the ranks before it gathered. Two pairs of memory take turns for
 * what arrives; of gradients one pair is computed, one is sent and one arrives. */
#include "tensor/ring.h"

#include "base/seams.h"

enum { ARRIVING_PAIRS = 2, GRADIENT_PAIRS = 3, MESSAGES_MAX = 8 };

/* Of two ranks each gets one pair. */
static size_t arriving_pairs(const key_ring *ring) { return ring->members > 2 ? ARRIVING_PAIRS : 1; }

static int64_t wrapped(const key_ring *ring, int64_t index) {
  return ((index % ring->members) + ring->members) % ring->members;
}

int64_t ad_ring_source(const key_ring *ring, int64_t turn) { return wrapped(ring, ring->index - turn); }

static size_t pair_bytes(const key_ring *ring) { return 2 * ring->most * ad_dtype_size(ring->dtype); }

size_t ad_ring_bytes(const key_ring *ring) { return (arriving_pairs(ring) + GRADIENT_PAIRS) * pair_bytes(ring); }

/* Half 0 is of k, half 1 of v. */
static char *half_of(const key_ring *ring, size_t pair, int half) {
  return (char *)ring->memory + pair * pair_bytes(ring) + (size_t)half * pair_bytes(ring) / 2;
}

static char *arrived(const key_ring *ring, int64_t turn, int half) {
  return half_of(ring, (size_t)(turn - 1) % arriving_pairs(ring), half);
}

/* The pairs of gradients: those of two turns by turns, and what arrives. */
static char *gradient(const key_ring *ring, int64_t turn, int half) {
  return half_of(ring, arriving_pairs(ring) + (size_t)(turn % 2), half);
}
static char *gathered(const key_ring *ring, int half) { return half_of(ring, arriving_pairs(ring) + 2, half); }

ring_pair ad_ring_pair(const key_ring *ring, int64_t turn) {
  return turn ? (ring_pair){arrived(ring, turn, 0), arrived(ring, turn, 1)} : ring->own;
}
void *ad_ring_d_k(const key_ring *ring, int64_t turn) { return gradient(ring, turn, 0); }
void *ad_ring_d_v(const key_ring *ring, int64_t turn) { return gradient(ring, turn, 1); }

static int is_last(const key_ring *ring, int64_t turn) { return turn + 1 == ring->members; }

typedef struct mail_bag {
  ad_message list[MESSAGES_MAX];
  size_t count;
} mail_bag;

static void send(const key_ring *ring, mail_bag *mail, const void *data, int64_t source) {
  mail->list[mail->count++] =
      (ad_message){.peer = wrapped(ring, ring->index + 1), .send = data, .count = ring->counts[source]};
}

static void receive(const key_ring *ring, mail_bag *mail, void *data, int64_t source) {
  mail->list[mail->count++] =
      (ad_message){.peer = wrapped(ring, ring->index - 1), .receive = data, .count = ring->counts[source]};
}

static void pass_pair(const key_ring *ring, int64_t turn, mail_bag *mail) {
  ring_pair pair = ad_ring_pair(ring, turn);
  send(ring, mail, pair.k, ad_ring_source(ring, turn));
  send(ring, mail, pair.v, ad_ring_source(ring, turn));
  for (int half = 0; half < 2; half++)
    receive(ring, mail, arrived(ring, turn + 1, half), ad_ring_source(ring, turn + 1));
}

/* The gradients that turn `turn` completed as far as this rank goes. */
static void pass_gradients(const key_ring *ring, int64_t turn, mail_bag *mail) {
  for (int half = 0; half < 2; half++) send(ring, mail, gradient(ring, turn, half), ad_ring_source(ring, turn));
  for (int half = 0; half < 2; half++) receive(ring, mail, gathered(ring, half), ad_ring_source(ring, turn + 1));
}

static ad_status post(const key_ring *ring, const mail_bag *mail, ad_request *request) {
  *request = (ad_request){0};
  if (!mail->count) return AD_OK;
  ad_collective exchange = {.op = AD_EXCHANGE,
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
  size_t count = ring->counts[ad_ring_source(ring, turn)];
  int adds = 1;
  ad_seam_pass(AD_SEAM_RING_GATHERED, &adds);
  for (int half = 0; adds && half < 2; half++)
    ad_rows(ring->dtype)->put(gradient(ring, turn, half), gathered(ring, half), 1, count, 1);
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
