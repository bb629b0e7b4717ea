/* Which names a recipe may have, and the one that it gets from its file. */
#include "recipe/name.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>
#include "base/memory.h"

static int is_above_ascii(char c) { return (unsigned char)c >= 0x80; }

/* The locale is C while a recipe is read: only ASCII is alphanumeric. */
static int takes(char c) { return isalnum((unsigned char)c) || strchr("._-", c) || is_above_ascii(c); }

int ad_name_is_good(const char *name) {
  int good = name[0] != '.' && strlen(name) <= AD_NAME_BYTES;
  for (const char *c = name; *c; c++) good &= takes(*c);
  return good;
}

/* A file may be named by any bytes; jansson, which writes the name into documents, takes valid UTF-8 only. */
static int is_utf8(const char *text) {
  json_t *value = json_string(text);
  int valid = value != NULL;
  json_decref(value);
  return valid;
}

/* Not in the middle of a character. */
static void shorten(char *name) {
  size_t length = strlen(name);
  if (length <= AD_NAME_BYTES) return;
  length = AD_NAME_BYTES;
  while (length && ((unsigned char)name[length] & 0xc0) == 0x80) length--;
  name[length] = 0;
}

/* Each run of what no name takes becomes one '-'; in front there is none. */
static void replace_others(char *name, int keeps_above_ascii) {
  char *to = name;
  for (const char *from = name; *from; from++) {
    int stays = takes(*from) && (keeps_above_ascii || !is_above_ascii(*from));
    if (to == name && (!stays || strchr(".-", *from))) continue;
    if (stays)
      *to++ = *from;
    else if (to[-1] != '-')
      *to++ = '-';
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
