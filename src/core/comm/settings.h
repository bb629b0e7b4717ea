/* Whether this process can join as its environment says. */
#ifndef COMM_SETTINGS_H
#define COMM_SETTINGS_H
#include "addend/status.h"
#include "base/internal.h"

/* AD_INVALID, naming the variable, what it must be and what it is, unless each of ADDEND_'s variables is what it may
 * be: before any rank starts, and again on each. */
AD_INTERNAL ad_status ad_settings_check(void) AD_CHECKED;

#endif
