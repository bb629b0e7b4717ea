/* Signals by their names. */
#include "base/signals.h"

#include <signal.h>

#define NAMED(name) [SIG##name] = #name
static const char *const names[] = {
    NAMED(HUP),  NAMED(INT),    NAMED(QUIT), NAMED(ILL),   NAMED(TRAP), NAMED(ABRT), NAMED(BUS),  NAMED(FPE),
    NAMED(KILL), NAMED(USR1),   NAMED(SEGV), NAMED(USR2),  NAMED(PIPE), NAMED(ALRM), NAMED(TERM), NAMED(STKFLT),
    NAMED(CHLD), NAMED(CONT),   NAMED(STOP), NAMED(TSTP),  NAMED(TTIN), NAMED(TTOU), NAMED(URG),  NAMED(XCPU),
    NAMED(XFSZ), NAMED(VTALRM), NAMED(PROF), NAMED(WINCH), NAMED(POLL), NAMED(PWR),  NAMED(SYS),
};

const char *ad_signal_name(int number) {
  if (number < 0 || number >= (int)(sizeof names / sizeof *names) || !names[number]) return "unknown";
  return names[number];
}
