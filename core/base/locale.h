/* The C locale, in which numbers of recipes are read and written, so that they have a decimal point in any locale of
 * the calling program. */
#ifndef BASE_LOCALE_H
#define BASE_LOCALE_H
#include <locale.h>
#include "base/internal.h"

typedef struct ad_locale {
  locale_t own, before;
} ad_locale;
/* Switches this thread to the C locale. If that fails, the thread keeps its own locale. */
AD_INTERNAL ad_locale ad_locale_enter(void);
/* Switches this thread back to its previous locale. */
AD_INTERNAL void ad_locale_leave(ad_locale locale);

#endif
