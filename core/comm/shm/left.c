/* Finds out whether a rank has left the world, and sets the world's error if another rank still needs that rank. */
#include "base/text.h"
#include "comm/shm/channel.h"
#include "comm/shm/error.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"
#include "comm/words.h"

int ad_shm_has_left(const shm_world *world, uint32_t rank) {
  if (world->outside && world->outside->left[rank]) return 1;
  return atomic_load_explicit(&world->records[rank].state, memory_order_acquire) == SHM_LEFT;
}

void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  int exit_status = world->records[rank].exit_status;
  if (c->mode == SHM_TRANSFER) {
    ad_signature signature;
    ad_reported_call call = ad_shm_reported_transfer((const shm_transfer *)c, &signature);
    ad_transfer_left_words(&text, rank, exit_status, world->rank, &call);
  } else {
    ad_reported_call call = ad_shm_reported_call(ad_shm_slot(c, c->channel->index), &c->channel->shape);
    ad_left_words(&text, rank, exit_status, world->rank, c->sequence, &call);
  }
  ad_shm_raise(world->control, world->rank, AD_RANK_LEFT, AD_RANK_LEFT, words);
}
