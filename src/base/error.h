/* Recording a failure: the one way for addend's own code to make an error. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include "addend/status.h"

/* Records the message for ad_last_error() and returns `status`. Longer messages than AD_MESSAGE_MAX are cut. */
ad_status ad_fail(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* Puts "prefix: " before the message already recorded; returns `status`. For callers that know more (file, parameter).
 */
ad_status ad_fail_in(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
void ad_log(ad_log_level level, const char *format, ...) AD_PRINTF(2, 3);
enum { AD_MESSAGE_MAX = 2048 };

/* The static analyzer does not look into error.c and would follow paths on which a failure is AD_OK. */
#if defined(__clang_analyzer__)
#define ad_fail(status, ...) ((ad_fail)(status, __VA_ARGS__), (status))
#define ad_fail_in(status, ...) ((ad_fail_in)(status, __VA_ARGS__), (status))
#endif

#endif
