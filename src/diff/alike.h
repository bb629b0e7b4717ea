/* Addends that no element can tell apart, of which the reader is told: two ranks that read the same batch. */
#ifndef DIFF_ALIKE_H
#define DIFF_ALIKE_H
#include <jansson.h>
#include "diff/part.h"

/* `found`: for each set of ranks, in words, of how many parameters they hold the same addend. */
ad_status ad_alike_find(const ad_parts *parts, json_t *found) AD_CHECKED;
/* A message for each set; `params`: how many parameters there are. */
void ad_alike_say(const json_t *found, size_t params, json_t *messages);

#endif
