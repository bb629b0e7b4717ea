/* On which kinds of processors several ranks may work together. */
#ifndef COMM_PROCESSOR_H
#define COMM_PROCESSOR_H
#include <stdint.h>
#include "addend/status.h"

/* The kind of processor that this library was compiled for, as `uname -m` calls it; "another processor" where it has no
 * name here. */
const char *ad_processor_kind(void);
/* AD_SYSTEM, with what works, if there is more than one rank and the tests of comm have not run on this kind of
 * processor. `ranks` INT64_MAX stands for the unknown number that a launcher started. A build with
 * -DAD_UNTRIED_COMM=ON, made to run those tests, refuses none. */
ad_status ad_processor_check(const char *kind, int64_t ranks) AD_CHECKED;

#endif
