/* Tests the states of a parcel in every order in which its two sides can take turns. transfer.c and parcel.c are
 * compiled in here with another meaning of their atomic operations and copies: before and after each, either side may
 * continue. The two sides are contexts of one thread, so every order is tried, and the same ones in each run. What
 * processors may do besides, with weaker orders of memory, is not in the model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <cmocka.h>

/* The functions that are compiled in here exist in addition to those of the library. */
#define ad_shm_transfers_begin model_transfers_begin
#define ad_shm_transfers_end model_transfers_end
#define ad_shm_deliver model_deliver
#define ad_shm_drop_messages model_drop_messages
#define ad_shm_progress_transfers model_progress_transfers
#define ad_shm_post_transfer model_post_transfer
#define ad_shm_transfer_done model_transfer_done
#define ad_shm_take_parcel model_take_parcel
#define ad_shm_leave_parcel model_leave_parcel
#define ad_shm_copy_into_parcel model_copy_into_parcel
#include "base/clock.h"
#include "base/memory.h"
#include "comm/shm/error.h"
#include "comm/shm/memory.h"
#include "comm/shm/pull.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"

/* ---- two sides that take turns ---- */

enum { SENDER, RECEIVER, SIDES, NOBODY = SIDES, CHOICES_MAX = 64, STACK = 1 << 18 };

static struct {
  ucontext_t main, side[SIDES];
  char stack[SIDES][STACK];
  int running;         // the side that has the turn, or NOBODY
  int is_done[SIDES];  // the side has ended
  uint64_t changes,
      waits_for[SIDES];  // changes of shared memory so far; the side continues when there are more than these
  int choices[CHOICES_MAX], choice_count, choice;  // which side was chosen wherever both could continue
} turns;

/* Ends the turn; this side continues when it is chosen again. */
static void step(void) {
  if (turns.running != NOBODY) swapcontext(&turns.side[turns.running], &turns.main);
}

/* Lets this side continue only after the other has changed something since `changes`. */
static void wait_for_change(uint64_t changes) {
  turns.waits_for[turns.running] = changes + 1;
  step();
}

static int goes_on(int side) { return !turns.is_done[side] && turns.changes >= turns.waits_for[side]; }

/* Chooses the side that has the next turn; NOBODY: both have ended, or each waits for the other. */
static int choose(void) {
  int sender = goes_on(SENDER), receiver = goes_on(RECEIVER);
  if (!sender || !receiver) return sender ? SENDER : receiver ? RECEIVER : NOBODY;
  assert_in_range(turns.choice, 0, CHOICES_MAX - 1);
  if (turns.choice == turns.choice_count) turns.choices[turns.choice_count++] = SENDER;
  return turns.choices[turns.choice++];
}

static void begin_side(int side, void (*function)(void)) {
  assert_int_equal(getcontext(&turns.side[side]), 0);
  turns.side[side].uc_stack.ss_sp = turns.stack[side];
  turns.side[side].uc_stack.ss_size = STACK;
  turns.side[side].uc_link = &turns.main;
  turns.waits_for[side] = turns.is_done[side] = 0;
  makecontext(&turns.side[side], function, 0);
}

/* Runs both sides in the order of `choices`, which grows by those that are made for the first time. */
static void take_turns(void (*sender)(void), void (*receiver)(void)) {
  turns.changes = 0;
  turns.choice = 0;
  begin_side(SENDER, sender);
  begin_side(RECEIVER, receiver);
  for (int side; (side = choose()) != NOBODY;) {
    turns.running = side;
    swapcontext(&turns.main, &turns.side[side]);
    turns.running = NOBODY;
  }
}

/* Sets `choices` to the next order. Returns 0 if all were tried. */
static int next_order(void) {
  turns.choice_count = turns.choice;
  while (turns.choice_count && turns.choices[turns.choice_count - 1] == RECEIVER) turns.choice_count--;
  if (!turns.choice_count) return 0;
  turns.choices[turns.choice_count - 1] = RECEIVER;
  return 1;
}

/* ---- the operations around which either side may continue ---- */

static int found[SIDES][SHM_WITHDRAWN + 1];  // how often a side found a parcel in a state

