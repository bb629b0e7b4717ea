/* The watchdog observes from another process whether ranks advance. Ranks that wait find by themselves that others
 * died, left or wait in a circle; but only another process can see that a rank is stopped or computes for ever. */
#include "comm/watchdog.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/memory.h"
#include "comm/shm/channel.h"
#include "comm/words.h"

static const int64_t second = 1000000000;
enum {
  LONG_SECONDS = 10,   // a wait of this length is logged
  AGAIN_SECONDS = 60,  // time until the report on what ranks do is logged again
  BLIND_SECONDS = 3,   // longest time between two looks; after a longer time, earlier looks no longer count
  WORK_SECONDS = 5,    // a rank that has moved or computed within this time is at work
  WORK_PERCENT = 5,    // a rank computes if it uses more than this share of a core between two looks
  LINES_MAX = 16,
  WORDS_MAX = 768
};

struct ad_watched {
  uint64_t epoch;         // epoch of the rank's record at the last look
  uint64_t movement;      // changes as the rank works: collectives begun and ended, bytes read and written
  double computed;        // seconds of processor time that the rank has used so far
  int64_t worked_at;      // when the rank was last seen to have computed, read or written
  int64_t waiting_since;  // when the rank's present wait was first seen; 0: the rank does not wait
  int is_reported;        // 1: the line about this rank has been logged in this report
};

ad_status ad_watchdog_open(shm_control *control, int64_t watcher, ad_watchdog **out) {
  ad_watchdog *dog;
  AD_TRY(ad_new(1, &dog));
  *dog = (ad_watchdog){.control = control, .watcher = watcher, .looked_at = ad_now(), .moved_at = ad_now()};
  ad_status status = ad_new(control->ranks, &dog->ranks);
  if (status)
    ad_release(dog);
  else
    *out = dog;
  return status;
}

void ad_watchdog_close(ad_watchdog *dog) {
  if (!dog) return;
  ad_release(dog->ranks);
  ad_release(dog);
}

/* ---- reading a process's state from /proc ---- */

// Returns how many bytes a process has read and written so far. A rank that writes a large checkpoint is at work, too.
static uint64_t process_bytes(int pid) {
  char path[64];
  uint64_t read = 0, written = 0;
  snprintf(path, sizeof path, "/proc/%d/io", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "rchar: %" SCNu64 " wchar: %" SCNu64, &read, &written) < 1) read = 0;
  fclose(file);
  return read + written;
}

typedef struct process {
  char state;       // R: runs; S: sleeps; D: waits for a device; T: is stopped; 0: not known
  double computed;  // seconds of processor time
} process;

// Reads the state and the processor time of a process from /proc.
static process process_of(int pid) {
  char path[64], line[512], *end = NULL;
  uint64_t user = 0, system = 0;
  process found = {0};
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = pid > 0 ? fopen(path, "r") : NULL;
  if (!file) return found;
  if (fgets(line, sizeof line, file)) end = strrchr(line, ')');  // the last ')': the process's name may contain others
  fclose(file);
  if (end)
    sscanf(end, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &found.state, &user, &system);
  found.computed = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
  return found;
}

static int is_stopped(int pid) { return process_of(pid).state == 'T'; }

/* ---- describing what a rank is doing ---- */

// Returns 1 if ranks are joining the world and not all of them have finished.
static int is_joining(const ad_watchdog *dog) {
  return atomic_load(&dog->control->joined) && atomic_load(&dog->control->tried) < dog->control->joining;
}

// Returns 1 if the rank waits in ad_comm_close for the other ranks: under an MPI launcher all ranks leave together.
static int is_leaving(const ad_watchdog *dog, shm_record *record) {
  return dog->watcher >= 0 && atomic_load(&record->state) == SHM_LEFT;
}

static int is_waiting(const ad_watchdog *dog, shm_record *record) {
  if (atomic_load(&record->state) != SHM_JOINED) return is_leaving(dog, record);
  return (atomic_load(&record->epoch) & 1) || is_joining(dog);
}

// Returns the slot in which a member published call `sequence` of its group.
static const shm_slot *slot_of(const ad_watchdog *dog, const shm_entry *entry, uint32_t member, uint64_t sequence) {
  const shm_consumed *consumed = (const shm_consumed *)((const char *)dog->control + entry->channel);
  const shm_slot *slots = (const shm_slot *)(consumed + entry->members);
  return &slots[(size_t)member * SHM_RING + sequence % SHM_RING];
}

