/* Escapes characters and bytes that would control a terminal: control characters, also those of Unicode; bytes that
 * are not UTF-8, which some terminals take for control characters; and characters that change the direction of writing,
 * with which a name could look like another name. */
#include "base/printable.h"
#include "addend/helpers.h"

#include <stdio.h>
#include <string.h>

/* Returns the number of bytes of the UTF-8 character that begins at `at`; 0 if none begins there. Does not check
 * whether the character is assigned. */
static size_t character_length(const unsigned char *at) {
  size_t length = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 4;
  if (length == 4 && (at[0] < 0xf0 || at[0] > 0xf4)) return 0;
  for (size_t i = 1; i < length; i++)
    if ((at[i] & 0xc0) != 0x80) return 0;
  return length;
}

/* Returns 1 for a character that changes the direction of writing or ends a line. */
static int turns(unsigned code) {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

size_t ad_control_at(const char *text, unsigned *code) {
  const unsigned char *at = (const unsigned char *)text;
  *code = at[0];
  if (at[0] < 0x80) return at[0] < 0x20 || at[0] == 0x7f;
  if ((at[0] != 0xc2 && at[0] != 0xd8 && at[0] != 0xe2) || (at[1] & 0xc0) != 0x80) return 0;
  *code = (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
  if (at[0] == 0xc2) return *code < 0xa0 ? 2 : 0; /* U+0080 to U+009F */
  if (at[0] == 0xd8) return turns(*code) ? 2 : 0;
  if ((at[2] & 0xc0) != 0x80) return 0;
  *code = 0x2000 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
  return turns(*code) ? 3 : 0;
}

/* Writes the next piece of the output, which is a character or an escaped byte. Returns how many bytes of `text` it
 * represents. */
static size_t next_piece(const char *text, int keeps_lines, char piece[5]) {
  const unsigned char *at = (const unsigned char *)text;
  size_t length = character_length(at);
  unsigned code;
  if (length && (!ad_control_at(text, &code) || (keeps_lines && *at == '\n'))) {
    memcpy(piece, text, length);
    piece[length] = 0;
    return length;
  }
  snprintf(piece, 5, "\\x%02x", *at);
  return 1;
}

/* Writes the printable form of a text, truncated at the end of `buffer`. */
static const char *write_printable(const char *text, int keeps_lines, char *buffer, size_t size) {
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

const char *ad_printable(const char *text, char *buffer, size_t size) { return write_printable(text, 0, buffer, size); }

const char *ad_printable_lines(const char *text, char *buffer, size_t size) {
  return write_printable(text, 1, buffer, size);
}
