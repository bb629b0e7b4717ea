/* The launcher's watchdog: whether ranks move, seen from outside. Ranks that wait find out themselves about deaths,
 * departures and circles; a rank that is stopped or computes for ever only someone outside can see. */
#include "comm/watchdog.h"

#include <inttypes.h>
#include <stdio.h>
#include "base/clock.h"
#include "base/memory.h"

static const int64_t second = 1000000000;

struct ad_watched {
  uint64_t epoch;         // of its record
  int64_t waiting_since;  // when it was first seen in the wait it is in; 0: it is in none
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

void ad_watchdog_look(ad_watchdog *dog) {
  int64_t now = ad_now();
  uint64_t movement = 0;
  if (now - dog->looked_at < second) return;
  for (uint32_t rank = 0; rank < dog->control->ranks; rank++)
    movement += movement_of(&ad_shm_records(dog->control)[rank]);
  // Where the launcher itself was stopped for a while, nothing is known of that time.
  if (movement != dog->movement || now - dog->looked_at > 3 * second) dog->moved_at = now;
  dog->movement = movement;
  dog->looked_at = now;
}
