/* Checks addend's environment variables, by functions of the folders that read the variables. */
#include "comm/settings.h"

#include "base/environment.h"
#include "base/trait.h"
#include "kernels/kernels.h"

ad_status ad_settings_check(void) {
  AD_TRY(ad_environment_check());
  AD_TRY(ad_kernels_check());
  return ad_trait_check();
}