static uint32_t member_of(const ad_watchdog *dog, const shm_entry *entry, uint32_t rank) {
  ad_group_shape shape = ad_shm_entry_shape(dog->control, entry);
  uint32_t member = 0;
  while (member + 1 < entry->members && ad_shape_rank(&shape, member) != rank) member++;
  return member;
}

// Appends a description of the rank's call number `sequence` in a channel.
static void add_call(const ad_watchdog *dog, uint32_t rank, uint64_t channel, uint64_t sequence, ad_text *text) {
  const shm_entry *entry = ad_shm_entry(dog->control, channel);
  const shm_slot *slot = entry ? slot_of(dog, entry, member_of(dog, entry, rank), sequence) : NULL;
  if (!slot || atomic_load(&slot->published) != sequence + 1) {
    ad_text_add(text, "a collective that has ended");
    return;
  }
  ad_group_shape shape = ad_shm_entry_shape(dog->control, entry);
  ad_reported_call call = ad_shm_reported_call(slot, &shape);
  ad_call_words(text, &call);
}

// Appends " for rank 1" or " for ranks 1,3": the members that have not made the call.
static void add_missing(const ad_watchdog *dog, uint64_t channel, uint64_t sequence, ad_text *text) {
  const shm_entry *entry = ad_shm_entry(dog->control, channel);
  char list[128] = "";
  ad_text ranks = ad_text_on(list, sizeof list);
  ad_group_shape shape = {0};
  if (entry) shape = ad_shm_entry_shape(dog->control, entry);
  int count = 0;
  for (uint32_t i = 0; entry && i < entry->members; i++)
    if (atomic_load(&slot_of(dog, entry, i, sequence)->published) < sequence + 1)
      ad_text_add(&ranks, "%s%d", count++ ? "," : "", (int)ad_shape_rank(&shape, i));
  if (count) ad_text_add(text, " for rank%s %s", count > 1 ? "s" : "", list);
}

// Appends a description of the call or transfer for which a rank in a long wait waits.
static void add_wait(const ad_watchdog *dog, uint32_t rank, shm_record *record, ad_text *text) {
  uint64_t channel = atomic_load(&record->waits_channel), sequence = atomic_load(&record->waits_sequence);
  if (!channel) {
    ad_text_add(text, "waits for %.*s", SHM_WORDS, record->waits_words);
    return;
  }
  ad_text_add(text, "waits");
  add_missing(dog, channel, sequence, text);
  ad_text_add(text, " in ");
  add_call(dog, rank, channel, sequence, text);
}

// Appends the last collective or transfer that the rank began.
static void add_last(const ad_watchdog *dog, uint32_t rank, shm_record *record, ad_text *text) {
  uint64_t channel = atomic_load(&record->last_channel);
  if (!atomic_load(&record->calls))
    ad_text_add(text, "none yet");
  else if (channel)
    add_call(dog, rank, channel, atomic_load(&record->last_sequence), text);
  else if (ad_op_is_transfer((ad_collective_op)record->last_op))
    ad_text_add(text, "%s at %.*s", ad_op_name((ad_collective_op)record->last_op), AD_SITE_MAX, record->last_site);
  else
    ad_text_add(text, "%s with other nodes at %.*s", ad_op_name((ad_collective_op)record->last_op), AD_SITE_MAX,
                record->last_site);
}

static int is_at_work(const ad_watchdog *dog, uint32_t rank) {
  return dog->looked_at - dog->ranks[rank].worked_at < WORK_SECONDS * second;
}

static const char *doing(const ad_watchdog *dog, uint32_t rank, char state) {
  return state == 'R' || is_at_work(dog, rank) ? "computes" : state == 'D' ? "waits for a device" : "sleeps";
}

// Appends what a rank that is in no collective does, and its last collective. A process that another launcher started
// may be in several worlds, and may now be in a collective of another world; the text then says "this group's
// collectives".
static void add_outside(const ad_watchdog *dog, uint32_t rank, shm_record *record, ad_text *text) {
  int pid = atomic_load(&record->pid);
  char state = process_of(pid).state;
  const char *group = dog->control->launcher ? "" : " in this group";
  if (state == 'T')
    ad_text_add(text, "(process %d) is stopped; `kill -CONT %d` continues it", pid, pid);
  else
    ad_text_add(text, "(process %d) %s outside %scollectives", pid, doing(dog, rank, state),
                *group ? "this group's " : "");
  ad_text_add(text, "; its last collective%s: ", group);
  add_last(dog, rank, record, text);
}

