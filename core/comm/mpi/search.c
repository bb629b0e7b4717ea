/* Searches for circles of waits, by mail that goes from each waiting rank to the ranks that it waits for. A rank that
 * waits for a call sends a search to the members that have not made the call. A rank that gets a search and waits too
 * sends it on to the ranks that it waits for. If the search comes back to the rank that began it, no rank of the circle
 * can continue. */
#include "comm/mpi/channel.h"
#include "comm/mpi/transfer.h"
#include "comm/mpi/wait.h"

/* ---- which members a call waits for ---- */

mpi_waited ad_mpi_waited_call(const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  if (ad_mpi_is_mine(world, call)) {
    const mpi_call *c = call->backend;
    return (mpi_waited){&c->channel->shape, c->sequence, c->channel->members};
  }
  const shm_call *c = call->backend;
  return (mpi_waited){&c->channel->shape, c->sequence, c->channel->members};
}

int ad_mpi_is_missing(const mpi_world *world, uint32_t member) {
  const ad_call *call = world->waiting.call;
  if (ad_mpi_is_mine(world, call)) return !((const mpi_call *)call->backend)->members[member].reported;
  const shm_call *c = call->backend;
  return c->mode == SHM_UNMATCHED && ad_shm_missing(c, member) == member;
}

/* ---- searching for circles of waits ---- */

static void add_wait(ad_text *text, const mpi_world *world, const mpi_waited *w, uint32_t peer) {
  const ad_call *call = world->waiting.call;
  ad_signature signature;
  ad_signature_take(call, &signature);
  ad_reported_call reported = {&signature, call->axes, w->shape, call->site, call->number};
  ad_wait_words(text, world->rank, peer, w->sequence, &reported);
}

// Returns the receive in which this rank waits for one particular rank, or NULL if there is none. Receives from any
// source are the subject of query.c.
static const shm_transfer *waited_receive(const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  if ((int)call->op != AD_OP_RECEIVE || call->peer == AD_ANY_SOURCE) return NULL;
  return ad_shm_waits_for_peer(world->shm, call->backend) ? call->backend : NULL;
}

// Sends a search to the rank whose message this rank waits for.
static void send_search_for_message(mpi_world *world, uint32_t origin, uint64_t number, const char *words) {
  const shm_transfer *t = waited_receive(world);
  if (!t) return;
  uint32_t peer = (uint32_t)t->under.call->peer;
  mail_search search = {.head = {MAIL_SEARCH, world->rank}, .origin = origin, .number = number, .is_message = 1};
  search.sequence = world->shm->transfers->got[peer];
  ad_text text = ad_text_on(search.text, sizeof search.text);
  ad_signature signature;
  ad_reported_call reported = ad_shm_reported_transfer(t, &signature);
  ad_text_add(&text, "%s%srank %u waits for ", words, *words ? "; " : "", world->rank);
  ad_transfer_wait_words(&text, &reported);
  ad_mpi_send_mail(world, peer, &search, sizeof search, NULL, 0, NULL, 0);
}

// Sends a search to all ranks that this rank waits for. `words` describes the waits so far.
static void send_search(mpi_world *world, uint32_t origin, uint64_t number, const char *words) {
  if (ad_op_is_transfer(world->waiting.call->op)) {
    send_search_for_message(world, origin, number, words);
    return;
  }
  mpi_waited w = ad_mpi_waited_call(world);
  for (uint32_t k = 0; k < w.members; k++) {
    uint32_t peer = (uint32_t)ad_shape_rank(w.shape, k);
    if (peer == world->rank || !ad_mpi_is_missing(world, k)) continue;
    mail_search search = {.head = {MAIL_SEARCH, world->rank},
                          .origin = origin,
                          .number = number,
                          .shape = *w.shape,
                          .sequence = w.sequence};
    ad_text text = ad_text_on(search.text, sizeof search.text);
    ad_text_add(&text, "%s%s", words, *words ? "; " : "");
    add_wait(&text, world, &w, peer);
    ad_mpi_send_mail(world, peer, &search, sizeof search, NULL, 0, NULL, 0);
  }
}

static void raise_circle(mpi_world *world, const char *waits) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_circle_words(&text, waits);
  ad_mpi_raise(world, AD_CYCLE, words);
}

// Returns 1 if the search is outdated: this rank has already made the call for which the search's sender waits, or has
// sent or queued the message.
static int has_done(mpi_world *world, const mail_search *search) {
  if (!search->is_message) return ad_mpi_has_made(world, &search->shape, search->sequence);
  return world->shm->transfers->sent[search->head.from] > search->sequence || world->shm->transfers->outbox;
}

// Returns 1 if this rank still waits for other ranks.
static int is_waiting(const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  return call && call->backend && (!ad_op_is_transfer(call->op) || waited_receive(world));
}

void ad_mpi_follow_search(mpi_world *world, const mail_search *search) {
  const mpi_waiting *waiting = &world->waiting;
  if (!is_waiting(world) || has_done(world, search)) return;
  if (search->origin == world->rank) {
    if (search->number >= waiting->first_search) raise_circle(world, search->text);
  } else if (world->followed[search->origin] < search->number) {
    world->followed[search->origin] = search->number;
    send_search(world, search->origin, search->number, search->text);
  }
}

void ad_mpi_search(mpi_world *world) {
  const ad_call *call = world->waiting.call;
  if (ad_op_is_transfer(call->op) && call->peer == AD_ANY_SOURCE)
    ad_mpi_ask_all(world);
  else
    send_search(world, world->rank, ++world->searches, "");
}
