/* Statuses and messages: the result that every fallible call returns, and the message that explains it.
 *
 * For users. Any thread may call these functions; the last message is the thread's own. Set the log callback before
 * other threads call the library: the callback runs on the thread that logs. */
#ifndef ADDEND_STATUS_H
#define ADDEND_STATUS_H
#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define AD_API __attribute__((visibility("default")))
#define AD_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#define AD_CHECKED __attribute__((warn_unused_result))

/* All statuses: X(code, name, known, sentence). known is 1 if all ranks know of the error, because communication found
 * it or all ranks fail in the same way; 0 if only this rank knows of it until this rank calls ad_comm_fail. */
#define AD_STATUS_LIST(X)                                                           \
  X(AD_OK, "ok", 1, "it holds")                                                     \
  X(AD_INVALID, "invalid", 0, "the call or its input is wrong")                     \
  X(AD_TYPE, "type", 0, "the types of the values do not fit the operation")         \
  X(AD_MEMORY, "memory", 0, "no memory is left for it")                             \
  X(AD_IO, "io", 0, "a file could not be read or written")                          \
  X(AD_MISMATCH, "mismatch", 1, "the ranks of a group did not call the same thing") \
  X(AD_RANK_DIED, "rank-died", 1, "a rank died while others needed it")             \
  X(AD_RANK_LEFT, "rank-left", 1, "a rank returned while others needed it")         \
  X(AD_CYCLE, "cycle", 1, "ranks wait for each other in a circle")                  \
  X(AD_PEER_FAILED, "peer-failed", 1, "another rank failed and said so")            \
  X(AD_NUMBER, "number", 1, "a value is not a finite number")                       \
  X(AD_INTERRUPTED, "interrupted", 1, "the run was asked to stop")                  \
  X(AD_SYSTEM, "system", 0, "the operating system refused something needed")

typedef enum ad_status {
#define AD_STATUS_CODE(code, name, known, sentence) code,
  AD_STATUS_LIST(AD_STATUS_CODE)
#undef AD_STATUS_CODE
      AD_STATUS_COUNT
} ad_status;

/* "type", "mismatch", ...; "unknown" for a number that is no status. */
AD_API const char *ad_status_name(ad_status status);
/* One general sentence about the status; ad_last_error() says what happened. */
AD_API const char *ad_status_sentence(ad_status status);
/* The message of this thread's last failed call, written for the person who must fix the problem; "" if no call failed.
 * Valid until this thread's next failing call. It is printable, like the messages of ad_set_log.
 *
 * Functions that return no status and look something up by number (a parameter, an axis, a member of a group) return
 * NULL, 0 for a size, or -1 for a rank or a position if there is no such number, and also set this message. A function
 * that returns a status fails if a pointer that it needs is NULL, and names the argument. Functions that destroy,
 * close, free or release do nothing with NULL; all others accept NULL only if their documentation allows it. */
AD_API const char *ad_last_error(void);
/* For your own code that fails inside a call of addend's (in an operation, in a program's functions): sets this
 * thread's last message, formatted as by printf, and returns `status`, so that your code can return it. The message is
 * for the person who must fix the problem: what is wrong, where, and what would be right. Messages of AD_MESSAGE_MAX
 * bytes and more are truncated.
 *   if (delta <= 0) return ad_fail(AD_INVALID, "%s: huber: delta is %g, but must be above 0", site, delta); */
AD_API ad_status ad_fail(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
#if defined(__clang_analyzer__) /* otherwise the analyzer believes that ad_fail may return AD_OK */
#define ad_fail(status, ...) ((ad_fail)(status, __VA_ARGS__), (status))
#endif
enum { AD_MESSAGE_MAX = 2048 };

/* The call site of a function as "file.c:88". A public function that names its call site in messages is called ad_x_at
 * and takes the site as its last argument; the macro ad_x passes the line that it is used on. */
#define AD_SITE_TEXT(line) #line
#define AD_SITE_LINE(line) AD_SITE_TEXT(line)
#define AD_HERE __FILE__ ":" AD_SITE_LINE(__LINE__)

/* Returns from the calling function with the status of a failed call. Only for functions that own nothing yet. */
#define AD_TRY(call)                         \
  do {                                       \
    ad_status ad_try_status = (call);        \
    if (ad_try_status) return ad_try_status; \
  } while (0)

/* Messages that are no errors (warnings, progress of long work) go to a callback. The library prints nothing itself,
 * except through the default callback. */
typedef enum ad_log_level { AD_LOG_INFO, AD_LOG_WARNING } ad_log_level;
typedef void (*ad_log_function)(void *context, ad_log_level level, const char *message);
/* Sets the process's log callback; NULL silences all messages. By default warnings go to standard error. */
AD_API void ad_set_log(ad_log_function function, void *context);

/* How a text for people is formatted. */
typedef enum ad_text_style {
  AD_PLAIN_TEXT,
  AD_COLOURED_TEXT /* with the escape sequences of terminals */
} ad_text_style;

#if defined(__cplusplus)
}
#endif
#endif
