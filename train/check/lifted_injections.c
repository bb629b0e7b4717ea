/* Removes all mutations from their injection points, for steps that must run without them, and restores the mutations
 * afterwards. */
#include "check/lifted_injections.h"

ad_lifted_injections ad_injections_lift(void) {
  ad_lifted_injections lifted;
  for (int point = 0; point < AD_INJECT_COUNT; point++)
    lifted.slots[point] = ad_injection_set((ad_injection_point)point, (ad_injection){0});
  return lifted;
}

ad_lifted_injections ad_injections_lift_reducing(void) {
  static const ad_injection_point computing[] = {AD_INJECT_PRODUCT, AD_INJECT_STATISTIC, AD_INJECT_RESIDUAL};
  ad_lifted_injections lifted = ad_injections_lift();
  for (size_t i = 0; i < sizeof computing / sizeof *computing; i++)
    ad_injection_set(computing[i], lifted.slots[computing[i]]);
  return lifted;
}

void ad_injections_restore(const ad_lifted_injections *lifted) {
  for (int point = 0; point < AD_INJECT_COUNT; point++)
    ad_injection_set((ad_injection_point)point, lifted->slots[point]);
}
