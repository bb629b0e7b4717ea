/* The kinds of processors on which a world may have several ranks. Ranks that share memory rely on the order in which a
 * processor carries out loads and stores, and kinds of processors differ in this. A mistake would show as a wrong sum
 * once in a million, so a kind of processor is allowed only when all tests have run on it. */
#include "comm/processor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"

// The kinds of processors on which all tests of comm have run.
static const char *const tried[] = {"x86_64"};

const char *ad_processor_kind(void) {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "another processor";
#endif
}

static int may_have_ranks(const char *kind) {
#ifdef AD_UNTRIED_COMM
  return 1;
#endif
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++)
    if (!strcmp(tried[i], kind)) return 1;
  return 0;
}

ad_status ad_processor_check(const char *kind, int64_t ranks) {
  char count[32] = "ranks of a launcher";
  if (ranks <= 1 || may_have_ranks(kind)) return AD_OK;
  if (ranks != INT64_MAX) snprintf(count, sizeof count, "%" PRId64 " ranks", ranks);
  return ad_fail(AD_SYSTEM,
                 "%s cannot run on %s, because addend's communication was never tested on such processors. Use one "
                 "process (layouts and `addend diff` work), or build with -DAD_UNTRIED_COMM=ON and test the "
                 "communication with ctest -L '^comm$'",
                 count, kind);
}
