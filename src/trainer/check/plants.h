/* Lifting whatever is planted, for the time of what must be right. */
#ifndef CHECK_PLANTS_H
#define CHECK_PLANTS_H
#include "base/seams.h"

typedef struct ad_plants {
  ad_seam_slot slots[AD_SEAM_COUNT];
} ad_plants;
ad_plants ad_plants_lift(void); /* no seam has a function afterwards */
/* But those where values are computed: what is planted there is in a rank's own addends as well. */
ad_plants ad_plants_lift_reducing(void);
void ad_plants_put_back(const ad_plants *plants);

#endif
