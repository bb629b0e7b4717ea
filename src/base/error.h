/* Recording a failure: the one way for addend's own code to make an error. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include <stddef.h>
#include "addend/status.h"

/* Records the message for ad_last_error() and returns `status`. Longer messages than AD_MESSAGE_MAX are cut. */
ad_status ad_fail(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* Puts "prefix: " before the message already recorded; returns `status`. For callers that know more (file, parameter).
 */
ad_status ad_fail_in(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* An error of this rank alone: the others learn of it when they are told (ad_comm_fail). A column of AD_STATUS_LIST. */
int ad_status_is_own(ad_status status);
/* AD_INVALID, naming the public call and the first of its arguments that is NULL; `names` lists them with ", " between.
 */
ad_status ad_need(const char *call, const char *names, const void *const *given, size_t count) AD_CHECKED;
#define AD_NEED_AS(names, ...)                                        \
  AD_TRY(ad_need(__func__, names, (const void *const[]){__VA_ARGS__}, \
                 sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *)))
/* What a caller must hand in, first thing in a public function that owns nothing yet. */
#define AD_NEED(...) AD_NEED_AS(#__VA_ARGS__, __VA_ARGS__)
#define AD_NO_SITE "a call without a site"
void ad_log(ad_log_level level, const char *format, ...) AD_PRINTF(2, 3);
enum { AD_MESSAGE_MAX = 2048 };

/* The static analyzer does not look into error.c and would follow paths on which a failure is AD_OK. */
#if defined(__clang_analyzer__)
#define ad_fail(status, ...) ((ad_fail)(status, __VA_ARGS__), (status))
#define ad_fail_in(status, ...) ((ad_fail_in)(status, __VA_ARGS__), (status))
#endif

#endif
