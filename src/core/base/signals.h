/* Signals by their names. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H

/* "KILL" of SIGKILL; "unknown" where the number is none with a name. As sigabbrev_np, which glibc has since 2.32 only.
 */
const char *ad_signal_name(int number);

#endif
