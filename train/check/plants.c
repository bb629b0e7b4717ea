/* Takes all planted mistakes off their seams, for steps that must be right, and puts them back afterwards. */
#include "check/plants.h"

ad_plants ad_plants_lift(void) {
  ad_plants plants;
  for (int seam = 0; seam < AD_SEAM_COUNT; seam++) plants.slots[seam] = ad_seam_plant((ad_seam)seam, (ad_seam_slot){0});
  return plants;
}

ad_plants ad_plants_lift_reducing(void) {
  static const ad_seam computing[] = {AD_SEAM_PRODUCT, AD_SEAM_STATISTIC, AD_SEAM_RESIDUAL};
  ad_plants plants = ad_plants_lift();
  for (size_t i = 0; i < sizeof computing / sizeof *computing; i++)
    ad_seam_plant(computing[i], plants.slots[computing[i]]);
  return plants;
}

void ad_plants_put_back(const ad_plants *plants) {
  for (int seam = 0; seam < AD_SEAM_COUNT; seam++) ad_seam_plant((ad_seam)seam, plants->slots[seam]);
}
