/* Builds short texts in fixed buffers. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

ad_text ad_text_on(char *buffer, size_t size) {
  if (size) buffer[0] = 0;
  return (ad_text){buffer, size, 0};
}

/* Takes the bytes of a character of UTF-8 that is not there as a whole from the end of a text. */
static void drop_cut_character(ad_text *text) {
  size_t begin = text->used;
  while (begin && (text->data[begin - 1] & 0xc0) == 0x80) begin--;
  if (!begin) return;
  unsigned char lead = (unsigned char)text->data[--begin];
  size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  if (text->used - begin < length) text->data[text->used = begin] = 0;
}

static void add_text(ad_text *text, const char *format, va_list arguments) {
  size_t room = text->size - text->used;
  int length = vsnprintf(text->data + text->used, room, format, arguments);
  if (length < 0 || !room) return;
  int is_cut = (size_t)length >= room;
  text->used += is_cut ? room - 1 : (size_t)length;
  if (!is_cut) return;
  drop_cut_character(text);
  text->size = text->used + 1; /* nothing follows a cut */
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
