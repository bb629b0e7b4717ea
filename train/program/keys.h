/* What each key of a program says about its option by itself: the range of its value. The reader of recipes complains
 * in the same words. */
#ifndef PROGRAM_KEYS_H
#define PROGRAM_KEYS_H
#include "addend/program.h"

enum { AD_KEY_WORDS_SIZE = 128 };

/* If the value is out of the key's range, writes "must be at least 1, is 0" into `words` and returns 1. `written`: how
 * the value is shown. */
int ad_key_refuses(const ad_key *key, double value, const char *written, char words[AD_KEY_WORDS_SIZE]);
/* Bytes of one value, which is also the size of an element if the key is a list. 0: it has no fixed size
 * (overrides). */
size_t ad_key_value_size(const ad_key *key);
/* The index of `text` among the key's words; "false" is the first and "true" the last; -1: it is none of them. */
int ad_key_word(const ad_key *key, const char *text);
/* The word that an AD_KEY_BOOLEAN of this number is printed as. */
const char *ad_key_word_of(const ad_key *key, int number);
/* Whether the key's value is a string that the options own. */
int ad_key_is_text(const ad_key *key);
/* Complains of every view that does not have the ranks of `mesh`. */
void ad_keys_check_views(const ad_program_kind *kind, const void *options, const ad_mesh *mesh,
                         const ad_complaints *to);
/* Complains of every number out of its key's range, and of every unknown word. */
void ad_keys_check(const ad_program_kind *kind, const void *options, const ad_complaints *to);

#endif
