/* The slots in the shared memory file in which the members of a group publish their calls to each other. */
#ifndef COMM_SHM_SLOT_H
#define COMM_SHM_SLOT_H
#include "comm/shm/control.h"
#include "comm/words.h"
#include "mesh/group.h"

enum {
  SHM_RING = 64,      // the largest number of calls of one group that a member may be ahead of another member
  SHM_PAYLOAD = 8192  // bytes of a call that fit into the slot itself
};

/* Where the other members find a member's input. */
typedef enum shm_place {
  SHM_INLINE,  // copied as a whole: into the member's slot, or into a staging buffer
  SHM_SHARED,  // in the shared file, where the members read it
  SHM_STAGED,  // copied piece after piece into the member's staging buffer, in rounds
  SHM_PULLED   // read by the other members from the memory of the member's process
} shm_place;

/* The facts about its call that a member publishes. `published` and the offer fill one cache line: another member
 * has to read only this line. */
typedef struct shm_offer {
  ad_signature signature;
  uint64_t in;       // offset of the input or of its staging buffer; if pulled, address in the member's process
  uint64_t out;      // offset of the output; 0: the output is not in the shared file
  uint64_t table;    // offset of the table: starts of an all_to_all, or messages of an exchange; 0: none
  uint32_t place;    // shm_place
  uint32_t entries;  // messages in an exchange's table
} shm_offer;

/* One call of one member. The member fills the slot and sets `published` last. The slot stays unchanged until all
 * members have consumed the call; a member consumes a call when it needs nothing more from it. */
typedef struct shm_slot {
  _Alignas(SHM_PAIR) _Atomic uint64_t published;  // sequence + 1 of the call in this slot
  shm_offer offer;
  _Alignas(SHM_LINE) uint64_t number;  // the rank's own number of the call
  ad_axes axes;
  char site[AD_SITE_MAX];
  _Alignas(SHM_PAIR) _Atomic uint32_t claimed;  // how many chunks of the member's part were taken, by any member
  // Chunks of the member's part that are done. In a call in rounds: 1 when the member's part is done.
  _Alignas(SHM_PAIR) _Atomic uint32_t done;
  _Atomic uint32_t staged, reduced, copied;  // rounds that the member has finished; see own.c
  uint32_t chunks;                           // how many chunks the member's part has
  uint64_t stream;                           // bytes that pass through the member's staging buffer
  uint64_t result;                           // offset of the staging buffer for reduced pieces
  _Alignas(SHM_LINE) unsigned char payload[SHM_PAYLOAD];
} shm_slot;

/* How many calls of a channel a member has consumed. A channel in the shared memory file has one shm_consumed for
 * each member, then SHM_RING slots for each member. */
typedef struct shm_consumed {
  _Alignas(SHM_PAIR) _Atomic uint64_t calls;  // the member has consumed all calls before this one
} shm_consumed;

/* One message of an exchange, in the table that a member publishes. */
typedef struct shm_message {
  uint32_t peer;
  uint8_t sends, dtype;
  uint64_t bytes;
  uint64_t at;  // offset of the buffer; if pulled, its address; if staged, the message's offset in the stream
} shm_message;

/* Describes the call in a slot, for error messages; `shape` is the shape of the slot's group. */
static inline ad_reported_call ad_shm_reported_call(const shm_slot *slot, const ad_group_shape *shape) {
  return (ad_reported_call){&slot->offer.signature, slot->axes, shape, slot->site, slot->number};
}

#endif
