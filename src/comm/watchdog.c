/* The launcher's watchdog: whether ranks move, seen from outside. Ranks that wait find out themselves about deaths,
 * departures and circles; a rank that is stopped or computes for ever only someone outside can see. */
#include "comm/watchdog.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/memory.h"

static const int64_t second = 1000000000;
enum { LONG_SECONDS = 10, AGAIN_SECONDS = 60, LINES_MAX = 16, WORDS_MAX = 768 };

struct ad_watched {
  uint64_t epoch;         // of its record
  int64_t waiting_since;  // when it was first seen in the wait it is in; 0: it is in none
  int is_said;            // its line is among those that were logged
};

ad_status ad_watchdog_open(shm_control *control, ad_watchdog *out) {
  *out = (ad_watchdog){.control = control, .looked_at = ad_now(), .moved_at = ad_now()};
  return ad_new(control->ranks, &out->ranks);
}

void ad_watchdog_close(ad_watchdog *dog) { ad_release(dog->ranks); }

// Bytes that a process has read and written so far: a rank that writes a large checkpoint is at work.
static uint64_t bytes_of(int pid) {
  char path[64];
  uint64_t read = 0, written = 0;
  snprintf(path, sizeof path, "/proc/%d/io", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "rchar: %" SCNu64 " wchar: %" SCNu64, &read, &written) < 1) read = 0;
  fclose(file);
  return read + written;
}

static uint64_t movement_of(shm_record *record) {
  return atomic_load(&record->calls) + atomic_load(&record->epoch) + bytes_of(atomic_load(&record->pid));
}

/* ---- where a rank is ---- */

// The letter of the process's state in /proc: R runs, S sleeps, D waits for a device, T is stopped; 0: not known.
static char state_of(int pid) {
  char path[64], line[256], *end = NULL;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fgets(line, sizeof line, file)) end = strrchr(line, ')');  // the name before it may hold anything
  fclose(file);
  return end && strlen(end) > 2 ? end[2] : 0;
}

static int is_stopped(int pid) { return pid > 0 && state_of(pid) == 'T'; }

static int is_joining(const ad_watchdog *dog) {
  return atomic_load(&dog->control->joined) && atomic_load(&dog->control->tried) < dog->control->joining;
}

static int is_waiting(const ad_watchdog *dog, shm_record *record) {
  if (atomic_load(&record->state) != SHM_JOINED) return 0;
  return (atomic_load(&record->epoch) & 1) || is_joining(dog);
}

static const shm_slot *slot_of(const ad_watchdog *dog, const shm_entry *entry, uint32_t member, uint64_t sequence) {
  const shm_consumed *consumed = (const shm_consumed *)((const char *)dog->control + entry->channel);
  const shm_slot *slots = (const shm_slot *)(consumed + entry->members);
  return &slots[(size_t)member * SHM_RING + sequence % SHM_RING];
}

static uint32_t member_of(const shm_entry *entry, uint32_t rank) {
  uint32_t member = 0;
  while (member + 1 < entry->members && ad_shape_rank(&entry->shape, member) != rank) member++;
  return member;
}

static void add_call(const ad_watchdog *dog, uint32_t rank, uint64_t channel, uint64_t sequence, ad_text *text) {
  const shm_entry *entry = ad_shm_entry(dog->control, channel);
  const shm_slot *slot = entry ? slot_of(dog, entry, member_of(entry, rank), sequence) : NULL;
  if (!slot || atomic_load(&slot->published) != sequence + 1)
    ad_text_add(text, "a collective that is over by now");
  else
    ad_shm_call_words(text, slot, &entry->shape);
}

// Adds " for rank 1" or " for ranks 1,3": members that have not made the call.
static void add_missing(const ad_watchdog *dog, uint64_t channel, uint64_t sequence, ad_text *text) {
  const shm_entry *entry = ad_shm_entry(dog->control, channel);
  char list[128] = "";
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t i = 0; entry && i < entry->members; i++)
    if (atomic_load(&slot_of(dog, entry, i, sequence)->published) < sequence + 1)
      ad_text_add(&ranks, "%s%d", count++ ? "," : "", (int)ad_shape_rank(&entry->shape, i));
  if (count) ad_text_add(text, " for rank%s %s", count > 1 ? "s" : "", list);
}

static void add_wait(const ad_watchdog *dog, uint32_t rank, shm_record *record, ad_text *text) {
  uint64_t channel = atomic_load(&record->waits_channel), sequence = atomic_load(&record->waits_sequence);
  ad_text_add(text, "waits");
  add_missing(dog, channel, sequence, text);
  ad_text_add(text, " in ");
  add_call(dog, rank, channel, sequence, text);
}

static const char *doing(char state) {
  return state == 'R' ? "computes" : state == 'D' ? "waits for a device" : "sleeps";
}

