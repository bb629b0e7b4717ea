/* The watchdog of a node's ranks: whether they move. The launcher looks at the ranks that it started; where none of
 * addend's did, a rank that waits looks at all of its node. */
#ifndef COMM_WATCHDOG_H
#define COMM_WATCHDOG_H
#include "base/text.h"
#include "comm/shm/control.h"

typedef struct ad_watched ad_watched;  // one rank

typedef struct ad_watchdog {
  shm_control *control;
  int64_t watcher;    // the rank whose it is; -1: the launcher's
  ad_watched *ranks;  // owned
  int64_t looked_at;  // when it last looked; this and the others in nanoseconds of ad_now()
  int64_t moved_at;   // when it last saw a rank move: begin or end a collective, read or write a file
  int64_t said_at;    // when it last said that ranks do not; 0: it did not
} ad_watchdog;

ad_status ad_watchdog_open(shm_control *control, int64_t watcher, ad_watchdog **out) AD_CHECKED;
void ad_watchdog_close(ad_watchdog *dog);
/* Looks at all ranks, if the last look is a second ago. Where one waits for 10 s, or is stopped for so long, it logs
 * which rank is where, and again every minute; where all ranks that do not wait compute, once, after a minute. Of ranks
 * that watch, the first that waits looks; the others leave it to that one. */
void ad_watchdog_look(ad_watchdog *dog);
/* Adds for whom the others wait: ": rank 1 was stopped, rank 2 was in no collective"; nothing where all wait. */
void ad_watchdog_blame(const ad_watchdog *dog, ad_text *text);

#endif
