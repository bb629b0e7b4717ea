/* Splits texts such as "name=value name=value" into words, for mesh strings, sets of axes and layout strings. */
#ifndef MESH_WORDS_H
#define MESH_WORDS_H
#include <stddef.h>
#include "addend/mesh.h"

typedef struct ad_word {
  const char *data; /* borrowed; no 0 at the end */
  size_t length;
} ad_word;

/* Reads the next word and moves *cursor to its end; any of the characters `separators` separates words. Returns 0 at
 * the end of the text. */
int ad_word_next(const char **cursor, const char *separators, ad_word *out);
/* Splits "name=value" at its first '='. Returns 0 if there is none. */
int ad_word_split(ad_word word, ad_word *name, ad_word *value);
int ad_word_is(ad_word word, const char *text);
/* Returns the length to print with "%.*s" in messages, so that long words are truncated. */
int ad_word_shown(ad_word word);
/* Returns the set of axes with this name: one axis, or both dp axes for "dp"; 0 if there is none. */
ad_axes ad_word_axes(ad_word name);
/* Lists all axes for messages, as "pp, dp_replicate, ..., etp". Returns buffer. */
const char *ad_axes_known(char *buffer, size_t size);

#endif
