/* Posts, matches and carries out transfers. envelope.h describes them in the shared memory file, and the path of one
 * message. core/tests/comm/test_parcel.c tries the states of a parcel in every order. */
#include "comm/shm/transfer.h"

#include <string.h>
#include "base/clock.h"
#include "base/memory.h"
#include "comm/shm/error.h"
#include "comm/shm/memory.h"
#include "comm/shm/pull.h"
#include "comm/shm/wait.h"

// Nanoseconds. patience: a waiting sender copies its message if nobody has taken it for so long. retry_interval: if
// there was no memory for the copy, the sender tries again after so long.
static const int64_t patience = 50000, retry_interval = 10000000;

/* ---- lists of this rank's transfers ---- */

ad_status ad_shm_transfers_begin(shm_world *world) {
  shm_transfers *all;
  AD_TRY(ad_new(1, &all));
  world->transfers = all;
  for (int i = 0; i < SHM_BUCKETS; i++) {
    all->receives_end[i] = &all->receives[i];
    all->messages_end[i] = &all->messages[i];
  }
  all->outbox_end = &all->outbox;
  all->sends_end = &all->sends;
  AD_TRY(ad_new(world->ranks, &all->sent));
  return ad_new(world->ranks, &all->got);
}

static void append(shm_transfer ***end, shm_transfer *t) {
  t->next = NULL;
  **end = t;
  *end = &t->next;
}

static void take_out(shm_transfer ***end, shm_transfer **link) {
  shm_transfer *t = *link;
  *link = t->next;
  if (*end == &t->next) *end = link;
}

