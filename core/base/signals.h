/* Signals by their names. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H
#include "base/internal.h"

/* Returns the name of a signal without SIG, such as "KILL"; "unknown" for a number without a name. Replaces
 * sigabbrev_np, which glibc has only from 2.32 on. */
AD_INTERNAL const char *ad_signal_name(int number);

#endif
