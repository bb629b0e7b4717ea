/* The environment variables that say how ranks run (docs/addend.1) and hold a number or a folder. One that is empty is
 * not set. Those that launchers set, and MPI's, are where they are read; comm/settings.h checks all. */
#ifndef BASE_ENVIRONMENT_H
#define BASE_ENVIRONMENT_H
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

/* AD_INVALID, naming the variable, what it must be and what it is, unless each is what it may be. */
ad_status ad_environment_check(void) AD_CHECKED;
/* The variable's text; NULL where it is not set. */
AD_INTERNAL const char *ad_environment_text(const char *name);
/* The number that a variable holds; `otherwise` where it is not set or not what it may be. */
AD_INTERNAL uint64_t ad_environment_number(const char *name, uint64_t otherwise);

#endif