static uint32_t load32(const _Atomic uint32_t *from) { return atomic_load(from); }
static uint64_t load64(const _Atomic uint64_t *from) { return atomic_load(from); }
static void store32(_Atomic uint32_t *to, uint32_t value) {
  atomic_store(to, value);
  turns.changes++;
  step();
}
static void store64(_Atomic uint64_t *to, uint64_t value) {
  atomic_store(to, value);
  turns.changes++;
  step();
}
static int exchange32(_Atomic uint32_t *at, uint32_t *expected, uint32_t value) {
  int is_done = atomic_compare_exchange_strong(at, expected, value);
  if (*expected <= SHM_WITHDRAWN && turns.running != NOBODY) found[turns.running][*expected]++;
  turns.changes += (uint64_t)is_done;
  step();
  return is_done;
}
static int exchange64(_Atomic uint64_t *at, uint64_t *expected, uint64_t value) {
  int is_done = atomic_compare_exchange_strong(at, expected, value);
  turns.changes += (uint64_t)is_done;
  step();
  return is_done;
}

#define BY_WIDTH(at, of32, of64) \
  _Generic((at),                  \
      _Atomic uint32_t *: of32,       \
      const _Atomic uint32_t *: of32, \
      _Atomic uint64_t *: of64,       \
      const _Atomic uint64_t *: of64)
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_weak
#define atomic_load(at) (step(), BY_WIDTH(at, load32, load64)(at))
#define atomic_load_explicit(at, order) atomic_load(at)
#define atomic_store(at, value) (step(), BY_WIDTH(at, store32, store64)(at, value))
#define atomic_store_explicit(at, value, order) atomic_store(at, value)
#define atomic_compare_exchange_strong(at, expected, value) \
  (step(), BY_WIDTH(at, exchange32, exchange64)(at, expected, value))
#define atomic_compare_exchange_weak atomic_compare_exchange_strong
#define memcpy(to, from, bytes) (step(), memcpy(to, from, bytes))

/* ---- what transfer.c and parcel.c use of the backend ---- */

enum { PATTERN = 0x5a, POISON = 0xee, BYTES_MAX = SHM_ROOM + 8 };

static struct {
  _Alignas(SHM_PAIR) unsigned char file[(10 + 2) * sizeof(shm_parcel)];  // parcels, then copies
  unsigned char in[BYTES_MAX], out[BYTES_MAX];                           // the message's buffers on both sides
  size_t used, copied_bytes;
  int64_t now;
  int64_t tick;             // nanoseconds that pass from one look at the clock to the next
  int kept;                 // how much memory of copies is not freed
  int failing_allocations;  // the next so many allocations of copies find no memory
  int is_in_file;           // buffers lie in the world's file
  int has_left;             // the receiver knows that the sender has left
} fake;

static int64_t fake_now(void) { return fake.now += fake.tick; }

static ad_status fake_alloc(shm_world *world, size_t bytes, void **out) {
  if (fake.failing_allocations && bytes == BYTES_MAX) {
    fake.failing_allocations--;
    turns.changes++;  // time passes, and the sender tries again
    return AD_MEMORY;
  }
  *out = fake.file + fake.used;
  fake.used += (bytes + SHM_PAIR - 1) / SHM_PAIR * SHM_PAIR;
  assert_in_range(fake.used, 0, sizeof fake.file);
  fake.copied_bytes = bytes;
  fake.kept += bytes == BYTES_MAX;
  return AD_OK;
}

/* Freed memory belongs to another owner. */
static void fake_free(shm_world *world, void *memory) {
  memset(memory, POISON, fake.copied_bytes);
  fake.kept--;
}

#define ad_now fake_now
#define ad_shm_alloc fake_alloc
#define ad_shm_free fake_free
#define ad_copy_shared memcpy
#define ad_shm_offset(world, memory, bytes) ((uint64_t)fake.is_in_file * SHM_PAIR)
#define ad_shm_pause_long(world) ((void)0)
#define ad_shm_wake_rank(world, rank) ((void)0)
#define ad_shm_raise_left(world, call, rank) (fake.has_left = 1)
#if !defined(__cppcheck__) /* which does not read _Generic behind a comma, and looks at these files by themselves */
#include "comm/shm/transfer.c"
#include "comm/shm/parcel.c"
#endif

