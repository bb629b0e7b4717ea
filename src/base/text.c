/* Building short texts in fixed buffers. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

ad_text ad_text_on(char *buffer, size_t size) {
  if (size) buffer[0] = 0;
  return (ad_text){buffer, size, 0};
}

void ad_text_add(ad_text *text, const char *format, ...) {
  size_t room = text->size - text->used;
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text->data + text->used, room, format, arguments);
  va_end(arguments);
  if (length < 0 || !room) return;
  text->used += (size_t)length < room ? (size_t)length : room - 1;
}
