/* Numbers in recipes have a decimal point, whatever locale the program around the library has chosen. */
#ifndef RECIPE_LOCALE_H
#define RECIPE_LOCALE_H
#include <locale.h>

typedef struct ad_locale {
  locale_t own, before;
} ad_locale;
/* Gives this thread the C locale; where that fails, it keeps its own. */
ad_locale ad_locale_enter(void);
void ad_locale_leave(ad_locale locale);

#endif
