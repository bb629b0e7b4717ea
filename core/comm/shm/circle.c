/* Finds out whether ranks wait for each other, so that none of them can continue. A rank in a call of a group needs
 * every member that has not made the call. A rank in a transfer needs its peer. A rank that receives from any source
 * needs one of several ranks, so it is stuck only if all of these are stuck. A rank that does not wait, or that has
 * unread or unsent messages, is not stuck. */
#include <string.h>
#include "base/memory.h"
#include "comm/shm/channel.h"
#include "comm/shm/envelope.h"
#include "comm/shm/error.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"

enum { SET_WORDS = SHM_RANKS_MAX / 64 };

typedef struct rank_set {
  uint64_t words[SET_WORDS];
} rank_set;

static void add_rank(rank_set *set, uint32_t rank) { set->words[rank / 64] |= 1ull << rank % 64; }
static void take_away(rank_set *set, uint32_t rank) { set->words[rank / 64] &= ~(1ull << rank % 64); }
static int has_rank(const rank_set *set, uint32_t rank) { return (int)(set->words[rank / 64] >> rank % 64 & 1); }

static int has_one_of(const rank_set *a, const rank_set *b) {
  for (int i = 0; i < SET_WORDS; i++)
    if (a->words[i] & b->words[i]) return 1;
  return 0;
}

static int has_all_of(const rank_set *a, const rank_set *b) {
  for (int i = 0; i < SET_WORDS; i++)
    if (b->words[i] & ~a->words[i]) return 0;
  return 1;
}

static int is_empty(const rank_set *set) {
  const rank_set none = {{0}};
  return has_all_of(&none, set);
}

/* A rank's long wait, as other ranks see it. */
typedef struct long_wait {
  uint64_t epoch;
  ad_group_shape shape;   // the group of the call
  const shm_slot *slots;  // the slots of the call's channel; NULL: a transfer
  uint64_t sequence;
  int needs_one;   // 1: one of the ranks in `needs` is enough; 0: all of them are needed
  rank_set needs;  // the ranks for which the rank waits
} long_wait;

typedef struct circle {
  uint32_t ranks[SHM_RANKS_MAX], count;  // the ranks of the circle, in which each waits for the next
  rank_set stuck, seen;                  // ranks that, as far as known, cannot continue; ranks that were examined
  long_wait *waits;                      // owned: for each rank in `stuck`, its wait
} circle;

/* ---- which ranks a waiting rank waits for ---- */

static const shm_slot *slot_in(const long_wait *wait, uint32_t member) {
  return &wait->slots[(size_t)member * SHM_RING + wait->sequence % SHM_RING];
}

// Adds the members that have not made the call to the ranks that the waiting rank needs.
static void look_at_call(const shm_world *world, const shm_entry *group, long_wait *out) {
  const shm_consumed *consumed = ad_shm_at(world, group->channel);
  out->slots = (const shm_slot *)(consumed + group->members);
  out->shape = ad_shm_entry_shape(world->control, group);
  for (uint32_t i = 0; i < group->members; i++)
    if (atomic_load(&slot_in(out, i)->published) < out->sequence + 1)
      add_rank(&out->needs, (uint32_t)ad_shape_rank(&out->shape, i));
}

// Records that rank `rank` needs any one of the other members that have not left.
static void need_any_other(const shm_world *world, uint32_t rank, const ad_group_shape *shape, uint32_t members,
                           long_wait *out) {
  out->needs_one = 1;
  for (uint32_t i = 0; i < members; i++) {
    uint32_t other = shape ? (uint32_t)ad_shape_rank(shape, i) : i;
    if (other != rank && !ad_shm_has_left(world, other)) add_rank(&out->needs, other);
  }
}

// Records the ranks that rank `rank`, which waits for a transfer, needs. Returns 0 if it needs none.
static int look_at_transfer(const shm_world *world, uint32_t rank, long_wait *out) {
  const shm_record *record = &world->records[rank];
  uint64_t peer = atomic_load(&record->waits_peer), parcel = atomic_load(&record->waits_parcel);
  uint64_t list = atomic_load(&record->waits_list);
  if (!peer || (parcel && atomic_load(&((shm_parcel *)ad_shm_at(world, parcel))->state) != SHM_POSTED)) return 0;
  const shm_entry *entry = list ? ad_shm_entry(world->control, list) : NULL;
  if (list && !entry) return 0;
  ad_group_shape shape = {0};
  if (entry) shape = ad_shm_entry_shape(world->control, entry);
  if (peer == SHM_ANY_RANK)
    need_any_other(world, rank, entry ? &shape : NULL, entry ? entry->members : world->ranks, out);
  else
    add_rank(&out->needs, (uint32_t)peer - 1);
  return 1;
}

// Returns 1 if the rank has unread messages in its queue, or unsent messages that did not fit into another rank's
// queue.
static int is_busy(const shm_world *world, uint32_t rank) {
  return atomic_load(&world->records[rank].backlog) || !ad_shm_queue_empty(&ad_shm_queues(world->control)[rank]);
}

