/* Worlds of ranks that somebody else started on this machine. */
#ifndef COMM_JOIN_H
#define COMM_JOIN_H
#include "addend/comm.h"
#include "base/error.h"

/* 1: torchrun, or a launcher that leaves the same in the environment, started this process as one of several ranks. */
int ad_torchrun_launched(void);
/* Opens its world. AD_INVALID where it has ranks on other hosts. */
ad_status ad_torchrun_open(ad_comm **out) AD_CHECKED;

#endif