/* ---- one message, by each way of sending and of receiving it ---- */

typedef struct way {
  size_t bytes;
  int copied;               // the message is copied when it is posted
  int tries;                // the sender leaves after so many looks; -1: it waits until the message is sent
  int drops;                // the receiver does not receive: it gives the message up
  int failing_allocations;  // the first copy finds no memory
} way;

enum { GROUP = 77 };

static struct {
  const way *way;
  shm_control control;
  shm_queue queues[SIDES];
  shm_world sender, receiver;
  ad_call sends, receives;
  shm_parcel *parcel;
  shm_envelope envelope;
} one;

static void post_message(const way *w) {
  shm_transfer *t = NULL;
  one.sends = (ad_call){.op = (ad_collective_op)AD_OP_SEND, .in = fake.in, .in_bytes = w->bytes};
  assert_int_equal(take_transfer(&one.sender, &one.sends, &t), AD_OK);
  assert_int_equal(model_take_parcel(&one.sender, &t->parcel), AD_OK);
  one.parcel = t->parcel;
  one.envelope = (shm_envelope){.group = GROUP, .bytes = w->bytes, .where = SHM_IN_FILE};
  one.envelope.at = (uint64_t)((char *)fake.in - one.sender.base);
  one.envelope.parcel = (uint64_t)((char *)t->parcel - one.sender.base);
  if (w->copied) assert_int_equal(model_copy_into_parcel(&one.sender, t->parcel, fake.in, w->bytes), AD_OK);
  t->envelope = one.envelope;
  t->is_put = 1;
  one.sends.backend = t;
  append(&one.sender.transfers->sends_end, t);
}

static void begin(const way *w) {
  fake.used = SHM_PAIR;  // an offset of 0 is none
  fake.has_left = fake.kept = 0;
  fake.tick = INT64_C(1) << 40;
  fake.failing_allocations = 0;
  one.way = w;
  one.control.queues_start = (uint64_t)((char *)one.queues - (char *)&one.control);
  one.sender = (shm_world){.control = &one.control, .base = (char *)&fake};
  one.receiver = (shm_world){.control = &one.control, .base = (char *)&fake, .rank = 1};
  one.sender.ranks = one.receiver.ranks = 2;
  assert_int_equal(model_transfers_begin(&one.sender), AD_OK);
  assert_int_equal(model_transfers_begin(&one.receiver), AD_OK);
  memset(fake.in, PATTERN, sizeof fake.in);
  memset(fake.out, 0, sizeof fake.out);
  post_message(w);
  fake.failing_allocations = w->failing_allocations;
  uint32_t bucket = bucket_of(GROUP, 0);
  if (w->drops) {
    assert_int_equal(keep_message(&one.receiver, &one.envelope, bucket), AD_OK);
    return;
  }
  shm_transfer *t = NULL;
  one.receives = (ad_call){.op = (ad_collective_op)AD_OP_RECEIVE, .out = fake.out, .out_bytes = w->bytes};
  assert_int_equal(take_transfer(&one.receiver, &one.receives, &t), AD_OK);
  t->envelope = one.envelope;
  t->is_matched = 1;
  one.receives.backend = t;
  one.receiver.transfers->matched = t;
}

/* Waits until the send is complete, writes over what was sent, and takes the parcel again as soon as it is free. */
static void wait_as_sender(void) {
  shm_transfers *all = one.sender.transfers;
  uint64_t changes = turns.changes;
  for (; !model_transfer_done(&one.sender, &one.sends); changes = turns.changes) wait_for_change(changes);
  memset(fake.in, POISON, sizeof fake.in);
  for (;;) {
    changes = turns.changes;
    look_at_them(&one.sender);
    if (!all->on_the_way) break;
    wait_for_change(changes);
  }
  shm_parcel *again;
  if (model_take_parcel(&one.sender, &again) || again != one.parcel) abort();
  memset(one.parcel->room, POISON, sizeof one.parcel->room);
}

