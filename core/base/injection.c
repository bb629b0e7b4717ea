/* Stores the mutation that is installed at each injection point. */
#include "base/injection.h"

#include <string.h>

static ad_injection injections[AD_INJECT_COUNT];

void ad_inject(ad_injection_point point, void *passing) {
  const ad_injection *slot = &injections[point];
  if (__builtin_expect(slot->function != NULL, 0)) slot->function(slot->context, passing);
}

ad_injection ad_injection_set(ad_injection_point point, ad_injection slot) {
  ad_injection before = injections[point];
  injections[point] = slot;
  return before;
}

ad_injection ad_injection_at(ad_injection_point point) { return injections[point]; }

void ad_injections_clear(void) { memset(injections, 0, sizeof injections); }
