/* What the keys of a program say of its options by themselves: the range of each value. The recipe's reader says the
 * same of what was written, in the same words. */
#ifndef PROGRAM_KEYS_H
#define PROGRAM_KEYS_H
#include "addend/program.h"

enum { AD_KEY_WORDS_SIZE = 128 };

/* Writes "must be at least 1, is 0" where the value is not in the key's range, and returns 1; `written` is how the
 * value is shown. */
int ad_key_refuses(const ad_key *key, double value, const char *written, char words[AD_KEY_WORDS_SIZE]);
/* Bytes of one value: in an array of them where the key is a list. 0: of no fixed size (overrides). */
size_t ad_key_value_size(const ad_key *key);
/* The number of `text` among the words of a key; false is the first and true the last; -1: it is none. */
int ad_key_word(const ad_key *key, const char *text);
/* What the value of an AD_KEY_BOOLEAN is printed as. */
const char *ad_key_word_of(const ad_key *key, int number);
/* Its value is a string that belongs to the options. */
int ad_key_is_text(const ad_key *key);
/* Complains of every view that does not have the ranks of `mesh`. */
void ad_keys_check_views(const ad_program_kind *kind, const void *options, const ad_mesh *mesh,
                         const ad_complaints *to);
/* Complains of every number that is out of its key's range, and of every word that there is not. */
void ad_keys_check(const ad_program_kind *kind, const void *options, const ad_complaints *to);

#endif
