/* Lifts everything that is planted at seams while something must be computed right, and puts it back. */
#ifndef CHECK_PLANTS_H
#define CHECK_PLANTS_H
#include "base/seams.h"

typedef struct ad_plants {
  ad_seam_slot slots[AD_SEAM_COUNT];
} ad_plants;
ad_plants ad_plants_lift(void); /* lifts all plants */
/* Lifts all plants but those where values are computed (products, statistics, residuals), whose mistakes are in a
 * rank's own addends too. */
ad_plants ad_plants_lift_reducing(void);
void ad_plants_put_back(const ad_plants *plants);

#endif
