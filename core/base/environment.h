/* The environment variables that control how ranks run (docs/addend.1), as far as their value is a number or a folder.
 * An empty variable counts as not set. Variables of launchers and of MPI are read in the files that use them;
 * comm/settings.h checks all variables. */
#ifndef BASE_ENVIRONMENT_H
#define BASE_ENVIRONMENT_H
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

/* Checks all these variables. AD_INVALID names the variable, its value, and what the value must be. */
ad_status ad_environment_check(void) AD_CHECKED;
/* Returns the variable's text, or NULL if it is not set. */
AD_INTERNAL const char *ad_environment_text(const char *name);
/* Returns the variable's number, or `otherwise` if the variable is not set or not valid. */
AD_INTERNAL uint64_t ad_environment_number(const char *name, uint64_t otherwise);

#endif
