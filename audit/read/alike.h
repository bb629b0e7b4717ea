/* Addends of one sum that are bit-identical: how often each of them was counted cannot be told apart. */
#ifndef DIFF_ALIKE_H
#define DIFF_ALIKE_H
#include <jansson.h>
#include "read/part.h"

/* Which addends of one parameter are bit-identical. */
typedef struct ad_alike {
  unsigned char *cells; /* [world][microbatches]: 1 where the addend equals another addend of the same sum */
  unsigned char *ranks; /* [world]: 1 for each rank that holds such an addend */
  json_t *who;          /* "ranks 2 and 3 hold the same addend": one key for each set of equal addends */
} ad_alike;

ad_status ad_alike_create(const ad_dump *dump, ad_alike *out) AD_CHECKED;
void ad_alike_destroy(ad_alike *alike);
/* Finds one parameter's equal addends; `alike` forgets those of the parameter before. */
ad_status ad_alike_find(const ad_parts *parts, ad_alike *alike) AD_CHECKED;
/* Prints which ranks hold the same addend, at most two sets of them. */
void ad_alike_print(const ad_alike *alike, char *out, size_t size);
/* Adds 1 to all[key] for each key of an ad_alike's `who`, so that `all` has the number of parameters for each
 * sentence. */
void ad_alike_count(const json_t *who, json_t *all);
/* Appends a message for each key of `all`. `params`: the number of parameters in the dump. `allowed`: the user said
 * that equal addends are meant (--allow-identical), so that no advice is added. */
void ad_alike_say(const json_t *all, size_t params, int allowed, json_t *messages);
/* Whether every element of every addend is 0; 1 also if there is no addend. */
int ad_addends_are_zero(const ad_parts *parts);

#endif
