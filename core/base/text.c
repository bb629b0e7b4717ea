/* Builds short texts in fixed buffers. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

ad_text ad_text_on(char *buffer, size_t size) {
  if (size) buffer[0] = 0;
  return (ad_text){buffer, size, 0};
}

static void add_text(ad_text *text, const char *format, va_list arguments) {
  size_t room = text->size - text->used;
  int length = vsnprintf(text->data + text->used, room, format, arguments);
  if (length < 0 || !room) return;
  text->used += (size_t)length < room ? (size_t)length : room - 1;
}

void ad_text_add(ad_text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_text(text, format, arguments);
  va_end(arguments);
}

void ad_text_list(ad_text *text, size_t *count, const char *what, const char *format, ...) {
  va_list arguments;
  if (++*count > AD_LISTED) {
    if (*count == AD_LISTED + 1) ad_text_add(text, ", ...");
    return;
  }
  ad_text_add(text, "%s", *count == 1 ? what : ", ");
  va_start(arguments, format);
  add_text(text, format, arguments);
  va_end(arguments);
}
