/* Parcels: the sender's memory for messages in flight. They are allocated several at a time and kept for later
 * messages. */
#include <string.h>
#include "comm/shm/memory.h"
#include "comm/shm/transfer.h"

enum { PARCELS_AT_ONCE = 8 };

static void put_back(shm_world *world, shm_parcel *parcel) {
  if (parcel->memory) ad_shm_free(world, parcel->memory);
  parcel->memory = NULL;
  parcel->next = world->transfers->parcels;
  world->transfers->parcels = parcel;
}

// Frees those parcels whose messages were received.
static void look_at_them(shm_world *world) {
  for (shm_parcel **link = &world->transfers->on_the_way; *link;) {
    shm_parcel *parcel = *link;
    if (atomic_load_explicit(&parcel->state, memory_order_acquire) != SHM_DONE) {
      link = &parcel->next;
      continue;
    }
    *link = parcel->next;
    put_back(world, parcel);
  }
}

// Allocates several parcels: *out is one, and the others are kept as free ones.
static ad_status make_parcels(shm_world *world, shm_parcel **out) {
  void *memory;
  AD_TRY(ad_shm_alloc(world, (PARCELS_AT_ONCE + 1) * sizeof(shm_parcel), &memory));
  // ad_shm_alloc aligns to one cache line, but a parcel must be aligned to two.
  uintptr_t start = ((uintptr_t)memory + SHM_PAIR - 1) / SHM_PAIR * SHM_PAIR;
  shm_parcel *parcels = (shm_parcel *)start;  // NOLINT(performance-no-int-to-ptr)
  for (int i = 1; i < PARCELS_AT_ONCE; i++) put_back(world, &parcels[i]);
  *out = &parcels[0];
  return AD_OK;
}

ad_status ad_shm_take_parcel(shm_world *world, shm_parcel **out) {
  shm_transfers *all = world->transfers;
  look_at_them(world);
  shm_parcel *parcel = all->parcels;
  if (parcel)
    all->parcels = parcel->next;
  else
    AD_TRY(make_parcels(world, &parcel));
  *out = parcel;
  atomic_store_explicit(&parcel->state, SHM_POSTED, memory_order_relaxed);
  return AD_OK;
}

void ad_shm_leave_parcel(shm_world *world, shm_parcel *parcel) {
  parcel->next = world->transfers->on_the_way;
  world->transfers->on_the_way = parcel;
}

ad_status ad_shm_copy_into_parcel(shm_world *world, shm_parcel *parcel, const void *from, size_t bytes) {
  uint32_t posted = SHM_POSTED;
  void *to = parcel->room;
  if (bytes > SHM_ROOM) AD_TRY(ad_shm_alloc(world, bytes, &to));
  if (!atomic_compare_exchange_strong(&parcel->state, &posted, SHM_MOVING)) {
    if (to != parcel->room) ad_shm_free(world, to);  // the receiver has taken the message already
    return AD_OK;
  }
  ad_copy_shared(to, from, bytes);
  if (to != parcel->room) parcel->memory = to;
  parcel->copy = (uint64_t)((char *)to - world->base);
  atomic_store_explicit(&parcel->state, SHM_COPIED, memory_order_release);
  return AD_OK;
}