// Copies the wait of a rank to *out. Returns 0 if the rank is in no long wait, or if its wait changes during the
// reading.
static int look_at(const shm_world *world, uint32_t rank, long_wait *out) {
  const shm_record *record = &world->records[rank];
  *out = (long_wait){.epoch = atomic_load(&record->epoch)};
  if (!(out->epoch & 1) || is_busy(world, rank)) return 0;
  if (atomic_load(&record->waits_peer)) {
    if (!look_at_transfer(world, rank, out)) return 0;
  } else {
    const shm_entry *group = ad_shm_entry(world->control, atomic_load(&record->waits_channel));
    out->sequence = atomic_load(&record->waits_sequence);
    if (!group) return 0;
    look_at_call(world, group, out);
  }
  return atomic_load(&record->epoch) == out->epoch;
}

/* ---- whether waiting ranks can continue, and the circle if they cannot ---- */

// Examines this rank, the ranks for which it waits, the ranks for which these wait, and so on. Adds those of them that
// wait to `stuck`.
static void look_around(const shm_world *world, circle *found) {
  uint32_t ranks[SHM_RANKS_MAX], count = 0;
  add_rank(&found->seen, world->rank);
  ranks[count++] = world->rank;
  for (uint32_t i = 0; i < count; i++) {
    long_wait *wait = &found->waits[ranks[i]];
    if (!look_at(world, ranks[i], wait)) continue;
    add_rank(&found->stuck, ranks[i]);
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
      if (!has_rank(&wait->needs, rank) || has_rank(&found->seen, rank)) continue;
      add_rank(&found->seen, rank);
      ranks[count++] = rank;
    }
  }
}

static int can_go_on(const circle *found, uint32_t rank) {
  const long_wait *wait = &found->waits[rank];
  if (is_empty(&wait->needs)) return 1;
  return wait->needs_one ? !has_all_of(&found->stuck, &wait->needs) : !has_one_of(&found->stuck, &wait->needs);
}

// Removes from `stuck` each rank that can continue because the ranks it needs are not stuck; repeats this until no rank
// can be removed.
static void find_stuck(const shm_world *world, circle *found) {
  for (int changed = 1; changed;) {
    changed = 0;
    for (uint32_t rank = 0; rank < world->ranks; rank++)
      if (has_rank(&found->stuck, rank) && can_go_on(found, rank)) {
        take_away(&found->stuck, rank);
        changed = 1;
      }
  }
}

// Returns a stuck rank that `rank` needs, or the number of ranks if there is none.
static uint32_t next_of(const shm_world *world, const circle *found, uint32_t rank) {
  uint32_t next = 0;
  while (next < world->ranks && !(has_rank(&found->waits[rank].needs, next) && has_rank(&found->stuck, next))) next++;
  return next;
}

// Goes from this rank to a stuck rank that it needs, then to a stuck rank which that rank needs, and so on. Returns 1
// if this leads back to this rank: the circle is then in *found. Returns 0 if the circle consists of other ranks, which
// will find it too.
static int walk(const shm_world *world, circle *found) {
  uint32_t rank = world->rank;
  do {
    if (found->count == world->ranks) return 0;
    found->ranks[found->count++] = rank;
    rank = next_of(world, found, rank);
  } while (rank < world->ranks && rank != world->rank);
  return rank == world->rank;
}

// Returns 1 if all stuck ranks are still in the wait in which they were found, and have no unread or unsent messages.
// Then none of them has published or sent anything since, so the circle still exists.
static int still_waiting(const shm_world *world, const circle *found) {
  for (uint32_t rank = 0; rank < world->ranks; rank++) {
    if (!has_rank(&found->stuck, rank)) continue;
    if (is_busy(world, rank) || atomic_load(&world->records[rank].epoch) != found->waits[rank].epoch) return 0;
  }
  return 1;
}

/* ---- the error about a circle of waits ---- */

// Appends a sentence on the wait of rank number i of the circle.
static void add_wait(const shm_world *world, ad_text *text, const circle *found, uint32_t i) {
  uint32_t rank = found->ranks[i], member = 0;
  const long_wait *wait = &found->waits[rank];
  ad_text_add(text, "%s", i ? "; " : "");
  if (!wait->slots) {
    ad_text_add(text, "rank %u waits for %.*s", rank, SHM_WORDS, world->records[rank].waits_words);
    return;
  }
  while (ad_shape_rank(&wait->shape, member) != rank) member++;
  ad_reported_call call = ad_shm_reported_call(slot_in(wait, member), &wait->shape);
  ad_wait_words(text, rank, found->ranks[(i + 1) % found->count], wait->sequence, &call);
}

static void raise_circle(shm_world *world, const circle *found) {
  char waits[AD_MESSAGE_MAX], words[AD_MESSAGE_MAX];
  ad_text of_waits = ad_text_on(waits, sizeof waits), text = ad_text_on(words, sizeof words);
  for (uint32_t i = 0; i < found->count; i++) add_wait(world, &of_waits, found, i);
  ad_circle_words(&text, waits);
  if (still_waiting(world, found)) ad_shm_raise(world->control, world->rank, AD_CYCLE, AD_CYCLE, words);
}

void ad_shm_look_for_circle(shm_world *world) {
  circle found = {.count = 0};
  if (ad_new(world->ranks, &found.waits)) return;  // no memory now: a later look may find some
  look_around(world, &found);
  find_stuck(world, &found);
  if (has_rank(&found.stuck, world->rank) && walk(world, &found) && still_waiting(world, &found))
    raise_circle(world, &found);
  ad_release(found.waits);
}
