/* Decides which names a recipe may have, and makes a name from the name of a file. */
#include "recipe/name.h"

#include <ctype.h>
#include <jansson.h>
#include <stdint.h>
#include <string.h>
#include "base/memory.h"

/* Returns the UTF-8 character of several bytes that begins at `text`, or 0 if none does. Sets *bytes to its number of
 * bytes, at least 1. */
static uint32_t character_at(const char *text, size_t *bytes) {
  const unsigned char *at = (const unsigned char *)text;
  size_t more = at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : at[0] >= 0xc0 ? 1 : 0, taken = 0;
  uint32_t code = at[0] & (0x3fu >> more);
  *bytes = 1;
  while (taken < more && (at[taken + 1] & 0xc0) == 0x80) code = code << 6 | (at[++taken] & 0x3f);
  if (!more || taken < more) return 0;
  *bytes = more + 1;
  return code;
}

/* Returns 1 for control characters, spaces, marks that change the direction of text, and codes without a character. A
 * reader would not see such a character, and a terminal might obey it. */
static int is_unseen(uint32_t code) {
  static const uint32_t ranges[][2] = {{0x80, 0xa0},     {0xad, 0xad},     {0x1680, 0x1680},   {0x180e, 0x180e},
                                       {0x2000, 0x200f}, {0x2028, 0x202f}, {0x205f, 0x206f},   {0x3000, 0x3000},
                                       {0xfeff, 0xfeff}, {0xfff0, 0xffff}, {0xe0000, 0x10ffff}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (code >= ranges[i][0] && code <= ranges[i][1]) return 1;
  return 0;
}

/* Returns the length in bytes of the character at `text` if a name may contain it, else 0. Recipes are read in the C
 * locale, so isalnum knows only ASCII characters. */
static size_t taken_at(const char *text) {
  size_t bytes;
  if ((unsigned char)*text < 0x80) return isalnum((unsigned char)*text) || (*text && strchr("._-", *text));
  uint32_t code = character_at(text, &bytes);
  return code && !is_unseen(code) ? bytes : 0;
}

int ad_name_is_good(const char *name) {
  const char *at = name;
  size_t bytes;
  if (!*name || strchr(".-", *name) || strlen(name) > AD_NAME_BYTES) return 0;
  while ((bytes = taken_at(at))) at += bytes;
  return !*at;
}

/* Returns 1 if the text is valid UTF-8. The name of a file may have any bytes, but jansson, which writes names into
 * documents, accepts only UTF-8. */
static int is_utf8(const char *text) {
  json_t *value = json_string(text);
  int valid = value != NULL;
  json_decref(value);
  return valid;
}

/* Shortens a name that is too long, without splitting a character. */
static void shorten(char *name) {
  size_t length = strlen(name);
  if (length <= AD_NAME_BYTES) return;
  length = AD_NAME_BYTES;
  while (length && ((unsigned char)name[length] & 0xc0) == 0x80) length--;
  name[length] = 0;
}

/* Replaces each run of forbidden characters by one '-'; removes such a run at the beginning of the name. */
static void replace_others(char *name, int keeps_above_ascii) {
  char *to = name;
  for (const char *from = name; *from;) {
    size_t bytes = taken_at(from);
    if (bytes > 1 && !keeps_above_ascii) bytes = 0;
    if (to == name && (!bytes || strchr(".-", *from))) {
      from++;
    } else if (bytes) {
      memmove(to, from, bytes);
      to += bytes;
      from += bytes;
    } else {
      if (to[-1] != '-') *to++ = '-';
      from++;
    }
  }
  *to = 0;
}

ad_status ad_name_of_file(const char *path, char **out) {
  const char *slash = strrchr(path, '/');
  char *name;
  AD_TRY(ad_copy_string(slash ? slash + 1 : path, &name));
  char *dot = strrchr(name, '.');
  if (dot && dot > name) *dot = 0;
  replace_others(name, is_utf8(name));
  shorten(name);
  if (*name) {
    *out = name;
    return AD_OK;
  }
  ad_release(name);
  return ad_copy_string("recipe", out);
}
