/* Records which function of a user's program runs, in memory that the parent process can still read after this process
 * has ended. */
#include "base/guest.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static ad_guest *noted; /* where this process records which function it runs; NULL: it records nothing */

ad_guest *ad_guests_create(size_t count) {
  void *shared = mmap(NULL, count * sizeof(ad_guest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return shared == MAP_FAILED ? NULL : shared;
}

void ad_guests_release(ad_guest *guests, size_t count) {
  if (guests) munmap(guests, count * sizeof *guests);
}

void ad_guest_note_in(ad_guest *guest) {
  noted = guest;
  if (guest) memset(guest, 0, sizeof *guest);
}

void ad_guest_begin(const char *format, ...) {
  if (!noted) return;
  if (noted->depth < AD_GUESTS_DEEP) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(noted->what[noted->depth], AD_GUEST_TEXT, format, arguments);
    va_end(arguments);
  }
  noted->depth++;
}

void ad_guest_end(void) {
  if (noted && noted->depth > 0) noted->depth--;
}

const char *ad_guest_running(const ad_guest *guest) {
  if (!guest || guest->depth <= 0) return NULL;
  return guest->what[(guest->depth < AD_GUESTS_DEEP ? guest->depth : AD_GUESTS_DEEP) - 1];
}
