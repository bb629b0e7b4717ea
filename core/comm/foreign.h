/* Refuses to start or join ranks in the world of another launcher, or in a process with other threads. */
#ifndef COMM_FOREIGN_H
#define COMM_FOREIGN_H
#include "base/error.h"

/* Returns AD_INVALID if a launcher started this process as one of several ranks and addend cannot join the launcher's
 * world. If each rank continued alone, their gradients would never be summed. */
ad_status ad_foreign_check(void) AD_CHECKED;
/* Returns AD_INVALID if this process has several threads: a fork would copy their locks but not the threads. */
ad_status ad_threads_check(void) AD_CHECKED;

#endif
