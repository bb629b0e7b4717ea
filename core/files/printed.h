/* Printing JSON documents as text for people: colours, words that every table needs, and the way from the document to
 * its text. */
#ifndef FILES_PRINTED_H
#define FILES_PRINTED_H
#include <stdio.h>
#include "base/text.h"
#include "files/json.h"

/* The escape sequences that a terminal takes for these colours; all are "" in plain text. `open`: a question that
 * cannot be answered; `off` ends each of the others. */
typedef struct ad_paint {
  const char *good, *bad, *open, *dim, *bold, *off;
} ad_paint;
AD_INTERNAL const ad_paint *ad_paint_of(ad_text_style style);

/* Prints the document to the file; `context` is the caller's. */
typedef void ad_document_printer(FILE *file, const json_t *document, const void *context);

/* Reads a document from `json`, makes its texts printable and returns what `print` prints; the caller frees *out. `of`
 * names what the document is of, for messages: "check". AD_INVALID: `json` is no JSON; AD_MEMORY. */
AD_INTERNAL ad_status ad_document_print(const char *json, const char *of, ad_document_printer *print,
                                        const void *context, char **out) AD_CHECKED;

#endif
