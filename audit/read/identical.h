/* Finds bit-identical addends of one sum: how often each was counted cannot be known, only the total of their
 * counts. */
#ifndef DIFF_IDENTICAL_H
#define DIFF_IDENTICAL_H
#include <jansson.h>
#include "read/part.h"

/* Which addends of one parameter are bit-identical. */
typedef struct ad_identical {
  unsigned char *cells; /* [world][microbatches]: 1 if the addend equals another addend of the same sum */
  unsigned char *ranks; /* [world]: 1 for each rank that holds an addend marked in `cells` */
  json_t *who;          /* keys such as "ranks 2 and 3 hold the same addend", one for each set of equal addends */
} ad_identical;

ad_status ad_identical_create(const ad_dump *dump, ad_identical *out) AD_CHECKED;
void ad_identical_destroy(ad_identical *identical);
/* Finds one parameter's equal addends, and replaces the contents of `identical`, which may be those of the previous
 * parameter. */
ad_status ad_identical_find(const ad_parts *parts, ad_identical *identical) AD_CHECKED;
/* Prints which ranks hold the same addend, for at most two sets of equal addends. */
void ad_identical_print(const ad_identical *identical, char *out, size_t size);
/* Adds 1 to all[sentence] for each sentence that is a key of `who` (of one parameter). `all` then counts for each
 * sentence the parameters of which it is true. */
void ad_identical_count(const json_t *who, json_t *all);
/* Appends a message for each sentence (key) of `all`. `params` is the number of parameters in the dump. `allowed` is
 * 1 if the user expects equal addends (--allow-identical); the messages then have no advice. */
void ad_identical_report(const json_t *all, size_t params, int allowed, json_t *messages);
/* Returns those of `axes`, of type R, along which every addend equals, bit for bit, the addend of the next rank in the
 * same microbatch, and says enough for this not to be chance. */
uint32_t ad_identical_along(const ad_parts *parts, uint32_t axes);
/* Returns 1 if every element of every addend is 0, or if there is no addend. */
int ad_addends_are_zero(const ad_parts *parts);

#endif
