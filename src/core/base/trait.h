/* A trait: one number in which a library above the core says what its process has for its own work (the trainer: what
 * makes matrix products). Ranks tell each other theirs when they join, and each goes by what all of them have. */
#ifndef BASE_TRAIT_H
#define BASE_TRAIT_H
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_trait {
  ad_status (*check)(void);                         /* AD_INVALID if the environment asks for what is not there */
  uint32_t (*own)(void);                            /* this process's; never 0 */
  uint32_t (*common)(uint32_t one, uint32_t other); /* what both have */
  void (*choose)(uint32_t agreed);                  /* what all ranks have */
} ad_trait;

/* Before any world is joined; borrowed for the process's life. */
AD_INTERNAL void ad_trait_offer(const ad_trait *trait);

/* For joining. Where nothing was offered `own` is 0, which has a part in no agreement. */
ad_status ad_trait_check(void) AD_CHECKED;
uint32_t ad_trait_own(void);
uint32_t ad_trait_common(uint32_t one, uint32_t other);
void ad_trait_choose(uint32_t agreed);

#endif
