/* The kinds of processors on which several ranks may work together. */
#ifndef COMM_PROCESSOR_H
#define COMM_PROCESSOR_H
#include <stdint.h>
#include "addend/status.h"

/* Returns the kind of processor for which this library was compiled, in the words of `uname -m`, or "another processor"
 * if this function has no name for it. */
const char *ad_processor_kind(void);
/* Returns AD_SYSTEM if there is more than one rank and the tests of comm have not run on this kind of processor; the
 * message says what would work. `ranks` is INT64_MAX if a launcher started an unknown number of ranks. A build with
 * -DAD_UNTRIED_COMM=ON, made to run these tests, refuses no processor. */
ad_status ad_processor_check(const char *kind, int64_t ranks) AD_CHECKED;

#endif
