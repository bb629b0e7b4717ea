/* Addends of one sum that are the same, bit for bit: counts of them cannot be told apart. */
#ifndef DIFF_ALIKE_H
#define DIFF_ALIKE_H
#include <jansson.h>
#include "diff/part.h"

/* What one parameter's addends are to each other. */
typedef struct ad_alike {
  unsigned char *cells; /* [world][microbatches]: 1 for an addend that another one of its sum is equal to */
  unsigned char *ranks; /* [world]: 1 for those with such an addend */
  json_t *who;          /* "ranks 2 and 3 hold the same addend": one key for each set of equal addends */
} ad_alike;

ad_status ad_alike_create(const ad_dump *dump, ad_alike *out) AD_CHECKED;
void ad_alike_destroy(ad_alike *alike);
/* Finds those of one parameter; what was found of another one is forgotten. */
ad_status ad_alike_find(const ad_parts *parts, ad_alike *alike) AD_CHECKED;
/* Writes who holds the same addend, as far as there is room. */
void ad_alike_print(const ad_alike *alike, char *out, size_t size);
/* Counts each key of an ad_alike's `who` in `all`. */
void ad_alike_count(const json_t *who, json_t *all);
/* A message for each of `all`. `params`: of the dump. `allowed`: they are meant to be equal. */
void ad_alike_say(const json_t *all, size_t params, int allowed, json_t *messages);

#endif
