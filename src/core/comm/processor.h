/* On which processors ranks may work together. */
#ifndef COMM_PROCESSOR_H
#define COMM_PROCESSOR_H
#include <stdint.h>
#include "addend/status.h"

/* What this library was compiled for, as `uname -m` calls it; "another processor" where it has no name here. */
const char *ad_processor_kind(void);
/* AD_SYSTEM, with what works, where so many ranks are more than one and the suite of tests of comm has not run on such
 * processors. INT64_MAX: however many a launcher started. A build with -DAD_UNTRIED_COMM=ON, for that suite, refuses
 * none. */
ad_status ad_processor_check(const char *kind, int64_t ranks) AD_CHECKED;

#endif
