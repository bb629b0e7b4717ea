/* Checks the settings in the environment, before this process joins a world. */
#ifndef COMM_SETTINGS_H
#define COMM_SETTINGS_H
#include "addend/status.h"
#include "base/internal.h"

/* Checks every environment variable of addend (ADDEND_...), before any rank starts and again on each rank. The message
 * of AD_INVALID names the variable, its value, and what the value must be. */
AD_INTERNAL ad_status ad_settings_check(void) AD_CHECKED;

#endif
