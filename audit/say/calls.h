/* The collectives that a step's ranks called, as the document of a diff lists them. */
#ifndef DIFF_CALLS_H
#define DIFF_CALLS_H
#include <jansson.h>
#include "read/dump.h"

/* If any file has addend.calls, sets two keys of the dump's document: `calls`, the calls of all ranks, where ranks that
 * made the same call share one entry (`made_by`), and `calls_unseen`, the reasons why there may be more calls. */
void ad_calls_report(const ad_dump *dump, json_t *document);

#endif
