/* Custom programs, which ad_main is given or --program names: a command that may call one has a separate process. */
#include "trainer.h"

static int are_registered;

/* A function of a custom program ended this rank; also ranks that are silent otherwise say so. */
static int ended_inside(ad_status status) {
  ad_cli_speak();
  return ad_cli_failed(status);
}

ad_status ad_cli_register_programs(const ad_program_kind *const *kinds) {
  ad_status status = AD_OK;
  for (; *kinds && !status; kinds++) {
    status = ad_program_register(*kinds);
    are_registered = 1;
  }
  return status;
}

ad_status ad_cli_load_program(const char *path) {
  if (path || are_registered) ad_program_supervise(ended_inside);
  return path ? ad_program_load(path) : AD_OK;
}
