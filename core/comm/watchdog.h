/* The watchdog observes whether the ranks of a node advance. Addend's launcher watches the ranks that it started. Under
 * other launchers, a rank that waits watches all ranks of its node. */
#ifndef COMM_WATCHDOG_H
#define COMM_WATCHDOG_H
#include "base/text.h"
#include "comm/shm/control.h"

typedef struct ad_watched ad_watched;  // the watchdog's observations of one rank

typedef struct ad_watchdog {
  shm_control *control;
  int64_t watcher;      // the rank that watches; -1: the launcher
  ad_watched *ranks;    // owned
  int64_t looked_at;    // when the watchdog last looked; this and the next two times are in nanoseconds of ad_now()
  int64_t moved_at;     // when the watchdog last saw a rank move: begin or end a collective, read or write a file
  int64_t reported_at;  // when it last logged that no rank moves; 0: a rank has moved since
} ad_watchdog;

ad_status ad_watchdog_open(shm_control *control, int64_t watcher, ad_watchdog **out) AD_CHECKED;
void ad_watchdog_close(ad_watchdog *dog);
/* Looks at all ranks, unless the last look was less than a second ago. If a rank has waited or been stopped for 10
 * s, logs what every rank is doing, and again every minute. If every rank that does not wait is computing, logs this
 * only once, after a minute. If several ranks could watch, only the first of the waiting ranks does. */
void ad_watchdog_look(ad_watchdog *dog);
/* Appends for which ranks the other ranks wait, as ": rank 1 was stopped, rank 2 was in no collective"; appends
 * nothing if all ranks wait. */
void ad_watchdog_blame(const ad_watchdog *dog, ad_text *text);
/* Appends what those ranks are doing for which rank `waiting` waits, and which ranks are stopped: "rank 1 (process
 * 4711) is stopped; ...; its last collective: ..."; appends nothing if no such rank is found. Only reads the shared
 * file, so any thread of the rank may call this function. */
void ad_watchdog_missing(shm_control *control, uint32_t waiting, ad_text *text);

#endif
