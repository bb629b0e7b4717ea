/* Recording a failure: ad_fail (addend/status.h), and what addend's own code says beside it. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* Puts "prefix: " before the message that is recorded already; returns `status`. For callers that know more of what was
 * going on (which file, which parameter). */
AD_INTERNAL ad_status ad_fail_in(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* As ad_fail, where every rank fails here with the same words: whoever reports them names no rank. */
AD_INTERNAL ad_status ad_fail_alike(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* 1 if ad_last_error() was recorded by ad_fail_alike; a prefix leaves it so. */
int ad_last_error_is_alike(void);
/* 1 for an error that only this rank knows of until it tells the others (ad_comm_fail); 0 for AD_OK and for errors that
 * they know. A column of AD_STATUS_LIST. */
AD_INTERNAL int ad_status_is_own(ad_status status);
/* AD_INVALID, naming the public call and the first of its arguments that is NULL. `given` are the arguments, `names`
 * their names with ", " between. */
AD_INTERNAL ad_status ad_need(const char *call, const char *names, const void *const *given, size_t count) AD_CHECKED;
/* 1 if `index` is below `count`; else 0, with AD_INVALID's message for ad_last_error(): the public call, and what there
 * are `count` of. For public functions that return what they find, and then nothing: NULL, 0. */
AD_INTERNAL int ad_has(size_t index, size_t count, const char *call, const char *what);
#define AD_NEED_IN(call, names, ...)                              \
  AD_TRY(ad_need(call, names, (const void *const[]){__VA_ARGS__}, \
                 sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *)))
#define AD_NEED_AS(names, ...) AD_NEED_IN(__func__, names, __VA_ARGS__)
/* In a function that does the work of another, the public one. */
#define AD_NEED_OF(call, ...) AD_NEED_IN(call, #__VA_ARGS__, __VA_ARGS__)
/* What a caller must hand in, first thing in a public function that owns nothing yet. */
#define AD_NEED(...) AD_NEED_AS(#__VA_ARGS__, __VA_ARGS__)
/* What a public function puts in place of a site that is NULL, first thing: if (!site) site = AD_NO_SITE; */
#define AD_NO_SITE "a call without a site"
/* Hands a message that is no error to the callback of ad_set_log. */
AD_INTERNAL void ad_log(ad_log_level level, const char *format, ...) AD_PRINTF(2, 3);

/* The static analyzer does not look into error.c. Without these it would believe that ad_fail may return AD_OK. */
#if defined(__clang_analyzer__)
#define ad_fail_in(status, ...) ((ad_fail_in)(status, __VA_ARGS__), (status))
#define ad_fail_alike(status, ...) ((ad_fail_alike)(status, __VA_ARGS__), (status))
#endif

#endif
