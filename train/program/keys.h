/* The range of values of each key of a program, checked key by key. The reader of recipes uses the same messages. */
#ifndef PROGRAM_KEYS_H
#define PROGRAM_KEYS_H
#include "addend/program.h"

enum { AD_KEY_WORDS_SIZE = 128 };

/* If the value is out of the key's range, writes "must be at least 1, is 0" to `words` and returns 1. `written` is the
 * value as that text shows it. */
int ad_key_refuses(const ad_key *key, double value, const char *written, char words[AD_KEY_WORDS_SIZE]);
/* Returns the bytes of one value (in a list, of one element), or 0 if the value has no fixed size (overrides, groups). */
size_t ad_key_value_size(const ad_key *key);
/* Returns the index of `text` among the key's words, or -1 if it is not among them. "false" is the first word, "true"
 * the last. */
int ad_key_word(const ad_key *key, const char *text);
/* Returns the word for the index `number` of an AD_KEY_BOOLEAN. */
const char *ad_key_word_of(const ad_key *key, int number);
/* Returns 1 if the key's value is a string that the options own. */
int ad_key_is_text(const ad_key *key);
/* Complains about every view that does not have exactly the ranks of `mesh`. */
void ad_keys_check_views(const ad_program_kind *kind, const void *options, const ad_mesh *mesh,
                         const ad_complaints *to);
/* Complains about every number that is out of its key's range, and about every unknown word. */
void ad_keys_check(const ad_program_kind *kind, const void *options, const ad_complaints *to);

#endif
