/* Numbers in recipes have a decimal point, whatever locale the program around the library has chosen. */
#ifndef BASE_LOCALE_H
#define BASE_LOCALE_H
#include <locale.h>
#include "base/internal.h"

typedef struct ad_locale {
  locale_t own, before;
} ad_locale;
/* Gives this thread the C locale; where that fails, it keeps its own. */
AD_INTERNAL ad_locale ad_locale_enter(void);
AD_INTERNAL void ad_locale_leave(ad_locale locale);

#endif
