/* A trait: one number with which a library above the core describes its process. (The trainer's trait describes the
 * code that computes matrix products.) Ranks exchange their traits when they join a world; each rank then uses only
 * what all ranks have. */
#ifndef BASE_TRAIT_H
#define BASE_TRAIT_H
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_trait {
  ad_status (*check)(void); /* AD_INVALID if the environment asks for something that this process does not have */
  uint32_t (*own)(void);    /* this process's trait; never 0 */
  uint32_t (*common)(uint32_t one, uint32_t other); /* returns the trait that describes what both processes have */
  void (*choose)(uint32_t agreed);                  /* called with the trait that describes what all ranks have */
} ad_trait;

/* Registers the process's trait; call it before any world is joined. `trait` is borrowed until the process ends. */
AD_INTERNAL void ad_trait_offer(const ad_trait *trait);

/* These functions are called when ranks join a world. If no trait was registered, ad_trait_own returns 0, and the
 * choice does not depend on this process. */
ad_status ad_trait_check(void) AD_CHECKED;
uint32_t ad_trait_own(void);
uint32_t ad_trait_common(uint32_t one, uint32_t other);
void ad_trait_choose(uint32_t agreed);

#endif