// Returns 1 if the rank has not joined. In a world of several nodes returns 0, since the rank may be on another node.
static int is_absent(const ad_watchdog *dog, const shm_record *record) {
  return atomic_load(&record->state) == SHM_ABSENT && dog->control->joining == dog->control->ranks;
}

// Writes a description of what a rank does to `words`; writes "" if the rank has ended.
static void describe_rank(const ad_watchdog *dog, uint32_t rank, char words[WORDS_MAX]) {
  shm_record *record = &ad_shm_records(dog->control)[rank];
  uint32_t state = atomic_load(&record->state);
  ad_text text = ad_text_on(words, WORDS_MAX);
  words[0] = 0;
  int stopped = is_stopped(atomic_load(&record->pid));
  if (is_absent(dog, record)) ad_text_add(&text, "has not called ad_comm_open");
  if (!stopped && is_leaving(dog, record)) ad_text_add(&text, "waits in ad_comm_close for the others");
  if (state != SHM_JOINED) return;
  if (!stopped && is_joining(dog))
    ad_text_add(&text, "waits in ad_comm_open for the others");
  else if (!stopped && atomic_load(&record->epoch) & 1)
    add_wait(dog, rank, record, &text);
  else
    add_outside(dog, rank, record, &text);
}

void ad_watchdog_blame(const ad_watchdog *dog, ad_text *text) {
  size_t count = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) {
    shm_record *record = &ad_shm_records(dog->control)[rank];
    if (atomic_load(&record->state) != SHM_JOINED) continue;
    int stopped = is_stopped(atomic_load(&record->pid));
    if (stopped || !is_waiting(dog, record))
      ad_text_list(text, &count, ": ", "rank %u was %s", rank, stopped ? "stopped" : "in no collective");
  }
}

/* ---- logging what ranks do ---- */

// Logs one line for `rank` and for all later ranks with the same description `words`, and marks these ranks as logged.
static void report_like(const ad_watchdog *dog, uint32_t rank, const char *words) {
  char list[256], other[WORDS_MAX];
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t i = rank + 1; i < dog->control->ranks; i++) {
    describe_rank(dog, i, other);
    if (strcmp(words, other) != 0) continue;
    ad_text_add(&ranks, "%s%u", count++ ? "," : "", i);
    dog->ranks[i].is_reported = 1;
  }
  ad_log(AD_LOG_WARNING, "  rank %u %s%s%s", rank, words,
         count > 1 ? "; the same holds for ranks "
         : count   ? "; the same holds for rank "
                   : "",
         list);
}

// Logs what each rank does, in at most LINES_MAX lines; ranks with the same description share a line.
static void report_all(const ad_watchdog *dog) {
  char words[WORDS_MAX];
  int lines = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) dog->ranks[rank].is_reported = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks && lines < LINES_MAX; rank++) {
    if (dog->ranks[rank].is_reported) continue;
    describe_rank(dog, rank, words);
    if (!words[0]) continue;
    report_like(dog, rank, words);
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

// Returns 1 if some ranks do not wait and all ranks that do not wait are at work: then nothing seems wrong.
static int the_others_work(const ad_watchdog *dog) {
  int others = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) {
    shm_record *record = &ad_shm_records(dog->control)[rank];
    if (is_absent(dog, record)) return 0;
    if (atomic_load(&record->state) != SHM_JOINED || is_waiting(dog, record)) continue;
    if (!is_at_work(dog, rank)) return 0;
    others++;
  }
  return others && !some_rank_is_stopped(dog);
}

// Logs what each rank does, if some rank has waited long enough and the last such report is old enough.
static void report_when_due(ad_watchdog *dog, int64_t now) {
  int64_t waited = waiting_longest(dog, now), still = now - dog->moved_at;
  if (waited < still && still >= LONG_SECONDS * second && some_rank_is_stopped(dog)) waited = still;
  if (waited < LONG_SECONDS * second) {
    dog->reported_at = 0;
    return;
  }
  int works = the_others_work(dog);
  if (works && (dog->reported_at || waited < AGAIN_SECONDS * second)) return;
  if (dog->reported_at && now - dog->reported_at < AGAIN_SECONDS * second) return;
  dog->reported_at = now;
  ad_log(AD_LOG_WARNING, "ranks wait for %d s already%s; each rank's state follows:", (int)(waited / second),
         works ? ", for ranks that compute" : "");
  report_all(dog);
}

/* ---- looking at all ranks at intervals ---- */

