/* Statuses and messages: what every fallible call returns, and the sentence that explains it. */
#ifndef ADDEND_STATUS_H
#define ADDEND_STATUS_H
#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define AD_API __attribute__((visibility("default")))
#define AD_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#define AD_CHECKED __attribute__((warn_unused_result))

/* The only list of statuses: X(code, name, known, sentence). known says whether other ranks know of the error: 1 if
 * communication found it or all ranks fail alike, 0 if it is this rank's own until it tells them (ad_comm_fail). */
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
/* The message of the last failed call of this thread, written for the person who must fix it. "" if none failed. Valid
 * until the next failing call of this thread. Like those of ad_set_log it is printable: see ad_printable. Functions
 * that return no status and find something by its number (a parameter, an axis, a group's member) find nothing where
 * there are fewer: NULL, 0 for a size, -1 for a rank or a position. They leave a message here too. What
 * returns a status refuses a NULL that it needs, by its name; other functions take NULL only where they say so. */
AD_API const char *ad_last_error(void);
/* For code of one's own that fails inside a call of addend's (an operation, a program's functions): makes this the
 * thread's last message, as printf would write it, and returns the status, which the code hands on. The sentence is for
 * the person who must fix it: what, where, what would be right. A message of AD_MESSAGE_MAX bytes and more is cut.
 *   if (delta <= 0) return ad_fail(AD_INVALID, "%s: huber: delta is %g, but must be above 0", site, delta); */
AD_API ad_status ad_fail(ad_status status, const char *format, ...) AD_PRINTF(2, 3);
#if defined(__clang_analyzer__) /* which would believe that it may return AD_OK */
#define ad_fail(status, ...) ((ad_fail)(status, __VA_ARGS__), (status))
#endif
enum { AD_MESSAGE_MAX = 2048 };
/* A text from outside (a path, a name in a file) for a terminal: of control characters and of what is no UTF-8 each
 * byte is written as \xHH; what has no room in `buffer` is cut. Returns buffer. */
AD_API const char *ad_printable(const char *text, char *buffer, size_t size);

/* Where a call stands, as "file.c:88". A public function that says it in its messages is named ad_x_at and takes it
 * last; the macro ad_x takes what the function takes before, and adds the line on which it is written. */
#define AD_SITE_TEXT(line) #line
#define AD_SITE_LINE(line) AD_SITE_TEXT(line)
#define AD_HERE __FILE__ ":" AD_SITE_LINE(__LINE__)

/* Returns the status of a failed call from the calling function. Only in functions that own nothing yet. */
#define AD_TRY(call)                         \
  do {                                       \
    ad_status ad_try_status = (call);        \
    if (ad_try_status) return ad_try_status; \
  } while (0)

/* Messages that are no errors (warnings, progress of long work) go to a callback; the library itself prints nothing but
 * by the default one. */
typedef enum ad_log_level { AD_LOG_INFO, AD_LOG_WARNING } ad_log_level;
typedef void (*ad_log_function)(void *context, ad_log_level level, const char *message);
/* Sets the process's log callback; NULL silences. Default: warnings go to standard error. */
AD_API void ad_set_log(ad_log_function function, void *context);

/* Of a text for people. */
typedef enum ad_text_style {
  AD_PLAIN_TEXT,
  AD_COLOURED_TEXT /* with the escape sequences of terminals */
} ad_text_style;

/* The one of `count` names that a person probably meant who wrote `unknown`, which differs from it by a letter or two;
 * NULL where none is so near. */
AD_API const char *ad_nearest_name(const char *unknown, const char *const *names, size_t count);

#if defined(__cplusplus)
}
#endif
#endif
