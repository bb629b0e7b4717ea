/* Keeps the one trait that a process may have. */
#include "base/trait.h"

#include <stddef.h>

static const ad_trait *offered; /* NULL: no library above the core is loaded */

void ad_trait_offer(const ad_trait *trait) { offered = trait; }

ad_status ad_trait_check(void) { return offered ? offered->check() : AD_OK; }

uint32_t ad_trait_own(void) { return offered ? offered->own() : 0; }

uint32_t ad_trait_common(uint32_t one, uint32_t other) {
  if (!one || !other) return one | other;
  return offered ? offered->common(one, other) : 0;
}

void ad_trait_choose(uint32_t agreed) {
  if (offered && agreed) offered->choose(agreed);
}
