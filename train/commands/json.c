/* JSON as the trainer's commands print it: without characters that a terminal would obey. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"
#include "addend/helpers.h"

/* Returns the number of bytes of the character at `text` if it has two or three bytes or is DEL, else 0. Sets *code to
 * its code point. */
static size_t short_character(const char *text, unsigned *code) {
  const unsigned char *at = (const unsigned char *)text;
  *code = at[0];
  if (at[0] == 0x7f) return 1;
  *code = (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
  if ((at[0] & 0xe0) == 0xc0) return 2;
  if ((at[0] & 0xf0) != 0xe0) return 0;
  *code = (at[0] & 0xfu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
  return 3;
}

/* Returns 1 if ad_printable leaves this character unchanged. */
static int is_printable(const char *character, size_t bytes) {
  char alone[4] = "", printed[16];
  memcpy(alone, character, bytes);
  return !strcmp(ad_printable(alone, printed, sizeof printed), alone);
}

char *ad_cli_json(json_t *document, size_t flags) {
  char *plain = document ? json_dumps(document, flags) : NULL;
  char *text = plain ? malloc(6 * strlen(plain) + 1) : NULL, *to = text; /* DEL, one byte, becomes six bytes */
  json_decref(document);
  for (const char *at = plain; text && *at;) {
    unsigned code;
    size_t bytes = short_character(at, &code);
    if (bytes && !is_printable(at, bytes))
      to += sprintf(to, "\\u%04x", code);
    else
      for (size_t i = 0; i < (bytes ? bytes : 1); i++) *to++ = at[i];
    at += bytes ? bytes : 1;
  }
  if (text) *to = 0;
  free(plain);
  return text;
}
