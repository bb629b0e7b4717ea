/* Joining worlds of ranks that another launcher (torchrun) started on this machine. */
#ifndef COMM_JOIN_H
#define COMM_JOIN_H
#include "addend/comm.h"
#include "base/error.h"

/* Returns 1 if torchrun, or a launcher that sets the same environment variables, started this process as one of several
 * ranks. */
int ad_torchrun_launched(void);
/* Opens the world of the ranks that torchrun started. Returns AD_INVALID if there are ranks on other hosts. */
ad_status ad_torchrun_open(ad_comm **out) AD_CHECKED;

#endif
