/* Printing JSON documents as text for people. What is printed is decided by those who know the document. */
#include "files/printed.h"

#include <stdlib.h>
#include "base/error.h"

static const ad_paint coloured = {"\033[32m", "\033[31m", "\033[33m", "\033[2m", "\033[1m", "\033[0m"};
static const ad_paint plain = {"", "", "", "", "", ""};

const ad_paint *ad_paint_of(ad_text_style style) { return style == AD_COLOURED_TEXT ? &coloured : &plain; }

/* What `print` prints of the document; NULL: no memory. */
static char *text_of_document(json_t *document, ad_document_printer *print, const void *context) {
  char *text = NULL;
  size_t size = 0;
  FILE *file = ad_json_make_printable(document) ? NULL : open_memstream(&text, &size);
  if (!file) return NULL;
  print(file, document, context);
  return fclose(file) ? (free(text), NULL) : text;
}

ad_status ad_document_print(const char *json, const char *of, ad_document_printer *print, const void *context,
                            char **out) {
  json_error_t error;
  json_t *document = json_loads(json, 0, &error);
  if (!document)
    return ad_fail(AD_INVALID, "this is not the JSON document of a %s: line %d: %s", of, error.line, error.text);
  char *text = text_of_document(document, print, context);
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the text of a %s", of);
  *out = text;
  return AD_OK;
}
