/* A process records which function of a user's program it runs, in memory that its parent process can read. If the
 * function ends the process, by exit or by a signal, the parent can then report which function it was. */
#ifndef BASE_GUEST_H
#define BASE_GUEST_H
#include "addend/status.h"
#include "base/internal.h"

enum { AD_GUESTS_DEEP = 4, AD_GUEST_TEXT = 160 };
typedef struct ad_guest {
  /* number of functions that have begun and not returned (a function may call the library, which calls another
   * function) */
  int depth;
  char what[AD_GUESTS_DEEP][AD_GUEST_TEXT];
} ad_guest;

/* Returns memory for the records of `count` processes that this process will start and that will share this memory.
 * Returns NULL if there is no memory; nothing is then recorded. Free it with ad_guests_release. */
AD_INTERNAL ad_guest *ad_guests_create(size_t count);
AD_INTERNAL void ad_guests_release(ad_guest *guests, size_t count);
/* From now on this process records in *guest which function it runs; if `guest` is NULL, it records nothing. */
AD_INTERNAL void ad_guest_note_in(ad_guest *guest);

/* Call these functions before and after every call of a function of a user's program. */
AD_INTERNAL void ad_guest_begin(const char *format, ...) AD_PRINTF(1, 2);
AD_INTERNAL void ad_guest_end(void);
/* Returns the innermost running function, such as "`read` of the program `mine`"; NULL if none runs or nothing is
 * recorded. */
AD_INTERNAL const char *ad_guest_running(const ad_guest *guest);

#endif
