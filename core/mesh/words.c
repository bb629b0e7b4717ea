/* Splits texts into words. Callers interpret the words. */
#include "mesh/words.h"
#include <string.h>
#include "base/text.h"

enum { SHOWN_MAX = 40 };

int ad_word_next(const char **cursor, const char *separators, ad_word *out) {
  const char *start = *cursor + strspn(*cursor, separators);
  size_t length = strcspn(start, separators);
  *cursor = start + length;
  *out = (ad_word){start, length};
  return length > 0;
}

int ad_word_split(ad_word word, ad_word *name, ad_word *value) {
  const char *equals = memchr(word.data, '=', word.length);
  if (!equals) return 0;
  size_t before = (size_t)(equals - word.data);
  *name = (ad_word){word.data, before};
  *value = (ad_word){equals + 1, word.length - before - 1};
  return 1;
}

int ad_word_is(ad_word word, const char *text) {
  return strlen(text) == word.length && memcmp(word.data, text, word.length) == 0;
}

int ad_word_shown(ad_word word) { return (int)(word.length < SHOWN_MAX ? word.length : SHOWN_MAX); }

ad_axes ad_word_axes(ad_word name) {
  if (ad_word_is(name, "dp")) return AD_AXES_DP;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_word_is(name, ad_axis_name((ad_axis)axis))) return AD_AXES(axis);
  return 0;
}

const char *ad_axes_known(char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    ad_text_add(&text, "%s%s", axis ? ", " : "", ad_axis_name((ad_axis)axis));
  return buffer;
}