// Returns a number that changes whenever the rank begins or ends a call, or reads or writes a file.
static uint64_t movement_of(shm_record *record) {
  return atomic_load(&record->calls) + atomic_load(&record->epoch) + process_bytes(atomic_load(&record->pid));
}

// Records whether a rank has moved, or used processor time, since the last look.
static void look_at_work(ad_watchdog *dog, uint32_t rank, int64_t now) {
  shm_record *record = &ad_shm_records(dog->control)[rank];
  ad_watched *watched = &dog->ranks[rank];
  uint64_t movement = movement_of(record);
  process seen = process_of(atomic_load(&record->pid));
  double share = (seen.computed - watched->computed) / (1e-9 * (double)(now - dog->looked_at));
  if (movement != watched->movement) dog->moved_at = now;
  if (movement != watched->movement || seen.state == 'R' || share >= 0.01 * WORK_PERCENT) watched->worked_at = now;
  watched->movement = movement;
  watched->computed = seen.computed;
}

// Records how long a rank has been in its present wait.
static void look_at_wait(const ad_watchdog *dog, uint32_t rank, int64_t now) {
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

// Discards what earlier looks found. Called after a time in which this watchdog did not look, since its rank was
// stopped or did not wait, or another rank watched.
static void restart_clocks(ad_watchdog *dog, int64_t now) {
  dog->moved_at = now;
  dog->reported_at = 0;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) dog->ranks[rank].waiting_since = 0;
}

// Returns 0 if the process is stopped or has ended, so that it cannot watch other ranks while it waits; else 1.
static int can_watch(int pid) {
  char state = process_of(pid).state;
  return state == 'R' || state == 'S' || state == 'D';
}

static int another_watches(const ad_watchdog *dog) {
  for (int64_t rank = 0; rank < dog->watcher; rank++) {
    shm_record *record = &ad_shm_records(dog->control)[rank];
    if (is_waiting(dog, record) && can_watch(atomic_load(&record->pid))) return 1;
  }
  return 0;
}

void ad_watchdog_look(ad_watchdog *dog) {
  int64_t now = ad_now();
  if (now - dog->looked_at < second || another_watches(dog)) return;
  int blind = now - dog->looked_at > BLIND_SECONDS * second;
  if (blind) restart_clocks(dog, now);
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++) {
    if (!blind) look_at_work(dog, rank, now);
    look_at_wait(dog, rank, now);
  }
  dog->looked_at = now;
  if (!atomic_load(&dog->control->failed)) report_when_due(dog, now);
}

/* ---- which ranks one rank waits for ---- */

// Returns 1 if the rank with `record` waits for rank `other`: in a collective that `other` has not called, or in a
// transfer with `other`. If the rank is in no visible wait, since it only tests its calls, it may wait for any rank
// that does not wait itself: then returns 1 for each of these.
static int is_missing(const ad_watchdog *dog, shm_record *record, uint32_t other) {
  uint64_t peer = atomic_load(&record->waits_peer), sequence = atomic_load(&record->waits_sequence);
  if (!(atomic_load(&record->epoch) & 1)) return !is_waiting(dog, &ad_shm_records(dog->control)[other]);
  if (peer) return peer == SHM_ANY_RANK || peer == (uint64_t)other + 1;
  const shm_entry *entry = ad_shm_entry(dog->control, atomic_load(&record->waits_channel));
  if (!entry) return 0;
  ad_group_shape shape = ad_shm_entry_shape(dog->control, entry);
  uint32_t member = member_of(dog, entry, other);
  return ad_shape_rank(&shape, member) == other &&
         atomic_load(&slot_of(dog, entry, member, sequence)->published) < sequence + 1;
}

void ad_watchdog_missing(shm_control *control, uint32_t waiting, ad_text *text) {
  ad_watched nothing_seen[SHM_RANKS_MAX] = {0};
  const ad_watchdog dog = {.control = control, .watcher = waiting, .ranks = nothing_seen, .looked_at = ad_now()};
  char words[WORDS_MAX];
  size_t count = 0;
  for (uint32_t rank = 0; rank < control->ranks; rank++) {
    shm_record *record = &ad_shm_records(control)[rank];
    if (rank == waiting || atomic_load(&record->state) != SHM_JOINED) continue;
    if (!is_stopped(atomic_load(&record->pid)) && !is_missing(&dog, &ad_shm_records(control)[waiting], rank)) continue;
    describe_rank(&dog, rank, words);
    ad_text_list(text, &count, "", "rank %u %s", rank, words);
  }
}