static void leave_as_sender(void) {
  for (int i = 0; i < one.way->tries; i++)
    if (model_transfer_done(&one.sender, &one.sends)) return;
  withdraw(one.sender.transfers);
}

static void be_sender(void) {
  if (one.way->tries < 0)
    wait_as_sender();
  else
    leave_as_sender();
  turns.is_done[SENDER] = 1;
}

static void be_receiver(void) {
  shm_transfers *all = one.receiver.transfers;
  for (uint64_t changes = turns.changes;; changes = turns.changes) {
    if (one.way->drops)
      model_drop_messages(&one.receiver, GROUP);
    else
      try_matched(&one.receiver);
    if (fake.has_left || (!all->matched && !all->messages[bucket_of(GROUP, 0)])) break;
    wait_for_change(changes);
  }
  turns.is_done[RECEIVER] = 1;
}

static void fail_order(const way *w, const char *what) {
  char order[CHOICES_MAX + 1] = "";
  for (int i = 0; i < turns.choice; i++) order[i] = turns.choices[i] == SENDER ? 'S' : 'R';
  fail_msg("%s: %zu bytes, copied %d, tries %d, drops %d, lacks %d, state %d, order %s", what, w->bytes, w->copied,
           w->tries, w->drops, w->failing_allocations, (int)state_of(one.parcel), order);
}

/* Both sides have come to their end, the message is whole, and the parcel, which its sender has taken again, is its
 * alone. */
static void holds(const way *w) {
  if (!turns.is_done[SENDER]) fail_order(w, "the sender waits for ever");
  if (!turns.is_done[RECEIVER]) fail_order(w, "the receiver waits for ever");
  if (w->tries < 0 && fake.has_left) fail_order(w, "the sender has not left");
  if (w->tries < 0 && fake.kept) fail_order(w, "the memory of its copy is not freed");
  if (w->tries < 0 && state_of(one.parcel) != SHM_POSTED) fail_order(w, "the parcel is not its sender's");
  if (w->drops || fake.has_left) return;
  if (one.receives.backend) fail_order(w, "the receive is not complete");
  for (size_t i = 0; i < w->bytes; i++)
    if (fake.out[i] != PATTERN) fail_order(w, "the message is another");
}

static void in_every_order(const way *w, int least) {
  int orders = 0;
  turns.choice_count = 0;
  do {
    begin(w);
    take_turns(be_sender, be_receiver);
    holds(w);
    model_transfers_end(&one.sender);
    model_transfers_end(&one.receiver);
    orders++;
  } while (next_order());
  if (orders < least) fail_msg("only %d orders were tried", orders);
}

static void a_parcels_sides_agree_in_every_order(void **state) {
  turns.running = NOBODY;
  for (int large = 0; large < 2; large++)
    for (int copied = 0; copied < 2; copied++)
      for (int tries = -1; tries < 3; tries++)
        for (int drops = 0; drops < 2; drops++)
          for (int failing_allocations = 0; failing_allocations <= large; failing_allocations++) {
            way w = {large ? BYTES_MAX : 200, copied, tries, drops, failing_allocations};
            in_every_order(&w, copied ? 3 : 5);
          }
  /* every state in which a side can find the parcel was found */
  static const shm_parcel_state sender[] = {SHM_POSTED, SHM_TAKEN, SHM_DONE, SHM_COPIED},
                                receiver[] = {SHM_POSTED, SHM_MOVING, SHM_COPIED, SHM_WITHDRAWN};
  for (int i = 0; i < 4; i++) {
    assert_true(found[SENDER][sender[i]] > 0);
    assert_true(found[RECEIVER][receiver[i]] > 0);
  }
}

/* ---- when a send is complete, without a receiver ---- */

static int is_complete_at(int64_t now) {
  fake.now = now;
  return model_transfer_done(&one.sender, &one.sends);
}

static void end(void) {
  model_transfers_end(&one.sender);
  model_transfers_end(&one.receiver);
}