static void add_outside(const ad_watchdog *dog, uint32_t rank, shm_record *record, ad_text *text) {
  int pid = atomic_load(&record->pid);
  char state = state_of(pid);
  if (state == 'T')
    ad_text_add(text, "(process %d) is stopped; `kill -CONT %d` lets it go on; its last collective: ", pid, pid);
  else
    ad_text_add(text, "(process %d) %s outside of collectives; its last: ", pid, doing(state));
  if (atomic_load(&record->calls))
    add_call(dog, rank, atomic_load(&record->last_channel), atomic_load(&record->last_sequence), text);
  else
    ad_text_add(text, "none yet");
}

// What is to say of a rank; "" of one that has ended.
static void describe(const ad_watchdog *dog, uint32_t rank, char words[WORDS_MAX]) {
  shm_record *record = &ad_shm_records(dog->control)[rank];
  uint32_t state = atomic_load(&record->state);
  ad_text text = ad_text_on(words, WORDS_MAX);
  words[0] = 0;
  if (state == SHM_ABSENT) ad_text_add(&text, "has not called ad_comm_open");
  if (state != SHM_JOINED) return;
  int stopped = is_stopped(atomic_load(&record->pid));
  if (!stopped && is_joining(dog))
    ad_text_add(&text, "waits in ad_comm_open for the others");
  else if (!stopped && atomic_load(&record->epoch) & 1)
    add_wait(dog, rank, record, &text);
  else
    add_outside(dog, rank, record, &text);
}

/* ---- saying it ---- */

// Logs one line for all ranks of which the same is to say as of `rank`, and marks them as said.
static void say_like(const ad_watchdog *dog, uint32_t rank, const char *words) {
  char list[256], other[WORDS_MAX];
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t i = rank; i < dog->control->ranks; i++) {
    if (i > rank) describe(dog, i, other);
    if (i > rank && strcmp(words, other) != 0) continue;
    ad_text_add(&ranks, "%s%u", count++ ? "," : "", i);
    dog->ranks[i].is_said = 1;
  }
  ad_log(AD_LOG_WARNING, "  rank%s %s %s", count > 1 ? "s" : "", list, words);
}

static void say_all(const ad_watchdog *dog) {
  char words[WORDS_MAX];
  int lines = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) dog->ranks[rank].is_said = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks && lines < LINES_MAX; rank++) {
    if (dog->ranks[rank].is_said) continue;
    describe(dog, rank, words);
    if (!words[0]) continue;
    say_like(dog, rank, words);
    lines++;
  }
}

static int64_t waiting_longest(const ad_watchdog *dog, int64_t now) {
  int64_t longest = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) {
    int64_t since = dog->ranks[rank].waiting_since;
    if (since && now - since > longest) longest = now - since;
  }
  return longest;
}

static int some_rank_is_stopped(const ad_watchdog *dog) {
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) {
    shm_record *record = &ad_shm_records(dog->control)[rank];
    if (atomic_load(&record->state) == SHM_JOINED && is_stopped(atomic_load(&record->pid))) return 1;
  }
  return 0;
}

static void say_when_due(ad_watchdog *dog, int64_t now) {
  int64_t waited = waiting_longest(dog, now), still = now - dog->moved_at;
  if (waited < still && still >= LONG_SECONDS * second && some_rank_is_stopped(dog)) waited = still;
  if (waited < LONG_SECONDS * second) {
    dog->said_at = 0;
    return;
  }
  if (dog->said_at && now - dog->said_at < AGAIN_SECONDS * second) return;
  dog->said_at = now;
  ad_log(AD_LOG_WARNING, "ranks wait for %d s already; which rank is where:", (int)(waited / second));
  say_all(dog);
}

/* ---- looking ---- */

static void look_at(const ad_watchdog *dog, uint32_t rank, int64_t now) {
  shm_record *record = &ad_shm_records(dog->control)[rank];
  ad_watched *watched = &dog->ranks[rank];
  uint64_t epoch = atomic_load(&record->epoch);
  int goes_on = watched->waiting_since && watched->epoch == epoch;
  watched->epoch = epoch;
  if (!is_waiting(dog, record))
    watched->waiting_since = 0;
  else if (!goes_on)
    watched->waiting_since = now;
}

// Nothing is known of a time in which the launcher itself was stopped.
static void forget(ad_watchdog *dog, int64_t now) {
  dog->moved_at = now;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) dog->ranks[rank].waiting_since = 0;
}

void ad_watchdog_look(ad_watchdog *dog) {
  int64_t now = ad_now();
  uint64_t movement = 0;
  if (now - dog->looked_at < second) return;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++)
    movement += movement_of(&ad_shm_records(dog->control)[rank]);
  if (movement != dog->movement) dog->moved_at = now;
  if (now - dog->looked_at > 3 * second) forget(dog, now);
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) look_at(dog, rank, now);
  dog->movement = movement;
  dog->looked_at = now;
  if (!atomic_load(&dog->control->failed)) say_when_due(dog, now);
}
