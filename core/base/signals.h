/* Signals by their names. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H
#include "base/internal.h"

/* "KILL" for SIGKILL; "unknown" for a number without a name. Replaces sigabbrev_np, which only glibc from 2.32 on has.
 */
AD_INTERNAL const char *ad_signal_name(int number);

#endif