static void a_send_is_complete_when_its_bytes_are_copied(void **state) {
  static const way copied = {.bytes = 200, .copied = 1}, posted = {.bytes = BYTES_MAX};
  const int64_t patience_is = 50000, retry_is = 10000000;
  begin(&copied);
  assert_int_equal(is_complete_at(0), 1);
  end();
  for (int failing_allocations = 0; failing_allocations < 2; failing_allocations++) {
    begin(&posted);
    fake.tick = 0;
    fake.failing_allocations = failing_allocations;
    assert_int_equal(is_complete_at(patience_is - 1), 0);
    assert_int_equal(state_of(one.parcel), SHM_POSTED);
    if (failing_allocations) {
      assert_int_equal(is_complete_at(patience_is), 0);
      assert_int_equal(is_complete_at(patience_is + retry_is - 1), 0);
    }
    assert_int_equal(state_of(one.parcel), SHM_POSTED);
    assert_int_equal(is_complete_at(patience_is + failing_allocations * retry_is), 1);
    assert_int_equal(state_of(one.parcel), SHM_COPIED);
    end();
  }
  begin(&copied);
  ((shm_transfer *)one.sends.backend)->is_put = 0;
  assert_int_equal(is_complete_at(INT64_MAX), 0);
  end();
}

/* Where the receiver finds a message's bytes, by their number, whether the buffer lies in the file, and whether ranks
 * can read each other's memory. State 0: the message has no parcel, since the envelope has all bytes. */
static void few_bytes_are_copied_when_they_are_posted(void **state) {
  static const struct {
    size_t bytes;
    int is_in_file, pulls;
    shm_whereabouts where;
    uint32_t state;
  } places[] = {{0, 1, 1, SHM_IN_ENVELOPE, 0},
                {120, 1, 1, SHM_IN_ENVELOPE, 0},
                {121, 1, 1, SHM_IN_FILE, SHM_COPIED},
                {121, 0, 0, SHM_IN_FILE, SHM_COPIED},
                {SHM_ROOM, 1, 0, SHM_IN_FILE, SHM_COPIED},
                {SHM_ROOM, 0, 1, SHM_IN_PROCESS, SHM_COPIED},
                {SHM_ROOM, 0, 0, SHM_IN_FILE, SHM_COPIED},
                {SHM_ROOM + 1, 1, 0, SHM_IN_FILE, SHM_POSTED},
                {SHM_ROOM + 1, 1, 1, SHM_IN_FILE, SHM_POSTED},
                {SHM_ROOM + 1, 0, 1, SHM_IN_PROCESS, SHM_POSTED},
                {SHM_ROOM + 1, 0, 0, SHM_IN_FILE, SHM_COPIED}};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    ad_call call = {.in = fake.in, .in_bytes = places[i].bytes};
    shm_transfer t = {.under = {.call = &call}};
    begin(&(way){.bytes = 200, .copied = 1});
    fake.is_in_file = places[i].is_in_file;
    one.sender.pulls = places[i].pulls;
    assert_int_equal(choose_place(&one.sender, &t), AD_OK);
    assert_int_equal(t.envelope.where, places[i].where);
    assert_int_equal(t.parcel ? state_of(t.parcel) : 0, places[i].state);
    assert_int_equal(t.envelope.parcel != 0, t.parcel != NULL);
    if (t.envelope.where == SHM_IN_PROCESS) assert_true(t.envelope.at == (uintptr_t)fake.in);
    if (!places[i].state) assert_memory_equal(t.envelope.inlined, fake.in, places[i].bytes);
    end();
  }
}

/* Without memory for the copy nothing is sent, and the parcel is free again. */
static void a_send_without_memory_leaves_its_parcel(void **state) {
  ad_call call = {.in = fake.in, .in_bytes = BYTES_MAX};
  shm_transfer t = {.under = {.call = &call}};
  begin(&(way){.bytes = 200, .copied = 1});
  fake.failing_allocations = 1;
  fake.is_in_file = 0;
  assert_int_equal(choose_place(&one.sender, &t), AD_MEMORY);
  assert_int_equal(state_of(t.parcel), SHM_DONE);
  assert_ptr_equal(one.sender.transfers->on_the_way, t.parcel);
  end();
}

