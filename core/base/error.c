/* Statuses, the last error message of each thread, and the log callback. */
#include "base/error.h"
#undef ad_fail
#undef ad_fail_in
#undef ad_fail_on_all_ranks

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/printable.h"

static _Thread_local char last_error[AD_MESSAGE_MAX];
static _Thread_local int is_on_all_ranks;

static const struct {
  const char *name, *sentence;
  int known;
} status_texts[] = {
#define STATUS_TEXT(code, name, known, sentence) {name, sentence, known},
    AD_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
};

static int is_status(ad_status status) { return (unsigned)status < AD_STATUS_COUNT; }

const char *ad_status_name(ad_status status) { return is_status(status) ? status_texts[status].name : "unknown"; }

const char *ad_status_sentence(ad_status status) {
  return is_status(status) ? status_texts[status].sentence : "this number is not a status";
}

int ad_status_is_own(ad_status status) { return is_status(status) && !status_texts[status].known; }

const char *ad_last_error(void) { return last_error; }

static void record_message(const char *format, va_list arguments) {
  char message[AD_MESSAGE_MAX];  // a copy, because the arguments may point into last_error
  vsnprintf(message, sizeof message, format, arguments);
  ad_printable_lines(message, last_error, sizeof last_error);
}

ad_status ad_fail(ad_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  record_message(format, arguments);
  va_end(arguments);
  is_on_all_ranks = 0;
  return status;
}

ad_status ad_fail_on_all_ranks(ad_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  record_message(format, arguments);
  va_end(arguments);
  is_on_all_ranks = 1;
  return status;
}

int ad_last_error_is_on_all_ranks(void) { return is_on_all_ranks; }

ad_status ad_fail_in(ad_status status, const char *format, ...) {
  char prefix[AD_MESSAGE_MAX];
  int kept = is_on_all_ranks;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(prefix, sizeof prefix, format, arguments);
  va_end(arguments);
  ad_fail(status, "%s: %s", prefix, last_error);
  is_on_all_ranks = kept;
  return status;
}

int ad_has(size_t index, size_t count, const char *call, const char *what) {
  if (index < count) return 1;
  ad_fail(AD_INVALID, "%s: %s %lld does not exist, because there are %zu, numbered from 0; pass one of these", call,
          what, (long long)index, count);
  return 0;
}

/* Returns the word with index `index`, from 0, of a list such as "a, b, c"; *length is the word's length. */
static const char *nth_name(const char *names, size_t index, int *length) {
  for (; index; index--) names += strcspn(names, ",") + 2;
  *length = (int)strcspn(names, ",");
  return names;
}

ad_status ad_need(const char *call, const char *names, const void *const *given, size_t count) {
  for (size_t i = 0; i < count; i++) {
    int length;
    const char *name = nth_name(names, i, &length);
    if (!given[i])
      return ad_fail(AD_INVALID, "%s: the argument `%.*s` is NULL, but must be set; nothing was changed", call, length,
                     name);
  }
  return AD_OK;
}

static void log_to_standard_error(void *context, ad_log_level level, const char *message) {
  if (level == AD_LOG_WARNING) fprintf(stderr, "addend: warning: %s\n", message);
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static ad_log_function log_function = log_to_standard_error;
static void *log_context;

void ad_set_log(ad_log_function function, void *context) {
  pthread_mutex_lock(&log_lock);
  log_function = function;
  log_context = context;
  pthread_mutex_unlock(&log_lock);
}

void ad_log(ad_log_level level, const char *format, ...) {
  // The callback is called without the lock, because it may log a message or set another callback itself.
  pthread_mutex_lock(&log_lock);
  ad_log_function function = log_function;
  void *context = log_context;
  pthread_mutex_unlock(&log_lock);
  if (!function) return;
  char message[AD_MESSAGE_MAX], printable[AD_MESSAGE_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  function(context, level, ad_printable_lines(message, printable, sizeof printable));
}
