/* Escaping what a terminal would obey: control characters, those of Unicode too, and bytes that are no UTF-8, which
 * some terminals take for such. */
#include "base/printable.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character that begins here; 0: none does. Which of the longer ones are assigned is not asked. */
static size_t character_length(const unsigned char *at) {
  size_t length = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 4;
  if (length == 4 && (at[0] < 0xf0 || at[0] > 0xf4)) return 0;
  for (size_t i = 1; i < length; i++)
    if ((at[i] & 0xc0) != 0x80) return 0;
  return length;
}

/* U+0080 to U+009F are control characters as well. */
static int is_control(const unsigned char *at) {
  return at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0);
}

/* How many bytes of `text` one piece of the output stands for; the piece goes to `piece`. */
static size_t next_piece(const char *text, int keeps_lines, char piece[5]) {
  const unsigned char *at = (const unsigned char *)text;
  size_t length = character_length(at);
  if (length && (!is_control(at) || (keeps_lines && *at == '\n'))) {
    memcpy(piece, text, length);
    piece[length] = 0;
    return length;
  }
  snprintf(piece, 5, "\\x%02x", *at);
  return 1;
}

static const char *print(const char *text, int keeps_lines, char *buffer, size_t size) {
  char piece[5];
  size_t used = 0;
  while (*text) {
    text += next_piece(text, keeps_lines, piece);
    size_t length = strlen(piece);
    if (used + length >= size) break;
    memcpy(buffer + used, piece, length);
    used += length;
  }
  if (size) buffer[used] = 0;
  return buffer;
}

const char *ad_printable(const char *text, char *buffer, size_t size) { return print(text, 0, buffer, size); }

const char *ad_printable_lines(const char *text, char *buffer, size_t size) { return print(text, 1, buffer, size); }