/* ---- a queue of envelopes ---- */

static struct {
  int tries, is_put[SIDES];
  shm_transfer sends[SIDES];
  ad_call call;
} queueing;

static void put_one(int side, shm_world *world) {
  for (int i = 0; i < queueing.tries && !queueing.is_put[side]; i++) {
    uint64_t changes = turns.changes;
    queueing.is_put[side] = enqueue_transfer(world, &queueing.sends[side]);
    if (!queueing.is_put[side] && i + 1 < queueing.tries) wait_for_change(changes);
  }
  turns.is_done[side] = 1;
}

static void put_first(void) { put_one(SENDER, &one.sender); }
static void put_second(void) { put_one(RECEIVER, &one.receiver); }
static void empty_own(void) {
  empty_queue(&one.receiver);
  turns.is_done[RECEIVER] = 1;
}

/* Rank 1's queue has `taken` cells, of which the first `published` are written; the envelopes' tags are 100, 101, ... */
static void begin_queue(uint64_t first, uint64_t taken, uint64_t published, int tries) {
  begin(&(way){.bytes = 200, .copied = 1});
  shm_queue *queue = &one.queues[1];
  *queue = (shm_queue){.taken = first + taken, .drained = first};
  for (uint64_t i = 0; i < published; i++) {
    shm_cell *cell = &queue->cells[(first + i) % SHM_CELLS];
    cell->envelope = (shm_envelope){.group = GROUP, .tag = 100 + (int64_t)i};
    cell->published = first + i + 1;
  }
  memset(&queueing, 0, sizeof queueing);
  queueing.tries = tries;
  queueing.call.peer = 1;
  for (int side = 0; side < SIDES; side++) {
    queueing.sends[side].under.call = &queueing.call;
    queueing.sends[side].envelope = (shm_envelope){.group = GROUP, .tag = 1 + side};
  }
}

/* Which envelope is published as number `number`; 0: none. */
static int64_t tag_at(uint64_t number) {
  const shm_cell *cell = &one.queues[1].cells[number % SHM_CELLS];
  return cell->published == number + 1 ? cell->envelope.tag : 0;
}

static void two_senders_take_two_cells(void **state) {
  enum { FIRST = 1000 };
  for (uint64_t taken = SHM_CELLS - 3; taken <= SHM_CELLS; taken++) {
    int room = (int)(SHM_CELLS - taken);
    turns.choice_count = 0;
    do {
      begin_queue(FIRST, taken, 0, 1);
      take_turns(put_first, put_second);
      assert_int_equal(queueing.is_put[0] + queueing.is_put[1], room < 2 ? room : 2);
      int64_t one_tag = tag_at(FIRST + taken), other = tag_at(FIRST + taken + 1);
      assert_int_equal(one_tag + other, queueing.is_put[0] + 2 * queueing.is_put[1]);
      if (room >= 2) assert_true(one_tag && other);
      end();
    } while (next_order());
  }
}

/* The queue is full, and its owner empties one cell: the sender that waits for it changes nothing before. */
static void a_cell_is_written_again_when_it_was_read(void **state) {
  enum { FIRST = 1000 };
  turns.choice_count = 0;
  do {
    begin_queue(FIRST, SHM_CELLS, 1, 2);
    take_turns(put_first, empty_own);
    const shm_message_kept *kept = one.receiver.transfers->messages[bucket_of(GROUP, 100)];
    assert_true(kept && kept->envelope.tag == 100);
    assert_int_equal(queueing.is_put[0], 1);
    assert_int_equal(tag_at(FIRST + SHM_CELLS), 1);
    assert_int_equal(one.queues[1].drained, FIRST + 1);
    end();
  } while (next_order());
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_parcels_sides_agree_in_every_order),
                                     cmocka_unit_test(a_send_is_complete_when_its_bytes_are_copied),
                                     cmocka_unit_test(few_bytes_are_copied_when_they_are_posted),
                                     cmocka_unit_test(a_send_without_memory_leaves_its_parcel),
                                     cmocka_unit_test(two_senders_take_two_cells),
                                     cmocka_unit_test(a_cell_is_written_again_when_it_was_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
