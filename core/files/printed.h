/* Printing JSON documents as text for people: colours, and the function that reads a document and prints it. */
#ifndef FILES_PRINTED_H
#define FILES_PRINTED_H
#include <stdio.h>
#include "base/text.h"
#include "files/json.h"

/* The escape sequences of a terminal for these styles; all are "" in plain text. `open` is for a question that could
 * not be answered; `off` ends every other style. */
typedef struct ad_paint {
  const char *good, *bad, *open, *dim, *bold, *off;
} ad_paint;
AD_INTERNAL const ad_paint *ad_paint_of(ad_text_style style);

/* Prints the document to the file; `context` is the `context` of ad_document_print. */
typedef void ad_document_printer(FILE *file, const json_t *document, const void *context);

/* Reads a document from `json`, makes its texts printable and returns in *out what `print` prints; the caller frees
 * *out. `of` is a name for messages of what the document reports on, such as "check". AD_INVALID if `json` is no JSON;
 * AD_MEMORY. */
AD_INTERNAL ad_status ad_document_print(const char *json, const char *of, ad_document_printer *print,
                                        const void *context, char **out) AD_CHECKED;

#endif
