/* How many backward passes each rank of a dumped step ran. */
#ifndef DIFF_BACKWARDS_H
#define DIFF_BACKWARDS_H
#include <jansson.h>
#include "read/dump.h"

/* Appends a message to `messages` if ranks ran different numbers of backward passes: the addends of such ranks can
 * only be matched by their order. */
ad_status ad_backwards_report(const ad_dump *dump, json_t *messages) AD_CHECKED;

#endif
