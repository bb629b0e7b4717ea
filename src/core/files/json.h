/* Reads JSON documents from files, and makes texts for them. */
#ifndef FILES_JSON_H
#define FILES_JSON_H
#include <jansson.h>
#include "addend/status.h"
#include "base/internal.h"

/* Reads the object in a file; free it with json_decref. AD_IO names the path and what is wrong: the file cannot be
 * read, is larger than any document of addend's, is no JSON (with the line), or is not an object. */
AD_INTERNAL AD_CHECKED ad_status ad_json_read(const char *path, json_t **out);
/* Replaces every text of the document by its printable form (ad_printable), for tables; -1: no memory. */
AD_INTERNAL AD_CHECKED int ad_json_make_printable(json_t *document);
/* Makes a JSON string of a text from outside. JSON cannot hold a text that is not UTF-8: each of its bytes beyond ASCII
 * becomes '?'. NULL: no memory. */
AD_INTERNAL json_t *ad_json_text(const char *text);

#endif
