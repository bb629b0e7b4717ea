/* Checks for what prevents starting or joining ranks here: another launcher's world, other threads. */
#ifndef COMM_FOREIGN_H
#define COMM_FOREIGN_H
#include "base/error.h"

/* AD_INVALID where a launcher whose world addend cannot join (torchrun, ...) started this process as one of several:
 * alone, each of them would go on with gradients that nobody sums. */
ad_status ad_foreign_check(void) AD_CHECKED;
/* AD_INVALID where this process has several threads: a fork copies the locks that they hold, but not them. */
ad_status ad_threads_check(void) AD_CHECKED;

#endif
