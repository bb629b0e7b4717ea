/* Functions that record a failure, for addend's own code, besides the public ad_fail (addend/status.h). */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* Puts "prefix: " before the message recorded last and returns `status`. For callers that know more about what failed
 * (which file, which parameter). */
AD_INTERNAL ad_status ad_fail_in(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* Like ad_fail, for failures that happen on every rank with the same message, so that a report names no rank. */
ad_status ad_fail_on_all_ranks(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
/* Returns 1 if ad_last_error() was recorded by ad_fail_on_all_ranks, with or without a prefix added later; else 0. */
int ad_last_error_is_on_all_ranks(void);
/* Returns 1 for an error that other ranks do not know of until this rank calls ad_comm_fail (`known` is 0 in
 * AD_STATUS_LIST); 0 for AD_OK and for errors that all ranks know of. */
AD_INTERNAL int ad_status_is_own(ad_status status);
/* Returns AD_INVALID if an argument of a public call is NULL. The message names the call and the first such argument.
 * `given` has the arguments; `names` has their names, separated by ", ". */
AD_INTERNAL ad_status ad_need(const char *call, const char *names, const void *const *given, size_t count) AD_CHECKED;
/* Returns 1 if `index` is below `count`. Otherwise returns 0 and sets ad_last_error() to a message with the names of
 * the public function `call` and of the indexed objects, `what`. For public functions that return no status, and then
 * return NULL or 0. */
AD_INTERNAL int ad_has(size_t index, size_t count, const char *call, const char *what);
#define AD_NEED_IN(call, names, ...)                              \
  AD_TRY(ad_need(call, names, (const void *const[]){__VA_ARGS__}, \
                 sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *)))
#define AD_NEED_AS(names, ...) AD_NEED_IN(__func__, names, __VA_ARGS__)
/* Like AD_NEED, in a function that does the work of the public function `call`. */
#define AD_NEED_OF(call, ...) AD_NEED_IN(call, #__VA_ARGS__, __VA_ARGS__)
/* Returns AD_INVALID if one of these arguments is NULL. It is the first line of a public function, before the
 * function owns anything. */
#define AD_NEED(...) AD_NEED_AS(#__VA_ARGS__, __VA_ARGS__)
/* The call site that public functions use if the caller's is NULL: if (!site) site = AD_NO_SITE; */
#define AD_NO_SITE "a call without a site"
/* Passes a message that is no error to the callback that ad_set_log has set, if any. */
AD_INTERNAL void ad_log(ad_log_level level, const char *format, ...) AD_PRINTF(2, 3);

/* For the static analyzer, which does not see error.c: these macros show that the functions return `status`, which
 * is never AD_OK. */
#if defined(__clang_analyzer__)
#define ad_fail_in(status, ...) ((ad_fail_in)(status, __VA_ARGS__), (status))
#define ad_fail_on_all_ranks(status, ...) ((ad_fail_on_all_ranks)(status, __VA_ARGS__), (status))
#endif

#endif
