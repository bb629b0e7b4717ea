/* Waits for the other side of a transfer: shows this rank's wait to the other ranks, and finds out whether the wait
 * can end. */
#include <string.h>
#include "comm/shm/envelope.h"
#include "comm/shm/error.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"

int ad_shm_waits_for_peer(const shm_world *world, const shm_transfer *t) {
  const ad_call *call = t->under.call;
  if (ad_shm_failed(world) || call->backend != t) return 0;
  if ((int)call->op == AD_OP_RECEIVE) return !t->is_matched;
  return !t->is_put || (t->parcel && atomic_load(&t->parcel->state) == SHM_POSTED);
}

// Returns the channel offset of the list of ranks to which the sender must belong; 0: any rank of the world could send.
// In a world of several nodes always returns 0, since a node's file has no channel for a list that spans nodes.
static uint64_t list_of(shm_world *world, const ad_call *call) {
  shm_channel *channel;
  if (!call->shape.list || world->outside || ad_shm_channel(world, call, &channel)) return 0;
  return (uint64_t)((char *)channel->consumed - world->base);
}

static void show_words(shm_record *record, const shm_transfer *t) {
  char words[SHM_WORDS] = "";
  ad_text text = ad_text_on(words, sizeof words);
  ad_signature signature;
  ad_reported_call call = ad_shm_reported_transfer(t, &signature);
  ad_transfer_wait_words(&text, &call);
  memcpy(record->waits_words, words, sizeof words);
}

void ad_shm_show_transfer(shm_world *world, const shm_call *c) {
  const shm_transfer *t = (const shm_transfer *)c;
  const ad_call *call = c->call;
  shm_record *record = &world->records[world->rank];
  int is_any = call->peer == AD_ANY_SOURCE;
  show_words(record, t);
  atomic_store(&record->waits_channel, 0);
  atomic_store(&record->waits_list, is_any ? list_of(world, call) : 0);
  atomic_store(&record->waits_parcel, t->parcel ? t->envelope.parcel : 0);
  // If the message of a receive is in flight already, this rank needs no rank that could be waiting for it.
  atomic_store(&record->waits_peer, !ad_shm_waits_for_peer(world, t) ? 0
                                    : is_any                         ? SHM_ANY_RANK
                                                                     : (uint64_t)call->peer + 1);
}

// Returns 1 if all other members of the group have left; *one is then one of them.
static int all_others_left(const shm_world *world, const ad_call *call, uint32_t *one) {
  for (uint32_t i = 0; i < call->members; i++) {
    uint32_t rank = (uint32_t)ad_shape_rank(&call->shape, i);
    if (rank == world->rank) continue;
    if (!ad_shm_has_left(world, rank)) return 0;
    *one = rank;
  }
  return call->members > 1;
}

void ad_shm_look_for_left_peer(shm_world *world, const shm_call *c) {
  const shm_transfer *t = (const shm_transfer *)c;
  const ad_call *call = c->call;
  uint32_t rank = (uint32_t)call->peer;
  if (!ad_shm_waits_for_peer(world, t)) return;
  if (call->peer == AD_ANY_SOURCE ? !all_others_left(world, call, &rank) : !ad_shm_has_left(world, rank)) return;
  // The peer may have sent, or received, just before it left: looks once more.
  ad_shm_progress_transfers(world);
  if (ad_shm_waits_for_peer(world, t)) ad_shm_raise_left(world, c, rank);
}
