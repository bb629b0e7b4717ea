/* Cutting "name=value name=value" texts into words: what mesh strings, axis sets and layout strings share. */
#ifndef MESH_WORDS_H
#define MESH_WORDS_H
#include <stddef.h>
#include "addend/mesh.h"

typedef struct ad_word {
  const char *data; /* borrowed, not ended by 0 */
  size_t length;
} ad_word;

/* Takes the next word off *cursor; words are parted by any of `separators`. 0 at the end of the text. */
int ad_word_next(const char **cursor, const char *separators, ad_word *out);
/* Parts "name=value" at its first '='; 0 if there is none. */
int ad_word_split(ad_word word, ad_word *name, ad_word *value);
int ad_word_is(ad_word word, const char *text);
/* The length to print with "%.*s" in messages: long words are cut. */
int ad_word_shown(ad_word word);
/* The set of axes with that name: one axis, or both dp axes for "dp". 0 if there is none. */
ad_axes ad_word_axes(ad_word name);
/* "pp, dp_replicate, ..., etp": for messages. */
const char *ad_axes_known(char *buffer, size_t size);

#endif
