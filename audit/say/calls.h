/* The collectives that a step's ranks called, as the document of a diff lists them, and what is too much about those that
 * sum gradients. */
#ifndef DIFF_CALLS_H
#define DIFF_CALLS_H
#include <jansson.h>
#include "read/dump.h"

/* If any file has addend.calls, sets two keys of the dump's document: `calls`, the calls of all ranks, where ranks that
 * made the same call share one entry (`made_by`), and `calls_unseen`, the reasons why there may be more calls. An entry
 * has `needed`, the bytes that the sums of its parameters need there (null: not known), and `finding` with a sentence,
 * `text`. `declarations` is that list of the document: an entry on a dtype that a call does not follow is changed in it,
 * and if it has any entries, findings are added to `messages`. No value of a parameter is read. */
ad_status ad_calls_report(const ad_dump *dump, json_t *declarations, json_t *document, json_t *messages) AD_CHECKED;

#endif
