/* What is planted, lifted and put back as a whole. */
#include "check/plants.h"

#include <string.h>

ad_plants ad_plants_lift(void) {
  ad_plants plants;
  memcpy(plants.slots, ad_seams, sizeof ad_seams);
  memset(ad_seams, 0, sizeof ad_seams);
  return plants;
}

ad_plants ad_plants_lift_reducing(void) {
  static const ad_seam computing[] = {AD_SEAM_PRODUCT, AD_SEAM_STATISTIC, AD_SEAM_RESIDUAL};
  ad_plants plants = ad_plants_lift();
  for (size_t i = 0; i < sizeof computing / sizeof *computing; i++) ad_seams[computing[i]] = plants.slots[computing[i]];
  return plants;
}

void ad_plants_put_back(const ad_plants *plants) { memcpy(ad_seams, plants->slots, sizeof ad_seams); }
