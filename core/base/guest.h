/* Which function of a user's program a process is running, for the process that started it: when that function ends the
 * process, by exit or by a signal, nobody else can say so. */
#ifndef BASE_GUEST_H
#define BASE_GUEST_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_GUESTS_DEEP = 4, AD_GUEST_TEXT = 160 };
typedef struct ad_guest {
  int depth; /* functions that have begun and not returned; one may call the library, which calls another */
  char what[AD_GUESTS_DEEP][AD_GUEST_TEXT];
} ad_guest;

/* Memory for `count` processes that this process will start, and which it shares with them; NULL: there is none, and
 * nothing will be known. Free it with ad_guests_release. */
AD_INTERNAL ad_guest *ad_guests_create(size_t count);
AD_INTERNAL void ad_guests_release(ad_guest *guests, size_t count);
/* From now on this process writes there what it runs; NULL: nowhere. */
AD_INTERNAL void ad_guest_note_in(ad_guest *guest);

/* Around every call of a function of a user's program. */
AD_INTERNAL void ad_guest_begin(const char *format, ...) AD_PRINTF(1, 2);
AD_INTERNAL void ad_guest_end(void);
/* The innermost function that runs: "`read` of the program `mine`"; NULL: none runs, or nothing is known. */
AD_INTERNAL const char *ad_guest_running(const ad_guest *guest);

#endif
