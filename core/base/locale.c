/* Switches one thread to the C locale and back. */
#include "base/locale.h"

ad_locale ad_locale_enter(void) {
  ad_locale locale = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
  if (locale.own) locale.before = uselocale(locale.own);
  return locale;
}

void ad_locale_leave(ad_locale locale) {
  if (!locale.own) return;
  uselocale(locale.before);
  freelocale(locale.own);
}