static uint32_t bucket_of(uint64_t group, int64_t tag) {
  uint64_t hash = (group ^ (uint64_t)tag * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  return (uint32_t)(hash >> 58) % SHM_BUCKETS;
}

static ad_status take_transfer(shm_world *world, ad_call *call, shm_transfer **out) {
  shm_transfers *all = world->transfers;
  shm_transfer *t = all->free;
  if (t)
    all->free = t->next;
  else
    AD_TRY(ad_new(1, &t));
  *t = (shm_transfer){.under = {.call = call, .mode = SHM_TRANSFER}};
  *out = t;
  return AD_OK;
}

static void return_transfer(shm_world *world, shm_transfer *t) {
  t->next = world->transfers->free;
  world->transfers->free = t;
}

static void complete(shm_world *world, shm_transfer *t) {
  t->under.call->backend = NULL;
  return_transfer(world, t);
}

// Frees the memory that belongs to an envelope from another node.
static void release_bytes(const shm_envelope *envelope) {
  if (envelope->where == SHM_ELSEWHERE)
    ad_release((void *)(uintptr_t)envelope->at);  // NOLINT(performance-no-int-to-ptr)
}

static void free_list(shm_transfer *first) {
  for (shm_transfer *next; first; first = next) {
    next = first->next;
    if (first->is_matched) release_bytes(&first->envelope);
    ad_release(first);
  }
}

static void free_messages(shm_message_kept *first, int are_kept) {
  for (shm_message_kept *next; first; first = next) {
    next = first->next;
    if (are_kept) release_bytes(&first->envelope);
    ad_release(first);
  }
}

// Withdraws the sends that no receiver has taken: from now on no other rank may read this rank's buffers.
static void withdraw(const shm_transfers *all) {
  for (shm_transfer *t = all->sends; t; t = t->next) {
    uint32_t posted = SHM_POSTED;
    if (t->parcel) atomic_compare_exchange_strong(&t->parcel->state, &posted, SHM_WITHDRAWN);
  }
}

void ad_shm_transfers_end(shm_world *world) {
  shm_transfers *all = world->transfers;
  if (!all) return;
  withdraw(all);
  for (int i = 0; i < SHM_BUCKETS; i++) {
    free_list(all->receives[i]);
    free_messages(all->messages[i], 1);
  }
  free_list(all->outbox);
  free_list(all->sends);
  free_list(all->matched);
  while (all->free) {
    shm_transfer *next = all->free->next;
    ad_release(all->free);
    all->free = next;
  }
  free_messages(all->free_messages, 0);
  ad_release(all->sent);
  ad_release(all->got);
  ad_release(all);
  world->transfers = NULL;
}

/* ---- sending: publishing a message's envelope in shared memory ---- */

static shm_parcel_state state_of(const shm_parcel *parcel) {
  return (shm_parcel_state)atomic_load_explicit(&parcel->state, memory_order_acquire);
}

// Puts the envelope of a send into its peer's queue. Returns 0 if the queue is full.
static int enqueue_transfer(shm_world *world, shm_transfer *t) {
  uint32_t to = (uint32_t)t->under.call->peer;
  shm_queue *queue = &ad_shm_queues(world->control)[to];
  uint64_t number = atomic_load(&queue->taken);
  do {
    uint64_t drained = atomic_load_explicit(&queue->drained, memory_order_acquire);
    if (number - drained >= SHM_CELLS) return 0;
  } while (!atomic_compare_exchange_weak(&queue->taken, &number, number + 1));
  shm_cell *cell = &queue->cells[number % SHM_CELLS];
  cell->envelope = t->envelope;
  atomic_store_explicit(&cell->published, number + 1, memory_order_release);
  t->is_put = 1;
  t->since = ad_now();
  world->transfers->sent[to]++;
  ad_shm_wake_rank(world, to);
  return 1;
}

// Puts the envelopes of the outbox into their peers' queues, in the order of posting. Stops for a peer whose queue is
// full.
static void empty_outbox(shm_world *world) {
  shm_transfers *all = world->transfers;
  uint8_t is_full[SHM_RANKS_MAX] = {0};
  ad_shm_pause_long(world);
  for (shm_transfer **link = &all->outbox; *link;) {
    shm_transfer *t = *link;
    uint8_t *full = &is_full[t->under.call->peer];
    if (!*full) *full = !enqueue_transfer(world, t);
    if (*full) {
      link = &t->next;
      continue;
    }
    take_out(&all->outbox_end, link);
    append(&all->sends_end, t);
  }
  atomic_store(&world->records[world->rank].backlog, all->outbox != NULL);
}

/* ---- sending: choosing where the message's bytes are ---- */

// Decides where the receiver finds the bytes of a message. Copies the bytes there if they are few.
static ad_status choose_place(shm_world *world, shm_transfer *t) {
  const ad_call *call = t->under.call;
  shm_envelope *envelope = &t->envelope;
  if (call->in_bytes <= SHM_INLINE_MESSAGE) {
    if (call->in_bytes) memcpy(envelope->inlined, call->in, call->in_bytes);
    return AD_OK;
  }
  AD_TRY(ad_shm_take_parcel(world, &t->parcel));
  envelope->parcel = (uint64_t)((char *)t->parcel - world->base);
  envelope->at = ad_shm_offset(world, call->in, call->in_bytes);
  envelope->where = SHM_IN_FILE;
  int is_reachable = envelope->at || world->pulls;
  if (!envelope->at && is_reachable) {
    envelope->where = SHM_IN_PROCESS;
    envelope->at = (uint64_t)(uintptr_t)call->in;
  }
  if (call->in_bytes > SHM_ROOM && is_reachable) return AD_OK;
  ad_status status = ad_shm_copy_into_parcel(world, t->parcel, call->in, call->in_bytes);
  if (status) {
    atomic_store(&t->parcel->state, SHM_DONE);
    ad_shm_leave_parcel(world, t->parcel);
  }
  return status;
}

// Fills the envelope of a send, and puts it into the peer's queue or, if the queue is full, into the outbox.
static ad_status post_send(shm_world *world, shm_transfer *t) {
  const ad_call *call = t->under.call;
  shm_envelope *envelope = &t->envelope;
  envelope->group = call->shape.list;
  envelope->tag = call->tag;
  envelope->bytes = call->in_bytes;
  envelope->sender = world->rank;
  envelope->dtype = (uint8_t)call->dtype;
  ad_site_write(envelope->site, call->site);
  AD_TRY(choose_place(world, t));
  append(&world->transfers->outbox_end, t);
  empty_outbox(world);
  return AD_OK;
}

/* ---- receiving: matching messages with receives, and reading them ---- */

// Returns 1 if the message in `envelope` matches the receive: same group and tag, and the right sender.
static int wants(const shm_transfer *receive, const shm_envelope *envelope) {
  const ad_call *call = receive->under.call;
  return call->shape.list == envelope->group && call->tag == envelope->tag &&
         (call->peer == AD_ANY_SOURCE || call->peer == envelope->sender);
}

// Returns 1 if message and receive have the same size and dtype; otherwise sets the world's error and returns 0.
static int agrees(shm_world *world, const shm_transfer *t) {
  const ad_call *call = t->under.call;
  const shm_envelope *envelope = &t->envelope;
  if (envelope->bytes == call->out_bytes && envelope->dtype == (uint8_t)call->dtype) return 1;
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_signature signature;
  ad_reported_call of = ad_shm_reported_transfer(t, &signature);
  ad_reported_message sent = {envelope->sender, 1, (ad_dtype)envelope->dtype, envelope->bytes, envelope->site};
  ad_reported_message received = {world->rank, 1, call->dtype, call->out_bytes, call->site};
  ad_transfer_words(&text, &of, &sent, &received);
  ad_shm_raise(world->control, world->rank, AD_MISMATCH, AD_MISMATCH, words);
  return 0;
}

// Reads a message from the sender's buffer. Returns 0 if it could not be read; the world then has an error, or will
// soon have one.
static int read_posted(shm_world *world, shm_transfer *t) {
  const shm_envelope *envelope = &t->envelope;
  void *to = t->under.call->out;
  if (envelope->where == SHM_IN_FILE)
    memcpy(to, ad_shm_at(world, envelope->at), envelope->bytes);
  else if (envelope->sender == world->rank)
    memmove(to, (const void *)(uintptr_t)envelope->at, envelope->bytes);  // NOLINT(performance-no-int-to-ptr)
  else
    return ad_shm_pull(world, &t->under, envelope->sender, envelope->at, to, envelope->bytes);
  return 1;
}

static void report_done(shm_world *world, const shm_transfer *t, shm_parcel *parcel) {
  atomic_store_explicit(&parcel->state, SHM_DONE, memory_order_release);
  ad_shm_wake_rank(world, t->envelope.sender);
}

// Reads the bytes of a message that is too long for its envelope. Returns 0 if the bytes cannot be read yet, or never.
static int read_parcel(shm_world *world, shm_transfer *t, shm_parcel *parcel) {
  uint32_t posted = SHM_POSTED;
  if (!t->is_mine) t->is_mine = (uint8_t)atomic_compare_exchange_strong(&parcel->state, &posted, SHM_TAKEN);
  if (t->is_mine) {
    if (!read_posted(world, t)) return 0;
    report_done(world, t, parcel);
    return 1;
  }
  if (posted == SHM_WITHDRAWN) ad_shm_raise_left(world, &t->under, t->envelope.sender);
  if (posted != SHM_COPIED) return 0;
  memcpy(t->under.call->out, ad_shm_at(world, parcel->copy), t->envelope.bytes);
  report_done(world, t, parcel);
  return 1;
}

// Copies the bytes of a matched message to the receive's buffer. Returns 0 if that is not possible yet.
static int bring(shm_world *world, shm_transfer *t) {
  const shm_envelope *envelope = &t->envelope;
  if (ad_shm_failed(world)) return 0;
  if (envelope->where == SHM_ELSEWHERE) {
    if (!world->outside->bring(world->outside->context, t)) return 0;
  } else if (envelope->parcel) {
    if (!read_parcel(world, t, ad_shm_at(world, envelope->parcel))) return 0;
  } else if (envelope->bytes) {
    memcpy(t->under.call->out, envelope->inlined, envelope->bytes);
  }
  t->under.call->source = envelope->sender;
  return 1;
}

// Matches a message with a receive, which must be in no list, and completes the receive if the bytes can be read now.
static void match(shm_world *world, shm_transfer *t, const shm_envelope *envelope) {
  t->envelope = *envelope;
  t->is_matched = 1;
  if (agrees(world, t) && bring(world, t)) {
    complete(world, t);
    return;
  }
  t->next = world->transfers->matched;
  world->transfers->matched = t;
}

// Keeps a message, in bucket number `bucket`, until a receive for it is posted.
static ad_status keep_message(shm_world *world, const shm_envelope *envelope, uint32_t bucket) {
  shm_transfers *all = world->transfers;
  shm_message_kept *kept = all->free_messages;
  if (kept)
    all->free_messages = kept->next;
  else
    AD_TRY(ad_new(1, &kept));
  kept->envelope = *envelope;
  kept->next = NULL;
  *all->messages_end[bucket] = kept;
  all->messages_end[bucket] = &kept->next;
  return AD_OK;
}

ad_status ad_shm_deliver(shm_world *world, const shm_envelope *envelope) {
  shm_transfers *all = world->transfers;
  uint32_t bucket = bucket_of(envelope->group, envelope->tag);
  all->got[envelope->sender]++;
  for (shm_transfer **link = &all->receives[bucket]; *link; link = &(*link)->next) {
    shm_transfer *t = *link;
    if (!wants(t, envelope)) continue;
    take_out(&all->receives_end[bucket], link);
    match(world, t, envelope);
    return AD_OK;
  }
  return keep_message(world, envelope, bucket);
}

// Matches the receive `t` with the oldest kept message that fits. If there is none, adds `t` to the list of receives
// that wait.
static void post_receive(shm_world *world, shm_transfer *t) {
  shm_transfers *all = world->transfers;
  const ad_call *call = t->under.call;
  uint32_t bucket = bucket_of(call->shape.list, call->tag);
  for (shm_message_kept **link = &all->messages[bucket]; *link; link = &(*link)->next) {
    shm_message_kept *kept = *link;
    if (!wants(t, &kept->envelope)) continue;
    *link = kept->next;
    if (all->messages_end[bucket] == &kept->next) all->messages_end[bucket] = link;
    match(world, t, &kept->envelope);
    kept->next = all->free_messages;
    all->free_messages = kept;
    return;
  }
  append(&all->receives_end[bucket], t);
}

// Marks the parcel of a message that will not be received as done. Returns 0 if the sender is copying the message at
// this moment, so that the parcel is in use.
static int give_up(shm_parcel *parcel) {
  uint32_t state = SHM_POSTED;
  if (atomic_compare_exchange_strong(&parcel->state, &state, SHM_TAKEN) || state == SHM_COPIED)
    atomic_store_explicit(&parcel->state, SHM_DONE, memory_order_release);
  return state != SHM_MOVING;
}

void ad_shm_drop_messages(shm_world *world, uint64_t group) {
  shm_transfers *all = world->transfers;
  for (int i = 0; i < SHM_BUCKETS; i++)
    for (shm_message_kept **link = &all->messages[i]; *link;) {
      shm_message_kept *kept = *link;
      uint64_t parcel = kept->envelope.parcel;
      if (kept->envelope.group != group || (parcel && !give_up(ad_shm_at(world, parcel)))) {
        link = &kept->next;
        continue;
      }
      *link = kept->next;
      if (all->messages_end[i] == &kept->next) all->messages_end[i] = link;
      release_bytes(&kept->envelope);
      kept->next = all->free_messages;
      all->free_messages = kept;
    }
}

/* ---- making progress on all posted transfers ---- */

// Takes all envelopes out of this rank's queue. An envelope leaves the queue only after it is matched or kept, so an
// empty queue means that there is nothing new.
static void empty_queue(shm_world *world) {
  shm_queue *queue = &ad_shm_queues(world->control)[world->rank];
  uint64_t number = atomic_load_explicit(&queue->drained, memory_order_relaxed);
  const shm_cell *cell = &queue->cells[number % SHM_CELLS];
  while (atomic_load_explicit(&cell->published, memory_order_acquire) == number + 1) {
    ad_shm_pause_long(world);
    if (ad_shm_deliver(world, &cell->envelope)) {
      ad_shm_raise_own(world, AD_MEMORY);
      return;
    }
    atomic_store(&queue->drained, ++number);
    cell = &queue->cells[number % SHM_CELLS];
  }
}

// Tries again to copy the bytes of matched messages that could not be read before.
static void try_matched(shm_world *world) {
  for (shm_transfer **link = &world->transfers->matched; *link;) {
    shm_transfer *t = *link;
    if (!bring(world, t)) {
      link = &t->next;
      continue;
    }
    *link = t->next;
    complete(world, t);
  }
}

void ad_shm_progress_transfers(shm_world *world) {
  if (ad_shm_failed(world)) return;
  if (world->transfers->outbox) empty_outbox(world);
  empty_queue(world);
  if (world->transfers->matched) try_matched(world);
}

// Records the transfer as this rank's last call, for the watchdog.
static void record_last(const shm_world *world, const ad_call *call) {
  shm_record *record = &world->records[world->rank];
  record->last_op = (uint32_t)call->op;
  ad_site_write(record->last_site, call->site);
  atomic_store_explicit(&record->last_channel, 0, memory_order_relaxed);
  atomic_store_explicit(&record->calls, atomic_load_explicit(&record->calls, memory_order_relaxed) + 1,
                        memory_order_release);
}

ad_status ad_shm_post_transfer(shm_world *world, ad_call *call) {
  shm_transfer *t;
  AD_TRY(take_transfer(world, call, &t));
  ad_shm_progress_transfers(world);
  record_last(world, call);
  call->backend = t;
  if ((int)call->op == AD_OP_RECEIVE) {
    post_receive(world, t);
    return AD_OK;
  }
  ad_status status = post_send(world, t);
  if (status) complete(world, t);
  return status;
}

/* ---- sending: finding out whether a send is complete, and ending it ---- */

// Copies a message that was not taken for a while, if there is memory, which completes this rank's send.
static void copy_away(shm_world *world, shm_transfer *t) {
  int64_t now = ad_now();
  if (now - t->since < patience || now < t->retry) return;
  t->retry = now + retry_interval;
  ad_status status = ad_shm_copy_into_parcel(world, t->parcel, t->under.call->in, t->under.call->in_bytes);
  if (!status) ad_shm_wake_rank(world, (uint32_t)t->under.call->peer);
}

// Returns 1 if the send is complete: its envelope is in the queue, and the message is in the envelope, copied, or
// received.
static int is_sent(shm_world *world, shm_transfer *t) {
  if (!t->is_put) return 0;
  if (!t->parcel) return 1;
  shm_parcel_state state = state_of(t->parcel);
  if (state == SHM_POSTED) {
    copy_away(world, t);
    state = state_of(t->parcel);
  }
  return state == SHM_DONE || state == SHM_COPIED;
}

static void end_send(shm_world *world, shm_transfer *t) {
  shm_transfers *all = world->transfers;
  shm_transfer **link = &all->sends;
  while (*link != t) link = &(*link)->next;
  take_out(&all->sends_end, link);
  if (t->parcel) ad_shm_leave_parcel(world, t->parcel);
  complete(world, t);
}

int ad_shm_transfer_done(shm_world *world, ad_call *call) {
  shm_transfer *t = call->backend;
  if (!t) return 1;
  if ((int)call->op == AD_OP_RECEIVE || ad_shm_failed(world) || !is_sent(world, t)) return 0;
  end_send(world, t);
  return 1;
}
