/* Prints JSON documents as text for people. What is printed of a document is decided by the folder that makes it. */
#include "files/printed.h"

#include "base/error.h"
#include "base/text_stream.h"

static const ad_paint coloured = {"\033[32m", "\033[31m", "\033[33m", "\033[2m", "\033[1m", "\033[0m"};
static const ad_paint plain = {"", "", "", "", "", ""};

const ad_paint *ad_paint_of(ad_text_style style) { return style == AD_COLOURED_TEXT ? &coloured : &plain; }

static ad_status print_document(json_t *document, const char *what, ad_document_printer *print, const void *context,
                                char **out) {
  ad_text_stream to;
  if (ad_json_make_printable(document)) return ad_fail(AD_MEMORY, "no memory for %s", what);
  AD_TRY(ad_text_stream_open(what, &to));
  print(to.file, document, context);
  return ad_text_stream_close(&to, AD_OK, out);
}

ad_status ad_document_print(const char *json, const char *of, ad_document_printer *print, const void *context,
                            char **out) {
  char what[80];
  json_error_t error;
  json_t *document = json_loads(json, 0, &error);
  if (!document)
    return ad_fail(AD_INVALID, "the text is not the JSON document of a %s, because line %d is not valid (%s)", of,
                   error.line, error.text);
  snprintf(what, sizeof what, "the text of a %s", of);
  ad_status status = print_document(document, what, print, context, out);
  json_decref(document);
  return status;
}
