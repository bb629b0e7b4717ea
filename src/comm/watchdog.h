/* The launcher's watchdog: whether ranks move, seen from outside. */
#ifndef COMM_WATCHDOG_H
#define COMM_WATCHDOG_H
#include "comm/shm.h"

typedef struct ad_watched ad_watched;  // one rank

typedef struct ad_watchdog {
  shm_control *control;
  ad_watched *ranks;  // owned
  int64_t looked_at;  // when it last looked; this and the others in nanoseconds of ad_now()
  int64_t moved_at;   // when it last saw a rank move: begin or end a collective, read or write a file
  int64_t said_at;    // when it last said that ranks do not; 0: it did not
  uint64_t movement;
} ad_watchdog;

ad_status ad_watchdog_open(shm_control *control, ad_watchdog *out) AD_CHECKED;
void ad_watchdog_close(ad_watchdog *dog);
/* Looks at all ranks, if the last look is a second ago. Where one waits for 10 s, or is stopped for so long, it logs
 * which rank is where, and again every minute. */
void ad_watchdog_look(ad_watchdog *dog);

#endif
