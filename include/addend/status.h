/* Statuses and messages: what every fallible call returns, and the sentence that explains it. */
#ifndef ADDEND_STATUS_H
#define ADDEND_STATUS_H

#if defined(__cplusplus)
extern "C" {
#endif

#define AD_API __attribute__((visibility("default")))
#define AD_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#define AD_CHECKED __attribute__((warn_unused_result))

/* code, name, sentence. The only list of statuses. */
#define AD_STATUS_LIST(X)                                                        \
  X(AD_OK, "ok", "it holds")                                                     \
  X(AD_INVALID, "invalid", "the call or its input is wrong")                     \
  X(AD_TYPE, "type", "the types of the values do not fit the operation")         \
  X(AD_MEMORY, "memory", "no memory is left for it")                             \
  X(AD_IO, "io", "a file could not be read or written")                          \
  X(AD_MISMATCH, "mismatch", "the ranks of a group did not call the same thing") \
  X(AD_RANK_DIED, "rank-died", "a rank died while others needed it")             \
  X(AD_RANK_LEFT, "rank-left", "a rank returned while others needed it")         \
  X(AD_CYCLE, "cycle", "ranks wait for each other in a circle")                  \
  X(AD_PEER_FAILED, "peer-failed", "another rank failed and said so")            \
  X(AD_NUMBER, "number", "a value is not a finite number")                       \
  X(AD_INTERRUPTED, "interrupted", "the run was asked to stop")                  \
  X(AD_SYSTEM, "system", "the operating system refused something needed")

typedef enum ad_status {
#define AD_STATUS_CODE(code, name, sentence) code,
  AD_STATUS_LIST(AD_STATUS_CODE)
#undef AD_STATUS_CODE
      AD_STATUS_COUNT
} ad_status;

/* "type", "mismatch", ...; "unknown" for a number that is no status. */
AD_API const char *ad_status_name(ad_status status);
/* One general sentence; ad_last_error() has the particular one. */
AD_API const char *ad_status_sentence(ad_status status);
/* The message of the last failed call of this thread, written for the person who must fix it. "" if none failed. Valid
 * until the next failing call of this thread. */
AD_API const char *ad_last_error(void);

/* Where a call stands, as "file.c:88"; public macros pass it to the functions named ..._at. */
#define AD_SITE_TEXT(line) #line
#define AD_SITE_LINE(line) AD_SITE_TEXT(line)
#define AD_HERE __FILE__ ":" AD_SITE_LINE(__LINE__)

/* Returns the status of a failed call from the calling function. Only in functions that own nothing yet. */
#define AD_TRY(call)                         \
  do {                                       \
    ad_status ad_try_status = (call);        \
    if (ad_try_status) return ad_try_status; \
  } while (0)

/* Messages that are no errors (warnings, progress of long work). The library prints nothing itself. */
typedef enum ad_log_level { AD_LOG_INFO, AD_LOG_WARNING } ad_log_level;
typedef void (*ad_log_function)(void *context, ad_log_level level, const char *message);
/* Sets the process's log callback; NULL silences. Default: warnings go to standard error. */
AD_API void ad_set_log(ad_log_function function, void *context);

#if defined(__cplusplus)
}
#endif
#endif
