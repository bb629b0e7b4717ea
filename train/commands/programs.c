/* Custom programs that were passed to ad_main or named by --program. A command that may call such a program runs in a
 * separate process. */
#include "trainer.h"

static int are_registered;

/* Reports that a function of a custom program ended this rank. A rank that otherwise prints nothing reports this,
 * too. */
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
